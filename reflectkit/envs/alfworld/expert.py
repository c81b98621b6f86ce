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
    """What wins."""

    type: str
    """The type of the game."""
    kind: str
    """The kind of the object."""
    target: str
    """The kind of the receptacle; in "look" games, of the lamp."""
    fitting: frozenset[str] = frozenset()
    """Kinds of receptacles that may hold the object, by the rules of the game."""
    opening: frozenset[str] = frozenset()
    """Kinds of receptacles that can be opened."""

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
    opening = set(map(str.lower, OPENS.findall(problem)))
    return frozenset(fitting), frozenset(opening)


# -------------------------------------------------------------------------------------------------------------
# expert


def good(belief: Belief, goal: Goal) -> list[str]:
    """The best commands, equally good as far as the player can know; the first is the expert's own.

    Actions within reach come before walking.
    """
    commands = dict.fromkeys(_progress_commands(belief, goal))
    legal = [command for command in commands if command in belief.commands]
    near = [command for command in legal if not command.startswith("go to ")]
    return near or legal or ["look"]


def progress(belief: Belief, goal: Goal) -> tuple[bool, bool]:
    """(whether the right object is held, whether it has also been treated as required)."""
    item = belief.in_hand
    if item is None or kind_of(item) != goal.kind:
        return False, False
    return True, _is_ready(belief, goal, item)


def candidates(belief: Belief, goal: Goal) -> list[tuple[str, str]]:
    """Known objects of the goal's kind that still have to be moved, with their places."""
    # 1. Two objects must be in one receptacle, and not in any of its kind
    objects = belief.where(goal.kind)
    if goal.type == TWO:
        home = destination(belief, goal)
        return [(name, place) for name, place in objects if place != home]

    # 2. One object must be at its target, after its treatment
    remaining = []
    for name, place in objects:
        is_placed = kind_of(place) == goal.target
        if not is_placed or not _is_ready(belief, goal, name):
            remaining.append((name, place))
    return remaining


def destination(belief: Belief, goal: Goal) -> str | None:
    """For games with two objects: the receptacle that holds most of them; None if none holds any."""
    home = None
    most = 0
    for place in belief.of_kind(goal.target):
        names = belief.places[place] or ()
        count = sum(kind_of(name) == goal.kind for name in names)
        if count > most:
            home = place
            most = count
    return home


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
        places = list(belief.here)
        if belief.origin:
            places.append(belief.origin)
        for place in places:
            yield _reach(belief, place, f"move {item} to {place}")
    # 3. The right object: to the lamp
    elif goal.type == LOOK:
        lamps = belief.where(goal.target)
        for lamp, place in lamps:
            is_near = place in belief.here
            yield f"use {lamp}" if is_near else f"go to {place}"
        if not lamps:
            yield from _search(belief, goal)
    # 4. To what heats, cools or cleans it
    elif goal.treatment and not is_ready:
        how, kind = goal.treatment
        for place in belief.of_kind(kind):
            is_near = place in belief.here
            yield f"{how} {item} with {place}" if is_near else f"go to {place}"
    # 5. To its destination
    else:
        places = belief.of_kind(goal.target)
        home = destination(belief, goal) if goal.type == TWO else None
        if home:
            places = [home]
        for place in places:
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
    if place in belief.closed:
        return f"open {place}"
    return command


def _is_ready(belief: Belief, goal: Goal, name: str) -> bool:
    """Whether the object was treated as the goal needs it."""
    if goal.treatment is None:
        return True
    how, _ = goal.treatment
    return how in belief.treatments.get(name, ())


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
    return _Commentator(belief, goal, generator).comment(mistaken)


