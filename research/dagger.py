"""DAgger: the oracle's action on each state that a policy visits, as SFT rows (Ross, Gordon and Bagnell 2011)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reflectkit.agents.scripted import Oracle
from reflectkit.agents.two_player import TwoPlayerAgent
from reflectkit.data.problems import read_records
from reflectkit.data.sft_rows import Lesson, SFTRow, plain_row
from reflectkit.env import Agent, Context
from reflectkit.envs.setup import EnvSetup
from reflectkit.jsonl import write_jsonl
from reflectkit.models.load import load_player
from reflectkit.prompts import action_completion
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.sampling.hf import LocalSampler
from reflectkit.seeding import derive, generator
from reflectkit.train.sft.tokens import encode
from reflectkit.types import Decision, Observation


@dataclass
class Watched:
    """Acts like `player`, and collects a row with the oracle's action on each state, for envs with tools or replies."""

    player: Agent
    rows: list[dict[str, Any]] = field(default_factory=list)

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """The player's decision."""
        best = (await Oracle().decide(observation, context)).action
        assert not isinstance(best, int)
        self.rows.append(plain_row(Lesson(observation, "", action_completion(best), "correction")))
        return await self.player.decide(observation, context)


def visited_rows(setup: EnvSetup, source: Path, policy: Path, episodes: int, seed: int) -> Sequence[Any]:
    """The rows of `episodes` episodes of `policy`, which draws its actions, on problems drawn from `source`; without
    those that do not fit into its context.
    """
    tasks = [record.task for record in read_records(source, setup.env_name)]
    tasks = generator(seed, "dagger").sample(tasks, episodes)
    player = load_player(policy, "policy")
    watched = Watched(TwoPlayerAgent(LocalSampler(player), max_new_tokens=64))
    played = [Episode(task, derive(seed, "dagger", task.id)) for task in tasks]
    rollout(played, setup.maker(setup.kind.levels[-1]), watched, width=64)
    read = [SFTRow(0, ((row["prompt"], row["completion"]),)) for row in watched.rows]
    lengths = [len(one["input_ids"]) for one in encode(source, read, player.tokenizer, role="plain")]
    return [row for row, length in zip(watched.rows, lengths, strict=True) if length <= player.context]


def write_rows(path: Path, *groups: Sequence[Any]) -> None:
    """All rows of the groups, one after the other."""
    write_jsonl(path, [row for group in groups for row in group])
