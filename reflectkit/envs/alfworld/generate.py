"""Generates games for the ALFWorld engine, in the benchmark's file format: a room, a goal, and a
place for each object.

Rooms, goals, task texts and the rules of what fits where come from the files of the installed
alfworld package (`gen/layouts/FloorPlan*`, `gen/constants.py`, `gen/goal_library.py`), which are
read without importing the package: its import makes a folder in the user's home. Departs from the
benchmark: objects are placed at random instead of by a simulator, and no goal object starts at its
destination. A floor plan lists the receptacles that were reached in the simulator; the others that
a room is said to have get a fixed place in it.
"""

from __future__ import annotations

import importlib.util
import json
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy

from reflectkit.envs.alfworld.engine import GAME, RECORD, check_installed
from reflectkit.envs.alfworld.games import CLEAN, COOL, HEAT, LOOK, TWO, TYPES, matches
from reflectkit.errors import ConfigError
from reflectkit.seeding import derive, generator

TOOLS = {
    CLEAN: ("Cleanable", "SinkBasin"),
    HEAT: ("Heatable", "Microwave"),
    COOL: ("Coolable", "Fridge"),
}
LAMP = "DeskLamp"
LAMP_STANDS = frozenset(("Desk", "SideTable", "Dresser", "Shelf", "CoffeeTable", "DiningTable"))
SINGLE = frozenset(
    (
        "StoveBurner",
        "CoffeeMachine",
        "Toaster",
        "ToiletPaperHanger",
        "TowelHolder",
        "HandTowelHolder",
    )
)
WIDE = frozenset(
    ("CounterTop", "DiningTable", "Desk", "Dresser", "Bed", "CoffeeTable", "SideTable", "Fridge")
)
OPEN_SHARE = 0.1  # of the cabinets and drawers, at the start
COPIES = (1, 1, 1, 2, 2, 3)  # of a kind of object, by chance
UNLISTED = {"StoveBurner": 4, "TowelHolder": 2, "HandTowelHolder": 2}
"""Number of receptacles, by kind, in a room whose list of reached ones lacks the kind; 1 of any
other.
"""
HEIGHTS = {
    "CounterTop": 0.95,
    "StoveBurner": 0.92,
    "CoffeeMachine": 0.9,
    "Toaster": 0.9,
    "Microwave": 0.9,
    "SinkBasin": 0.8,
}
METRES = 0.25
ESCAPES = (
    ("-", "_minus_"),
    ("#", "-"),
    ("|", "_bar_"),
    ("+", "_plus_"),
    (".", "_dot_"),
    (",", "_comma_"),
)
"""Signs in the simulator's names and their PDDL, to replace in this order; # is the dash before a
type.
"""
Pose = tuple[int, int, int, int]
"""An agent's position: x and z in quarters of a metre, quarter turns, degrees of the head."""


@cache
def package_folder() -> Path:
    """The alfworld package's folder. Raises ConfigError if it is not installed."""
    check_installed()
    spec = importlib.util.find_spec("alfworld")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


@cache
def table(name: str) -> Any:
    """The package's module gen/NAME.py: "constants" (what is where, what fits where) or
    "goal_library".
    """
    path = package_folder() / "gen" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"alfworld_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def _data(name: str) -> str:
    """A text of the package's folder `data`."""
    return (package_folder() / "data" / name).read_text(encoding="utf-8")


# --------------------------------------------------------------------------------------------------------------
# rooms


@dataclass(frozen=True)
class Receptacle:
    """What holds objects. name: as in the simulator, e.g. "Drawer|+00.95|+00.22|-02.20". opens: has
    a door or lid.
    """

    name: str
    kind: str
    pose: Pose
    opens: bool


@dataclass(frozen=True)
class Room:
    """A floor plan."""

    name: str
    """Name of the simulator's scene, e.g. FloorPlan1."""
    number: int
    """Number of the scene."""
    kind: str
    """Kind of room, e.g. kitchen."""
    receptacles: tuple[Receptacle, ...]
    """Its receptacles."""
    kinds: tuple[str, ...]
    """Kinds of the objects that occur in it."""
    starts: tuple[Pose, ...]
    """Where the agent can start: positions that belong to no receptacle."""


