"""Makes tasks from templates: a customer of the generated shop, their requests, and the calls that are right.

Every task is proven: its calls are replayed on the database, and the oracle's conversation with the scripted user ends
in success (`problems.py`).
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from reflectkit.envs.support.policy import CHANGES, QUESTIONS, RULES, Kind, RuleName, UserRequest, wording
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
    another_address,
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

    def __init__(self, database: ShopDatabase, customer: str, chance: random.Random) -> None:
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

    def order(self, status: str, fits: Callable[[Record], bool] = lambda order: True) -> tuple[str, Record]:
        """One of the customer's orders that is not used yet. Raises UnfitError."""
        orders = self.tables["orders"]
        unused = [name for name in self.record["orders"] if name not in self._used]
        name = self.choice([name for name in unused if orders[name]["status"] == status and fits(orders[name])])
        self._used.add(name)
        return name, orders[name]

    def split(self, item: str) -> tuple[str, str]:
        """(product, option) of an item."""
        product, _, option = self.items[item]["name"].partition(", ")
        return product, option

    def options(self, item: str, *, stocked: bool) -> list[str]:
        """The other items of the same product that are, or are not, in stock. Raises UnfitError if there is none."""
        others = [other for other in self.tables["products"][self.items[item]["product"]]["items"] if other != item]
        fitting = [
            other
            for other in others
            if (self.items[other]["stock"] > 1 if stocked else self.items[other]["stock"] == 0)
        ]
        if not fitting:
            raise UnfitError
        return fitting

    def other_payment(self, order: Record) -> str:
        """A payment method of the customer that the order does not have, of a kind that they have once."""
        kinds = list(map(self.kind_of, self.record["payments"]))
        others = [name for name in self.record["payments"] if name != order["payment"]]
        return self.choice([name for name in others if kinds.count(self.kind_of(name)) == 1])

    def kind_of(self, payment: str) -> str:
        """How a user calls a payment method."""
        return str(self.tables["payments"][payment]["kind"])

    def address(self, than: str) -> str:
        """An address other than `than`."""
        return another_address(self.chance, than)

    def wish(
        self,
        kind: Kind,
        facts: Mapping[str, str],
        call: ToolCall | None = None,
        *,
        revised: Mapping[str, str] | None = None,
        told: str = "",
    ) -> UserRequest:
        """A request that the policy allows, and the call that does it."""
        calls = () if call is None else (call,)
        return UserRequest(kind, wording(kind, self.chance), facts, revised or {}, calls, ((told,),) if told else ())

    def forbidden(self, kind: Kind, facts: Mapping[str, str], rule: RuleName) -> UserRequest:
        """A request that a rule forbids."""
        return UserRequest(kind, wording(kind, self.chance), facts, rule=rule)


def is_recent(order: Record) -> bool:
    """Whether a delivered order can be returned."""
    return bool(order["days_since_delivery"] <= RETURN_DAYS)


def money(euros: float) -> str:
    """An amount as agents tell it."""
    return f"{euros:g}"


Wish = Callable[[Shopper], UserRequest]
"""A wish of a shopper. Raises UnfitError where they have nothing that it could be about."""


# ------------------------------------------------------------------------------------------------ what is allowed


def _cancel(shopper: Shopper) -> UserRequest:
    order, record = shopper.order(PENDING)
    first, then = shopper.chance.sample(REASONS, 2)
    call = ToolCall("cancel_order", {"order": order, "reason": then})
    facts = {"order": order, "reason": first}
    return shopper.wish("cancel", facts, call, revised={"reason": then}, told=money(record["paid"]))


def _address(shopper: Shopper) -> UserRequest:
    order, record = shopper.order(PENDING)
    first, then = shopper.address(record["address"]), shopper.address(record["address"])
    call = ToolCall("change_address", {"order": order, "address": then})
    return shopper.wish("address", {"order": order, "address": first}, call, revised={"address": then})


def _payment(shopper: Shopper) -> UserRequest:
    order, record = shopper.order(PENDING)
    payment = shopper.other_payment(record)
    call = ToolCall("change_payment", {"order": order, "payment": payment})
    return shopper.wish("payment", {"order": order, "payment": shopper.kind_of(payment)}, call)


