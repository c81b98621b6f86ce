"""What both comparisons share: the players, the episodes, our side of a round, and the table of the ratios.

A round is one update: episodes are played, then learnt from. Both sides have the same weights, environment, prompts and
episodes, and take turns in one process with one thread. Time is CPU time, so that other work on the machine counts as
little as possible. The learning rate is 0: all the work of an update is done, and every round starts from the same
weights. A ratio is the other side's time divided by ours, the median over rounds.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from reflectkit.agents.two_player import Reflector, TwoPlayerAgent
from reflectkit.env import Env
from reflectkit.eventloop import run_sync
from reflectkit.models.load import LoadedModel
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.sampling.hf import LocalSampler
from reflectkit.seeding import derive
from reflectkit.train import batch
from reflectkit.train.algorithms import objective
from reflectkit.train.learner import Learner, Settings
from reflectkit.types import Sample, Task, Trajectory

RECIPE = Path(__file__).with_name("players.yaml")
PARTS = ("rollout", "update")


@dataclass
class Rounds:
    """CPU seconds of each side, by part ("rollout", "update"), one value per round.

    left_out: rounds without values, since the two sides did not do the same.
    """

    theirs: dict[str, list[float]] = field(default_factory=lambda: {part: [] for part in PARTS})
    ours: dict[str, list[float]] = field(default_factory=lambda: {part: [] for part in PARTS})
    left_out: int = 0

    def ratios(self, *parts: str) -> list[float]:
        """Their time divided by ours, in each round, over the sum of `parts`."""
        sides = [[sum(row) for row in zip(*(side[part] for part in parts), strict=True)] for side in self.sides]
        return [their / our for their, our in zip(*sides, strict=True)]

    @property
    def sides(self) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
        """Both sides' seconds: theirs, ours."""
        return self.theirs, self.ours

    @property
    def overall(self) -> float:
        """Their time divided by ours, over all rounds together."""
        theirs, ours = (sum(map(sum, side.values())) for side in self.sides)
        return theirs / ours

    def leave_out(self) -> None:
        """Forget the times of the last round, which both sides have finished."""
        for side in self.sides:
            for values in side.values():
                del values[-1:]
        self.left_out += 1

    def clear(self) -> None:
        """Forget all rounds."""
        for side in self.sides:
            for values in side.values():
                values.clear()
        self.left_out = 0


@contextmanager
def timed(seconds: list[float]) -> Iterator[None]:
    """Append the CPU time of the block to `seconds`."""
    started = time.process_time()
    yield
    seconds.append(time.process_time() - started)


@dataclass
class Ours:
    """Our side of the rounds.

    reflector: None without comments. memo: of its comments: "cold" is empty in every round, "warm" has those of the
    round that warms up, and "kept" is empty after it and has those of all rounds since. comment_tokens: the most that
    a comment has. width: episodes played at once; 0: all. max_tokens: of a micro-batch.
    """

    policy: LoadedModel
    reflector: LoadedModel | None
    make: Callable[[], Env]
    memo: str = "cold"
    comment_tokens: int = 100
    width: int = 0
    max_tokens: int = 16384

    def __post_init__(self) -> None:
        settings = Settings(0.0, entropy=0.0, clip=0.2, max_grad_norm=0.3, max_tokens=self.max_tokens)
        self.learner = Learner(self.policy, settings)
        self.sampler = LocalSampler(self.policy)
        self.agent = TwoPlayerAgent(self.sampler, self.new_reflector())
        self.version = 0

    def new_reflector(self) -> Reflector | None:
        """A reflector that has not commented yet."""
        if self.reflector is None:
            return None
        sampler = LocalSampler(self.reflector, frozen=True, rank=0)
        return Reflector(sampler, max_new_tokens=self.comment_tokens)

    def play(self, episodes: Sequence[Episode]) -> list[Trajectory]:
        """Play `episodes` with weights that have just changed."""
        self.version += 1
        run_sync(self.sampler.publish(self.policy, self.version))
        return rollout(episodes, self.make, self.agent, width=self.width or len(episodes))

    def learn(self, played: Sequence[Trajectory]) -> list[Sample]:
        """One update by REINFORCE with the mean return as its baseline. Returns its rows."""
        estimates = objective("reinforce", normalize=False).estimate(played)
        offered = {turn.observation.choices for trajectory in played for turn in trajectory.turns}
        labels = {choices: self.agent.labels(choices) for choices in offered}
        samples = batch.rows(played, estimates.advantages, estimates.returns, labels)
        self.learner.update(samples, random.Random(0))
        return samples

    def round(self, episodes: Sequence[Episode], rounds: Rounds) -> list[Trajectory]:
        """Play and learn, timed."""
        if self.memo == "cold":
            self.agent.reflector = self.new_reflector()
        with timed(rounds.ours["rollout"]):
            played = self.play(episodes)
        with timed(rounds.ours["update"]):
            self.learn(played)
        return played


