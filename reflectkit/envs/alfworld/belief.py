"""What a player can know about a game, updated step by step from the displayed text alone.

Commands and texts tell which receptacles are closed; the contents of a receptacle are known once a
text has listed them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

NAME = r"[a-z]+ \d+"
LISTED = re.compile(rf"an? ({NAME})")
ROOM = re.compile(r"Looking quickly around you, you see (.*?)\.")
SEEN = re.compile(rf"(?:On the ({NAME})|The ({NAME}) is open\. In it), you see (.*?)\.")
CLOSED = re.compile(rf"The ({NAME}) is closed|You close the ({NAME})\.")
TAKEN = re.compile(rf"You pick up the ({NAME}) from the ({NAME})\.")
MOVED = re.compile(rf"You move the ({NAME}) to the ({NAME})\.")
TREATED = re.compile(rf"You (heat|clean|cool) the ({NAME}) using the")
HERE, OPENS = re.compile(rf"examine ({NAME})"), re.compile(rf"^open ({NAME})", re.MULTILINE)
OPPOSITE = {"heat": "cool", "cool": "heat"}


@dataclass(slots=True)
class Belief:
    """What the player has seen so far."""

    places: dict[str, list[str] | None] = field(default_factory=dict)
    """The room's receptacles, each with its known contents; None until it has been seen."""
    closed: set[str] = field(default_factory=set)
    """Receptacles known to be closed."""
    here: tuple[str, ...] = ()
    """Receptacles within reach."""
    held: str | None = None
    """The object in hand."""
    origin: str | None = None
    """The receptacle that the object in hand was taken from."""
    treated: dict[str, set[str]] = field(default_factory=dict)
    """What was done to each object: "heat", "clean", "cool"."""
    searched: list[str] = field(default_factory=list)
    """Receptacles whose contents have been seen, the latest last."""
    shown: str | None = None
    """The receptacle whose contents the last feedback listed."""
    commands: tuple[str, ...] = ()
    """The admissible commands."""

    def learn(self, feedback: str, commands: Sequence[str]) -> None:
        """Update from the engine's feedback and its admissible commands."""
        if not self.places and (room := ROOM.search(feedback)):
            self.places = dict.fromkeys(sorted(LISTED.findall(room[1]), key=_place))
        self.shown = None
        for on, within, listed in SEEN.findall(feedback):
            place = on or within
            self.closed.discard(place)
            self._fill(place, LISTED.findall(listed))
            self.shown = place
        for closed in CLOSED.findall(feedback):
            self.closed.add(closed[0] or closed[1])
        if picked_up := TAKEN.search(feedback):
            self.held, self.origin = picked_up.groups()
            if (names := self.places.get(picked_up[2])) is not None and picked_up[1] in names:
                names.remove(picked_up[1])
        if moved := MOVED.search(feedback):
            self.held = self.origin = None
            self._fill(moved[2], [*(self.places.get(moved[2]) or []), moved[1]])
        if treated := TREATED.search(feedback):
            how, name = treated.groups()
            self.treated[name] = (self.treated.get(name, set()) - {OPPOSITE.get(how)}) | {how}
        self.commands = tuple(commands)
        commands_text = "\n".join(commands)
        self.here = tuple(name for name in HERE.findall(commands_text) if name in self.places)
        self.closed |= set(OPENS.findall(commands_text))

    def where(self, kind: str) -> list[tuple[str, str]]:
        """(object, receptacle) of each object of `kind` with a known place; those within reach
        first.
        """
        objects = [
            (name, place)
            for place, names in self.places.items()
            for name in names or ()
            if kind_of(name) == kind
        ]
        return sorted(objects, key=lambda pair: pair[1] not in self.here)

    def unsearched(self) -> list[str]:
        """Receptacles whose contents have not been seen."""
        return [place for place, names in self.places.items() if names is None]

    def of_kind(self, kind: str) -> list[str]:
        """Receptacles of `kind`, those within reach first."""
        return sorted(
            (place for place in self.places if kind_of(place) == kind),
            key=lambda place: place not in self.here,
        )

    def _fill(self, place: str, names: list[str]) -> None:
        if place in self.searched:
            self.searched.remove(place)
        self.searched.append(place)
        self.places[place] = names


def _place(name: str) -> tuple[str, int]:
    kind, _, number = name.rpartition(" ")
    return kind, int(number)


def kind_of(name: str) -> str:
    """The kind of an object or receptacle: its name without the number.

    >>> kind_of("fridge 1")
    'fridge'
    """
    return name.rpartition(" ")[0]
