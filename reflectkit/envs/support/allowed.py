"""The wishes that the policy allows, with the calls that are right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from reflectkit.envs.support.database import Record
from reflectkit.envs.support.generate import DELIVERED, PENDING, SHIPPED, another_address
from reflectkit.envs.support.policy import LATE_DAYS
from reflectkit.envs.support.requests import (
    ADDRESS,
    CANCEL,
    CREDIT,
    EXCHANGE,
    MOVE,
    PAID,
    PAYMENT,
    RETURN,
    STOCK,
    SWAP,
    Request,
    wording,
)
from reflectkit.envs.support.rules import RULES
from reflectkit.envs.support.rules import STOCK as STOCK_RULE
from reflectkit.envs.support.shopper import Shopper, UnfitError, is_recent, money, split
from reflectkit.envs.support.tools import REASONS, TEN
from reflectkit.types import ToolCall


def _cancel(shopper: Shopper) -> Request:
    order, record = shopper.order(PENDING)
    first, then = shopper.chance.sample(REASONS, 2)
    call = ToolCall("cancel_order", {"order": order, "reason": then})
    facts, revised = {"order": order, "reason": first}, {"reason": then}
    return _request(shopper, CANCEL, facts, revised, call, told=((money(record["paid"]),),))


def _address(shopper: Shopper) -> Request:
    order, record = shopper.order(PENDING)
    first = another_address(shopper.chance, record["address"])
    then = another_address(shopper.chance, record["address"])
    call = ToolCall("change_address", {"order": order, "address": then})
    return _request(shopper, ADDRESS, {"order": order, "address": first}, {"address": then}, call)


def _payment(shopper: Shopper) -> Request:
    order, record = shopper.order(PENDING)
    payment = shopper.other_payment(record)
    call = ToolCall("change_payment", {"order": order, "payment": payment})
    return _request(shopper, PAYMENT, {"order": order, "payment": shopper.kind_of(payment)}, {}, call)


def _swap(shopper: Shopper) -> Request:
    return _replacement(shopper, SWAP, PENDING, "swap_item", lambda order: True)


def _exchange(shopper: Shopper) -> Request:
    return _replacement(shopper, EXCHANGE, DELIVERED, "exchange_item", is_recent)


def _replacement(shopper: Shopper, kind: str, status: str, tool: str, fits: Callable[[Record], bool]) -> Request:
    """Another option of an item."""
    order, record = shopper.order(status, fits)
    item = shopper.chance.choice(record["items"])
    options = shopper.options(item, stocked=True)
    if not options:
        raise UnfitError
    first, then = (shopper.chance.choice(options) for _ in range(2))
    product = split(shopper.item(item))[0]
    facts = {"order": order, "item": product, "option": split(shopper.item(first))[1]}
    shopper.moved |= {item, then}
    revised = {"option": split(shopper.item(then))[1]} if then != first else {}
    call = ToolCall(tool, {"order": order, "item": item, "new_item": then})
    paid = record["paid"] - shopper.item(item)["price"] + shopper.item(then)["price"]
    return replace(_request(shopper, kind, facts, revised, call, told=((money(paid),),)), product=product)


def _return(shopper: Shopper) -> Request:
    order, record = shopper.order(DELIVERED, is_recent)
    first, then = (shopper.chance.choice(record["items"]) for _ in range(2))
    call = ToolCall("return_item", {"order": order, "item": then, "payment": record["payment"]})
    facts = {"order": order, "item": split(shopper.item(first))[0]}
    revised = {"item": split(shopper.item(then))[0]} if then != first else {}
    return _request(shopper, RETURN, facts, revised, call, told=((money(shopper.item(then)["price"]),),))


def _move(shopper: Shopper) -> Request:
    first = another_address(shopper.chance, shopper.record["address"])
    then = another_address(shopper.chance, shopper.record["address"])
    call = ToolCall("move_customer", {"customer": shopper.customer, "address": then})
    return _request(shopper, MOVE, {"address": first}, {"address": then}, call)


def _credit(shopper: Shopper) -> Request:
    order, _ = shopper.order(DELIVERED, lambda record: record["late_days"] >= LATE_DAYS)
    return _request(shopper, CREDIT, {"order": order}, {}, ToolCall("credit", {"order": order}), told=((str(TEN),),))


def _paid(shopper: Shopper) -> Request:
    order, record = shopper.order(shopper.chance.choice((PENDING, SHIPPED, DELIVERED)))
    return _request(shopper, PAID, {"order": order}, {}, told=((money(record["paid"]),),))


def _stock(shopper: Shopper) -> Request:
    name = shopper.chance.choice(list(shopper.database.tables["items"]))
    shopper.asked.add(name)
    item = shopper.item(name)
    product, option = split(item)
    say = wording(STOCK, shopper.chance, product=product, option=option)
    told = ((str(item["stock"]),),) if item["stock"] else ((*RULES[STOCK_RULE].words, "0", "none"),)
    return Request(STOCK, say, {"item": product, "option": option}, told=told, product=product)


ALLOWED: Mapping[str, Callable[[Shopper], Request]] = {
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
"""By kind: a wish of a shopper. Raises UnfitError where they have nothing that it could be about."""


def _request(
    shopper: Shopper,
    kind: str,
    facts: Mapping[str, str],
    revised: Mapping[str, str],
    *calls: ToolCall,
    told: tuple[tuple[str, ...], ...] = (),
) -> Request:
    return Request(kind, wording(kind, shopper.chance), facts, revised, calls, told)