def _swap(shopper: Shopper) -> UserRequest:
    return _replacement(shopper, "swap", "swap_item", *shopper.order(PENDING))


def _exchange(shopper: Shopper) -> UserRequest:
    return _replacement(shopper, "exchange", "exchange_item", *shopper.order(DELIVERED, is_recent))


def _replacement(shopper: Shopper, kind: Kind, tool: str, order: str, record: Record) -> UserRequest:
    """Another option of an item."""
    item = shopper.chance.choice(record["items"])
    options = shopper.options(item, stocked=True)
    first, then = (shopper.chance.choice(options) for _ in range(2))
    shopper.moved |= {item, then}
    product, option = shopper.split(first)
    revised = {"option": shopper.split(then)[1]} if then != first else {}
    call = ToolCall(tool, {"order": order, "item": item, "new_item": then})
    paid = record["paid"] - shopper.items[item]["price"] + shopper.items[then]["price"]
    facts = {"order": order, "item": product, "option": option}
    return replace(shopper.wish(kind, facts, call, revised=revised, told=money(paid)), product=product)


def _return(shopper: Shopper) -> UserRequest:
    order, record = shopper.order(DELIVERED, is_recent)
    first, then = (shopper.chance.choice(record["items"]) for _ in range(2))
    call = ToolCall("return_item", {"order": order, "item": then, "payment": record["payment"]})
    facts = {"order": order, "item": shopper.split(first)[0]}
    revised = {"item": shopper.split(then)[0]} if then != first else {}
    return shopper.wish("return", facts, call, revised=revised, told=money(shopper.items[then]["price"]))


def _move(shopper: Shopper) -> UserRequest:
    first, then = shopper.address(shopper.record["address"]), shopper.address(shopper.record["address"])
    call = ToolCall("move_customer", {"customer": shopper.customer, "address": then})
    return shopper.wish("move", {"address": first}, call, revised={"address": then})


def _credit(shopper: Shopper) -> UserRequest:
    order, _ = shopper.order(DELIVERED, lambda record: record["late_days"] >= LATE_DAYS)
    return shopper.wish("credit", {"order": order}, ToolCall("credit", {"order": order}), told=str(TEN))


def _paid(shopper: Shopper) -> UserRequest:
    order, record = shopper.order(shopper.chance.choice((PENDING, SHIPPED, DELIVERED)))
    return shopper.wish("paid", {"order": order}, told=money(record["paid"]))


def _stock(shopper: Shopper) -> UserRequest:
    item = shopper.chance.choice(list(shopper.items))
    shopper.asked.add(item)
    product, option = shopper.split(item)
    stock = shopper.items[item]["stock"]
    told = ((str(stock),),) if stock else ((*RULES["stock"].words, "0", "none"),)
    say = wording("stock", shopper.chance, product=product, option=option)
    return UserRequest("stock", say, {"item": product, "option": option}, told=told, product=product)


ALLOWED: Mapping[Kind, Wish] = {
    "cancel": _cancel,
    "address": _address,
    "payment": _payment,
    "swap": _swap,
    "return": _return,
    "exchange": _exchange,
    "move": _move,
    "credit": _credit,
    "paid": _paid,
    "stock": _stock,
}


# ---------------------------------------------------------------------------------------------- what is forbidden


def _cancel_shipped(shopper: Shopper) -> UserRequest:
    order, _ = shopper.order(SHIPPED)
    return shopper.forbidden("cancel", {"order": order, "reason": shopper.chance.choice(REASONS)}, "shipped")


def _cancel_for_a_bad_reason(shopper: Shopper) -> UserRequest:
    order, _ = shopper.order(PENDING)
    return shopper.forbidden("cancel", {"order": order, "reason": "cheaper elsewhere"}, "reason")


def _redirect_shipped(shopper: Shopper) -> UserRequest:
    order, record = shopper.order(SHIPPED)
    return shopper.forbidden("address", {"order": order, "address": shopper.address(record["address"])}, "shipped")


def _swap_for_sold_out(shopper: Shopper) -> UserRequest:
    order, record = shopper.order(PENDING)
    wanted = shopper.chance.choice(shopper.options(shopper.chance.choice(record["items"]), stocked=False))
    shopper.asked.add(wanted)
    product, option = shopper.split(wanted)
    facts = {"order": order, "item": product, "option": option}
    return replace(shopper.forbidden("swap", facts, "stock"), product=product)


