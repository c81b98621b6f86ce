"""Players of experiment A (AutoExplore): a policy whose reflector only says yes or no, and vetoes the files that it
would name; and one that is asked, and led by the oracle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from reflectkit.agents.scripted import Oracle
from reflectkit.agents.two_player import Reflector, TwoPlayerAgent
from reflectkit.data.episodes import episode_to_json
from reflectkit.data.problems import read_records
from reflectkit.env import Context
from reflectkit.envs import cluster_of
from reflectkit.envs.auto_explore.env import RIGHT_FILE, WRONG_FILE
from reflectkit.envs.setup import EnvSetup
from reflectkit.models.labels import completion_ids, prompt_ids
from reflectkit.models.load import load_player
from reflectkit.prompts import reflection_prompt
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.sampling.base import SampleRequest
from reflectkit.sampling.hf import LocalSampler
from reflectkit.types import Decision, Observation

CONCURRENT = 128
"""Episodes at the same time."""


class Verifier:
    """Acts as `policy`, but does not name a file that the reflector vetoed when it was read: one that it found likelier
    not to answer the question. Where only vetoed files may be named, it acts as `policy`.
    """

    def __init__(self, policy: TwoPlayerAgent, reflector: Reflector) -> None:
        self.policy, self.reflector = policy, reflector

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """The likeliest action that is not vetoed. `note` is the file that was read and vetoed before this step."""
        decision = await self.policy.decide(observation, context)
        if decision.truncation_reason:
            return decision
        head = observation.text.partition("\nOutput:")[0]
        fields = dict(line.split(": ", 1) for line in head.splitlines())
        verb, _, read = fields["Commands"].rpartition("; ")[2].partition(" ")
        if verb == "cat" and await self.answers(observation, read) < 0.5:
            decision = replace(decision, note=f"{fields['Folder']} {read}")
        vetoed = {turn.decision.note for turn in context.turns} | {decision.note}
        allowed = [
            place
            for place, choice in enumerate(observation.choices)
            if f"{fields['Folder']} {choice.removeprefix('id ')}" not in vetoed
        ]
        if decision.action in allowed or not allowed:
            return decision
        return replace(decision, action=max(allowed, key=decision.probabilities.__getitem__))

    async def answers(self, observation: Observation, file: str) -> float:
        """The reflector's probability that `file`, which is shown, answers the question, of its two verdicts. They
        follow its greedy comment up to the verdict.
        """
        sampler = self.reflector.sampler
        comment = await self.reflector.comment(observation, 0)
        noted = comment.partition(f" {file} ")[0]
        ids = prompt_ids(sampler.tokenizer, reflection_prompt(observation))
        ids += completion_ids(sampler.tokenizer, f" {noted}")
        verdicts = [f" {text.format(file=file)}" for text in (*RIGHT_FILE, *WRONG_FILE)]
        labels = tuple(tuple(completion_ids(sampler.tokenizer, verdict)) for verdict in verdicts)
        scored = await sampler.sample(SampleRequest(tuple(ids), labels, temperature=0))
        return math.fsum(map(math.exp, scored.label_logprobs[: len(RIGHT_FILE)]))


def play(setup: EnvSetup, lines: Sequence[Mapping[str, Any]], policy: Path, reflector: Path) -> list[Any]:
    """The verifier's lines of `episodes.jsonl`, on the test problems and seeds of another player's `lines`."""
    tasks = {record.task.id: record.task for record in read_records(setup.folder / "test.json", setup.env_name)}
    plain = TwoPlayerAgent(LocalSampler(load_player(policy, "policy")), answer="text", temperature=0, show=True)
    judge = Reflector(LocalSampler(load_player(reflector, "reflection"), rank=0))
    episodes = [Episode(tasks[line["task"]], line["seed"]) for line in lines]
    played = rollout(episodes, setup.maker("all"), Verifier(plain, judge), width=CONCURRENT)
    return [
        episode_to_json("verifier", trajectory, cluster=cluster_of(setup.env, trajectory.task)) | {"level": "all"}
        for trajectory in played
    ]


class Led:
    """Asks `player`, and takes the oracle's action. losses: of that action among the legal ones, in nats."""

    def __init__(self, player: TwoPlayerAgent) -> None:
        self.player, self.losses = player, list[float]()

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """The oracle's action."""
        best = await Oracle().decide(observation, context)
        asked = await self.player.decide(observation, context)
        self.losses.append(-math.log(asked.probabilities[best.action]))  # type: ignore[index]
        return best


def oracle_losses(
    setup: EnvSetup, problems: Path, policy: Path, reflector: Path | None, count: int | None
) -> list[float]:
    """The loss of the oracle's action in each state of its own episodes on the first `count` of `problems`, or all.

    Which loss belongs to which state is not told. reflector: whose comments the policy reads.
    """
    tasks = [record.task for record in read_records(problems, setup.env_name)][:count]
    judge = Reflector(LocalSampler(load_player(reflector, "reflection"), rank=0)) if reflector else None
    led = Led(TwoPlayerAgent(LocalSampler(load_player(policy)), judge, answer="text", temperature=0, show=True))
    rollout([Episode(task, 0) for task in tasks], setup.maker("all"), led, width=CONCURRENT)
    return led.losses
