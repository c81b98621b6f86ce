"""Makes tasks from templates: a customer of the generated shop, their requests, and the calls that
are right.

Every task is proven: its calls are replayed on the database, and the oracle's conversation with the
scripted user ends in success (`prove` in `env.py`).
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from reflectkit.envs.support.policy import (
    CHANGES,
    QUESTIONS,
    RULES,
    Kind,
    RuleName,
    UserRequest,
    wording,
)
from reflectkit.envs.support.shop import (
    DELIVERED,
    LATE_DAYS,
    PENDING,
    REASONS,
    RETURN_DAYS,
    SHIPPED,
    TEN,
    Record,
    ShopDatabase,
    an_address,
    city_of,
    shop,
)
from reflectkit.envs.support.tools import ESCALATE
from reflectkit.envs.support.user import Mood
from reflectkit.seeding import generator
from reflectkit.types import Task, ToolCall, to_json

NAME = "support"
ONE, SEVERAL, REFUSE, ALL = "one", "several", "refuse", "all"
EMAIL_KNOWN = 0.8
"""Probability that a user remembers their email."""
FORBIDDEN_AS_WELL = 0.25
"""Probability that one of several requests is forbidden."""
TRIES = 300
"""Customers that are tried before other wishes are drawn."""


class UnfitError(Exception):
    """This customer has nothing that such a request could be about."""


class Shopper:
    """A customer, and what a request can be about; no order is the subject of two requests."""

    def __init__(
        self,
        database: ShopDatabase,
        customer: str,
        chance: random.Random,
    ) -> None:
        self.tables, self.customer, self.chance = database.tables, customer, chance
        self.record = self.tables["customers"][customer]
        self.items = self.tables["items"]
        self._used: set[str] = set()
        self.changes: set[str] = set()
        """Items whose stock a request changes."""
        self.queries: set[str] = set()
        """Items whose stock a request depends on."""

    def choice(self, fitting: Sequence[str]) -> str:
        """One of them. Raises UnfitError if there is none."""
        if not fitting:
            raise UnfitError
        return self.chance.choice(fitting)

    def order(
        self,
        status: str,
        fits: Callable[[Record], bool] = lambda order: True,
    ) -> tuple[str, Record]:
        """One of the customer's orders that is not used yet. Raises UnfitError."""
        orders = self.tables["orders"]
        candidates = []
        for name in self.record["orders"]:
            is_new = name not in self._used
            if is_new and orders[name]["status"] == status and fits(orders[name]):
                candidates.append(name)
        name = self.choice(candidates)
        self._used.add(name)
        return name, orders[name]

    def split(self, item: str) -> tuple[str, str]:
        """(product, option) of an item."""
        product, _, option = self.items[item]["name"].partition(", ")
        return product, option

    def option(self, item: str, *, stocked: bool) -> str:
        """Another item of the same product that is, or is not, in stock. Raises UnfitError."""
        product = self.items[item]["product"]
        candidates = []
        for other in self.tables["products"][product]["items"]:
            stock = self.items[other]["stock"]
            # The last one may be gone when a second request needs it
            fits = stock > 1 if stocked else stock == 0
            if other != item and fits:
                candidates.append(other)
        return self.choice(candidates)

    def kind_of(self, payment: str) -> str:
        """How a user calls a payment method."""
        return str(self.tables["payments"][payment]["kind"])

    def other_payment(self, order: Record) -> str:
        """A payment method of the customer that the order does not have, of a kind that they have
        once.
        """
        # A user names a payment method by its kind, which must be clear
        kinds = list(map(self.kind_of, self.record["payments"]))
        others = [name for name in self.record["payments"] if name != order["payment"]]
        return self.choice([name for name in others if kinds.count(self.kind_of(name)) == 1])

    def address(self, record: Record) -> str:
        """An address other than that of an order or a customer."""
        while True:
            address = an_address(self.chance)
            if address != record["address"]:
                return address

    def wish(
        self,
        kind: Kind,
        facts: Mapping[str, str],
        call: ToolCall | None = None,
        *,
        revised: Mapping[str, str] | None = None,
        amount: float | None = None,
        product: str = "",
    ) -> UserRequest:
        """A request that the policy allows, and the call that does it. amount: what the user must be
        told.
        """
        return UserRequest(
            kind,
            wording(kind, self.chance),
            facts,
            revised or {},
            actions=() if call is None else (call,),
            told=() if amount is None else ((f"{amount:g}",),),
            product=product,
        )

    def forbidden(
        self,
        kind: Kind,
        facts: Mapping[str, str],
        rule: RuleName,
        product: str = "",
    ) -> UserRequest:
        """A request that a rule forbids."""
        return UserRequest(kind, wording(kind, self.chance), facts, rule=rule, product=product)


