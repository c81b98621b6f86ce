"""Makes tasks from templates: a customer of the generated shop, their requests, and the calls that are right.

Every task is proven: its calls are replayed on the database, and the oracle's conversation with the scripted user ends
in success (`problems.py`).
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from reflectkit.envs.support.allowed import ALLOWED
from reflectkit.envs.support.database import Database, city_of
from reflectkit.envs.support.forbidden import FORBIDDEN, extra
from reflectkit.envs.support.generate import shop
from reflectkit.envs.support.persona import MOODS, PUSHY, WAVERING
from reflectkit.envs.support.requests import CHANGES, DANGER, EXTRA, QUESTIONS, Request, to_json
from reflectkit.envs.support.shopper import Shopper, UnfitError
from reflectkit.seeding import generator
from reflectkit.types import Task

NAME = "support"
ONE, SEVERAL, REFUSE, ALL = "one", "several", "refuse", "all"
EMAIL_KNOWN = 0.8
"""Probability that a user remembers their email."""
FORBIDDEN_AS_WELL = 0.25
"""Probability that one of several requests is forbidden."""
TRIES = 300
"""Customers that are tried before other wishes are drawn."""


def make_task(seed: int, number: int, level: str, database: Database, source: Mapping[str, Any]) -> Task:
    """Task `number` of `level`. source: how to make the database again, as `database` in the task's data.

    Its id and its group, the customer, name the seeds, so that tasks of several seeds are told apart.
    """
    chance = generator(seed, "support", level, number)
    customer, mood, requests = _drawn(level, database, chance)
    record = database.tables["customers"][customer]
    city = city_of(record)
    knows_email = chance.random() < EMAIL_KNOWN or len(database.customers_named(record["name"], city)) > 1
    email = record["email"] if knows_email else ""
    data = {
        "database": dict(source),
        "customer": customer,
        "user": {"name": record["name"], "city": city, "email": email, "mood": mood},
        "kind": "+".join(request.kind for request in requests if request.kind != EXTRA),
        "requests": [to_json(request) for request in requests],
    }
    return Task(f"support-{level}-{seed}-{number}", NAME, level, f"shop-{source['seed']}-{customer}", data)


def _drawn(level: str, database: Database, chance: random.Random) -> tuple[str, str, list[Request]]:
    """(customer, mood, requests), in which the requests fit the customer and the mood."""
    customers = list(database.tables["customers"])
    while True:  # some wishes fit nobody
        wishes = _wishes(level, chance)
        for _ in range(TRIES):
            customer, mood = chance.choice(customers), chance.choice(MOODS)
            with contextlib.suppress(UnfitError):
                return customer, mood, _requests(level, Shopper(database, customer, chance), wishes, mood)


def source_of(seed: int, customers: int) -> dict[str, Any]:
    """How a task names its database."""
    return {"seed": seed, "customers": customers, "digest": shop(seed, customers).digest}


_Wish = Callable[[Shopper], Request]


def _wishes(level: str, chance: random.Random) -> list[_Wish]:
    """What the user wants, before it is known who they are."""
    if level == ONE:
        return [ALLOWED[chance.choice(CHANGES)]]
    if level == REFUSE:
        return [chance.choice(FORBIDDEN)]
    first = chance.choice(CHANGES)  # one change at least
    others = chance.sample([kind for kind in (*CHANGES, *QUESTIONS) if kind != first], chance.choice((1, 1, 2)))
    wishes = [ALLOWED[kind] for kind in (first, *others)]
    if chance.random() < FORBIDDEN_AS_WELL:
        wishes[-1] = chance.choice(FORBIDDEN)
    chance.shuffle(wishes)
    return wishes


def _requests(level: str, shopper: Shopper, wishes: Sequence[_Wish], mood: str) -> list[Request]:
    """The requests of one task. Raises UnfitError."""
    chance = shopper.chance
    requests = [wish(shopper) for wish in wishes]
    if shopper.moved & shopper.asked:
        raise UnfitError  # the stock would depend on what was done before
    able = [place for place, request in enumerate(requests) if request.revised]
    if mood == WAVERING and not able:
        raise UnfitError
    wavers = chance.choice(able) if mood == WAVERING else None
    requests = [request if place == wavers else _settled(request) for place, request in enumerate(requests)]
    if any(request.kind == DANGER for request in requests[:-1]):
        raise UnfitError  # the colleague would not hear the rest
    if mood == PUSHY and level != REFUSE and requests[-1].kind != DANGER:
        requests.append(extra(shopper))
    return requests


def _settled(request: Request) -> Request:
    """The request of a user who wants from the start what they would have changed to."""
    return replace(request, facts=request.final, revised={})
