"""Generates games for the ALFWorld engine, in the benchmark's file format: a room, a goal, and a place for each object.

Goals, task texts and the rules of what fits where come from the tables of the installed alfworld package. Departs from
the benchmark: objects are placed at random instead of by a simulator, and no goal object starts at its destination.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from reflectkit.envs.alfworld.engine import GAME, RECORD
from reflectkit.envs.alfworld.expert import CLEAN, COOL, HEAT, LOOK, TWO, TYPES
from reflectkit.envs.alfworld.games import PROBLEM, matches
from reflectkit.envs.alfworld.layouts import Receptacle, Room, rooms
from reflectkit.envs.alfworld.package import domain, grammar, table, task_text
from reflectkit.errors import ConfigError
from reflectkit.seeding import derive, generator

TOOLS = {CLEAN: ("Cleanable", "SinkBasin"), HEAT: ("Heatable", "Microwave"), COOL: ("Coolable", "Fridge")}
LAMP = "DeskLamp"
LAMP_STANDS = frozenset(("Desk", "SideTable", "Dresser", "Shelf", "CoffeeTable", "DiningTable"))
SINGLE = frozenset(("StoveBurner", "CoffeeMachine", "Toaster", "ToiletPaperHanger", "TowelHolder", "HandTowelHolder"))
WIDE = frozenset(("CounterTop", "DiningTable", "Desk", "Dresser", "Bed", "CoffeeTable", "SideTable", "Fridge"))
OPEN_SHARE = 0.1  # of the cabinets and drawers, at the start
COPIES = (1, 1, 1, 2, 2, 3)  # of a kind of object, by chance


@dataclass(frozen=True)
class Goal:
    """What to do, and where. receptacle: the kind of the destination; in look games, the lamp."""

    level: str
    item: str
    receptacle: str
    room: Room

    @property
    def name(self) -> str:
        """The folder name that the benchmark uses for such games: TYPE-Object-None-Receptacle-FLOOR."""
        return f"{self.level}-{self.item}-None-{self.receptacle}-{self.room.number}"


@dataclass(frozen=True)
class Game:
    """The contents of a game's files. problem: PDDL. trajectory: the content of traj_data.json. grammar: includes the
    task's text.
    """

    goal: Goal
    problem: str
    trajectory: dict[str, Any]
    grammar: str

    def files(self, walkthrough: Sequence[str]) -> dict[str, str]:
        """Name → text of the three files. walkthrough: the winning commands."""
        playable = {
            "pddl_domain": domain(),
            "grammar": self.grammar,
            "pddl_problem": self.problem,
            "solvable": True,
            "walkthrough": list(walkthrough),
        }
        return {
            PROBLEM: self.problem,
            RECORD: json.dumps(self.trajectory, indent=1) + "\n",
            GAME: json.dumps(playable) + "\n",
        }


@cache
def goals(level: str, patterns: tuple[str, ...] = ()) -> tuple[Goal, ...]:
    """All goals of `level` that fit a room and whose name matches. Raises ConfigError."""
    matching = []
    for room in rooms():
        if room.kind in table("constants").GOALS_VALID[level]:
            matching += [goal for goal in _goals(level, room) if matches(goal.name, patterns)]
    return tuple(matching)


def levels(patterns: tuple[str, ...]) -> tuple[str, ...]:
    """The types of the games that match one of `patterns`. Raises ConfigError if there are none."""
    types = tuple(level for level in TYPES if goals(level, patterns))
    if not types:
        examples = ", ".join(goals(level)[0].name for level in TYPES[:2])
        raise ConfigError(f"no game that matches --games {' '.join(patterns)} can be made; names are like {examples}")
    return types


def trial_name(seed: int, number: int, patterns: tuple[str, ...]) -> str:
    """The name of game `number`; it depends on the patterns."""
    return f"trial_G{seed}_" + (f"{derive(0, *patterns):016x}_" if patterns else "") + str(number)


def draw(seed: int, number: int, attempt: int, level: str, patterns: tuple[str, ...] = ()) -> Game:
    """Attempt `attempt` at game `number`, of a type in `levels(patterns)`. Same arguments, same game."""
    hosts = goals(level, patterns)
    chance = generator(seed, "game", level, number, attempt)
    room = chance.choice(list(dict.fromkeys(goal.room.number for goal in hosts)))
    goal = chance.choice([goal for goal in hosts if goal.room.number == room])
    name = trial_name(seed, number, patterns)
    parameters = {
        "object_target": goal.item,
        "parent_target": "" if level == LOOK else goal.receptacle,
        "toggle_target": goal.receptacle if level == LOOK else "",
        "mrecep_target": "",
    }
    text = task_text(level, parameters, chance)
    trajectory = {
        "task_id": name,
        "task_type": level,
        "pddl_params": parameters | {"object_sliced": False},
        "scene": {"floor_plan": goal.room.name, "scene_num": goal.room.number, "random_seed": seed},
        "turk_annotations": {"anns": [{"task_desc": text, "high_descs": []}]},
    }
    return Game(goal, _problem(name, goal, chance), trajectory, grammar(text))


def _goals(level: str, room: Room) -> Iterable[Goal]:
    constants = table("constants")
    receptacle_kinds = {receptacle.kind for receptacle in room.receptacles}
    items = [kind for kind in room.kinds if any(kind in _holds(other) for other in receptacle_kinds)]
    if level == LOOK:
        if LAMP in room.kinds and receptacle_kinds & LAMP_STANDS:
            yield from (Goal(level, item, LAMP, room) for item in items)
        return
    tool = ""
    if level in TOOLS:
        ability, tool = TOOLS[level]
        items = [item for item in items if item in constants.VAL_ACTION_OBJECTS[ability] and tool in receptacle_kinds]
    for item in items:
        for kind in sorted(receptacle_kinds):
            elsewhere = any(item in _holds(other) for other in receptacle_kinds - {kind})
            if item in _holds(kind) and elsewhere and kind != tool and not (level == TWO and kind in SINGLE):
                yield Goal(level, item, kind, room)


def _holds(kind: str) -> frozenset[str]:
    return frozenset(table("constants").VAL_RECEPTACLE_OBJECTS.get(kind, ()))


def _placed(goal: Goal, chance: random.Random) -> list[tuple[str, str, Receptacle]]:
    """(name, kind, receptacle) of each object: those of the goal first, then the room's other objects."""
    room = goal.room
    free = {
        receptacle: 1 if receptacle.kind in SINGLE else 9 if receptacle.kind in WIDE else 3
        for receptacle in room.receptacles
    }
    counts = Counter({kind: chance.choice(COPIES) for kind in room.kinds})
    counts[goal.item] = max(counts[goal.item], 2 if goal.level == TWO else 1)
    if LAMP in counts:
        counts[LAMP] = 1
    rest = sorted(set(counts) - {goal.item, LAMP})
    chance.shuffle(rest)
    placed = []
    for kind in (goal.item, LAMP, *rest):
        for copy in range(counts[kind]):
            hosts = [receptacle for receptacle, left in free.items() if left and _may_start(kind, receptacle, goal)]
            if hosts:
                host = chance.choice(hosts)
                free[host] -= 1
                x, y, z = host.name.split("|")[1:4]
                placed.append((f"{kind}|{x}|{float(y) + 0.05:+06.2f}|{z}|{copy + 1}", kind, host))
    return placed


