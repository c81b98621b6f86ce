"""What a player may know of a game: made from the words on the screen alone, step by step.

A receptacle is "open" or "closed" as its commands and the texts say; what lies in it is known once a text has listed
it.
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
    """What was seen so far.

    places: the room's receptacles by kind and number, each with what is known to lie in it; None before it was seen.
    closed: those that are known to be. here: those that can be reached. held: what is in the hand; origin: where it
    came from.
    treated: what was done to each object ("heat", "clean", "cool"). searched: the receptacles that were looked into,
    the latest last. shown: the receptacle whose content the last answer listed. commands: the admissible ones.
    """

    places: dict[str, list[str] | None] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    here: tuple[str, ...] = ()
    held: str | None = None
    origin: str | None = None
    treated: dict[str, set[str]] = field(default_factory=dict)
    searched: list[str] = field(default_factory=list)
    shown: str | None = None
    commands: tuple[str, ...] = ()

    def learn(self, feedback: str, commands: Sequence[str]) -> None:
        """Take in what the engine said, and what it admits now."""
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
        if taken := TAKEN.search(feedback):
            self.held, self.origin = taken.groups()
            if (names := self.places.get(taken[2])) is not None and taken[1] in names:
                names.remove(taken[1])
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
        """(object, receptacle) of each object of `kind` that is known to lie somewhere; those in reach first."""
        objects = [
            (name, place) for place, names in self.places.items() for name in names or () if kind_of(name) == kind
        ]
        return sorted(objects, key=lambda pair: pair[1] not in self.here)

    def unsearched(self) -> list[str]:
        """Receptacles whose content was not seen."""
        return [place for place, names in self.places.items() if names is None]

    def of_kind(self, kind: str) -> list[str]:
        """Receptacles of `kind`, those in reach first."""
        return sorted(
            (place for place in self.places if kind_of(place) == kind), key=lambda place: place not in self.here
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
    """The kind of a thing: its name without the number.

    >>> kind_of("fridge 1")
    'fridge'
    """
    return name.rpartition(" ")[0]
