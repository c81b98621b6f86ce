"""The expert that knows only what it has seen: which commands are good now, best first, in whatever state the player
has come.

It searches the receptacles that may hold what is wanted, opens what is closed, takes, treats and places. Two further
experts, the package's handcoded one and the planner, which sees everything, advise from within the engine (see
`engine`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from reflectkit.envs.alfworld.belief import Belief, kind_of

SEARCH = "search"
EXPERTS = (SEARCH, "handcoded", "planner")
PLACE, LOOK, CLEAN, HEAT, COOL, TWO = TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
TREATMENTS = {CLEAN: ("clean", "sinkbasin"), HEAT: ("heat", "microwave"), COOL: ("cool", "fridge")}
HOLDS = re.compile(r"\(cancontain\s+(\w+)type\s+(\w+)type\s*\)", re.IGNORECASE)
OPENS = re.compile(r"\(openable\s+([a-z]+)_bar_", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Goal:
    """What wins. kind: of the object. target: kind of the receptacle; of the lamp in "look" games.

    fitting: kinds of receptacles that may hold the object, by the rules of the game. opening: kinds that are to be
    opened.
    """

    type: str
    kind: str
    target: str
    fitting: frozenset[str] = frozenset()
    opening: frozenset[str] = frozenset()

    @property
    def treatment(self) -> tuple[str, str] | None:
        """(how the object is to be treated, the kind of receptacle that does it), if it is."""
        return TREATMENTS.get(self.type)


def rules(problem: str, kind: str) -> tuple[frozenset[str], frozenset[str]]:
    """The kinds of receptacles that can hold objects of `kind`, and those that can be opened, from the PDDL
    `problem`.
    """
    fitting = frozenset(place.lower() for place, item in HOLDS.findall(problem) if item.lower() == kind)
    return fitting, frozenset(map(str.lower, OPENS.findall(problem)))


def good(belief: Belief, goal: Goal) -> list[str]:
    """The best commands, equally good as far as the player can know; the first is the expert's own.

    Actions within reach come before walking.
    """
    commands = [command for command in dict.fromkeys(_wanted(belief, goal)) if command in belief.commands]
    return [command for command in commands if not command.startswith("go to ")] or commands or ["look"]


def progress(belief: Belief, goal: Goal) -> tuple[bool, bool]:
    """(whether the right object is held, whether it has also been treated as required)."""
    holds_goal = belief.held is not None and kind_of(belief.held) == goal.kind
    return holds_goal, holds_goal and _ready(belief, goal, belief.held or "")


def candidates(belief: Belief, goal: Goal) -> list[tuple[str, str]]:
    """Known objects of the goal's kind that still have to be moved, with their places."""
    objects = belief.where(goal.kind)
    if goal.type == TWO:
        home = destination(belief, goal)
        return [(name, place) for name, place in objects if place != home]
    return [(name, place) for name, place in objects if kind_of(place) != goal.target or not _ready(belief, goal, name)]


def destination(belief: Belief, goal: Goal) -> str | None:
    """For games with two objects: the receptacle that already holds the first."""
    homes = [place for place in belief.of_kind(goal.target) if _held_by(belief, place, goal.kind)]
    return max(homes, key=lambda place: len(_held_by(belief, place, goal.kind)), default=None)


def likely(belief: Belief, goal: Goal) -> list[str]:
    """The receptacles left to search: those within reach first, then kinds that can hold the object, then those that
    need no opening.
    """
    lamp = goal.type == LOOK and belief.held is not None

    def effort(place: str) -> tuple[bool, bool, bool]:
        kind = kind_of(place)
        return place not in belief.here, not lamp and kind not in goal.fitting, kind in goal.opening

    return sorted(belief.unsearched(), key=effort)


def _wanted(belief: Belief, goal: Goal) -> Iterable[str]:
    """Commands that make progress, admissible or not."""
    item = belief.held
    right, ready = progress(belief, goal)
    if item is not None and not right:
        yield from _put(belief, item, [*belief.here, *([belief.origin] if belief.origin else [])])
    elif item is not None and goal.type == LOOK:
        lamps = belief.where(goal.target)
        for lamp, place in lamps:
            yield f"use {lamp}" if place in belief.here else f"go to {place}"
        if not lamps:
            yield from _search(belief, goal)
    elif item is not None and goal.treatment and not ready:
        how, kind = goal.treatment
        for place in belief.of_kind(kind):
            yield f"{how} {item} with {place}" if place in belief.here else f"go to {place}"
    elif item is not None:
        home = destination(belief, goal) if goal.type == TWO else None
        yield from _put(belief, item, [home] if home else belief.of_kind(goal.target))
    elif objects := candidates(belief, goal):
        for name, place in objects:
            yield from _reach(belief, place, f"take {name} from {place}")
    else:
        yield from _search(belief, goal)


def _search(belief: Belief, goal: Goal) -> Iterable[str]:
    places = likely(belief, goal)
    for place in places:
        yield from _reach(belief, place, f"examine {place}")
    if not places:  # the object was moved to a searched place: search everywhere again
        yield from (f"go to {place}" for place in belief.searched if place not in belief.here)


def _put(belief: Belief, item: str, places: Iterable[str]) -> Iterable[str]:
    for place in places:
        yield from _reach(belief, place, f"move {item} to {place}")


def _reach(belief: Belief, place: str, command: str) -> Iterable[str]:
    """The next command on the way to `command` at `place`."""
    if place not in belief.here:
        yield f"go to {place}"
    elif place in belief.closed:
        yield f"open {place}"
    else:
        yield command


def _ready(belief: Belief, goal: Goal, name: str) -> bool:
    return goal.treatment is None or goal.treatment[0] in belief.treated.get(name, ())


def _held_by(belief: Belief, place: str, kind: str) -> list[str]:
    return [name for name in belief.places[place] or () if kind_of(name) == kind]
