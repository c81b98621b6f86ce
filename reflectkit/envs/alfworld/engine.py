"""One game, played by ALFWorld's own engine in this process.

Departs from the package: nothing is created where ALFWORLD_DATA points, `sys.argv` stays as it is,
nothing is printed, and the expert that is asked for is the one that advises (the package's
`planner` is its handcoded one).
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import random
import re
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reflectkit.errors import ConfigError, DataError

PACKAGES = ("alfworld", "textworld", "fast_downward")
HANDCODED, PLANNER = "handcoded", "planner"
GAME, RECORD = "game.tw-pddl", "traj_data.json"
GAME_ATTRIBUTES = ("_game_data", "_game_file", "_logic", "_entity_infos", "walkthrough")
"""What the engine keeps of a game that it loaded; a reset makes the rest anew."""
GAMES = 16  # loaded games that are kept
LONGEST = 200  # steps for which the handcoded expert advises
CHANGES_NOTHING = ("look", "inventory", "help", "examine")


@dataclass(frozen=True, slots=True)
class State:
    """The engine's state after a command."""

    feedback: str
    """The text that the game displays."""
    commands: tuple[str, ...]
    """The admissible commands, in the engine's order."""
    score: float
    """0 or 1."""
    won: bool
    """Whether the goal is reached."""
    lost: bool
    """Whether the game ended without success."""
    advice: str | None = None
    """The next command of the engine's expert, if there is one."""


def check_installed() -> None:
    """Raises ConfigError if a package of the engine is missing."""
    for package in PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise not_installed(f"No module named {package!r}")


def not_installed(detail: str) -> ConfigError:
    """The error for an engine that cannot be imported."""
    return ConfigError(
        f"env 'alfworld' needs its engine ({detail}): pip install 'reflectkit[alfworld]' (or: make"
        " alfworld)"
    )


@contextlib.contextmanager
def _isolated() -> Iterator[None]:
    """Silence the code in the block, and restore `sys.argv` and ALFWORLD_DATA afterwards."""
    arguments, data = sys.argv, os.environ.get("ALFWORLD_DATA")
    # The package makes this folder when it is imported
    os.environ["ALFWORLD_DATA"] = tempfile.gettempdir()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        sys.argv = arguments
        os.environ.pop("ALFWORLD_DATA")
        if data is not None:
            os.environ["ALFWORLD_DATA"] = data


class Game:
    """An engine and its current game. Recently loaded games are cached.

    Raises ConfigError: the packages are not installed.
    """

    def __init__(self) -> None:
        check_installed()
        with _isolated():
            import fast_downward
            import textworld
            from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
            from textworld.envs import PddlEnv

            self._infos = textworld.EnvInfos(admissible_commands=True)
            self._env: Any = AlfredDemangler(PddlEnv(self._infos))
            self._planner = fast_downward.interface.load_lib()
        self._loaded: dict[tuple[Path, int, int], dict[str, Any]] = {}

    def reset(self, folder: Path, expert: str | None = None) -> State:
        """Begin the game in `folder`, whose files `games.read` has checked; `expert` advises.

        Raises DataError: the files are no valid game, or the planner finds no way to win it.
        """
        self._load(folder)
        random.seed(0)  # the handcoded expert draws from it
        self._infos.facts = expert == HANDCODED
        with _isolated():
            self._state = self._env.reset()
            self._adviser: Any = None
            if expert is not None:
                self._adviser = ADVISERS[expert](self, folder)
            return self._observe()

    def _load(self, folder: Path) -> None:
        """Load a game, from memory if its file has not changed since. Raises DataError."""
        # 1. From memory
        file = folder / GAME
        status = file.stat()
        key = folder, status.st_mtime_ns, status.st_size
        if key in self._loaded:
            vars(self._env.unwrapped).update(self._loaded[key])
            return
        # 2. From its file
        with _isolated():
            from mementos.core import _memento_cache

            _memento_cache.clear()  # the package keeps each fact of each game for ever
            try:
                self._env.load(str(file))
            # The translator has many ways to say that PDDL is wrong
            except (Exception, SystemExit) as error:
                reason = " ".join(f"{type(error).__name__} {error}".split())[:200]
                raise DataError(
                    file, f"cannot be won, or its PDDL is broken ({reason}); generate it again"
                ) from None
        # 3. Keep it, in the place of the oldest
        if len(self._loaded) >= GAMES:
            self._loaded.pop(next(iter(self._loaded)))
        attributes = vars(self._env.unwrapped)
        self._loaded[key] = {
            name: value for name, value in attributes.items() if name in GAME_ATTRIBUTES
        }

    def step(self, command: str) -> State:
        """Take `command`."""
        with _isolated():
            self._state, _, _ = self._env.step(command)
            if self._adviser is not None:
                self._adviser.follow(command)
            return self._observe()

    def plan(self) -> list[str]:
        """Commands that win from the current state; empty if the planner finds none."""
        from fast_downward import Operator
        from fast_downward.interface import pddl2sas

        # 1. A smaller problem with the same solution
        inner = self._env.unwrapped
        state = inner._pddl_state
        facts = [(fact.name, *fact.names) for fact in state.facts]
        problem = essential(inner._game_data["pddl_problem"], state.name2type, facts)
        # 2. Its plan
        with _isolated():
            _, translated = pddl2sas(inner._game_data["pddl_domain"], problem, optimize=True)
            if not self._planner.solve_sas(translated.encode(), False):
                return []
            operators = (Operator * self._planner.get_last_plan_length())()
            self._planner.get_last_plan(operators)
        # 3. As commands
        commands = state.plan_to_templated_actions(
            [operator.name for operator in operators], inner._entity_infos
        )
        return [" ".join(command.split()) for command in commands]

    def _observe(self) -> State:
        state = self._state
        won = bool(state["won"])
        advice = self._adviser.advice() if self._adviser is not None and not won else None
        return State(
            state.feedback,
            tuple(state["admissible_commands"]),
            float(won),
            won,
            bool(state["lost"]),
            advice,
        )