def is_recent(order: Record) -> bool:
    """Whether a delivered order can be returned."""
    return bool(order["days_since_delivery"] <= RETURN_DAYS)


Maker = Callable[[Shopper], UserRequest]
"""Makes a request of a customer. Raises UnfitError if they have nothing that it could be about.

Where a user changes their mind, `first` is what they say at first, and `then` what they want.
"""


# Requests that the policy allows


def _cancel(shopper: Shopper) -> UserRequest:
    order, record = shopper.order(PENDING)
    first, then = shopper.chance.sample(REASONS, 2)
    return shopper.wish(
        "cancel",
        {"order": order, "reason": first},
        ToolCall("cancel_order", {"order": order, "reason": then}),
        revised={"reason": then},
        amount=record["paid"],
    )


def _change_address(shopper: Shopper) -> UserRequest:
    order, record = shopper.order(PENDING)
    first, then = shopper.address(record), shopper.address(record)
    return shopper.wish(
        "address",
        {"order": order, "address": first},
        ToolCall("change_address", {"order": order, "address": then}),
        revised={"address": then},
    )


def _change_payment(shopper: Shopper) -> UserRequest:
    order, record = shopper.order(PENDING)
    payment = shopper.other_payment(record)
    return shopper.wish(
        "payment",
        {"order": order, "payment": shopper.kind_of(payment)},
        ToolCall("change_payment", {"order": order, "payment": payment}),
    )


def _swap(shopper: Shopper) -> UserRequest:
    order, record = shopper.order(PENDING)
    return _other_option(shopper, "swap", order, record)


def _exchange(shopper: Shopper) -> UserRequest:
    order, record = shopper.order(DELIVERED, is_recent)
    return _other_option(shopper, "exchange", order, record)


def _other_option(shopper: Shopper, kind: Kind, order: str, record: Record) -> UserRequest:
    """Another option of an item. kind: "swap" before the delivery, "exchange" after it."""
    # 1. The item, and the options; the stock of both items changes
    items = shopper.items
    item = shopper.chance.choice(record["items"])
    first = shopper.option(item, stocked=True)
    then = shopper.option(item, stocked=True)
    shopper.changes |= {item, then}

    # 2. The request
    product, option = shopper.split(first)
    revised = {"option": shopper.split(then)[1]} if then != first else {}
    return shopper.wish(
        kind,
        {"order": order, "item": product, "option": option},
        ToolCall(f"{kind}_item", {"order": order, "item": item, "new_item": then}),
        revised=revised,
        amount=record["paid"] - items[item]["price"] + items[then]["price"],
        product=product,
    )


def _return(shopper: Shopper) -> UserRequest:
    order, record = shopper.order(DELIVERED, is_recent)
    first = shopper.chance.choice(record["items"])
    then = shopper.chance.choice(record["items"])
    arguments = {"order": order, "item": then, "payment": record["payment"]}
    return shopper.wish(
        "return",
        {"order": order, "item": shopper.split(first)[0]},
        ToolCall("return_item", arguments),
        revised={"item": shopper.split(then)[0]} if then != first else {},
        amount=shopper.items[then]["price"],
    )


def _move(shopper: Shopper) -> UserRequest:
    first, then = shopper.address(shopper.record), shopper.address(shopper.record)
    return shopper.wish(
        "move",
        {"address": first},
        ToolCall("move_customer", {"customer": shopper.customer, "address": then}),
        revised={"address": then},
    )


def _credit(shopper: Shopper) -> UserRequest:
    order, _ = shopper.order(DELIVERED, lambda record: record["late_days"] >= LATE_DAYS)
    call = ToolCall("credit", {"order": order})
    return shopper.wish("credit", {"order": order}, call, amount=TEN)


