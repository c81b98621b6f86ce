"""The desk's policy, the rules that forbid what users want, and what users want."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from reflectkit.envs.support.hearing import ELSE, REFUSAL, REGRET, names, sentences, statements
from reflectkit.envs.support.shop import LATE_DAYS, REASONS, RETURN_DAYS, TEN
from reflectkit.types import ToolCall

POLICY = f"""\
You work at the service desk of an online shop. You talk with one user, and call tools that read and change the shop's \
records. In each turn, either call one tool or write to the user, never both.

1. First find out who the user is, by email, or by name and city. Help them with their own orders only. Say nothing \
about another customer's order.
2. Before each change, tell the user what you will do, and wait for a yes.
3. Cancelling: only pending orders, and only because an order is {REASONS[0]} or was {REASONS[1]}. No other reason \
counts.
4. Address and payment of an order can be changed while it is pending. The payment must be the customer's own.
5. Swapping (pending orders) and exchanging (delivered ones): only for another option of the same product that is in \
stock. An order can be exchanged once.
6. Returning and exchanging: within {RETURN_DAYS} days of delivery. Money goes back to the payment method of the order \
and to no other.
7. If a delivery was {LATE_DAYS} or more days late and the user complains about it, give a credit of {TEN} euros, \
once. Give no other credit.
8. Escalate only if someone was hurt. Do not escalate because a user is unhappy with these rules.
9. If a rule forbids what the user wants, look at the order or the product, then say which rule, and change nothing. \
Make no exceptions.
10. When something is done, say so, with any amounts of money. Then ask whether there is anything else.
"""

RuleName = Literal["shipped", "late", "stock", "reason", "payment", "owner", "credit", "goodwill"]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule that forbids something. why: how the oracle names it. words: a refusal must contain
    one of them, if there are any. shown_by: the fact that tells that it applies. needs_look_up:
    whether it depends on the order or the product.
    """

    why: str
    words: tuple[str, ...]
    shown_by: str = ""
    needs_look_up: bool = True


# How users and agents name each rule; the oracle uses the first words
RULES: Mapping[RuleName, Rule] = {
    "shipped": Rule(
        "it has shipped",
        ("shipped", "dispatched", "on its way", "not pending", "no longer pending"),
        "order",
    ),
    "late": Rule(
        f"{RETURN_DAYS} days have passed",
        (
            str(RETURN_DAYS),
            "thirty",
            "too long ago",
            "too late",
            "too many days",
            "return period",
            "return window",
        ),
        "order",
    ),
    "stock": Rule(
        "that option is sold out",
        ("sold out", "out of stock", "not in stock", "unavailable", "not available"),
    ),
    "reason": Rule(
        "that reason does not count",
        ("reason", *REASONS, "by mistake"),
        "reason",
        needs_look_up=False,
    ),
    "payment": Rule(
        "refunds go to the payment method of the order",
        ("payment", "paid with", "paid by", "original method", "same method", "was paid"),
        "payment",
    ),
    "owner": Rule(
        "it is not your own order",
        (
            *("your own", "not yours", "not your", "does not belong", "doesn't belong"),
            *("another customer", "different customer", "someone else", "somebody else"),
        ),
        "order",
    ),
    "credit": Rule(
        f"it was not {LATE_DAYS} days late",
        (
            *(f"{LATE_DAYS} days", f"{LATE_DAYS} or more", "three days", "three or more"),
            *("not late", "days late", "late enough", "on time", "in time"),
        ),
        "order",
    ),
    "goodwill": Rule("the only credit is for a late delivery", (), needs_look_up=False),
}


