"""The expert that knows only what the player has seen: which commands are good now, and what to say
about the game.

The expert searches the receptacles that may hold the goal's object, opens what is closed, takes,
treats and places. Two further experts, the package's handcoded one and the planner, which sees
everything, advise from within the engine (see `engine`).

A comment says what the player could know, and points on; the command is left to the policy. It
names the wanted kind, then goes through the contents of a receptacle one by one: each verdict can
be copied from the text before it, which is easier for a small model that writes such a comment
token by token.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reflectkit.envs.alfworld.belief import Belief, kind_of
from reflectkit.envs.alfworld.games import CLEAN, COOL, HEAT, LOOK, TWO

TREATMENTS = {CLEAN: ("clean", "sinkbasin"), HEAT: ("heat", "microwave"), COOL: ("cool", "fridge")}
HOLDS = re.compile(r"\(cancontain\s+(\w+)type\s+(\w+)type\s*\)", re.IGNORECASE)
OPENS = re.compile(r"\(openable\s+([a-z]+)_bar_", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Goal:
    """What wins. kind: of the object. target: kind of the receptacle; of the lamp in "look" games.

    fitting: kinds of receptacles that may hold the object, by the rules of the game. opening: kinds
    that can be opened.
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
    """The kinds of receptacles that can hold objects of `kind`, and those that can be opened, by
    the PDDL `problem`.
    """
    fitting = frozenset(
        place.lower() for place, item in HOLDS.findall(problem) if item.lower() == kind
    )
    return fitting, frozenset(map(str.lower, OPENS.findall(problem)))


# -------------------------------------------------------------------------------------------------------------
# expert


def good(belief: Belief, goal: Goal) -> list[str]:
    """The best commands, equally good as far as the player can know; the first is the expert's own.

    Actions within reach come before walking.
    """
    commands = [
        command for command in dict.fromkeys(_wanted(belief, goal)) if command in belief.commands
    ]
    return (
        [command for command in commands if not command.startswith("go to ")]
        or commands
        or ["look"]
    )


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
    return [
        (name, place)
        for name, place in objects
        if kind_of(place) != goal.target or not _ready(belief, goal, name)
    ]


def destination(belief: Belief, goal: Goal) -> str | None:
    """For games with two objects: the receptacle that already holds the most of them, if any does."""
    held = {
        place: sum(kind_of(name) == goal.kind for name in belief.places[place] or ())
        for place in belief.of_kind(goal.target)
    }
    home = max(held, key=held.__getitem__, default=None)
    return home if home and held[home] else None


