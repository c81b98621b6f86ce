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
    """A customer, and what a request can be about. An order is the subject of one request at most."""

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
        self.moved: set[str] = set()
        """Items whose stock a request changes."""
        self.asked: set[str] = set()
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
        unused = [name for name in self.record["orders"] if name not in self._used]
        name = self.choice(
            [name for name in unused if orders[name]["status"] == status and fits(orders[name])]
        )
        self._used.add(name)
        return name, orders[name]

    def split(self, item: str) -> tuple[str, str]:
        """(product, option) of an item."""
        product, _, option = self.items[item]["name"].partition(", ")
        return product, option

    def option(self, item: str, *, stocked: bool) -> str:
        """Another item of the same product that is, or is not, in stock. Raises UnfitError."""
        others = [
            other
            for other in self.tables["products"][self.items[item]["product"]]["items"]
            if other != item
        ]
        stock = {other: self.items[other]["stock"] for other in others}
        return self.choice(
            [other for other in others if (stock[other] > 1 if stocked else stock[other] == 0)]
        )

    def kind_of(self, payment: str) -> str:
        """How a user calls a payment method."""
        return str(self.tables["payments"][payment]["kind"])

    def other_payment(self, order: Record) -> str:
        """A payment method of the customer that the order does not have, of a kind that they have
        once.
        """
        kinds = list(map(self.kind_of, self.record["payments"]))
        others = [name for name in self.record["payments"] if name != order["payment"]]
        return self.choice([name for name in others if kinds.count(self.kind_of(name)) == 1])

    def address(self, record: Record) -> str:
        """An address other than that of an order or a customer."""
        while (address := an_address(self.chance)) == record["address"]:
            pass
        return address

    def wish(
        self,
        kind: Kind,
        facts: Mapping[str, str],
        call: ToolCall | None = None,
        *,
        revised: Mapping[str, str] | None = None,
        told: float | None = None,
        product: str = "",
    ) -> UserRequest:
        """A request that the policy allows, and the call that does it. told: an amount that the
        user must be told.
        """
        calls = () if call is None else (call,)
        say = wording(kind, self.chance)
        return UserRequest(
            kind,
            say,
            facts,
            revised or {},
            calls,
            () if told is None else ((f"{told:g}",),),
            "",
            product,
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


def allowed(shopper: Shopper, kind: str) -> UserRequest:
    """A request of this kind that the policy allows. Raises UnfitError where the shopper has
    nothing that it could be about.
    """
    chance, items = shopper.chance, shopper.items
    match kind:
        case "cancel":
            order, record = shopper.order(PENDING)
            first, then = chance.sample(REASONS, 2)
            call = ToolCall("cancel_order", {"order": order, "reason": then})
            facts = {"order": order, "reason": first}
            return shopper.wish(
                "cancel",
                facts,
                call,
                revised={"reason": then},
                told=record["paid"],
            )
        case "address":
            order, record = shopper.order(PENDING)
            first, then = shopper.address(record), shopper.address(record)
            call = ToolCall("change_address", {"order": order, "address": then})
            return shopper.wish(
                "address",
                {"order": order, "address": first},
                call,
                revised={"address": then},
            )
        case "payment":
            order, record = shopper.order(PENDING)
            payment = shopper.other_payment(record)
            call = ToolCall("change_payment", {"order": order, "payment": payment})
            return shopper.wish(
                "payment",
                {"order": order, "payment": shopper.kind_of(payment)},
                call,
            )
        case "swap" | "exchange":  # another option of an item
            order, record = (
                shopper.order(PENDING) if kind == "swap" else shopper.order(DELIVERED, is_recent)
            )
            item = chance.choice(record["items"])
            first, then = (shopper.option(item, stocked=True) for _ in range(2))
            shopper.moved |= {item, then}
            product, option = shopper.split(first)
            facts = {"order": order, "item": product, "option": option}
            revised = {"option": shopper.split(then)[1]} if then != first else {}
            call = ToolCall(f"{kind}_item", {"order": order, "item": item, "new_item": then})
            paid = record["paid"] - items[item]["price"] + items[then]["price"]
            return shopper.wish(kind, facts, call, revised=revised, told=paid, product=product)
        case "return":
            order, record = shopper.order(DELIVERED, is_recent)
            first, then = (chance.choice(record["items"]) for _ in range(2))
            call = ToolCall(
                "return_item", {"order": order, "item": then, "payment": record["payment"]}
            )
            facts = {"order": order, "item": shopper.split(first)[0]}
            revised = {"item": shopper.split(then)[0]} if then != first else {}
            return shopper.wish("return", facts, call, revised=revised, told=items[then]["price"])
        case "move":
            first, then = shopper.address(shopper.record), shopper.address(shopper.record)
            call = ToolCall("move_customer", {"customer": shopper.customer, "address": then})
            return shopper.wish("move", {"address": first}, call, revised={"address": then})
        case "credit":
            order, _ = shopper.order(DELIVERED, lambda record: record["late_days"] >= LATE_DAYS)
            return shopper.wish(
                "credit",
                {"order": order},
                ToolCall("credit", {"order": order}),
                told=TEN,
            )
        case "paid":
            order, record = shopper.order(chance.choice((PENDING, SHIPPED, DELIVERED)))
            return shopper.wish("paid", {"order": order}, told=record["paid"])
    item = chance.choice(list(items))  # how many are in stock
    shopper.asked.add(item)
    product, option = shopper.split(item)
    stock = items[item]["stock"]
    told = ((str(stock),),) if stock else ((*RULES["stock"].words, "0", "none"),)
    say = wording("stock", chance, product=product, option=option)
    return UserRequest(
        "stock",
        say,
        {"item": product, "option": option},
        told=told,
        product=product,
    )


FORBIDDEN = (
    "cancel shipped", "cancel for a bad reason", "redirect shipped", "swap for sold out", "return late",
    "return elsewhere", "someone else's", "credit in time", "danger",
)  # fmt: skip


def forbidden(shopper: Shopper, wish: str) -> UserRequest:
    """One of the `FORBIDDEN` wishes, or the one that a colleague must hear. Raises UnfitError."""
    chance = shopper.chance
    match wish:
        case "cancel shipped":
            order, _ = shopper.order(SHIPPED)
            return shopper.forbidden(
                "cancel",
                {"order": order, "reason": chance.choice(REASONS)},
                "shipped",
            )
        case "cancel for a bad reason":
            order, _ = shopper.order(PENDING)
            return shopper.forbidden(
                "cancel",
                {"order": order, "reason": "cheaper elsewhere"},
                "reason",
            )
        case "redirect shipped":
            order, record = shopper.order(SHIPPED)
            return shopper.forbidden(
                "address",
                {"order": order, "address": shopper.address(record)},
                "shipped",
            )
        case "swap for sold out":
            order, record = shopper.order(PENDING)
            wanted = shopper.option(chance.choice(record["items"]), stocked=False)
            shopper.asked.add(wanted)
            product, option = shopper.split(wanted)
            return shopper.forbidden(
                "swap",
                {"order": order, "item": product, "option": option},
                "stock",
                product,
            )
        case "return late":
            order, record = shopper.order(DELIVERED, lambda record: not is_recent(record))
            item, _ = shopper.split(chance.choice(record["items"]))
            return shopper.forbidden("return", {"order": order, "item": item}, "late")
        case "return elsewhere":
            order, record = shopper.order(DELIVERED, is_recent)
            payment = shopper.kind_of(shopper.other_payment(record))
            if payment == shopper.kind_of(record["payment"]):
                raise UnfitError
            item, _ = shopper.split(chance.choice(record["items"]))
            request = shopper.forbidden(
                "return",
                {"order": order, "item": item, "payment": payment},
                "payment",
            )
            return replace(request, say=wording("elsewhere", chance, payment=payment))
        case "someone else's":
            orders = shopper.tables["orders"]
            order = chance.choice(list(orders))
            if orders[order]["customer"] == shopper.customer or orders[order]["status"] != PENDING:
                raise UnfitError
            return shopper.forbidden(
                "cancel",
                {"order": order, "reason": chance.choice(REASONS)},
                "owner",
            )
        case "credit in time":
            order, _ = shopper.order(DELIVERED, lambda record: record["late_days"] < LATE_DAYS)
            return shopper.forbidden("credit", {"order": order}, "credit")
    product = shopper.tables["products"][chance.choice(sorted(shopper.tables["products"]))]["name"]
    say = wording("danger", chance, product=product)
    return UserRequest("danger", say, actions=(ToolCall(ESCALATE, {"reason": "hurt"}),))


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
    customer, mood, requests = _drawn(level, database, chance)
    record = database.tables["customers"][customer]
    city = city_of(record)
    knows_email = (
        chance.random() < EMAIL_KNOWN
        or len(database.customers_with(name=record["name"], city=city)) > 1
    )
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


def _drawn(
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
                return (
                    customer,
                    mood,
                    _requests(level, Shopper(database, customer, chance), wishes, mood),
                )


def _wishes(level: str, chance: random.Random) -> list[str]:
    """What the user wants, before it is known who they are."""
    if level == ONE:
        return [chance.choice(CHANGES)]
    if level == REFUSE:
        return [chance.choice(FORBIDDEN)]
    first = chance.choice(CHANGES)  # one change at least
    others = chance.sample(
        [kind for kind in (*CHANGES, *QUESTIONS) if kind != first], chance.choice((1, 1, 2))
    )
    wishes: list[str] = [first, *others]
    if chance.random() < FORBIDDEN_AS_WELL:
        wishes[-1] = chance.choice(FORBIDDEN)
    chance.shuffle(wishes)
    return wishes


def _requests(
    level: str,
    shopper: Shopper,
    wishes: Sequence[str],
    mood: str,
) -> list[UserRequest]:
    """The requests of one task. Raises UnfitError."""
    requests = [
        forbidden(shopper, wish) if wish in FORBIDDEN else allowed(shopper, wish) for wish in wishes
    ]
    if shopper.moved & shopper.asked:
        raise UnfitError  # the stock would depend on what was done before
    able = [place for place, request in enumerate(requests) if request.revised]
    if mood == "wavering" and not able:
        raise UnfitError
    wavers = shopper.chance.choice(able) if mood == "wavering" else None
    for place, request in enumerate(requests):
        if place != wavers:  # wants from the start what they would have changed to
            requests[place] = replace(request, facts=request.final, revised={})
    if any(request.kind == "danger" for request in requests[:-1]):
        raise UnfitError  # the colleague would not hear the rest
    if mood == "pushy" and level != REFUSE and requests[-1].kind != "danger":
        requests.append(shopper.forbidden("extra", {}, "goodwill"))
    return requests
