"""Whether a game can be won: the package's handcoded expert plays it, and where that fails, its planner's plan is replayed.

A `Prover` keeps a child process that runs this file and answers a line of JSON for a line of JSON. A game that takes too long
costs the child, not the caller; the child ends when the caller does. Departs from the package, whose wrapper plays the
handcoded expert whichever is asked for.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import select
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reflectkit.core.errors import EnvironmentFailure
from reflectkit.envs.alfworld.games import PLAYABLE

STEPS = 100  # within which a game must be won
PATIENCE_S = 60.0
HANDCODED, PLANNER = "handcoded", "planner"


@dataclass(frozen=True)
class Proof:
    """walkthrough: the commands that won. by: whose they are, "handcoded" or "planner". reason: why nobody won; else empty."""

    walkthrough: tuple[str, ...] = ()
    by: str = ""
    reason: str = ""


class Prover:
    """A child process that plays games, one at a time. patience_s: seconds that one may take."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self.patience_s, self._closed = patience_s, False
        self._child: subprocess.Popen[bytes] | None = None
        self._home = tempfile.TemporaryDirectory(prefix="reflectkit-alfworld-")

    def prove(self, game: Path) -> Proof:
        """What came of the game in folder `game`. Raises EnvironmentFailure once it is closed."""
        if self._closed:
            raise EnvironmentFailure(f"{game.name}: no more games are played")
        child = self._child = self._child or self._start()
        assert child.stdin is not None
        assert child.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(json.dumps(str(game.resolve())).encode() + b"\n")
            child.stdin.flush()
        if not select.select([child.stdout], [], [], self.patience_s)[0]:
            self._stop()
            return Proof(reason=f"no answer within {self.patience_s:g} s")
        answer = child.stdout.readline()
        if not answer:
            self._stop()
            return Proof(reason="the engine's process died")
        told = json.loads(answer)
        return Proof(tuple(told["walkthrough"]), told["by"], told["reason"])

    def close(self) -> None:
        """End the child."""
        self._closed = True
        self._stop()
        self._home.cleanup()

    def _start(self) -> subprocess.Popen[bytes]:
        surroundings = os.environ | {"ALFWORLD_DATA": self._home.name, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-m", "reflectkit.envs.alfworld.prove"]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=surroundings)

    def _stop(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
            self._child = None


def _prove(game: Path) -> Proof:
    try:
        played, won = _handcoded(game)
        if won:
            return Proof(tuple(played), HANDCODED)
        plan, won = _planned(game)
    except (Exception, SystemExit) as error:  # the package raises whatever comes, and its translator exits
        return Proof(reason=f"the engine failed: {type(error).__name__}")
    if won:
        return Proof(tuple(plan), PLANNER)
    return Proof(reason=f"not won within {STEPS} steps" if plan else "no plan")


def _engine() -> Any:
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
    from textworld import EnvInfos
    from textworld.envs import PddlEnv

    return AlfredDemangler(PddlEnv(EnvInfos(admissible_commands=True, facts=True, won=True)))


def _handcoded(game: Path) -> tuple[list[str], bool]:
    """The commands that the handcoded expert gave, and whether they won."""
    from alfworld.agents.expert import handcoded_expert
    from alfworld.agents.expert.handcoded_expert_tw import HandCodedTWAgent

    handcoded_expert.random = random.Random(0)
    expert, engine, played = HandCodedTWAgent(max_steps=STEPS), _engine(), [""]
    expert.reset(str(game / PLAYABLE))
    engine.load(str(game / PLAYABLE))
    state = engine.reset()
    expert.observe(state["feedback"])
    command = "look"
    while not state["won"] and len(played) <= STEPS:
        state, _, _ = engine.step(command)
        played.append(command)
        try:
            command = expert.act(state, 0, state["won"], command)
        except (NameError, IndexError, KeyError):  # how it gives up
            break
        if command not in state["admissible_commands"]:
            command = "look"
    return played[1:], state["won"]


def essence(problem: str) -> str:
    """PDDL `problem` without the objects of kinds that its goal does not name: a plan for it is one for the whole."""
    start, sign, goal = problem.partition("(:goal")
    named = {kind.lower() for kind in re.findall(r"objectType\s+\?\w+\s+(\w+)Type", goal, re.IGNORECASE)}
    declared = re.compile(r"^\s*(\S+) - object\s*$", re.MULTILINE)
    idle = {name for name in declared.findall(start) if name.partition("_bar_")[0].lower() not in named}
    start = declared.sub(lambda found: "" if found[1] in idle else found[0], start)
    start = re.sub(r"\([^():]*\)", lambda found: "" if idle & set(found[0][1:-1].split()) else found[0], start)
    return start + sign + goal


def _planned(game: Path) -> tuple[list[str], bool]:
    """The planner's commands from the start, and whether they won when they were played.

    It plans without the objects that do not matter: with them it takes minutes where there are many receptacles.
    """
    playable = json.loads((game / PLAYABLE).read_text(encoding="utf-8"))
    engine = _engine()
    engine.load(playable | {"pddl_problem": essence(playable["pddl_problem"])})
    engine.reset()
    inner = engine.unwrapped
    plan = inner._pddl_state.replan(inner._entity_infos)
    engine.load(playable)
    state = engine.reset()
    for command in plan[:STEPS]:
        state, _, _ = engine.step(command)
    return plan, state["won"]


def _serve() -> None:
    """Answer every line of the input, until it ends. What the engines print goes nowhere."""
    with os.fdopen(os.dup(1), "wb", buffering=0) as answers:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        for line in sys.stdin:
            proof = _prove(Path(json.loads(line)))
            told = {"walkthrough": proof.walkthrough, "by": proof.by, "reason": proof.reason}
            answers.write(json.dumps(told).encode() + b"\n")


if __name__ == "__main__":
    _serve()
