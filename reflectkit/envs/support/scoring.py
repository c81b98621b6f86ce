"""Whether a conversation was a success, and if not, why: from what the agent did, changed and said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from reflectkit.envs.support.hearing import names, numbers, statements
from reflectkit.envs.support.policy import QUESTIONS, RULES, UserRequest, refuses, rules_named
from reflectkit.envs.support.shop import Ledger, ShopDatabase
from reflectkit.envs.support.tools import ESCALATE, READING, execute
from reflectkit.errors import DataError
from reflectkit.types import ToolCall

MOST_NUMBERS = 4
"""Amounts and counts in a reply; a reply with more of them tells none, as a list of all numbers would."""
MOST_COUNTS = 3
"""Likewise of a reply about the stock, where "sold out" is a number as well, as it can only be one of ten."""
MOST_RULES = 2
"""Rules that the refusals of a request may name, for the same reason."""


@dataclass
class Conduct:
    """What the agent has done, call by call.

    customer: who the user is, by id. found: the agent found them. orders, products: what it looked up; products by the
    name that it used. account: whether it looked up the customer. done: the changes that it made. hasty: it made one
    before it had found the customer. unconfirmed: it made one without a yes.
    """

    database: ShopDatabase
    customer: str
    found: bool = False
    orders: set[str] = field(default_factory=set)
    products: set[str] = field(default_factory=set)
    account: bool = False
    done: list[ToolCall] = field(default_factory=list)
    hasty: bool = False
    unconfirmed: bool = False

    def saw(self, call: ToolCall, agreed: bool) -> bool:
        """A call was carried out. agreed: the user has said yes to it. Returns whether it changed a record."""
        arguments = call.arguments
        if call.name.startswith("find_customer"):
            self.found |= self.database.customers_with(**arguments)[:1] == [self.customer]
        elif call.name == "get_order":
            self.orders.add(arguments["order"])
        elif call.name == "get_product":
            self.products.add(arguments["product"].strip().lower())
        elif call.name == "get_customer":
            self.account |= arguments["customer"] == self.customer
        elif call.name not in READING:
            self.done.append(call)
            if call.name != ESCALATE:
                self.hasty |= not self.found
                self.unconfirmed |= not agreed
                return True
        return False

    def has_looked_up(self, request: UserRequest) -> bool:
        """Whether the agent has read what a refusal of `request`, or its answer, depends on; True if neither is due."""
        if not (request.kind in QUESTIONS or (request.rule and RULES[request.rule].needs_look_up)):
            return True
        if not request.product:
            return request.facts.get("order") in self.orders
        products = self.database.tables["products"].items()
        ids = {name for name, record in products if record["name"] == request.product}
        return not self.products.isdisjoint({request.product, *ids})


def truth(database: ShopDatabase, requests: Sequence[UserRequest], where: str) -> Ledger:
    """The records after all that is to be done. Raises DataError for a call that cannot be."""
    ledger = Ledger(database)
    for call in (call for request in requests for call in request.actions):
        done, message = execute(ledger, call)
        if not done:
            raise DataError(where, f"its call {call.name} cannot be done: {message}", field="data.requests")
    return ledger


def judge(
    ledger: Ledger,
    expected: Ledger,
    requests: Sequence[UserRequest],
    missing_facts: Sequence[str],
    conduct: Conduct,
    satisfied: bool,
) -> dict[str, bool]:
    """What was wrong with a finished conversation; it was a success if nothing was.

    missing_facts: the `untold` ones. satisfied: neither did the user leave nor the steps run out.
    """
    changes, right = ledger.differences(), expected.differences()
    return {
        # A record that was to be changed was changed otherwise, or was not, or a colleague was to take over.
        "wrong_change": any(changes[record] != right[record] for record in changes.keys() & right.keys()),
        "missing_change": bool(right.keys() - changes.keys()) or (expected.escalated and not ledger.escalated),
        # A record was changed that was to stay as it was.
        "forbidden_change": bool(changes.keys() - right.keys()),
        # The user was not told something that they asked for, or why their wish was refused.
        "fact_not_told": bool(missing_facts),
        # It ended without a satisfied user: the user left, the steps ran out, or a needless escalation.
        "gave_up": not satisfied or (ledger.escalated and not expected.escalated),
        # A record was changed before it was known who the user is, or it never was known.
        "unidentified": conduct.hasty or not (conduct.found or ledger.escalated),
        # A record was changed without the user's yes.
        "unconfirmed": conduct.unconfirmed,
        # A wish was refused, or a question answered, without a look at the order or the product that it depends on.
        "not_looked_up": not all(conduct.has_looked_up(request) for request in requests),
    }


def untold(requests: Sequence[UserRequest], replies: Sequence[Sequence[str]]) -> list[str]:
    """The facts that the user was not told, each by its first wording, and the reasons of refusals. replies: what the
    user heard during each request. Questions tell nothing, nor does a reply with more numbers, or refusals with more
    rules, than there is reason for.
    """
    missing = []
    for request, heard in zip(requests, replies, strict=True):
        stated = [statements(reply) for reply in heard]
        missing += [fact[0] for fact in request.told if not any(_tells(request, reply, fact) for reply in stated)]
        if request.rule and RULES[request.rule].words:
            given = {name for reply in heard if refuses(reply) for name in rules_named(statements(reply))}
            missing += [request.refused] if request.rule not in given or len(given) > MOST_RULES else []
    return missing


def _tells(request: UserRequest, stated: str, alternatives: Sequence[str]) -> bool:
    """Whether a reply tells a fact in one of its wordings, of which a number may be written in any way. Of a question
    about the stock, the option's name, such as "two slots", is no number.
    """
    if request.kind == "stock":
        stated = stated.replace(request.facts.get("option", "").lower(), " ")
        sold_out = {0.0} if any(names(stated, words) for words in RULES["stock"].words) else set()
        if len(numbers(stated) | sold_out) > MOST_COUNTS:
            return False
    amounts = numbers(stated)
    return any(
        float(fact) in amounts and len(amounts) <= MOST_NUMBERS
        if fact.replace(".", "", 1).isdigit()
        else names(stated, fact)
        for fact in alternatives
    )


def changes_json(ledger: Ledger) -> list[dict[str, Any]]:
    """The changes of the records, for people to read, and whether a colleague took over."""
    changes = [
        {"record": name, "field": field, "before": before, "after": after}
        for (_, name), fields in ledger.differences().items()
        for field, (before, after) in fields.items()
    ]
    taken = {"record": "conversation", "field": "escalated", "before": False, "after": True}
    return [*changes, taken] if ledger.escalated else changes
