"""Whether a game can be won: the package's handcoded expert plays it, and where that fails, its planner's plan is replayed."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from reflectkit.core.errors import DataError, EnvironmentFailure
from reflectkit.core.jsonl import read_json
from reflectkit.envs.alfworld.engine import GAME, HANDCODED, PLANNER
from reflectkit.envs.alfworld.pool import Engine, pool

STEPS = 100  # within which a game must be won
SECONDS = 60.0


@dataclass(frozen=True)
class Proof:
    """walkthrough: the commands that won. by: whose they are, "handcoded" or "planner". reason: why nobody won; else empty."""

    walkthrough: tuple[str, ...] = ()
    by: str = ""
    reason: str = ""


def prove(folder: Path, seconds: float = SECONDS) -> Proof:
    """What came of the game in `folder`, played in a child process that has `seconds` for each answer.

    Raises ConfigError: the packages are not installed.
    """
    try:
        with _engine(folder) as engine:
            if played := _handcoded(engine, folder, seconds):
                return Proof(tuple(played), HANDCODED)
            plan = _plan(engine, folder, seconds)
            state = engine.reset(folder, None, seconds)
            for command in plan[:STEPS]:
                state = engine.step(command, seconds)
    except (DataError, EnvironmentFailure) as error:
        return Proof(reason=error.message if isinstance(error, DataError) else str(error))
    if state.won:
        return Proof(tuple(plan), PLANNER)
    return Proof(reason=f"the plan does not win within {STEPS} steps" if plan else "there is no plan")


def essence(problem: str) -> str:
    """PDDL `problem` without the objects of kinds that its goal does not name: a plan for it is one for the whole."""
    start, sign, goal = problem.partition("(:goal")
    named = {kind.lower() for kind in re.findall(r"objectType\s+\?\w+\s+(\w+)Type", goal, re.IGNORECASE)}
    declared = re.compile(r"^\s*(\S+) - object\s*$", re.MULTILINE)
    idle = {name for name in declared.findall(start) if name.partition("_bar_")[0].lower() not in named}
    start = declared.sub(lambda found: "" if found[1] in idle else found[0], start)
    start = re.sub(r"\([^():]*\)", lambda found: "" if idle & set(found[0][1:-1].split()) else found[0], start)
    return start + sign + goal


@contextmanager
def _engine(folder: Path) -> Iterator[Engine]:
    engine = pool().take(folder)
    try:
        yield engine
    finally:
        pool().give(engine)


def _handcoded(engine: Engine, folder: Path, seconds: float) -> list[str]:
    """The commands with which the handcoded expert won; empty where it did not."""
    state = engine.reset(folder, HANDCODED, seconds)
    played: list[str] = []
    while not state.won and len(played) < STEPS:
        assert state.advice is not None
        played.append(state.advice)
        state = engine.step(state.advice, seconds)
    return played if state.won else []


def _plan(engine: Engine, folder: Path, seconds: float) -> list[str]:
    """The planner's commands from the start; empty where it finds none.

    It plans without the objects that do not matter: with them it takes minutes where there are many receptacles.
    """
    game = read_json(folder / GAME)
    with tempfile.TemporaryDirectory(prefix="reflectkit-plan-") as aside:
        (Path(aside) / GAME).write_text(json.dumps(game | {"pddl_problem": essence(game["pddl_problem"])}), encoding="utf-8")
        engine.reset(Path(aside), None, seconds)
        plan: list[str] = engine.ask(seconds, "plan")
    return plan
