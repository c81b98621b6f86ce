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
    fitting = set()
    for place, item in HOLDS.findall(problem):
        if item.lower() == kind:
            fitting.add(place.lower())
    return frozenset(fitting), frozenset(map(str.lower, OPENS.findall(problem)))


# -------------------------------------------------------------------------------------------------------------
# expert


def good(belief: Belief, goal: Goal) -> list[str]:
    """The best commands, equally good as far as the player can know; the first is the expert's own.

    Actions within reach come before walking.
    """
    legal = []
    near = []
    for command in dict.fromkeys(_progress_commands(belief, goal)):
        if command in belief.commands:
            legal.append(command)
            if not command.startswith("go to "):
                near.append(command)
    return near or legal or ["look"]


def progress(belief: Belief, goal: Goal) -> tuple[bool, bool]:
    """(whether the right object is held, whether it has also been treated as required)."""
    holds_goal = belief.in_hand is not None and kind_of(belief.in_hand) == goal.kind
    return holds_goal, holds_goal and _is_ready(belief, goal, belief.in_hand or "")


def candidates(belief: Belief, goal: Goal) -> list[tuple[str, str]]:
    """Known objects of the goal's kind that still have to be moved, with their places."""
    objects = belief.where(goal.kind)
    # Two objects must be in one receptacle, and not in any of its kind
    if goal.type == TWO:
        home = destination(belief, goal)
        return [(name, place) for name, place in objects if place != home]
    remaining = []
    for name, place in objects:
        if kind_of(place) != goal.target or not _is_ready(belief, goal, name):
            remaining.append((name, place))
    return remaining


def destination(belief: Belief, goal: Goal) -> str | None:
    """For games with two objects: the receptacle that holds most of them; None if none holds any."""
    counts = {}
    for place in belief.of_kind(goal.target):
        names = belief.places[place] or ()
        counts[place] = sum(kind_of(name) == goal.kind for name in names)
    home = max(counts, key=counts.__getitem__, default=None)
    return home if home and counts[home] else None


def likely(belief: Belief, goal: Goal) -> list[str]:
    """The receptacles left to search: those within reach first, then kinds that can hold the
    object, then those that need no opening.
    """
    # The rules do not tell where a lamp may be
    seeks_lamp = goal.type == LOOK and belief.in_hand is not None

    def effort(place: str) -> tuple[bool, bool, bool]:
        kind = kind_of(place)
        is_unlikely = not seeks_lamp and kind not in goal.fitting
        return place not in belief.here, is_unlikely, kind in goal.opening

    return sorted(belief.unsearched(), key=effort)


def _progress_commands(belief: Belief, goal: Goal) -> Iterable[str]:
    """Commands that make progress, admissible or not."""
    item = belief.in_hand
    is_right, is_ready = progress(belief, goal)
    # 1. Nothing in hand: take the object, or search for it
    if item is None:
        objects = candidates(belief, goal)
        for name, place in objects:
            yield _reach(belief, place, f"take {name} from {place}")
        if not objects:
            yield from _search(belief, goal)
    # 2. The wrong object: put it back, or anywhere within reach
    elif not is_right:
        for place in [*belief.here, *([belief.origin] if belief.origin else [])]:
            yield _reach(belief, place, f"move {item} to {place}")
    # 3. The right object: to the lamp
    elif goal.type == LOOK:
        lamps = belief.where(goal.target)
        for lamp, place in lamps:
            yield f"use {lamp}" if place in belief.here else f"go to {place}"
        if not lamps:
            yield from _search(belief, goal)
    # 4. To what heats, cools or cleans it
    elif goal.treatment and not is_ready:
        how, kind = goal.treatment
        for place in belief.of_kind(kind):
            yield f"{how} {item} with {place}" if place in belief.here else f"go to {place}"
    # 5. To its destination
    else:
        home = destination(belief, goal) if goal.type == TWO else None
        for place in [home] if home else belief.of_kind(goal.target):
            yield _reach(belief, place, f"move {item} to {place}")


def _search(belief: Belief, goal: Goal) -> Iterable[str]:
    """Commands that search the next receptacles."""
    places = likely(belief, goal)
    for place in places:
        yield _reach(belief, place, f"examine {place}")
    # The object was moved to a place that was searched before: search everywhere again
    if not places:
        for place in belief.searches:
            if place not in belief.here:
                yield f"go to {place}"


