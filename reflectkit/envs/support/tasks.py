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

from reflectkit.core.seeding import generator
from reflectkit.core.types import Task, ToolCall
from reflectkit.envs.support.database import Database, Record, city_of
from reflectkit.envs.support.generate import DELIVERED, PENDING, RETURN_DAYS, SHIPPED, another_address, shop
from reflectkit.envs.support.persona import MOODS, PUSHY, WAVERING
from reflectkit.envs.support.policy import LATE_DAYS
from reflectkit.envs.support.requests import (
    ADDRESS,
    CANCEL,
    CHANGES,
    CREDIT,
    DANGER,
    EXCHANGE,
    EXTRA,
    MOVE,
    PAID,
    PAYMENT,
    QUESTIONS,
    RETURN,
    STOCK,
    SWAP,
    Request,
    to_json,
    wording,
)
from reflectkit.envs.support.tools import ESCALATE, REASONS, TEN

NAME = "support"
ONE, SEVERAL, REFUSE, ALL = "one", "several", "refuse", "all"
EMAIL_KNOWN = 0.8
"""Probability that a user remembers their email."""
BAD_REASON = "cheaper elsewhere"
FORBIDDEN_AS_WELL = 0.25
"""Probability that one of several requests is forbidden."""
TRIES = 300
"""Customers that are tried before other wishes are drawn."""

SHIPPED_WORDS = ("shipped", "dispatched", "on its way", "not pending", "no longer pending")
LATE_WORDS = (str(RETURN_DAYS), "thirty", "too long ago", "too late", "too many days")
STOCK_WORDS = ("sold out", "out of stock", "not in stock", "unavailable", "not available")
REASON_WORDS = ("reason", *REASONS, "by mistake")
PAYMENT_WORDS = ("payment", "paid with", "paid by")
OWNER_WORDS = (
    "your own",
    "not yours",
    "another customer",
    "different customer",
    "not your",
    "does not belong",
    "someone else",
    "somebody else",
)
CREDIT_WORDS = (str(LATE_DAYS), "three", "not late", "on time", "in time", "days late")


class _UnfitError(Exception):
    """This customer has nothing that such a request could be about."""


def make_task(seed: int, number: int, level: str, database: Database, source: Mapping[str, Any]) -> Task:
    """Task `number` of `level`. source: how to make the database again, as `database` in the task's data."""
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
    return Task(f"{level}-{number}", NAME, level, customer, data)


def _drawn(level: str, database: Database, chance: random.Random) -> tuple[str, str, list[Request]]:
    """(customer, mood, requests), in which the requests fit the customer and the mood."""
    customers = list(database.tables["customers"])
    while True:  # some wishes fit nobody
        wishes = _wishes(level, chance)
        for _ in range(TRIES):
            customer, mood = chance.choice(customers), chance.choice(MOODS)
            with contextlib.suppress(_UnfitError):
                return customer, mood, _requests(level, _Shopper(database, customer, chance), wishes, mood)


def source_of(seed: int, customers: int) -> dict[str, Any]:
    """How a task names its database."""
    return {"seed": seed, "customers": customers, "digest": shop(seed, customers).digest}


_Wish = Callable[["_Shopper"], Request]


def _wishes(level: str, chance: random.Random) -> list[_Wish]:
    """What the user wants, before it is known who they are."""
    if level == ONE:
        return [_ALLOWED[chance.choice(CHANGES)]]
    if level == REFUSE:
        return [chance.choice(_FORBIDDEN)]
    first = chance.choice(CHANGES)  # one change at least
    others = chance.sample([kind for kind in (*CHANGES, *QUESTIONS) if kind != first], chance.choice((1, 1, 2)))
    wishes = [_ALLOWED[kind] for kind in (first, *others)]
    if chance.random() < FORBIDDEN_AS_WELL:
        wishes[-1] = chance.choice(_FORBIDDEN)
    chance.shuffle(wishes)
    return wishes


