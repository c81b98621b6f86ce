"""Checks that a game can be won: the package's handcoded expert plays it; if that fails, the planner's plan is
replayed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from reflectkit.envs.alfworld.engine import HANDCODED, PLANNER, State
from reflectkit.envs.alfworld.pool import Engine, pool
from reflectkit.errors import DataError, EnvironmentFailure

STEPS = 100  # within which a game must be won
SECONDS = 60.0


@dataclass(frozen=True)
class Solution:
    """walkthrough: the winning commands. by: their author, "handcoded" or "planner". reason: why there are none, else
    empty.
    """

    walkthrough: tuple[str, ...] = ()
    by: str = ""
    reason: str = ""


def find_solution(folder: Path, seconds: float = SECONDS) -> Solution:
    """Play the game in `folder`, in a child process that has `seconds` for each answer.

    Raises ConfigError if the packages are not installed.
    """
    try:
        return _find(folder, seconds)
    except DataError as error:
        return Solution(reason=error.message)
    except EnvironmentFailure:  # the engine or the machine failed; try again with a new engine
        try:
            return _find(folder, seconds)
        except (DataError, EnvironmentFailure) as error:
            return Solution(reason=str(error))


def _find(folder: Path, seconds: float) -> Solution:
    with _engine(folder) as engine:
        if played := _handcoded(engine, folder, seconds):
            return Solution(tuple(played), HANDCODED)
        state: State = engine.ask(seconds, "reset", folder, None)
        plan: list[str] = engine.ask(seconds, "plan")
        for command in plan[:STEPS]:
            state = engine.ask(seconds, "step", command)
    if state.won:
        return Solution(tuple(plan), PLANNER)
    return Solution(reason=f"the plan does not win within {STEPS} steps" if plan else "there is no plan")


@contextmanager
def _engine(folder: Path) -> Iterator[Engine]:
    engine = pool().take(folder)
    try:
        yield engine
    finally:
        pool().give(engine)


def _handcoded(engine: Engine, folder: Path, seconds: float) -> list[str]:
    """The winning commands of the handcoded expert; empty if it did not win."""
    state: State = engine.ask(seconds, "reset", folder, HANDCODED)
    played: list[str] = []
    while not state.won and len(played) < STEPS:
        assert state.advice is not None
        played.append(state.advice)
        state = engine.ask(seconds, "step", state.advice)
    return played if state.won else []