def different_starts(
    ours: Ours, tasks: Sequence[Task], size: int, count: int, seed: int, multiple: int
) -> list[list[Episode]]:
    """`count` batches of `size` episodes of different tasks, all with the same number of turns, a multiple of
    `multiple`: a trainer with a fixed number of rows per update can be given exactly these.

    Episodes do not depend on each other, so batches are picked from a pool whose lengths are known.
    """
    chance = random.Random(seed)
    picked = chance.sample(list(tasks), min(len(tasks), 12 * size))
    pool = [Episode(task, derive(seed, task.id), task.id) for task in picked]
    turns = {episode.seed: len(played.turns) for episode, played in zip(pool, ours.play(pool), strict=True)}
    found: dict[int, list[list[Episode]]] = {}
    for _ in range(100_000):
        drawn = chance.sample(pool, size)
        total = sum(turns[episode.seed] for episode in drawn)
        if total and total % multiple == 0:
            found.setdefault(total, []).append(drawn)
            if len(found[total]) == count:
                return found[total]
    raise SystemExit(f"no {count} batches of {size} episodes have the same number of turns")


def one_group(ours: Ours, tasks: Sequence[Task], size: int, seed: int, multiple: int) -> list[Episode]:
    """`size` episodes from the same start, of 3 turns or more on average, in all a multiple of `multiple`."""
    pool = [
        Episode(task, derive(seed, task.id)) for task in random.Random(seed).sample(list(tasks), min(len(tasks), 96))
    ]
    longest = sorted(ours.play(pool), key=lambda played: -len(played.turns))[: 2 * size]
    for attempt in range(400):
        task = longest[attempt % len(longest)].task
        drawn = [Episode(task, derive(seed, attempt, index), task.id, start=attempt) for index in range(size)]
        total = sum(len(trajectory.turns) for trajectory in ours.play(drawn))
        if total >= 3 * size and total % multiple == 0:
            return drawn
    raise SystemExit(f"no group of {size} episodes has 3 turns or more on average, in all a multiple of {multiple}")


def prepared_players(folder: Path) -> dict[str, Path]:
    """The checkpoints of the recipe next to this file by the names of its steps, trained in `folder` if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "reflectkit", "run", str(RECIPE.resolve())]
    subprocess.run(command, cwd=folder, check=True, env=os.environ | {"PYTHONPATH": str(RECIPE.parents[1])})
    checkpoints = sorted((folder / "results" / "players").glob("*/checkpoint-*"), key=lambda path: path.stat().st_mtime)
    return {checkpoint.parent.name: checkpoint.resolve() for checkpoint in checkpoints}


def row(name: str, rounds: Rounds) -> str:
    """A line of the table: median (lowest to highest) of each ratio; empty for a part that was not measured."""
    if rounds.left_out:
        name = f"{name}; left out: {rounds.left_out} rounds that were not played alike"
    parts = [part for part in PARTS if rounds.ours[part]]
    if not parts:
        return f"| {name} | | | | |"
    cells = {part: _cell(rounds.ratios(part)) for part in parts}
    both = _cell(rounds.ratios(*PARTS)) if len(parts) == len(PARTS) else ""
    seconds = [statistics.median(map(sum, zip(*(side[part] for part in parts), strict=True))) for side in rounds.sides]
    shown = " | ".join([*(cells.get(part, "") for part in PARTS), both])
    return f"| {name} | {shown} | {seconds[0]:.2f} / {seconds[1]:.2f} |"


def _cell(ratios: Sequence[float]) -> str:
    """The median of some ratios, and the lowest and highest."""
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


HEAD = "| theirs / ours | rollout | update | both | CPU seconds a round |\n|---|---|---|---|---|"