def _requests(level: str, shopper: _Shopper, wishes: Sequence[_Wish], mood: str) -> list[Request]:
    """The requests of one task. Raises _UnfitError."""
    chance = shopper.chance
    requests = [wish(shopper) for wish in wishes]
    if shopper.moved & shopper.asked:
        raise _UnfitError  # the number would depend on what was done before
    able = [place for place, request in enumerate(requests) if request.revised]
    if mood == WAVERING and not able:
        raise _UnfitError
    wavers = chance.choice(able) if mood == WAVERING else None
    requests = [request if place == wavers else _settled(request) for place, request in enumerate(requests)]
    if any(request.kind == DANGER for request in requests[:-1]):
        raise _UnfitError  # the colleague would not hear the rest
    if mood == PUSHY and level != REFUSE and requests[-1].kind != DANGER:
        requests.append(Request(EXTRA, wording(EXTRA, chance), refused="the only credit is for a late delivery"))
    return requests


def _settled(request: Request) -> Request:
    """The request of a user who wants from the start what they would have changed to."""
    return replace(request, facts=request.final, revised={})


class _Shopper:
    """A customer, and what they have. An order is the subject of one request at most."""

    def __init__(self, database: Database, customer: str, chance: random.Random) -> None:
        self.database, self.customer, self.chance = database, customer, chance
        self.record = database.tables["customers"][customer]
        self._used: set[str] = set()
        self.moved: set[str] = set()
        """Items whose stock a request changes."""
        self.asked: set[str] = set()
        """Items whose stock a request asks for."""

    def order(self, status: str, fits: Callable[[Record], bool] = lambda order: True) -> tuple[str, Record]:
        """One of the customer's orders that is not used yet. Raises _UnfitError."""
        orders = self.database.tables["orders"]
        fitting = [
            name
            for name in self.record["orders"]
            if orders[name]["status"] == status and name not in self._used and fits(orders[name])
        ]
        if not fitting:
            raise _UnfitError
        name: str = self.chance.choice(fitting)
        self._used.add(name)
        return name, orders[name]

    def item(self, name: str) -> Record:
        """An item."""
        return self.database.tables["items"][name]

    def options(self, item: str, *, stocked: bool) -> list[str]:
        """The other items of the same product that are, or are not, in stock."""
        product = self.database.tables["products"][self.item(item)["product"]]
        stocks = {other: self.item(other)["stock"] for other in product["items"] if other != item}
        return [other for other, stock in stocks.items() if (stock > 1 if stocked else stock == 0)]

    def other_payment(self, order: Record) -> str:
        """A payment method of the customer that the order does not have, of a kind that they have once."""
        payments = self.database.tables["payments"]
        kinds = [payments[name]["kind"] for name in self.record["payments"]]
        fitting = [
            name
            for name in self.record["payments"]
            if name != order["payment"] and kinds.count(payments[name]["kind"]) == 1
        ]
        if not fitting:
            raise _UnfitError
        payment: str = self.chance.choice(fitting)
        return payment

    def kind_of(self, payment: str) -> str:
        """How a user calls a payment method."""
        return str(self.database.tables["payments"][payment]["kind"])


def _cancel(shopper: _Shopper) -> Request:
    order, record = shopper.order(PENDING)
    first, then = shopper.chance.sample(REASONS, 2)
    call = ToolCall("cancel_order", {"order": order, "reason": then})
    facts, revised = {"order": order, "reason": first}, {"reason": then}
    return _request(shopper, CANCEL, facts, revised, call, told=((_money(record["paid"]),),))


def _address(shopper: _Shopper) -> Request:
    order, record = shopper.order(PENDING)
    first = another_address(shopper.chance, record["address"])
    then = another_address(shopper.chance, record["address"])
    call = ToolCall("change_address", {"order": order, "address": then})
    return _request(shopper, ADDRESS, {"order": order, "address": first}, {"address": then}, call)


def _payment(shopper: _Shopper) -> Request:
    order, record = shopper.order(PENDING)
    payment = shopper.other_payment(record)
    call = ToolCall("change_payment", {"order": order, "payment": payment})
    return _request(shopper, PAYMENT, {"order": order, "payment": shopper.kind_of(payment)}, {}, call)


