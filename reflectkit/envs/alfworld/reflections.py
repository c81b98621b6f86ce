"""What a perfect teacher says in a game: what is held, where was searched, where the wanted thing is, what is left to
do.

It says what the player could know, and points on; the command is left to the policy. What a receptacle shows is gone
through one by one, behind what is wanted, so that each verdict is to be copied from what stands before it: a small
model that writes such a comment token by token has less to see at once.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from reflectkit.envs.alfworld.belief import Belief, kind_of
from reflectkit.envs.alfworld.expert import LOOK, TWO, Goal, candidates, destination, likely, progress

LATEST = 2  # number of searched places that a reflection names
WRONG = ("That was a mistake.", "The last move was wrong.", "That did not help.")
EMPTY = ("Holding nothing.", "The hands are empty.")
HOLDING = ("Holding {held}.", "In hand: {held}.")
TREATED = {"heat": "hot", "clean": "clean", "cool": "cool"}
HERE = ("Only {kind} yes. At {place}: {verdicts}.", "Only {kind} yes. {place} has: {verdicts}.")
SEARCHED = ("Searched {places}.", "Seen so far: {places}.")
NOWHERE = ("Nothing searched yet.", "No place was searched yet.")
FOUND = ("{name} is at {place}.", "There is {name} at {place}.")
MISSING = ("No {kind} found yet;", "The {kind} is not found yet;")
NEXT = ("{place} may hold it.", "{place} is worth a look.")
CLOSED = ("{place} is still closed.", "{place} is closed and not searched.")
AGAIN = ("it must lie where nobody looked.", "every place must be seen again.")
NOT_NEEDED = ("It is not needed; put it away.", "It is of no use; put it away.")
TREAT = ("It must be made {state} at {place}.", "Still to be made {state}, at {place}.")
SHUT = ("{place} must be opened first.", "First {place} has to be open.")
PUT = ("It belongs to {place}.", "Its place is {place}.")
LIGHT = ("It is to be seen under {lamp}.", "Under {lamp} it is to be seen.")
SECOND = ("One {kind} is there, one is left.", "One more {kind} is needed.")


def write_reflection(belief: Belief, goal: Goal, mistaken: bool, generator: random.Random) -> str:
    """One line about a state. mistaken: whether the last command was a mistake."""

    def say(wordings: Sequence[str], **names: str) -> str:
        return generator.choice(wordings).format(**names)

    def shut(place: str) -> list[str]:
        return [say(SHUT, place=place)] if place in belief.closed else []

    def look(kind: str) -> list[str]:
        if belief.shown is None:
            latest = ", ".join(belief.searched[-LATEST:])
            return [say(SEARCHED, places=latest) if latest else say(NOWHERE)]
        kinds = dict.fromkeys(kind_of(name) for name in belief.places[belief.shown] or ())
        verdicts = ", ".join(f"{one} {'yes' if one == kind else 'no'}" for one in kinds)
        return [say(HERE, kind=kind, place=belief.shown, verdicts=verdicts or "nothing")]

    def search(kind: str) -> list[str]:
        parts = [*look(kind), say(MISSING, kind=kind)]
        place = next(iter(likely(belief, goal)), None)
        return [*parts, say(AGAIN) if place is None else say(CLOSED if place in belief.closed else NEXT, place=place)]

    parts = [say(WRONG)] if mistaken else []
    parts.append(say(HOLDING, held=_described(belief)) if belief.held else say(EMPTY))
    right, ready = progress(belief, goal)
    home = destination(belief, goal) if goal.type == TWO else None
    if home is not None:
        parts.append(say(SECOND, kind=goal.kind))
    if belief.held is None:
        if objects := candidates(belief, goal):
            name, place = objects[0]
            return " ".join([*parts, *look(goal.kind), say(FOUND, name=name, place=place), *shut(place)])
        return " ".join([*parts, *search(goal.kind)])
    if not right:
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


def _described(belief: Belief) -> str:
    name = belief.held or ""
    return ", ".join([name, *(f"now {TREATED[how]}" for how in sorted(belief.treated.get(name, ())))])