def _may_start(kind: str, receptacle: Receptacle, goal: Goal) -> bool:
    if kind == LAMP:
        return receptacle.kind in LAMP_STANDS
    return kind in _holds(receptacle.kind) and not (kind == goal.item and receptacle.kind == goal.receptacle)


def _problem(name: str, goal: Goal, chance: random.Random) -> str:
    """The initial state and the goal in PDDL, as in the benchmark's initial_state.pddl."""
    constants = table("constants")
    room, placed = goal.room, _placed(goal, chance)
    start = "loc|{}|{}|{}|{}".format(*chance.choice(room.places))
    location = {receptacle.name: "loc|{}|{}|{}|{}".format(*receptacle.place) for receptacle in room.receptacles}
    receptacle_kinds = sorted({receptacle.kind for receptacle in room.receptacles} | _named(goal))
    item_kinds = sorted({kind for _, kind, _ in placed} | {goal.item})
    objects = ["agent1 # agent"]
    objects += [f"{kind}Type # otype" for kind in item_kinds]
    objects += [f"{kind}Type # rtype" for kind in receptacle_kinds]
    objects += [f"{item} # object" for item, _, _ in placed]
    objects += [f"{receptacle.name} # receptacle" for receptacle in room.receptacles]
    objects += [f"{place} # location" for place in sorted({start, *location.values()})]
    facts = [f"(atLocation agent1 {start})"]
    for receptacle in room.receptacles:
        facts.append(f"(receptacleType {receptacle.name} {receptacle.kind}Type)")
        facts.append(f"(receptacleAtLocation {receptacle.name} {location[receptacle.name]})")
        if receptacle.opens:
            facts.append(f"(openable {receptacle.name})")
            if receptacle.kind in ("Cabinet", "Drawer") and chance.random() < OPEN_SHARE:
                facts.append(f"(opened {receptacle.name})")
    facts += [
        f"(canContain {kind}Type {item}Type)"
        for kind in receptacle_kinds
        for item in item_kinds
        if item in _holds(kind)
    ]
    for item, kind, where in placed:
        facts.append(f"(objectType {item} {kind}Type)")
        facts.append(f"(inReceptacle {item} {where.name})")
        facts.append(f"(objectAtLocation {item} {location[where.name]})")
        facts += [
            f"({ability.lower()} {item})" for ability, kinds in constants.VAL_ACTION_OBJECTS.items() if kind in kinds
        ]
        if kind in constants.MOVABLE_RECEPTACLES_SET:
            facts.append(f"(isReceptacleObject {item})")
        if kind != LAMP:
            facts.append(f"(pickupable {item})")
    goal_pddl = (
        table("goal_library")
        .gdict[goal.level]["pddl"]
        .format(obj=goal.item, recep=goal.receptacle, toggle=goal.receptacle, mrecep="")
    )
    text = "\n".join(
        (f"(define (problem plan_{name})", "(:domain alfred)", "(:objects", *objects, ")", "(:init", *facts, ")")
    )
    return _legal(text + "\n" + goal_pddl.strip() + "\n")


def _named(goal: Goal) -> set[str]:
    return set() if goal.level == LOOK else {goal.receptacle}


def _legal(text: str) -> str:
    """`text` with the simulator's names escaped as in the benchmark's PDDL; # stands for the dash before a type."""
    for sign, replacement in (
        ("-", "_minus_"),
        ("#", "-"),
        ("|", "_bar_"),
        ("+", "_plus_"),
        (".", "_dot_"),
        (",", "_comma_"),
    ):
        text = text.replace(sign, replacement)
    return text
