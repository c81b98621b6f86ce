"""One run: a learner trains in a game, and what it became is scored exactly."""

from __future__ import annotations

import importlib.util
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from benchmarks.learning.games import GAMES
from benchmarks.learning.learners import OURS, Budget
from benchmarks.learning.rivals import RIVALS
from benchmarks.learning.texts import TEXTS
from benchmarks.learning.trl_rival import TRL
from benchmarks.learning.values import Values
from reflectkit.models.hub import silence_libraries

LEARNERS = OURS | RIVALS | TRL
"""All learners by name."""


class Run(NamedTuple):
    """What is measured at once."""

    budget: str
    seed: int
    learner: str
    game: str

    def __str__(self) -> str:
        return f"{self.game}, {self.learner}, {self.budget}, seed {self.seed}"


class Task(NamedTuple):
    """A run to measure. steps: environment steps of a rival. deadline: of `time.time()`, to begin before."""

    run: Run
    steps: int
    deadline: float


class Outcome(NamedTuple):
    """What a run gave. figures: of a row of results. error: why there are none. Neither: it was too late to begin."""

    run: Run
    figures: dict[str, Any] | None = None
    error: str = ""


def plays(learner: str, game: str) -> bool:
    """Whether this learner is measured on this game."""
    chosen = LEARNERS[learner].games
    return game in chosen if chosen else game in GAMES


def missing_package(learner: str) -> str:
    """What has to be installed for this learner; empty if nothing."""
    package = LEARNERS[learner].package
    return package if package and importlib.util.find_spec(package.replace("-", "_")) is None else ""


def measure(task: Task) -> Outcome:
    """Train and score."""
    run = task.run
    if time.time() > task.deadline:
        return Outcome(run)
    silence_libraries()
    torch.set_num_threads(1)
    game = Values(GAMES[run.game]()) if run.game in GAMES else TEXTS[run.game]()
    try:
        training = LEARNERS[run.learner].train(game, Budget.parse(run.budget), run.seed, task.steps)
    except Exception as error:  # the other runs do not depend on it
        return Outcome(run, error=f"{type(error).__name__}: {error}")
    figures = {
        "sampled": round(game.score(training.sampled), 4),
        "greedy": round(game.score(training.greedy), 4),
        "steps": training.steps,
        "cpu_seconds": round(training.cpu_seconds, 2),
        "idle_updates": training.idle_updates,
        "entropy": None if training.entropy is None else round(training.entropy, 4),
        "tokens": training.tokens,
    }
    return Outcome(run, figures)


@contextmanager
def workers(jobs: int) -> Iterator[Callable[[Sequence[Task]], Iterator[Outcome]]]:
    """A function that measures tasks, `jobs` at once, and yields each outcome when it is there."""
    if jobs == 1:
        yield lambda tasks: map(measure, tasks)
        return
    # A worker leaves Ctrl-C to the parent, which ends it, and ends by itself when the parent is killed.
    with multiprocessing.get_context("spawn").Pool(jobs, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        yield lambda tasks: pool.imap_unordered(measure, tasks)