def _swap(shopper: _Shopper) -> Request:
    return _replacement(shopper, SWAP, PENDING, "swap_item", lambda order: True)


def _exchange(shopper: _Shopper) -> Request:
    return _replacement(shopper, EXCHANGE, DELIVERED, "exchange_item", _recent)


def _replacement(
    shopper: _Shopper, kind: str, status: str, tool: str, fits: Callable[[Record], bool], *, stocked: bool = True
) -> Request:
    """Another option of an item; if it is not `stocked`, the request is forbidden."""
    order, record = shopper.order(status, fits)
    item = shopper.chance.choice(record["items"])
    options = shopper.options(item, stocked=stocked)
    if not options:
        raise _UnfitError
    first, then = (shopper.chance.choice(options) for _ in range(2))
    product = _split(shopper.item(item))[0]
    facts = {"order": order, "item": product, "option": _split(shopper.item(first))[1]}
    if not stocked:
        return _refusal(shopper, kind, facts, "that option is sold out", STOCK_WORDS, product)
    shopper.moved |= {item, then}
    revised = {"option": _split(shopper.item(then))[1]} if then != first else {}
    call = ToolCall(tool, {"order": order, "item": item, "new_item": then})
    paid = record["paid"] - shopper.item(item)["price"] + shopper.item(then)["price"]
    return replace(_request(shopper, kind, facts, revised, call, told=((_money(paid),),)), product=product)


def _return(shopper: _Shopper) -> Request:
    order, record = shopper.order(DELIVERED, _recent)
    first, then = (shopper.chance.choice(record["items"]) for _ in range(2))
    call = ToolCall("return_item", {"order": order, "item": then, "payment": record["payment"]})
    facts = {"order": order, "item": _split(shopper.item(first))[0], "payment": shopper.kind_of(record["payment"])}
    revised = {"item": _split(shopper.item(then))[0]} if then != first else {}
    return _request(shopper, RETURN, facts, revised, call, told=((_money(shopper.item(then)["price"]),),))


def _move(shopper: _Shopper) -> Request:
    first = another_address(shopper.chance, shopper.record["address"])
    then = another_address(shopper.chance, shopper.record["address"])
    call = ToolCall("move_customer", {"customer": shopper.customer, "address": then})
    return _request(shopper, MOVE, {"address": first}, {"address": then}, call)


def _credit(shopper: _Shopper) -> Request:
    order, _ = shopper.order(DELIVERED, lambda record: record["late_days"] >= LATE_DAYS)
    return _request(shopper, CREDIT, {"order": order}, {}, ToolCall("credit", {"order": order}), told=((str(TEN),),))


def _paid(shopper: _Shopper) -> Request:
    order, record = shopper.order(shopper.chance.choice((PENDING, SHIPPED, DELIVERED)))
    return _request(shopper, PAID, {"order": order}, {}, told=((_money(record["paid"]),),))


def _stock(shopper: _Shopper) -> Request:
    name = shopper.chance.choice(list(shopper.database.tables["items"]))
    shopper.asked.add(name)
    item = shopper.item(name)
    product, option = _split(item)
    say = wording(STOCK, shopper.chance, product=product, option=option)
    told = ((str(item["stock"]),),) if item["stock"] else ((*STOCK_WORDS, "0", "none"),)
    return Request(STOCK, say, {"item": product, "option": option}, told=told, product=product)


_ALLOWED: Mapping[str, Callable[[_Shopper], Request]] = {
    CANCEL: _cancel,
    ADDRESS: _address,
    PAYMENT: _payment,
    SWAP: _swap,
    RETURN: _return,
    EXCHANGE: _exchange,
    MOVE: _move,
    CREDIT: _credit,
    PAID: _paid,
    STOCK: _stock,
}


def _cancel_shipped(shopper: _Shopper) -> Request:
    order, _ = shopper.order(SHIPPED)
    facts = {"order": order, "reason": shopper.chance.choice(REASONS)}
    return _refusal(shopper, CANCEL, facts, "it is shipped", SHIPPED_WORDS)