@cache
def rooms() -> tuple[Room, ...]:
    """All 120 rooms by number: kitchens, living rooms, bedrooms, bathrooms. Raises ConfigError."""
    result = []
    for kind, numbers in table("constants").SCENE_TYPE.items():
        result += [_room(kind, number) for number in numbers]
    return tuple(result)


def _room(room_kind: str, number: int) -> Room:
    """The room of a scene, from its files and the package's constants."""
    # 1. What the simulator has in it: kinds, receptacles that it reached, points on the floor
    name, constants = f"FloorPlan{number}", table("constants")
    layouts = package_folder() / "gen" / "layouts"
    kinds = set(json.loads((layouts / f"{name}-objects.json").read_text(encoding="utf-8")))
    poses = json.loads((layouts / f"{name}-openable.json").read_text(encoding="utf-8"))
    points = sorted((float(x), float(z)) for x, z in numpy.load(layouts / f"{name}-layout.npy"))
    # 2. The receptacles that it reached
    opening = constants.OPENABLE_CLASS_SET
    fixed = constants.RECEPTACLES - constants.MOVABLE_RECEPTACLES_SET
    receptacles = {}
    for receptacle, pose in sorted(poses.items()):
        parts = receptacle.split("|")
        kind = parts[4] if len(parts) > 4 else parts[0]  # "Sink|-01.90|+00.97|-01.50|SinkBasin"
        if kind in fixed:
            receptacles[receptacle] = Receptacle(receptacle, kind, _pose(*pose), kind in opening)
    # 3. Those of the other kinds, at random points
    chance = generator(number, "unlisted receptacles")
    listed_kinds = {receptacle.kind for receptacle in receptacles.values()}
    for kind in sorted((kinds & fixed) - listed_kinds - opening):
        for _ in range(UNLISTED.get(kind, 1)):
            x, z = chance.choice(points)
            turns = chance.randrange(4)
            stem = kind.removesuffix("Basin")
            label = f"{stem}|{x:+06.2f}|{HEIGHTS.get(kind, 0.5):+06.2f}|{z:+06.2f}"
            if stem != kind:
                label += f"|{kind}"
            receptacles[label] = Receptacle(label, kind, _pose(x, z, 90 * turns, 30), False)
    # 4. Where the agent can start
    occupied = {receptacle.pose for receptacle in receptacles.values()}
    starts = []
    for x, z in points:
        pose = _pose(x, z, 0, 30)
        if pose not in occupied:
            starts.append(pose)
    return Room(
        name,
        number,
        room_kind,
        tuple(receptacles.values()),
        tuple(sorted(kinds - fixed)),
        tuple(starts),
    )


def _pose(x: float, z: float, degrees: float, head: float) -> Pose:
    return round(x / METRES), round(z / METRES), round(degrees / 90) % 4, round(head)


# --------------------------------------------------------------------------------------------------------------
# goals


@dataclass(frozen=True)
class RoomGoal:
    """What to do, and where. receptacle: the kind of the destination; in look games, the lamp."""

    level: str
    item: str
    receptacle: str
    room: Room

    @property
    def name(self) -> str:
        """The folder name that the benchmark uses for such games:
        TYPE-Object-None-Receptacle-FLOOR.
        """
        return f"{self.level}-{self.item}-None-{self.receptacle}-{self.room.number}"


@cache
def goals(level: str, patterns: tuple[str, ...] = ()) -> tuple[RoomGoal, ...]:
    """All goals of `level` that fit a room and whose name matches. Raises ConfigError."""
    kinds = table("constants").GOALS_VALID[level]
    result = []
    for room in rooms():
        if room.kind in kinds:
            result += [goal for goal in _goals(level, room) if matches(goal.name, patterns)]
    return tuple(result)


def _goals(level: str, room: Room) -> Iterable[RoomGoal]:
    """All goals of `level` in a room."""
    # 1. The objects that fit somewhere
    kinds = {receptacle.kind for receptacle in room.receptacles}
    items = [kind for kind in room.kinds if any(kind in _holds(other) for other in kinds)]
    if level == LOOK:
        if LAMP in room.kinds and kinds & LAMP_STANDS:
            yield from (RoomGoal(level, item, LAMP, room) for item in items)
        return
    # 2. Those that can be treated as the goal needs it
    ability, tool = TOOLS.get(level, ("", ""))
    if tool:
        able = table("constants").VAL_ACTION_OBJECTS[ability]
        items = [item for item in items if item in able and tool in kinds]
    # 3. Each destination, if the object can start elsewhere
    for item in items:
        for kind in sorted(kinds):
            has_start = any(item in _holds(other) for other in kinds - {kind})
            if item not in _holds(kind) or not has_start or kind == tool:
                continue
            if level == TWO and kind in SINGLE:
                continue
            yield RoomGoal(level, item, kind, room)