def _reach(belief: Belief, place: str, command: str) -> str:
    """The next command on the way to `command` at `place`."""
    if place not in belief.here:
        return f"go to {place}"
    return f"open {place}" if place in belief.closed else command


def _is_ready(belief: Belief, goal: Goal, name: str) -> bool:
    """Whether the object was treated as the goal needs it."""
    return goal.treatment is None or goal.treatment[0] in belief.treatments.get(name, ())


# -----------------------------------------------------------------------------------------------------------
# comments

LATEST = 2  # number of searched places that a comment names
WRONG = ("That was a mistake.", "The last move was wrong.", "That did not help.")
EMPTY = ("Holding nothing.", "Nothing in hand.")
HOLDING = ("Holding {held}.", "In hand: {held}.")
STATES = {"heat": "hot", "clean": "clean", "cool": "cool"}
HERE = (
    "Looking for {kind}. At {place}: {verdicts}.",
    "Looking for {kind}. {place} has: {verdicts}.",
)
SEARCHED = ("Searched {places}.", "Last searched: {places}.")
NOWHERE = ("Nothing searched yet.", "No place searched yet.")
PLACE_OF = ("{name} is at {place}.", "{place} has {name}.")
MISSING = ("No {kind} found yet;", "{kind} not found yet;")
NEXT = ("{place} may hold it.", "{place} is worth a look.")
CLOSED = ("{place} is still closed.", "{place} is closed and not searched.")
AGAIN = ("it must have been moved.", "search every place again.")
NOT_NEEDED = ("It is not needed; put it away.", "It is the wrong object; put it away.")
TREAT = ("Make it {state} at {place}.", "It is not {state} yet; use {place}.")
OPEN_FIRST = ("{place} must be opened first.", "Open {place} first.")
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
        return [say(OPEN_FIRST, place=place)] if place in belief.closed else []

    def look(kind: str) -> list[str]:
        if belief.visible_place is None:
            latest = ", ".join(belief.searches[-LATEST:])
            return [say(SEARCHED, places=latest) if latest else say(NOWHERE)]
        # A verdict on each kind that is there
        kinds = dict.fromkeys(map(kind_of, belief.places[belief.visible_place] or ()))
        verdicts = [f"{other} {'yes' if other == kind else 'no'}" for other in kinds]
        text = ", ".join(verdicts) or "nothing"
        return [say(HERE, kind=kind, place=belief.visible_place, verdicts=text)]

    def search(kind: str) -> list[str]:
        parts = [*look(kind), say(MISSING, kind=kind)]
        place = next(iter(likely(belief, goal)), None)
        if place is None:
            parts.append(say(AGAIN))
        else:
            parts.append(say(CLOSED if place in belief.closed else NEXT, place=place))
        return parts

    # 1. What is in hand
    parts = [say(WRONG)] if mistaken else []
    if belief.in_hand:
        treatments = sorted(belief.treatments.get(belief.in_hand, ()))
        states = [f"now {STATES[how]}" for how in treatments]
        parts.append(say(HOLDING, held=", ".join([belief.in_hand, *states])))
    else:
        parts.append(say(EMPTY))
    # 2. How far the goal is
    is_right, is_ready = progress(belief, goal)
    home = destination(belief, goal) if goal.type == TWO else None
    if home is not None:
        parts.append(say(SECOND, kind=goal.kind))
    # 3. What is missing, in the order of `_progress_commands`
    if belief.in_hand is None:
        objects = candidates(belief, goal)
        if objects:
            name, place = objects[0]
            parts += [*look(goal.kind), say(PLACE_OF, name=name, place=place), *shut(place)]
        else:
            parts += search(goal.kind)
    elif not is_right:
        parts.append(say(NOT_NEEDED))
    elif goal.type == LOOK:
        lamps = belief.where(goal.target)
        if lamps:
            lamp, place = lamps[0]
            parts += [
                *look(goal.target),
                say(PLACE_OF, name=lamp, place=place),
                say(LIGHT, lamp=lamp),
            ]
        else:
            parts += search(goal.target)
    elif goal.treatment and not is_ready:
        how, kind = goal.treatment
        place = next(iter(belief.of_kind(kind)), kind)
        parts.append(say(TREAT, state=STATES[how], place=place))
    else:
        place = home or next(iter(belief.of_kind(goal.target)), goal.target)
        parts += [say(PUT, place=place), *shut(place)]
    return " ".join(parts)