class _Commentator:
    """Says what a player could know, in sentences whose wordings are drawn."""

    def __init__(self, belief: Belief, goal: Goal, generator: random.Random) -> None:
        self.belief = belief
        self.goal = goal
        self.generator = generator

    def comment(self, mistaken: bool) -> str:
        """See `write_comment`."""
        # 1. What is in hand
        sentences = []
        if mistaken:
            sentences.append(self._say(WRONG))
        sentences.append(self._hand())

        # 2. How far the goal is
        goal = self.goal
        home = None
        if goal.type == TWO:
            home = destination(self.belief, goal)
        if home is not None:
            sentences.append(self._say(SECOND, kind=goal.kind))

        # 3. What is missing
        sentences += self._next(home)
        return " ".join(sentences)

    def _next(self, home: str | None) -> list[str]:
        """What is missing, in the order of `_progress_commands`.

        home: for games with two objects, the receptacle that holds one of them.
        """
        belief, goal = self.belief, self.goal
        is_right, is_ready = progress(belief, goal)
        # 1. Nothing in hand: the object, or where it may be
        if belief.in_hand is None:
            objects = candidates(belief, goal)
            if not objects:
                return self._search(goal.kind)
            name, place = objects[0]
            sentences = self._look(goal.kind)
            sentences.append(self._say(PLACE_OF, name=name, place=place))
            return sentences + self._opening(place)
        # 2. The wrong object
        if not is_right:
            return [self._say(NOT_NEEDED)]
        # 3. The right object, and the lamp
        if goal.type == LOOK:
            lamps = belief.where(goal.target)
            if not lamps:
                return self._search(goal.target)
            lamp, place = lamps[0]
            sentences = self._look(goal.target)
            sentences.append(self._say(PLACE_OF, name=lamp, place=place))
            sentences.append(self._say(LIGHT, lamp=lamp))
            return sentences
        # 4. What heats, cools or cleans it
        if goal.treatment and not is_ready:
            how, kind = goal.treatment
            place = next(iter(belief.of_kind(kind)), kind)
            return [self._say(TREAT, state=STATES[how], place=place)]
        # 5. Its destination
        place = home or next(iter(belief.of_kind(goal.target)), goal.target)
        return [self._say(PUT, place=place), *self._opening(place)]

    def _say(self, wordings: Sequence[str], **names: str) -> str:
        """One of the wordings, with these names in it."""
        wording = self.generator.choice(wordings)
        return wording.format(**names)

    def _hand(self) -> str:
        """What is in hand, and what was done to it."""
        item = self.belief.in_hand
        if not item:
            return self._say(EMPTY)
        treatments = self.belief.treatments.get(item, ())
        states = [f"now {STATES[how]}" for how in sorted(treatments)]
        return self._say(HOLDING, held=", ".join([item, *states]))

    def _opening(self, place: str) -> list[str]:
        """That a receptacle must be opened, if it is closed."""
        if place not in self.belief.closed:
            return []
        return [self._say(OPEN_FIRST, place=place)]

    def _look(self, kind: str) -> list[str]:
        """What is at the place in view, or which places were searched. kind: of the object that is
        looked for.
        """
        # 1. Nothing is in view
        belief = self.belief
        place = belief.visible_place
        if place is None:
            latest = belief.searches[-LATEST:]
            if not latest:
                return [self._say(NOWHERE)]
            return [self._say(SEARCHED, places=", ".join(latest))]

        # 2. A verdict on each kind that is there
        kinds = dict.fromkeys(map(kind_of, belief.places[place] or ()))
        verdicts = [f"{other} {'yes' if other == kind else 'no'}" for other in kinds]
        text = ", ".join(verdicts) or "nothing"
        return [self._say(HERE, kind=kind, place=place, verdicts=text)]

    def _search(self, kind: str) -> list[str]:
        """That no object of `kind` was found, and where to look for one."""
        sentences = self._look(kind)
        sentences.append(self._say(MISSING, kind=kind))
        places = likely(self.belief, self.goal)
        if not places:
            sentences.append(self._say(AGAIN))
            return sentences
        wordings = CLOSED if places[0] in self.belief.closed else NEXT
        sentences.append(self._say(wordings, place=places[0]))
        return sentences