def _holds(kind: str) -> frozenset[str]:
    """The kinds of objects that fit into receptacles of `kind`."""
    return frozenset(table("constants").VAL_RECEPTACLE_OBJECTS.get(kind, ()))


def levels(patterns: tuple[str, ...]) -> tuple[str, ...]:
    """The types of the games that match one of `patterns`. Raises ConfigError if there are none."""
    types = tuple(level for level in TYPES if goals(level, patterns))
    if not types:
        examples = ", ".join(goals(level)[0].name for level in TYPES[:2])
        raise ConfigError(
            f"no game that matches --games {' '.join(patterns)} can be made; names are like"
            f" {examples}"
        )
    return types


# --------------------------------------------------------------------------------------------------------------
# games


@dataclass(frozen=True)
class DrawnGame:
    """The contents of a game's files. problem: PDDL. trajectory: traj_data.json. grammar: with the
    task's text.
    """

    goal: RoomGoal
    problem: str
    trajectory: dict[str, Any]
    grammar: str

    def files(self, walkthrough: Sequence[str]) -> dict[str, str]:
        """Name → text of the three files. walkthrough: the winning commands."""
        playable = {
            "pddl_domain": _data("alfred.pddl"),
            "grammar": self.grammar,
            "pddl_problem": self.problem,
            "solvable": True,
            "walkthrough": list(walkthrough),
        }
        return {
            "initial_state.pddl": self.problem,
            RECORD: json.dumps(self.trajectory, indent=1) + "\n",
            GAME: json.dumps(playable) + "\n",
        }


def trial_name(seed: int, number: int, patterns: tuple[str, ...]) -> str:
    """The name of game `number`; it depends on the patterns."""
    return f"trial_G{seed}_" + (f"{derive(0, *patterns):016x}_" if patterns else "") + str(number)


def draw(
    seed: int,
    number: int,
    attempt: int,
    level: str,
    patterns: tuple[str, ...] = (),
) -> DrawnGame:
    """Attempt `attempt` at game `number`, of a type in `levels(patterns)`. Same arguments, same
    game.
    """
    # 1. A room and a goal in it
    all_goals = goals(level, patterns)
    chance = generator(seed, "game", level, number, attempt)
    room = chance.choice(list(dict.fromkeys(goal.room.number for goal in all_goals)))
    goal = chance.choice([goal for goal in all_goals if goal.room.number == room])
    # 2. The text of the task
    name = trial_name(seed, number, patterns)
    target, lamp = ("", goal.receptacle) if level == LOOK else (goal.receptacle, "")
    wording = chance.choice(table("goal_library").gdict[level]["templates"])
    text = wording.format(
        obj=goal.item.lower(),
        recep=target.lower(),
        toggle=lamp.lower(),
        mrecep="",
    )
    # 3. The files
    trajectory = {
        "task_id": name,
        "task_type": level,
        "pddl_params": {
            "object_target": goal.item,
            "parent_target": target,
            "toggle_target": lamp,
            "mrecep_target": "",
            "object_sliced": False,
        },
        "scene": {"floor_plan": goal.room.name, "scene_num": goal.room.number, "random_seed": seed},
        "turk_annotations": {"anns": [{"task_desc": text, "high_descs": []}]},
    }
    return DrawnGame(
        goal,
        _problem(name, goal, chance),
        trajectory,
        _data("alfred.twl2").replace("UNKNOWN GOAL", text),
    )