def _return_late(shopper: Shopper) -> UserRequest:
    order, record = shopper.order(DELIVERED, lambda record: not is_recent(record))
    item, _ = shopper.split(shopper.chance.choice(record["items"]))
    return shopper.forbidden("return", {"order": order, "item": item}, "late")


def _return_elsewhere(shopper: Shopper) -> UserRequest:
    order, record = shopper.order(DELIVERED, is_recent)
    payment = shopper.kind_of(shopper.other_payment(record))
    if payment == shopper.kind_of(record["payment"]):
        raise UnfitError
    item, _ = shopper.split(shopper.chance.choice(record["items"]))
    request = shopper.forbidden("return", {"order": order, "item": item, "payment": payment}, "payment")
    return replace(request, say=wording("elsewhere", shopper.chance, payment=payment))


def _someone_elses(shopper: Shopper) -> UserRequest:
    orders = shopper.tables["orders"]
    order = shopper.chance.choice(list(orders))
    if orders[order]["customer"] == shopper.customer or orders[order]["status"] != PENDING:
        raise UnfitError
    return shopper.forbidden("cancel", {"order": order, "reason": shopper.chance.choice(REASONS)}, "owner")


def _credit_in_time(shopper: Shopper) -> UserRequest:
    order, _ = shopper.order(DELIVERED, lambda record: record["late_days"] < LATE_DAYS)
    return shopper.forbidden("credit", {"order": order}, "credit")


def _danger(shopper: Shopper) -> UserRequest:
    """The wish that a colleague must hear."""
    product = shopper.tables["products"][shopper.chance.choice(sorted(shopper.tables["products"]))]["name"]
    say = wording("danger", shopper.chance, product=product)
    return UserRequest("danger", say, actions=(ToolCall(ESCALATE, {"reason": "hurt"}),))


FORBIDDEN: tuple[Wish, ...] = (
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


# -------------------------------------------------------------------------------------------------------- the tasks


def make_task(seed: int, number: int, level: str, database: ShopDatabase, source: Mapping[str, Any]) -> Task:
    """Task `number` of `level`. source: how to make the database again, as `database` in the task's data.

    Its id and its group, the customer, name the seeds, so that tasks of several seeds differ in them.
    """
    chance = generator(seed, "support", level, number)
    customer, mood, requests = _drawn(level, database, chance)
    record = database.tables["customers"][customer]
    city = city_of(record)
    knows_email = chance.random() < EMAIL_KNOWN or len(database.customers_with(name=record["name"], city=city)) > 1
    data = {
        "database": dict(source),
        "customer": customer,
        "user": {"name": record["name"], "city": city, "email": record["email"] if knows_email else "", "mood": mood},
        "kind": "+".join(request.kind for request in requests if request.kind != "extra"),
        "requests": [to_json(request) for request in requests],
    }
    return Task(f"support-{level}-{seed}-{number}", NAME, level, f"shop-{source['seed']}-{customer}", data)


def source_of(seed: int, customers: int) -> dict[str, Any]:
    """How a task names its database."""
    return {"seed": seed, "customers": customers, "digest": shop(seed, customers).digest}


def _drawn(level: str, database: ShopDatabase, chance: random.Random) -> tuple[str, str, list[UserRequest]]:
    """(customer, mood, requests), in which the requests fit the customer and the mood."""
    customers = list(database.tables["customers"])
    while True:  # some wishes fit nobody
        wishes = _wishes(level, chance)
        for _ in range(TRIES):
            customer, mood = chance.choice(customers), chance.choice(get_args(Mood))
            with contextlib.suppress(UnfitError):
                return customer, mood, _requests(level, Shopper(database, customer, chance), wishes, mood)


def _wishes(level: str, chance: random.Random) -> list[Wish]:
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


def _requests(level: str, shopper: Shopper, wishes: Sequence[Wish], mood: str) -> list[UserRequest]:
    """The requests of one task. Raises UnfitError."""
    requests = [wish(shopper) for wish in wishes]
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
