"""What a player can know about a game, updated step by step from the displayed text alone.

Commands and texts tell which receptacles are closed; the contents of a receptacle are known once a
text has listed them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

# What the engine's feedback says
NAME = r"[a-z]+ \d+"
ITEM = re.compile(rf"an? ({NAME})")
ROOM = re.compile(r"Looking quickly around you, you see (.*?)\.")
CONTENTS = re.compile(rf"(?:On the ({NAME})|The ({NAME}) is open\. In it), you see (.*?)\.")
CLOSING = re.compile(rf"The ({NAME}) is closed|You close the ({NAME})\.")
PICKUP = re.compile(rf"You pick up the ({NAME}) from the ({NAME})\.")
PLACEMENT = re.compile(rf"You move the ({NAME}) to the ({NAME})\.")
TREATMENT = re.compile(rf"You (heat|clean|cool) the ({NAME}) using the")

# What the admissible commands say
HERE = re.compile(rf"examine ({NAME})")
OPENS = re.compile(rf"^open ({NAME})", re.MULTILINE)

OPPOSITE = {"heat": "cool", "cool": "heat"}
"""The treatment that each of these undoes."""


@dataclass(slots=True)
class Belief:
    """What the player has seen so far."""

    places: dict[str, list[str] | None] = field(default_factory=dict)
    """The room's receptacles, each with its known contents; None until it has been seen."""
    closed: set[str] = field(default_factory=set)
    """Receptacles known to be closed."""
    here: tuple[str, ...] = ()
    """Receptacles within reach."""
    in_hand: str | None = None
    """The object in hand."""
    origin: str | None = None
    """The receptacle that the object in hand was taken from."""
    treatments: dict[str, set[str]] = field(default_factory=dict)
    """What was done to each object: "heat", "clean", "cool"."""
    searches: list[str] = field(default_factory=list)
    """Receptacles whose contents have been seen, the latest last."""
    visible_place: str | None = None
    """The receptacle whose contents the last feedback listed."""
    commands: tuple[str, ...] = ()
    """The admissible commands."""

    def learn(self, feedback: str, commands: Sequence[str]) -> None:
        """Update from the engine's feedback and its admissible commands."""
        # 1. The room, at the start
        room = ROOM.search(feedback)
        if room and not self.places:
            names = ITEM.findall(room[1])
            names.sort(key=_sort_key)
            self.places = dict.fromkeys(names)

        # 2. What is on or in a receptacle, and which are closed
        self.visible_place = None
        for surface, inside, items in CONTENTS.findall(feedback):
            place = surface or inside
            self.visible_place = place
            self.closed.discard(place)
            self._fill(place, ITEM.findall(items))
        for closed, closed_now in CLOSING.findall(feedback):
            self.closed.add(closed or closed_now)

        # 3. An object that was taken
        pickup = PICKUP.search(feedback)
        if pickup:
            name, place = pickup.groups()
            self.in_hand = name
            self.origin = place
            contents = self.places.get(place)
            if contents and name in contents:
                contents.remove(name)

        # 4. An object that was put somewhere
        placement = PLACEMENT.search(feedback)
        if placement:
            name, place = placement.groups()
            self.in_hand = None
            self.origin = None
            contents = self.places.get(place)
            if contents is None:
                contents = []
            self._fill(place, [*contents, name])

        # 5. What was done to an object
        treatment = TREATMENT.search(feedback)
        if treatment:
            how, name = treatment.groups()
            treatments = self.treatments.setdefault(name, set())
            treatments.discard(OPPOSITE.get(how, ""))
            treatments.add(how)

        # 6. What the commands tell: what is within reach, and what can be opened
        self.commands = tuple(commands)
        text = "\n".join(commands)
        self.here = tuple(name for name in HERE.findall(text) if name in self.places)
        self.closed.update(OPENS.findall(text))

    def where(self, kind: str) -> list[tuple[str, str]]:
        """(object, receptacle) of each object of `kind` with a known place.

        Those within reach come first.
        """
        objects = []
        for place, names in self.places.items():
            for name in names or ():
                if kind_of(name) == kind:
                    objects.append((name, place))
        objects.sort(key=lambda pair: pair[1] not in self.here)
        return objects

    def unsearched(self) -> list[str]:
        """Receptacles whose contents have not been seen."""
        return [place for place, names in self.places.items() if names is None]

    def of_kind(self, kind: str) -> list[str]:
        """Receptacles of `kind`, those within reach first."""
        places = [place for place in self.places if kind_of(place) == kind]
        places.sort(key=lambda place: place not in self.here)
        return places

    def _fill(self, place: str, names: list[str]) -> None:
        """Note the contents of `place`, which becomes the latest that was searched."""
        if place in self.searches:
            self.searches.remove(place)
        self.searches.append(place)
        self.places[place] = names


def _sort_key(name: str) -> tuple[str, int]:
    """(kind, number), by which receptacles are sorted."""
    kind, _, number = name.rpartition(" ")
    return kind, int(number)


def kind_of(name: str) -> str:
    """The kind of an object or receptacle: its name without the number.

    >>> kind_of("fridge 1")
    'fridge'
    """
    return name.rpartition(" ")[0]
