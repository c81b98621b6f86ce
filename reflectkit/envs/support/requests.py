"""What users of the service desk want: one request of a task, and its wording."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from reflectkit.envs.support.rules import RULES
from reflectkit.types import ToolCall

CANCEL, ADDRESS, PAYMENT, SWAP = "cancel", "address", "payment", "swap"
RETURN, EXCHANGE, MOVE, CREDIT = "return", "exchange", "move", "credit"
PAID, STOCK, EXTRA, DANGER = "paid", "stock", "extra", "danger"
ELSEWHERE = "elsewhere"  # a return with a wish where the money should go
CHANGES = (CANCEL, ADDRESS, PAYMENT, SWAP, RETURN, EXCHANGE, MOVE, CREDIT)
QUESTIONS = (PAID, STOCK)

SAYS: Mapping[str, tuple[str, ...]] = {
    CANCEL: ("I want to cancel an order.", "Please cancel my order.", "One of my orders must be cancelled."),
    ADDRESS: ("An order should go to another address.", "Please send my order to another address."),
    PAYMENT: ("I want to pay an order otherwise.", "Please change how I pay for an order."),
    SWAP: ("I chose the wrong option in an order.", "I would like another option of something that I ordered."),
    RETURN: ("I want to return something.", "I would like to send something back."),
    ELSEWHERE: (
        "I want to return something, and have the money on my {payment}.",
        "Please take something back, with the refund to my {payment}.",
    ),
    EXCHANGE: ("I want to exchange something.", "Something that came should be exchanged."),
    MOVE: ("I have moved.", "My own address has changed."),
    CREDIT: ("My order came late, and I want something for it.", "A delivery was late. I expect a credit."),
    PAID: ("How much did I pay for an order?", "What was the price of my order?"),
    STOCK: ("How many {product} in {option} do you have?", "Do you have the {product} in {option}, and how many?"),
    EXTRA: ("And give me 20 euros for my trouble.", "And I want a voucher for the waiting time."),
    DANGER: ("Your {product} caught fire and hurt my hand.", "I cut my hand badly on your {product}."),
}
"""How each request begins; the user's facts come when they are asked for."""
FACTS: Mapping[str, tuple[str, ...]] = {
    CANCEL: ("order", "reason"),
    ADDRESS: ("order", "address"),
    PAYMENT: ("order", "payment"),
    SWAP: ("order", "item", "option"),
    RETURN: ("order", "item"),
    EXCHANGE: ("order", "item", "option"),
    MOVE: ("address",),
    CREDIT: ("order",),
    PAID: ("order",),
    STOCK: ("item", "option"),
}
"""The facts that a request must have, by kind; none if it is not listed."""
KNOWN = frozenset(name for names in FACTS.values() for name in names)


@dataclass(frozen=True, slots=True)
class Request:
    """One thing that a user wants."""

    kind: str
    """Which of `SAYS`."""
    say: str
    """How the user asks for it."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """What the user says about it when asked: order, reason, address, item, option, payment."""
    revised: Mapping[str, str] = field(default_factory=dict)
    """The facts that the user changes when asked to confirm; empty where they do not change their mind."""
    actions: tuple[ToolCall, ...] = ()
    """The calls that do it, with the revised facts; none where it is forbidden or a question."""
    told: tuple[tuple[str, ...], ...] = ()
    """Each fact that the agent must tell, with its alternatives."""
    rule: str = ""
    """The rule that forbids it, one of `rules.RULES`; empty where none does."""
    product: str = ""
    """The product that it is about, if the agent must look it up."""

    @property
    def refused(self) -> str:
        """Why the policy forbids it; empty where it does not."""
        return RULES[self.rule].why if self.rule else ""

    @property
    def final(self) -> dict[str, str]:
        """The facts after the change of mind."""
        return {**self.facts, **self.revised}


def to_json(request: Request) -> dict[str, Any]:
    """The request as JSON values."""
    return {
        "kind": request.kind,
        "say": request.say,
        "facts": dict(request.facts),
        "revised": dict(request.revised),
        "actions": [{"name": call.name, "arguments": call.arguments} for call in request.actions],
        "told": [list(alternatives) for alternatives in request.told],
        "rule": request.rule,
        "product": request.product,
    }


def from_json(value: Any) -> Request:
    """The request in a task's data. Raises ValueError."""
    try:
        request = Request(
            str(value["kind"]),
            str(value["say"]),
            _texts(value["facts"]),
            _texts(value["revised"]),
            tuple(ToolCall(str(call["name"]), dict(call["arguments"])) for call in value["actions"]),
            tuple(tuple(map(str, alternatives)) for alternatives in value["told"]),
            str(value["rule"]),
            str(value["product"]),
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"a request lacks or has a wrong {error}") from None
    if request.kind not in SAYS:
        raise ValueError(f"{request.kind!r:.40} is no kind of request")
    if missing := [name for name in FACTS.get(request.kind, ()) if name not in request.facts]:
        raise ValueError(f"a request of kind {request.kind!r} lacks the fact {missing[0]!r}")
    if unknown := [name for name in request.facts if name not in KNOWN]:
        raise ValueError(f"{unknown[0]!r:.40} is no fact of a request; there are: {', '.join(sorted(KNOWN))}")
    if not request.revised.keys() <= request.facts.keys():
        raise ValueError("a fact is revised that the request does not have")
    if request.rule and request.rule not in RULES:
        raise ValueError(f"{request.rule!r:.40} is no rule")
    if not all(request.told):
        raise ValueError("a fact to be told has no words")
    return request


def wording(kind: str, chance: random.Random, **names: str) -> str:
    """One of the ways to ask for `kind`."""
    return chance.choice(SAYS[kind]).format(**names)


def _texts(value: Any) -> dict[str, str]:
    return {str(key): str(text) for key, text in value.items()}
