"""DAgger: the oracle's action on each state that a policy visits, as SFT rows (Ross, Gordon and Bagnell 2011)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reflectkit.agents.scripted import Oracle
from reflectkit.agents.two_player import TwoPlayerAgent
from reflectkit.data.sft_rows import Lesson, plain_row
from reflectkit.data.trajectories import read_records
from reflectkit.env import Agent, Context
from reflectkit.envs.setup import EnvSetup
from reflectkit.jsonl import write_jsonl
from reflectkit.models.labels import completion_ids
from reflectkit.models.load import load_player
from reflectkit.prompts import action_completion
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.sampling.hf import LocalSampler
from reflectkit.seeding import derive, generator
from reflectkit.types import Decision, Observation


@dataclass
class Watched:
    """Acts like `player`, and collects a row with the oracle's action on each state that it can learn from, for envs
    with tools or replies. tokenizer, context: the player's.
    """

    player: Agent
    tokenizer: Any
    context: int
    rows: list[dict[str, Any]] = field(default_factory=list)

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """The player's decision."""
        best = (await Oracle().decide(observation, context)).action
        assert not isinstance(best, int)
        row = plain_row(Lesson(observation, "", action_completion(best), "correction"))
        self.rows.append(row)
        decision = await self.player.decide(observation, context)
        read = len(decision.prompt_ids) + len(completion_ids(self.tokenizer, row["completion"]))
        if not decision.prompt_ids or read > self.context:
            self.rows.remove(row)
        return decision


def visited_rows(setup: EnvSetup, source: Path, policy: Path, episodes: int, seed: int) -> Sequence[Any]:
    """The rows of `episodes` episodes of `policy`, which draws its actions, on problems drawn from `source`."""
    tasks = [record.task for record in read_records(source, setup.env_name)]
    tasks = generator(seed, "dagger").sample(tasks, episodes)
    sampler = LocalSampler(load_player(policy, "policy"))
    watched = Watched(TwoPlayerAgent(sampler, max_new_tokens=64), sampler.tokenizer, sampler.context)
    played = [Episode(task, derive(seed, "dagger", task.id)) for task in tasks]
    rollout(played, setup.maker(setup.kind.levels[-1]), watched, width=64)
    return watched.rows


def write_rows(path: Path, *groups: Sequence[Any]) -> None:
    """All rows of the groups, one after the other."""
    write_jsonl(path, [row for group in groups for row in group])
