"""The policy's rules that forbid what users want: the words in which an agent may name each, and whether it must look
something up before it can know.
"""

from __future__ import annotations

from dataclasses import dataclass

from reflectkit.envs.support.generate import RETURN_DAYS
from reflectkit.envs.support.hearing import ELSE, REFUSAL, REGRET, names, sentences, statements
from reflectkit.envs.support.policy import LATE_DAYS
from reflectkit.envs.support.tools import REASONS

SHIPPED, LATE, STOCK, REASON = "shipped", "late", "stock", "reason"
PAYMENT, OWNER, CREDIT, GOODWILL = "payment", "owner", "credit", "goodwill"


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule. why: how the oracle names it. words: one of them must stand in a refusal; none where any refusal will do.
    needs_look_up: whether it depends on the order or the product.
    """

    why: str
    words: tuple[str, ...]
    needs_look_up: bool = True


RULES = {
    SHIPPED: Rule("it is shipped", ("shipped", "dispatched", "on its way", "not pending", "no longer pending")),
    LATE: Rule(
        f"{RETURN_DAYS} days have passed",
        (str(RETURN_DAYS), "thirty", "too long ago", "too late", "too many days", "return period", "return window"),
    ),
    STOCK: Rule(
        "that option is sold out", ("sold out", "out of stock", "not in stock", "unavailable", "not available")
    ),
    REASON: Rule("that reason does not count", ("reason", *REASONS, "by mistake"), needs_look_up=False),
    PAYMENT: Rule(
        "money goes back to the payment of the order",
        ("payment", "paid with", "paid by", "original method", "same method", "was paid"),
    ),
    OWNER: Rule(
        "it is not your own order",
        (
            "your own",
            "not yours",
            "another customer",
            "different customer",
            "not your",
            "does not belong",
            "doesn't belong",
            "someone else",
            "somebody else",
        ),
    ),
    CREDIT: Rule(
        f"it was not {LATE_DAYS} days late",
        (
            f"{LATE_DAYS} days",
            f"{LATE_DAYS} or more",
            "three days",
            "three or more",
            "not late",
            "days late",
            "late enough",
            "on time",
            "in time",
        ),
    ),
    GOODWILL: Rule("the only credit is for a late delivery", (), needs_look_up=False),
}
"""By name, as `Request.rule` has it."""


def refuses(said: str) -> bool:
    """Whether what was `heard` refuses something: in so many words, or as a regret with the words of a rule and without
    a question.

    >>> refuses("i cannot do that."), refuses("sorry, it is sold out. anything else?"), refuses("sorry. in blue?")
    (True, True, False)
    """
    stated = statements(said)
    if REFUSAL.search(stated):
        return True
    asks = any(one.endswith("?") and not ELSE.search(one) for one in sentences(said))
    return bool(rules_named(stated)) and not asks and REGRET.search(stated) is not None


def rules_named(stated: str) -> set[str]:
    """The rules whose words stand in statements that were `heard`."""
    return {name for name, rule in RULES.items() if any(names(stated, words) for words in rule.words)}
