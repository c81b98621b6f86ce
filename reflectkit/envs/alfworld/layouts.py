"""The rooms whose floor plans the alfworld package carries: receptacles with their places, and the kinds of objects
there.

Source: the package's files `gen/layouts/FloorPlan*` and `gen/constants.py`, read where they are installed. They list
the receptacles that were reached in the simulator; the others that a room is said to have get a place in it, always the
same.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache

import numpy

from reflectkit.envs.alfworld.package import folder, table
from reflectkit.seeding import generator

Place = tuple[int, int, int, int]
"""Where one stands: x and z in quarters of a metre, quarter turns, degrees of the head."""

UNLISTED = {"StoveBurner": 4, "TowelHolder": 2, "HandTowelHolder": 2}
"""How many a room has of a kind that its list of reached receptacles lacks; 1 of any other."""
HEIGHTS = {
    "CounterTop": 0.95,
    "StoveBurner": 0.92,
    "CoffeeMachine": 0.9,
    "Toaster": 0.9,
    "Microwave": 0.9,
    "SinkBasin": 0.8,
}
METRES = 0.25


@dataclass(frozen=True)
class Receptacle:
    """What holds objects. name: as the simulator calls it, e.g. "Drawer|+00.95|+00.22|-02.20". opens: has a door or a
    lid.
    """

    name: str
    kind: str
    place: Place
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
    places: tuple[Place, ...]
    """Where the agent can start: positions that belong to no receptacle."""


@cache
def rooms() -> tuple[Room, ...]:
    """All 120 rooms by number: kitchens, living rooms, bedrooms, bathrooms. Raises ConfigError."""
    return tuple(_room(kind, number) for kind, numbers in table("constants").SCENE_TYPE.items() for number in numbers)


def _room(kind: str, number: int) -> Room:
    stem = folder() / "gen" / "layouts" / f"FloorPlan{number}"
    constants = table("constants")
    seen = set(json.loads(stem.with_name(stem.name + "-objects.json").read_text(encoding="utf-8")))
    reached = json.loads(stem.with_name(stem.name + "-openable.json").read_text(encoding="utf-8"))
    points = sorted((float(x), float(z)) for x, z in numpy.load(stem.with_name(stem.name + "-layout.npy")))
    opening, fixed = constants.OPENABLE_CLASS_SET, constants.RECEPTACLES - constants.MOVABLE_RECEPTACLES_SET
    receptacles = [
        Receptacle(name, _kind(name), _place(*pose), _kind(name) in opening)
        for name, pose in sorted(reached.items())
        if _kind(name) in fixed
    ]
    chance = generator(number, "unlisted receptacles")
    for missing in sorted((seen & fixed) - {receptacle.kind for receptacle in receptacles} - opening):
        for _ in range(UNLISTED.get(missing, 1)):
            x, z = chance.choice(points)
            turns = chance.randrange(4)
            name = _name(missing, x, HEIGHTS.get(missing, 0.5), z)
            receptacles.append(Receptacle(name, missing, _place(x, z, 90 * turns, 30), False))
    occupied = {receptacle.place for receptacle in receptacles}
    places = tuple(place for x, z in points if (place := _place(x, z, 0, 30)) not in occupied)
    kinds = tuple(sorted(seen - fixed))
    return Room(stem.name, number, kind, tuple({item.name: item for item in receptacles}.values()), kinds, places)


def _kind(name: str) -> str:
    """Of a receptacle by its name; a sink's basin is named after the sink: "Sink|-01.90|+00.97|-01.50|SinkBasin"."""
    parts = name.split("|")
    return parts[4] if len(parts) > 4 else parts[0]


def _name(kind: str, x: float, y: float, z: float) -> str:
    stem = kind.removesuffix("Basin")
    return f"{stem}|{x:+06.2f}|{y:+06.2f}|{z:+06.2f}" + (f"|{kind}" if stem != kind else "")


def _place(x: float, z: float, degrees: float, head: float) -> Place:
    return round(x / METRES), round(z / METRES), round(degrees / 90) % 4, round(head)
