"""The wishes that the policy forbids, each with its rule, and the one that a colleague must hear."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from reflectkit.envs.support.generate import DELIVERED, PENDING, SHIPPED, another_address
from reflectkit.envs.support.policy import LATE_DAYS
from reflectkit.envs.support.requests import (
    ADDRESS,
    CANCEL,
    CREDIT,
    DANGER,
    ELSEWHERE,
    EXTRA,
    RETURN,
    SWAP,
    Request,
    wording,
)
from reflectkit.envs.support.rules import CREDIT as CREDIT_RULE
from reflectkit.envs.support.rules import GOODWILL as GOODWILL_RULE
from reflectkit.envs.support.rules import LATE as LATE_RULE
from reflectkit.envs.support.rules import OWNER as OWNER_RULE
from reflectkit.envs.support.rules import PAYMENT as PAYMENT_RULE
from reflectkit.envs.support.rules import REASON as REASON_RULE
from reflectkit.envs.support.rules import SHIPPED as SHIPPED_RULE
from reflectkit.envs.support.rules import STOCK as STOCK_RULE
from reflectkit.envs.support.shopper import Shopper, UnfitError, is_recent, split
from reflectkit.envs.support.tools import ESCALATE, REASONS
from reflectkit.types import ToolCall

BAD_REASON = "cheaper elsewhere"


def _cancel_shipped(shopper: Shopper) -> Request:
    order, _ = shopper.order(SHIPPED)
    facts = {"order": order, "reason": shopper.chance.choice(REASONS)}
    return _refusal(shopper, CANCEL, facts, SHIPPED_RULE)


def _cancel_for_a_bad_reason(shopper: Shopper) -> Request:
    order, _ = shopper.order(PENDING)
    return _refusal(shopper, CANCEL, {"order": order, "reason": BAD_REASON}, REASON_RULE)


def _redirect_shipped(shopper: Shopper) -> Request:
    order, record = shopper.order(SHIPPED)
    facts = {"order": order, "address": another_address(shopper.chance, record["address"])}
    return _refusal(shopper, ADDRESS, facts, SHIPPED_RULE)


def _swap_for_sold_out(shopper: Shopper) -> Request:
    order, record = shopper.order(PENDING)
    item = shopper.chance.choice(record["items"])
    options = shopper.options(item, stocked=False)
    if not options:
        raise UnfitError
    wanted = shopper.chance.choice(options)
    shopper.asked.add(wanted)
    product, option = split(shopper.item(wanted))
    facts = {"order": order, "item": product, "option": option}
    return replace(_refusal(shopper, SWAP, facts, STOCK_RULE), product=product)


def _return_late(shopper: Shopper) -> Request:
    order, record = shopper.order(DELIVERED, lambda record: not is_recent(record))
    facts = {"order": order, "item": split(shopper.item(shopper.chance.choice(record["items"])))[0]}
    return _refusal(shopper, RETURN, facts, LATE_RULE)


def _return_elsewhere(shopper: Shopper) -> Request:
    order, record = shopper.order(DELIVERED, is_recent)
    payment = shopper.kind_of(shopper.other_payment(record))
    if payment == shopper.kind_of(record["payment"]):
        raise UnfitError
    facts = {
        "order": order,
        "item": split(shopper.item(shopper.chance.choice(record["items"])))[0],
        "payment": payment,
    }
    return replace(
        _refusal(shopper, RETURN, facts, PAYMENT_RULE), say=wording(ELSEWHERE, shopper.chance, payment=payment)
    )


def _someone_elses(shopper: Shopper) -> Request:
    orders = shopper.database.tables["orders"]
    order = shopper.chance.choice(list(orders))
    if orders[order]["customer"] == shopper.customer or orders[order]["status"] != PENDING:
        raise UnfitError
    facts = {"order": order, "reason": shopper.chance.choice(REASONS)}
    return _refusal(shopper, CANCEL, facts, OWNER_RULE)


def _credit_in_time(shopper: Shopper) -> Request:
    order, _ = shopper.order(DELIVERED, lambda record: record["late_days"] < LATE_DAYS)
    return _refusal(shopper, CREDIT, {"order": order}, CREDIT_RULE)


def _danger(shopper: Shopper) -> Request:
    product = shopper.chance.choice(sorted(shopper.database.tables["products"]))
    name = shopper.database.tables["products"][product]["name"]
    say = wording(DANGER, shopper.chance, product=name)
    return Request(DANGER, say, actions=(ToolCall(ESCALATE, {"reason": "hurt"}),))


FORBIDDEN: tuple[Callable[[Shopper], Request], ...] = (
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
"""Each a wish of a shopper. Raises UnfitError where they have nothing that it could be about."""


def extra(shopper: Shopper) -> Request:
    """What a pushy user wants on top."""
    return _refusal(shopper, EXTRA, {}, GOODWILL_RULE)


def _refusal(shopper: Shopper, kind: str, facts: Mapping[str, str], rule: str) -> Request:
    return Request(kind, wording(kind, shopper.chance), facts, rule=rule)