def essential(
    problem: str,
    objects: Mapping[str, str],
    facts: Collection[tuple[str, ...]],
) -> str:
    """PDDL of the rest of `problem` from the state given by `facts`, reduced to the relevant
    objects.

    These are two objects of each kind that the goal names, those closest to the goal first, two
    receptacles of each kind, the object in hand, and the places of all these. A plan for it also
    solves the full problem, and takes a fraction of a second instead of minutes.

    objects: the type of each name. facts: predicate and names; negated and derived facts are
    ignored.
    """
    # 1. What the goal names, and what is where
    goal = problem[problem.index("(:goal") :]
    goal_kinds = set()
    for kind in re.findall(r"Type\s+\?\w+\s+(\w+Type)", goal, re.IGNORECASE):
        goal_kinds.add(kind.lower())
    kinds: dict[str, str] = {}
    places: dict[str, str] = {}
    useful: set[str] = set()
    treated = set()
    for predicate, *names in facts:
        if predicate in ("objecttype", "receptacletype"):
            kinds[names[0]] = names[1]
        elif predicate == "inreceptacle":
            places[names[0]] = names[1]
        elif predicate == "holds":
            useful.add(names[1])
        elif predicate in ("isclean", "ishot", "iscool"):
            treated.add(names[0])
    names_by_kind: dict[str, list[str]] = {}
    for name, kind in kinds.items():
        names_by_kind.setdefault(kind, []).append(name)

    # 2. Two of each kind, the object in hand, and the places of all these
    def distance(name: str) -> tuple[bool, bool, bool, str]:
        is_elsewhere = kinds.get(places.get(name, "")) not in goal_kinds
        return name not in useful, name not in treated, is_elsewhere, name

    for kind, names in names_by_kind.items():
        if kind in goal_kinds or objects[names[0]] == "receptacle":
            useful = useful.union(sorted(names, key=distance)[:2])
    useful |= {places[name] for name in useful if name in places}

    # 3. The problem without the rest
    idle = kinds.keys() - useful
    entries = [f"{name} - {kind}" for name, kind in objects.items() if name not in idle]
    objects_left = " ".join(entries)
    facts_left = []
    for fact in facts:
        if not fact[0].startswith(("not_", "new-axiom")) and not idle.intersection(fact):
            facts_left.append(fact)
    state = " ".join(f"({' '.join(fact)})" for fact in facts_left)
    return (
        f"(define (problem rest) (:domain alfred) (:objects {objects_left}) (:init (= (total-cost)"
        f" 0) {state}) {goal}"
    )


class _Handcoded:
    """The package's own rules. Where their command is not admissible it is "look", as in the
    package.
    """

    def __init__(self, game: Game, folder: Path) -> None:
        from alfworld.agents.expert import HandCodedTWAgent

        self.game = game
        self.agent = HandCodedTWAgent(max_steps=LONGEST)
        self.agent.reset(str(folder / GAME))
        self.agent.observe(game._state.feedback)
        self.next = "look"

    def follow(self, command: str) -> None:
        state = self.game._state
        try:
            advice = self.agent.act(state, 0, state["won"], command)
        except Exception:  # it gives up, or meets what its rules do not foresee
            advice = "look"
        self.next = advice if advice in state["admissible_commands"] else "look"

    def advice(self) -> str:
        return self.next


class _Planner:
    """The planner: one plan at the start, and a new one after each departure from it."""

    def __init__(self, game: Game, folder: Path) -> None:
        self.game, self.folder = game, folder
        self.plan: list[str] | None = None

    def follow(self, command: str) -> None:
        if self.plan and command == self.plan[0]:
            self.plan.pop(0)
        elif command.split()[0] not in CHANGES_NOTHING:
            self.plan = None

    def advice(self) -> str:
        if self.plan is None:
            self.plan = self.game.plan()
        if not self.plan:
            raise DataError(
                self.folder,
                "the planner finds no way to win this game; leave it out, or generate it again",
            )
        return self.plan[0]


ADVISERS = {HANDCODED: _Handcoded, PLANNER: _Planner}