def _placements(goal: RoomGoal, chance: random.Random) -> list[tuple[str, str, Receptacle]]:
    """(name, kind, receptacle) of each object: those of the goal first, then the room's other
    objects.
    """
    # 1. How many objects each receptacle has room for
    room = goal.room
    free = {}
    for receptacle in room.receptacles:
        free[receptacle] = 9 if receptacle.kind in WIDE else 3
        if receptacle.kind in SINGLE:
            free[receptacle] = 1
    # 2. How many objects of each kind there are
    counts = Counter({kind: chance.choice(COPIES) for kind in room.kinds})
    counts[goal.item] = max(counts[goal.item], 2 if goal.level == TWO else 1)
    if LAMP in counts:
        counts[LAMP] = 1
    rest = sorted(set(counts) - {goal.item, LAMP})
    chance.shuffle(rest)
    # 3. A random place for each
    placements = []
    for kind in (goal.item, LAMP, *rest):
        for copy in range(counts[kind]):
            hosts = []
            for receptacle, places in free.items():
                if places and _may_start(kind, receptacle, goal):
                    hosts.append(receptacle)
            if hosts:
                host = chance.choice(hosts)
                free[host] -= 1
                x, y, z = host.name.split("|")[1:4]
                name = f"{kind}|{x}|{float(y) + 0.05:+06.2f}|{z}|{copy + 1}"
                placements.append((name, kind, host))
    return placements


def _may_start(kind: str, receptacle: Receptacle, goal: RoomGoal) -> bool:
    """Whether an object of `kind` may start there; no goal object starts at its destination."""
    if kind == LAMP:
        return receptacle.kind in LAMP_STANDS
    if kind == goal.item and receptacle.kind == goal.receptacle:
        return False
    return kind in _holds(receptacle.kind)


def _problem(name: str, goal: RoomGoal, chance: random.Random) -> str:
    """The initial state and the goal in PDDL, as in the benchmark's initial_state.pddl."""
    # 1. What there is
    constants, room = table("constants"), goal.room
    placements = _placements(goal, chance)
    start = "loc|{}|{}|{}|{}".format(*chance.choice(room.starts))
    location = {
        receptacle.name: "loc|{}|{}|{}|{}".format(*receptacle.pose)
        for receptacle in room.receptacles
    }
    destination = set() if goal.level == LOOK else {goal.receptacle}
    receptacle_kinds = sorted({receptacle.kind for receptacle in room.receptacles} | destination)
    item_kinds = sorted({kind for _, kind, _ in placements} | {goal.item})
    objects = ["agent1 # agent"]
    objects += [f"{kind}Type # otype" for kind in item_kinds]
    objects += [f"{kind}Type # rtype" for kind in receptacle_kinds]
    objects += [f"{item} # object" for item, _, _ in placements]
    objects += [f"{receptacle.name} # receptacle" for receptacle in room.receptacles]
    objects += [f"{place} # location" for place in sorted({start, *location.values()})]
    # 2. Facts about receptacles
    facts = [f"(atLocation agent1 {start})"]
    for receptacle in room.receptacles:
        facts.append(f"(receptacleType {receptacle.name} {receptacle.kind}Type)")
        facts.append(f"(receptacleAtLocation {receptacle.name} {location[receptacle.name]})")
        if receptacle.opens:
            facts.append(f"(openable {receptacle.name})")
            if receptacle.kind in ("Cabinet", "Drawer") and chance.random() < OPEN_SHARE:
                facts.append(f"(opened {receptacle.name})")
    for kind in receptacle_kinds:
        for item in item_kinds:
            if item in _holds(kind):
                facts.append(f"(canContain {kind}Type {item}Type)")
    # 3. Facts about objects
    for item, kind, where in placements:
        facts.append(f"(objectType {item} {kind}Type)")
        facts.append(f"(inReceptacle {item} {where.name})")
        facts.append(f"(objectAtLocation {item} {location[where.name]})")
        abilities = constants.VAL_ACTION_OBJECTS.items()
        facts += [f"({ability.lower()} {item})" for ability, kinds in abilities if kind in kinds]
        if kind in constants.MOVABLE_RECEPTACLES_SET:
            facts.append(f"(isReceptacleObject {item})")
        if kind != LAMP:
            facts.append(f"(pickupable {item})")
    # 4. The goal
    condition = table("goal_library").gdict[goal.level]["pddl"]
    condition = condition.format(
        obj=goal.item,
        recep=goal.receptacle,
        toggle=goal.receptacle,
        mrecep="",
    ).strip()
    lines = [
        f"(define (problem plan_{name})",
        "(:domain alfred)",
        "(:objects",
        *objects,
        ")",
        "(:init",
        *facts,
        ")",
    ]
    text = "\n".join([*lines, condition]) + "\n"
    for sign, escaped in ESCAPES:
        text = text.replace(sign, escaped)
    return text