def _cancel_for_a_bad_reason(shopper: _Shopper) -> Request:
    order, _ = shopper.order(PENDING)
    return _refusal(shopper, CANCEL, {"order": order, "reason": BAD_REASON}, "that reason does not count", REASON_WORDS)


def _redirect_shipped(shopper: _Shopper) -> Request:
    order, record = shopper.order(SHIPPED)
    facts = {"order": order, "address": another_address(shopper.chance, record["address"])}
    return _refusal(shopper, ADDRESS, facts, "it is shipped", SHIPPED_WORDS)


def _swap_for_sold_out(shopper: _Shopper) -> Request:
    return _replacement(shopper, SWAP, PENDING, "swap_item", lambda order: True, stocked=False)


def _return_late(shopper: _Shopper) -> Request:
    order, record = shopper.order(DELIVERED, lambda record: not _recent(record))
    item = shopper.chance.choice(record["items"])
    facts = {
        "order": order,
        "item": _split(shopper.item(item))[0],
        "payment": shopper.kind_of(record["payment"]),
    }
    return _refusal(shopper, RETURN, facts, f"{RETURN_DAYS} days have passed", LATE_WORDS)


def _return_elsewhere(shopper: _Shopper) -> Request:
    order, record = shopper.order(DELIVERED, _recent)
    payment = shopper.other_payment(record)
    if shopper.kind_of(payment) == shopper.kind_of(record["payment"]):
        raise _UnfitError
    item = shopper.chance.choice(record["items"])
    facts = {"order": order, "item": _split(shopper.item(item))[0], "payment": shopper.kind_of(payment)}
    return _refusal(shopper, RETURN, facts, "money goes back to the payment of the order", PAYMENT_WORDS)


def _someone_elses(shopper: _Shopper) -> Request:
    orders = shopper.database.tables["orders"]
    order = shopper.chance.choice(list(orders))
    if orders[order]["customer"] == shopper.customer or orders[order]["status"] != PENDING:
        raise _UnfitError
    facts = {"order": order, "reason": shopper.chance.choice(REASONS)}
    return _refusal(shopper, CANCEL, facts, "it is not your own order", OWNER_WORDS)


def _credit_in_time(shopper: _Shopper) -> Request:
    order, _ = shopper.order(DELIVERED, lambda record: record["late_days"] < LATE_DAYS)
    return _refusal(shopper, CREDIT, {"order": order}, f"it was not {LATE_DAYS} days late", CREDIT_WORDS)


def _danger(shopper: _Shopper) -> Request:
    product = shopper.chance.choice(sorted(shopper.database.tables["products"]))
    name = shopper.database.tables["products"][product]["name"]
    say = wording(DANGER, shopper.chance, product=name)
    return Request(DANGER, say, actions=(ToolCall(ESCALATE, {"reason": "hurt"}),))


_FORBIDDEN: tuple[Callable[[_Shopper], Request], ...] = (
    _cancel_shipped,
    _cancel_for_a_bad_reason,
    _redirect_shipped,
    _swap_for_sold_out,
    _return_late,
    _return_elsewhere,
    _someone_elses,
    _credit_in_time,
    _danger,
)


def _request(
    shopper: _Shopper,
    kind: str,
    facts: Mapping[str, str],
    revised: Mapping[str, str],
    *calls: ToolCall,
    told: tuple[tuple[str, ...], ...] = (),
) -> Request:
    return Request(kind, wording(kind, shopper.chance), facts, revised, calls, told)


def _refusal(
    shopper: _Shopper, kind: str, facts: Mapping[str, str], why: str, words: tuple[str, ...], product: str = ""
) -> Request:
    """A request that is forbidden; the agent must say why, in one of these words."""
    return Request(kind, wording(kind, shopper.chance), facts, told=(words,), refused=why, product=product)


def _recent(order: Record) -> bool:
    return bool(order["days_since_delivery"] <= RETURN_DAYS)


def _split(item: Record) -> tuple[str, str]:
    """(product, option) of an item."""
    product, _, option = item["name"].partition(", ")
    return product, option


def _money(euros: float) -> str:
    return f"{euros:g}"
