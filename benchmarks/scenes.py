"""The lines of the table against TRL: what is played, with which model."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from benchmarks.common import Ours, Rounds, different_starts, one_group, row
from benchmarks.rl import player
from benchmarks.trl_peer import Chooser, Writer, measure
from reflectkit.console import Progress
from reflectkit.envs import env_class, make
from reflectkit.models.hub import PACKAGED
from reflectkit.models.load import LoadedModel, load_player, with_adapter
from reflectkit.models.packaged import model_source
from reflectkit.rollouts.episode import Episode
from reflectkit.seeding import derive
from reflectkit.types import Task

RANK = 16
STARTS, GROUP = 4, 8
"""Episodes of a round, from different starts and from one."""
MICRO = 4
"""Rows of a micro-batch."""
PROMPTS, TOKENS = 4, 128
"""Single-turn prompts of a round, and the tokens of each answer."""
BATCHED, BATCHED_TOKENS = 8, 32
"""The same for continuous batching."""


@dataclass
class Bench:
    """A model, and how long it is measured. model: "tiny", or as in `rlft --model`; pretrained ones get an adapter."""

    model: str
    rounds: int
    seed: int
    data_dir: Path
    progress: Progress
    dtype: str = "float32"

    def player(self) -> LoadedModel:
        """A new copy of the model; all are equal."""
        if self.model == "tiny":
            kind = env_class("taxi")
            return player("tiny", kind.taskset.tasks(kind.levels[-1]), lambda: make("taxi", 8), self.seed)
        source = model_source(self.model, self.data_dir, self.progress) if self.model in PACKAGED else self.model
        loaded = load_player(source, device="cpu", dtype=self.dtype)
        return with_adapter(loaded, RANK, 2 * RANK, self.seed)

    @cached_property
    def sides(self) -> tuple[LoadedModel, LoadedModel]:
        """(ours, theirs)."""
        return self.player(), self.player()


def taxi(bench: Bench) -> Iterator[str]:
    """Choices among six actions: episodes from different starts, and a group from one start."""
    kind = env_class("taxi")
    level = kind.levels[-1]
    tasks = kind.taskset.tasks(level)

    new = partial(make, "taxi", kind.horizons[level])
    mine, other = bench.sides
    ours, theirs = Ours(mine, new, max_tokens=MICRO * 96), Chooser(other, new)
    batches = different_starts(ours, tasks, STARTS, bench.rounds + 1, bench.seed, MICRO)
    yield choices_line(f"taxi, {STARTS} different starts", ours, theirs, batches)
    group = one_group(ours, tasks, GROUP, bench.seed, MICRO)
    yield choices_line(f"taxi, one group of {GROUP}", ours, theirs, [group] * (bench.rounds + 1))


def choices_line(name: str, ours: Ours, theirs: Chooser, batches: Sequence[Sequence[Episode]]) -> str:
    """A line of the table for episodes of choices."""
    prompts = [len(turn.decision.prompt_ids) for played in ours.play(batches[0]) for turn in played.turns]
    rounds = measure(theirs, ours, batches, len(prompts), MICRO)
    return row(f"{name}: {len(prompts)} turns, prompts ≤ {max(prompts)} tokens", rounds)


def distinct_words(completions: list[str], **_: Any) -> list[float]:
    """A reward function in TRL's form."""
    return [len(set(text.split())) / 100 for text in completions]


def sums(count: int, seed: int) -> list[Task]:
    """Single-turn prompts, each another one."""
    chance = random.Random(seed)
    goods = ("apples", "pencils", "tickets", "lamps", "chairs", "stamps", "bottles", "books")
    tasks = []
    for number in range(count):
        (one, other), prices = chance.sample(goods, 2), [chance.randint(2, 98) for _ in range(4)]
        text = (
            f"A shop sells {prices[0]} {one} at {prices[1]} cents each and {prices[2]} {other} at {prices[3]} cents"
            " each. How much does it take in? Explain each step."
        )
        tasks.append(Task(str(number), "prompts", "all", str(number), {"prompt": text}))
    return tasks


def answering(policy: LoadedModel, tokens: int) -> Ours:
    """Our side, which answers single-turn prompts with so many tokens; nothing ends an answer early."""
    new = partial(make, "prompts", 1, reward=("benchmarks.scenes:distinct_words",))
    ours = Ours(policy, new, max_tokens=MICRO * 256, max_new_tokens=tokens)
    ours.agent.dialogue.stop_ids = ours.agent._stop_ids = frozenset()
    return ours


def answers(bench: Bench) -> Iterator[str]:
    """Single-turn prompts with answers of a fixed length, by sampling at temperature 1."""
    tasks = sums(PROMPTS, bench.seed)
    mine, other = bench.sides
    ours = answering(mine, TOKENS)
    batches = [
        [Episode(task, derive(bench.seed, number, task.id)) for task in tasks] for number in range(bench.rounds + 1)
    ]
    played = ours.play(batches[0])
    prompts = {one.task.id: list(one.turns[0].decision.prompt_ids) for one in played}
    theirs = Writer(other, lambda episode: prompts[episode.task.id], TOKENS)
    rounds = measure(theirs, ours, batches, PROMPTS, MICRO)
    yield row(f"{PROMPTS} single-turn prompts, {TOKENS} tokens each, theirs by `generate`", rounds)


def batching(bench: Bench) -> Iterator[str]:
    """Rollouts alone, against transformers' continuous batching."""
    tasks = sums(BATCHED, bench.seed)
    mine, other = bench.player(), bench.player()  # `generate_batch` changes the model's attention
    ours = answering(mine, BATCHED_TOKENS)
    episodes = [Episode(task, derive(bench.seed, task.id)) for task in tasks]
    prompts = {played.task.id: list(played.turns[0].decision.prompt_ids) for played in ours.play(episodes)}
    theirs = Writer(other, lambda episode: prompts[episode.task.id], BATCHED_TOKENS, continuous=True)
    rounds = Rounds()
    for number in range(bench.rounds + 1):
        with rounds.measure("theirs", "rollout"):
            theirs.play(other.model, episodes)
        with rounds.measure("ours", "rollout"):
            ours.play(episodes)
        if number == 0:  # a warm-up
            rounds.clear()
    rounds.tokens = BATCHED * BATCHED_TOKENS
    yield row(f"{BATCHED} single-turn prompts, {BATCHED_TOKENS} tokens each, theirs by `generate_batch`", rounds)


SCENES: dict[str, Callable[[Bench], Iterator[str]]] = {"taxi": taxi, "answers": answers, "batching": batching}