def _ask_paid(shopper: Shopper) -> UserRequest:
    order, record = shopper.order(shopper.chance.choice((PENDING, SHIPPED, DELIVERED)))
    return shopper.wish("paid", {"order": order}, amount=record["paid"])


def _ask_stock(shopper: Shopper) -> UserRequest:
    # 1. The item
    item = shopper.chance.choice(list(shopper.items))
    shopper.queries.add(item)
    product, option = shopper.split(item)

    # 2. What an answer may say of it
    stock = shopper.items[item]["stock"]
    alternatives = (str(stock),) if stock else (*RULES["stock"].words, "0", "none")
    return UserRequest(
        "stock",
        wording("stock", shopper.chance, product=product, option=option),
        {"item": product, "option": option},
        told=(alternatives,),
        product=product,
    )


ALLOWED: dict[str, Maker] = {
    "cancel": _cancel,
    "address": _change_address,
    "payment": _change_payment,
    "swap": _swap,
    "exchange": _exchange,
    "return": _return,
    "move": _move,
    "credit": _credit,
    "paid": _ask_paid,
    "stock": _ask_stock,
}
"""By `CHANGES` and `QUESTIONS`."""


# Requests that a rule forbids


def _cancel_shipped(shopper: Shopper) -> UserRequest:
    order, _ = shopper.order(SHIPPED)
    facts = {"order": order, "reason": shopper.chance.choice(REASONS)}
    return shopper.forbidden("cancel", facts, "shipped")


def _cancel_for_bad_reason(shopper: Shopper) -> UserRequest:
    order, _ = shopper.order(PENDING)
    facts = {"order": order, "reason": "cheaper elsewhere"}
    return shopper.forbidden("cancel", facts, "reason")


def _redirect_shipped(shopper: Shopper) -> UserRequest:
    order, record = shopper.order(SHIPPED)
    facts = {"order": order, "address": shopper.address(record)}
    return shopper.forbidden("address", facts, "shipped")


def _swap_for_sold_out(shopper: Shopper) -> UserRequest:
    order, record = shopper.order(PENDING)
    item = shopper.option(shopper.chance.choice(record["items"]), stocked=False)
    shopper.queries.add(item)
    product, option = shopper.split(item)
    facts = {"order": order, "item": product, "option": option}
    return shopper.forbidden("swap", facts, "stock", product)


def _return_late(shopper: Shopper) -> UserRequest:
    order, record = shopper.order(DELIVERED, lambda record: not is_recent(record))
    product, _ = shopper.split(shopper.chance.choice(record["items"]))
    return shopper.forbidden("return", {"order": order, "item": product}, "late")


def _return_elsewhere(shopper: Shopper) -> UserRequest:
    order, record = shopper.order(DELIVERED, is_recent)
    payment = shopper.kind_of(shopper.other_payment(record))
    # The user's words would not tell the two apart
    if payment == shopper.kind_of(record["payment"]):
        raise UnfitError
    product, _ = shopper.split(shopper.chance.choice(record["items"]))
    facts = {"order": order, "item": product, "payment": payment}
    request = shopper.forbidden("return", facts, "payment")
    return replace(request, say=wording("elsewhere", shopper.chance, payment=payment))


def _cancel_for_someone_else(shopper: Shopper) -> UserRequest:
    orders = shopper.tables["orders"]
    order = shopper.chance.choice(list(orders))
    # It must be another customer's, and pending, so that only one rule forbids it
    if orders[order]["customer"] == shopper.customer or orders[order]["status"] != PENDING:
        raise UnfitError
    facts = {"order": order, "reason": shopper.chance.choice(REASONS)}
    return shopper.forbidden("cancel", facts, "owner")


def _credit_in_time(shopper: Shopper) -> UserRequest:
    order, _ = shopper.order(DELIVERED, lambda record: record["late_days"] < LATE_DAYS)
    return shopper.forbidden("credit", {"order": order}, "credit")


def _report_danger(shopper: Shopper) -> UserRequest:
    """Not forbidden, but for a colleague to hear."""
    products = shopper.tables["products"]
    product = products[shopper.chance.choice(sorted(products))]["name"]
    say = wording("danger", shopper.chance, product=product)
    return UserRequest("danger", say, actions=(ToolCall(ESCALATE, {"reason": "hurt"}),))