def likely(belief: Belief, goal: Goal) -> list[str]:
    """The receptacles left to search: those within reach first, then kinds that can hold the
    object, then those that need no opening.
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
    if item is None:
        objects = candidates(belief, goal)
        for name, place in objects:
            yield _reach(belief, place, f"take {name} from {place}")
        if not objects:
            yield from _search(belief, goal)
    elif not right:
        for place in [*belief.here, *([belief.origin] if belief.origin else [])]:
            yield _reach(belief, place, f"move {item} to {place}")
    elif goal.type == LOOK:
        lamps = belief.where(goal.target)
        for lamp, place in lamps:
            yield f"use {lamp}" if place in belief.here else f"go to {place}"
        if not lamps:
            yield from _search(belief, goal)
    elif goal.treatment and not ready:
        how, kind = goal.treatment
        for place in belief.of_kind(kind):
            yield f"{how} {item} with {place}" if place in belief.here else f"go to {place}"
    else:
        home = destination(belief, goal) if goal.type == TWO else None
        for place in [home] if home else belief.of_kind(goal.target):
            yield _reach(belief, place, f"move {item} to {place}")


def _search(belief: Belief, goal: Goal) -> Iterable[str]:
    places = likely(belief, goal)
    for place in places:
        yield _reach(belief, place, f"examine {place}")
    if not places:  # the object was moved to a searched place: search everywhere again
        yield from (f"go to {place}" for place in belief.searched if place not in belief.here)


def _reach(belief: Belief, place: str, command: str) -> str:
    """The next command on the way to `command` at `place`."""
    if place not in belief.here:
        return f"go to {place}"
    return f"open {place}" if place in belief.closed else command


def _ready(belief: Belief, goal: Goal, name: str) -> bool:
    return goal.treatment is None or goal.treatment[0] in belief.treated.get(name, ())


# -----------------------------------------------------------------------------------------------------------
# comments

LATEST = 2  # number of searched places that a comment names
WRONG = ("That was a mistake.", "The last move was wrong.", "That did not help.")
EMPTY = ("Holding nothing.", "Nothing in hand.")
HOLDING = ("Holding {held}.", "In hand: {held}.")
TREATED = {"heat": "hot", "clean": "clean", "cool": "cool"}
HERE = (
    "Looking for {kind}. At {place}: {verdicts}.",
    "Looking for {kind}. {place} has: {verdicts}.",
)
SEARCHED = ("Searched {places}.", "Last searched: {places}.")
NOWHERE = ("Nothing searched yet.", "No place searched yet.")
FOUND = ("{name} is at {place}.", "{place} has {name}.")
MISSING = ("No {kind} found yet;", "{kind} not found yet;")
NEXT = ("{place} may hold it.", "{place} is worth a look.")
CLOSED = ("{place} is still closed.", "{place} is closed and not searched.")
AGAIN = ("it must have been moved.", "search every place again.")
NOT_NEEDED = ("It is not needed; put it away.", "It is the wrong object; put it away.")
TREAT = ("Make it {state} at {place}.", "It is not {state} yet; use {place}.")
SHUT = ("{place} must be opened first.", "Open {place} first.")
PUT = ("It goes to {place}.", "Its place is {place}.")
LIGHT = ("Look at it under {lamp}.", "It must be seen under {lamp}.")
SECOND = ("One {kind} is in place, one is left.", "One more {kind} is needed.")


def write_comment(
    belief: Belief,
    goal: Goal,
    mistaken: bool,
    generator: random.Random,
) -> str:
    """A comment on a state, in one line. mistaken: whether the last command was a mistake."""

    def say(wordings: Sequence[str], **names: str) -> str:
        return generator.choice(wordings).format(**names)

    def shut(place: str) -> list[str]:
        return [say(SHUT, place=place)] if place in belief.closed else []

    def look(kind: str) -> list[str]:
        if belief.shown is None:
            latest = ", ".join(belief.searched[-LATEST:])
            return [say(SEARCHED, places=latest) if latest else say(NOWHERE)]
        kinds = dict.fromkeys(kind_of(name) for name in belief.places[belief.shown] or ())
        verdicts = ", ".join(f"{seen} {'yes' if seen == kind else 'no'}" for seen in kinds)
        return [say(HERE, kind=kind, place=belief.shown, verdicts=verdicts or "nothing")]

    def search(kind: str) -> list[str]:
        parts = [*look(kind), say(MISSING, kind=kind)]
        place = next(iter(likely(belief, goal)), None)
        return [
            *parts,
            say(AGAIN)
            if place is None
            else say(CLOSED if place in belief.closed else NEXT, place=place),
        ]

    parts = [say(WRONG)] if mistaken else []
    if belief.held:
        states = (f"now {TREATED[how]}" for how in sorted(belief.treated.get(belief.held, ())))
        parts.append(say(HOLDING, held=", ".join([belief.held, *states])))
    else:
        parts.append(say(EMPTY))
    right, ready = progress(belief, goal)
    home = destination(belief, goal) if goal.type == TWO else None
    if home is not None:
        parts.append(say(SECOND, kind=goal.kind))
    if belief.held is None:
        if objects := candidates(belief, goal):
            name, place = objects[0]
            parts += [*look(goal.kind), say(FOUND, name=name, place=place), *shut(place)]
        else:
            parts += search(goal.kind)
    elif not right:
        parts.append(say(NOT_NEEDED))
    elif goal.type == LOOK:
        if lamps := belief.where(goal.target):
            lamp, place = lamps[0]
            parts += [*look(goal.target), say(FOUND, name=lamp, place=place), say(LIGHT, lamp=lamp)]
        else:
            parts += search(goal.target)
    elif goal.treatment and not ready:
        how, kind = goal.treatment
        parts.append(say(TREAT, state=TREATED[how], place=next(iter(belief.of_kind(kind)), kind)))
    else:
        place = home or next(iter(belief.of_kind(goal.target)), goal.target)
        parts += [say(PUT, place=place), *shut(place)]
    return " ".join(parts)
