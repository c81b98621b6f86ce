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
from reflectkit.envs.alfworld.expert import TREATMENTS
from reflectkit.envs.alfworld.pool import Engine, pool

STEPS = 100  # within which a game must be won
SECONDS = 60.0
TREATING = frozenset(kind for _, kind in TREATMENTS.values())


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
    """PDDL `problem` with nothing to be done about what the goal does not need: a plan for it is one for the whole.

    Of each kind that the goal or a treatment names two are left, and what they lie in. The others stay by type alone, so that
    the engine numbers everything as before.
    """
    start, sign, goal = problem.partition("(:goal")
    kinds = {kind.lower() for kind in re.findall(r"Type\s+\?\w+\s+(\w+)Type", goal, re.IGNORECASE)} | set(TREATING)
    kind_of = {name: kind.lower() for name, kind in re.findall(r"\((?:object|receptacle)Type (\S+) (\w+)Type\)", start)}
    useful = {name for kind in kinds for name in sorted(name for name in kind_of if kind_of[name] == kind)[:2]}
    useful |= {place for name, place in re.findall(r"\(inReceptacle (\S+) (\S+)\)", start) if name in useful}
    idle = kind_of.keys() - useful

    def kept(fact: re.Match[str]) -> str:
        name, *arguments = fact[1].split() or [""]
        return fact[0] if name.endswith("Type") or not idle.intersection(arguments) else ""

    return re.sub(r"\(([^():]*)\)", kept, start) + sign + goal


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

    It plans for the essence: for the whole it takes minutes where there are many receptacles.
    """
    game = read_json(folder / GAME)
    with tempfile.TemporaryDirectory(prefix="reflectkit-plan-") as aside:
        (Path(aside) / GAME).write_text(json.dumps(game | {"pddl_problem": essence(game["pddl_problem"])}), encoding="utf-8")
        engine.reset(Path(aside), None, seconds)
        plan: list[str] = engine.ask(seconds, "plan")
    return plan