FORBIDDEN: dict[str, Maker] = {
    "cancel shipped": _cancel_shipped,
    "cancel for a bad reason": _cancel_for_bad_reason,
    "redirect shipped": _redirect_shipped,
    "swap for sold out": _swap_for_sold_out,
    "return late": _return_late,
    "return elsewhere": _return_elsewhere,
    "someone else's": _cancel_for_someone_else,
    "credit in time": _credit_in_time,
    "danger": _report_danger,
}
MAKERS = ALLOWED | FORBIDDEN


def make_task(
    seed: int,
    number: int,
    level: str,
    database: ShopDatabase,
    source: Mapping[str, Any],
) -> Task:
    """Task `number` of `level`. source: how to make the database again, as `database` in the task's
    data.

    Its id and its group, the customer, name the seeds, so that tasks of several seeds differ in
    them.
    """
    chance = generator(seed, "support", level, number)
    customer, mood, requests = _draw(level, database, chance)
    record = database.tables["customers"][customer]
    city = city_of(record)
    # Without an email, name and city must say who the user is
    namesakes = database.customers_with(name=record["name"], city=city)
    knows_email = chance.random() < EMAIL_KNOWN or len(namesakes) > 1
    data = {
        "database": dict(source),
        "customer": customer,
        "user": {
            "name": record["name"],
            "city": city,
            "email": record["email"] if knows_email else "",
            "mood": mood,
        },
        "kind": "+".join(request.kind for request in requests if request.kind != "extra"),
        "requests": [to_json(request) for request in requests],
    }
    return Task(
        f"support-{level}-{seed}-{number}",
        NAME,
        level,
        f"shop-{source['seed']}-{customer}",
        data,
    )


def source_of(seed: int, customers: int) -> dict[str, Any]:
    """How a task names its database."""
    return {"seed": seed, "customers": customers, "digest": shop(seed, customers).digest}


def _draw(
    level: str,
    database: ShopDatabase,
    chance: random.Random,
) -> tuple[str, str, list[UserRequest]]:
    """(customer, mood, requests), in which the requests fit the customer and the mood."""
    customers = list(database.tables["customers"])
    while True:  # some wishes fit nobody
        wishes = _wishes(level, chance)
        for _ in range(TRIES):
            customer, mood = chance.choice(customers), chance.choice(get_args(Mood))
            with contextlib.suppress(UnfitError):
                shopper = Shopper(database, customer, chance)
                return customer, mood, _requests(level, shopper, wishes, mood)


def _wishes(level: str, chance: random.Random) -> list[str]:
    """What the user wants, before it is known who they are."""
    if level == ONE:
        return [chance.choice(CHANGES)]
    if level == REFUSE:
        return [chance.choice(list(FORBIDDEN))]
    first = chance.choice(CHANGES)  # one change at least
    kinds = [kind for kind in (*CHANGES, *QUESTIONS) if kind != first]
    others = chance.sample(kinds, chance.choice((1, 1, 2)))
    wishes: list[str] = [first, *others]
    if chance.random() < FORBIDDEN_AS_WELL:
        wishes[-1] = chance.choice(list(FORBIDDEN))
    chance.shuffle(wishes)
    return wishes


def _requests(
    level: str,
    shopper: Shopper,
    wishes: Sequence[str],
    mood: str,
) -> list[UserRequest]:
    """The requests of one task. Raises UnfitError."""
    # 1. One for each wish; no stock may depend on the order in which they are done
    requests = []
    for wish in wishes:
        # Each uses up what it is about
        requests.append(MAKERS[wish](shopper))
    if shopper.changes & shopper.queries:
        raise UnfitError
    # 2. A wavering user changes their mind once, and the others want the last facts from the start
    candidates = [place for place, request in enumerate(requests) if request.revised]
    if mood == "wavering" and not candidates:
        raise UnfitError
    change_place = shopper.chance.choice(candidates) if mood == "wavering" else None
    for place, request in enumerate(requests):
        if place != change_place:
            requests[place] = replace(request, facts=request.final, revised={})
    # 3. After an injury, the colleague would not hear the rest
    if any(request.kind == "danger" for request in requests[:-1]):
        raise UnfitError
    # 4. A pushy user wants something for their trouble, too
    if mood == "pushy" and level != REFUSE and requests[-1].kind != "danger":
        requests.append(shopper.forbidden("extra", {}, "goodwill"))
    return requests
