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


def allowed(shopper: Shopper, kind: str) -> UserRequest:
    """A request of this kind that the policy allows. Raises UnfitError where the shopper has
    nothing that it could be about.
    """
    chance, items = shopper.chance, shopper.items
    match kind:
        case "cancel":
            order, record = shopper.order(PENDING)
            # What the user says first, and what they change it to
            first, then = chance.sample(REASONS, 2)
            call = ToolCall("cancel_order", {"order": order, "reason": then})
            facts = {"order": order, "reason": first}
            return shopper.wish(
                "cancel",
                facts,
                call,
                revised={"reason": then},
                amount=record["paid"],
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
            # Both items' stock changes
            shopper.changes |= {item, then}
            product, option = shopper.split(first)
            facts = {"order": order, "item": product, "option": option}
            revised = {"option": shopper.split(then)[1]} if then != first else {}
            call = ToolCall(f"{kind}_item", {"order": order, "item": item, "new_item": then})
            total = record["paid"] - items[item]["price"] + items[then]["price"]
            return shopper.wish(kind, facts, call, revised=revised, amount=total, product=product)
        case "return":
            order, record = shopper.order(DELIVERED, is_recent)
            first, then = (chance.choice(record["items"]) for _ in range(2))
            call = ToolCall(
                "return_item", {"order": order, "item": then, "payment": record["payment"]}
            )
            facts = {"order": order, "item": shopper.split(first)[0]}
            revised = {"item": shopper.split(then)[0]} if then != first else {}
            return shopper.wish("return", facts, call, revised=revised, amount=items[then]["price"])
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
                amount=TEN,
            )
        case "paid":
            order, record = shopper.order(chance.choice((PENDING, SHIPPED, DELIVERED)))
            return shopper.wish("paid", {"order": order}, amount=record["paid"])
    # The only other kind: how many are in stock
    item = chance.choice(list(items))
    shopper.queries.add(item)
    product, option = shopper.split(item)
    stock = items[item]["stock"]
    alternatives = (str(stock),) if stock else (*RULES["stock"].words, "0", "none")
    say = wording("stock", chance, product=product, option=option)
    return UserRequest(
        "stock",
        say,
        {"item": product, "option": option},
        told=(alternatives,),
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
            item = shopper.option(chance.choice(record["items"]), stocked=False)
            shopper.queries.add(item)
            product, option = shopper.split(item)
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
            # The user's words would not tell the two apart
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
            # It must be another customer's, and pending, so that only one rule forbids it
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
        return [chance.choice(FORBIDDEN)]
    first = chance.choice(CHANGES)  # one change at least
    kinds = [kind for kind in (*CHANGES, *QUESTIONS) if kind != first]
    others = chance.sample(kinds, chance.choice((1, 1, 2)))
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
    # 1. One for each wish; no stock may depend on the order in which they are done
    requests = []
    for wish in wishes:
        make = forbidden if wish in FORBIDDEN else allowed
        # Each uses up what it is about
        requests.append(make(shopper, wish))
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