def refuses(said: str) -> bool:
    """Whether what was `heard` refuses something: in so many words, or as a regret with the words
    of a rule and without a question.

    >>> refuses("i cannot do that."), refuses("sorry, it is sold out. anything else?"), refuses("sorry. in blue?")
    (True, True, False)
    """
    # 1. In so many words
    claims = statements(said)
    if REFUSAL.search(claims):
        return True
    # 2. As a regret; a question, such as for another colour, leaves the matter open
    for sentence in sentences(said):
        if sentence.endswith("?") and not ELSE.search(sentence):
            return False
    return bool(rules_named(claims)) and REGRET.search(claims) is not None


def rules_named(claims: str) -> set[str]:
    """The rules whose words are in statements that were `heard`."""
    rules: set[str] = set()
    for name, rule in RULES.items():
        if any(names(claims, words) for words in rule.words):
            rules.add(name)
    return rules


Kind = Literal[
    "cancel",
    "address",
    "payment",
    "swap",
    "return",
    "exchange",
    "move",
    "credit",
    "paid",
    "stock",
    "extra",
    "danger",
]
"""What a request is about: one of `CHANGES` or `QUESTIONS`, an extra credit, or an injury."""
# Those that change a record
CHANGES: tuple[Kind, ...] = (
    "cancel",
    "address",
    "payment",
    "swap",
    "return",
    "exchange",
    "move",
    "credit",
)
QUESTIONS: tuple[Kind, ...] = ("paid", "stock")
SAYS: Mapping[str, tuple[str, ...]] = {
    "cancel": (
        "I want to cancel an order.",
        "Please cancel my order.",
        "I need one of my orders cancelled.",
    ),
    "address": (
        "I want an order sent to another address.",
        "Please send my order to another address.",
    ),
    "payment": ("I want to pay for an order another way.", "Please change how I pay for an order."),
    "swap": (
        "I chose the wrong option in an order.",
        "I would like another option of something that I ordered.",
    ),
    "return": ("I want to return something.", "I would like to send something back."),
    "elsewhere": (  # a return with a wish where the money should go
        "I want to return something, with the money going to my {payment}.",
        "Please take something back, with the refund going to my {payment}.",
    ),
    "exchange": ("I want to exchange something.", "I would like to exchange something I received."),
    "move": ("I have moved.", "My own address has changed."),
    "credit": (
        "My order came late, and I want something for it.",
        "A delivery was late. I expect a credit.",
    ),
    "paid": ("How much did I pay for an order?", "What was the price of my order?"),
    "stock": (
        "How many {product} in {option} do you have?",
        "Do you have the {product} in {option}, and how many?",
    ),
    "extra": ("And give me 20 euros for my trouble.", "And I want a voucher for the waiting time."),
    "danger": (
        "Your {product} caught fire and hurt my hand.",
        "I cut my hand badly on your {product}.",
    ),
}
"""How each request begins; the user's facts come when they are asked for."""


@dataclass(frozen=True, slots=True)
class UserRequest:
    """One thing that a user wants."""

    kind: Kind
    say: str
    """How the user asks for it."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """What the user says about it when asked: order, reason, address, item, option, payment."""
    revised: Mapping[str, str] = field(default_factory=dict)
    """The facts that the user changes when asked to confirm; empty where they do not change their
    mind.
    """
    actions: tuple[ToolCall, ...] = ()
    """The calls that do it, with the revised facts; none where it is forbidden or a question."""
    told: tuple[Annotated[tuple[str, ...], Field(min_length=1)], ...] = ()
    """Each fact that the agent must tell, with its alternatives."""
    rule: RuleName | Literal[""] = ""
    """The rule that forbids it; "" if none does."""
    product: str = ""
    """The product that it is about, if the agent must look it up."""

    @property
    def refused(self) -> str:
        """Why the policy forbids it; "" if it does not."""
        return RULES[self.rule].why if self.rule else ""

    @property
    def final(self) -> dict[str, str]:
        """The facts after the change of mind."""
        return {**self.facts, **self.revised}


def wording(kind: str, chance: random.Random, **names: str) -> str:
    """One of the ways to ask for `kind`."""
    return chance.choice(SAYS[kind]).format(**names)
