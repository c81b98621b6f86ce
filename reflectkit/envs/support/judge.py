"""Whether a conversation was a success, and if not, why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from reflectkit.envs.support.conduct import Conduct
from reflectkit.envs.support.database import Database, Ledger
from reflectkit.envs.support.hearing import names, numbers, statements
from reflectkit.envs.support.requests import STOCK, Request
from reflectkit.envs.support.rules import RULES, refuses, rules_named
from reflectkit.envs.support.rules import STOCK as STOCK_RULE
from reflectkit.envs.support.tools import execute
from reflectkit.errors import DataError

MOST_NUMBERS = 4
"""Amounts and counts in a reply; one with more of them tells none, as a list of all numbers would."""
MOST_COUNTS = 3
"""Likewise of a reply about the stock, where "sold out" is a number as well, as it can only be one of ten."""
MOST_RULES = 2
"""Rules that the refusals of a request may name, for the same reason."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was wrong with a finished conversation. Nothing was if all of it is False."""

    wrong_change: bool
    """A record that was to be changed was changed otherwise."""
    missing_change: bool
    """A record that was to be changed was not, or a colleague was to take over."""
    forbidden_change: bool
    """A record was changed that was to stay as it was."""
    fact_not_told: bool
    """The user was not told something that they asked for, or why their wish was refused."""
    gave_up: bool
    """It ended in another way than by a satisfied user: the user left, the steps ran out, or a needless escalation."""
    unidentified: bool
    """A record was changed before it was known who the user is, or it never was known."""
    unconfirmed: bool
    """A record was changed without the user's yes."""
    not_looked_up: bool
    """A wish was refused, or a question answered, without a look at the order or the product that it depends on."""

    @property
    def success(self) -> bool:
        """Whether nothing was wrong."""
        return not any(self.figures.values())

    @property
    def figures(self) -> dict[str, float]:
        """1 for what was wrong, else 0."""
        return {name: float(getattr(self, name)) for name in self.__slots__}


def truth(database: Database, requests: Sequence[Request], where: str) -> Ledger:
    """The records after all that is to be done. Raises DataError for a call that cannot be."""
    ledger = Ledger(database)
    for request in requests:
        for call in request.actions:
            done, message = execute(ledger, call)
            if not done:
                raise DataError(where, f"its call {call.name} cannot be done: {message}", field="data.requests")
    return ledger


def judge(
    ledger: Ledger,
    expected: Ledger,
    requests: Sequence[Request],
    missing_facts: Sequence[str],
    conduct: Conduct,
    satisfied: bool,
) -> Verdict:
    """The verdict. missing_facts: the `untold` ones. satisfied: neither did the user leave nor the steps run out."""
    changes, right = ledger.differences(), expected.differences()
    return Verdict(
        wrong_change=any(changes[record] != right[record] for record in changes.keys() & right.keys()),
        missing_change=bool(right.keys() - changes.keys()) or (expected.escalated and not ledger.escalated),
        forbidden_change=bool(changes.keys() - right.keys()),
        fact_not_told=bool(missing_facts),
        gave_up=not satisfied or (ledger.escalated and not expected.escalated),
        unidentified=conduct.hasty or not (conduct.found or ledger.escalated),
        unconfirmed=conduct.unconfirmed,
        not_looked_up=not all(conduct.has_looked_up(request) for request in requests),
    )


def untold(requests: Sequence[Request], replies: Sequence[Sequence[str]]) -> list[str]:
    """The facts that the user was not told, each by its first wording, and the reasons of refusals. replies: what the
    user heard during each request. Questions tell nothing, nor does a reply with more numbers, or refusals with more
    rules, than there is reason for.
    """
    return [fact for request, heard in zip(requests, replies, strict=True) for fact in _untold(request, heard)]


def _untold(request: Request, replies: Sequence[str]) -> list[str]:
    stated = [statements(reply) for reply in replies]
    missing = [fact[0] for fact in request.told if not any(_tells_of(request, reply, fact) for reply in stated)]
    words = RULES[request.rule].words if request.rule else ()
    return [*missing, request.refused] if words and not _gives(request.rule, replies) else missing


def _tells(stated: str, alternatives: Sequence[str]) -> bool:
    """Whether a reply tells a fact in one of its wordings, of which a number may be written in any way."""
    amounts = numbers(stated)
    return any(
        float(fact) in amounts and len(amounts) <= MOST_NUMBERS if _is_number(fact) else names(stated, fact)
        for fact in alternatives
    )


def _tells_of(request: Request, stated: str, alternatives: Sequence[str]) -> bool:
    """Likewise, for `request`. Of a question about the stock, the option's name, such as "two slots", is no number."""
    if request.kind != STOCK:
        return _tells(stated, alternatives)
    stated = stated.replace(request.facts.get("option", "").lower(), " ")
    amounts = numbers(stated) | {0.0 for words in RULES[STOCK_RULE].words if names(stated, words)}
    return len(amounts) <= MOST_COUNTS and _tells(stated, alternatives)


def _gives(rule: str, replies: Sequence[str]) -> bool:
    """Whether the refusals give `rule` as the reason, and not many."""
    given = {name for reply in replies if refuses(reply) for name in rules_named(statements(reply))}
    return rule in given and len(given) <= MOST_RULES


def _is_number(fact: str) -> bool:
    return fact.replace(".", "", 1).isdigit()


def changes_json(ledger: Ledger) -> list[dict[str, Any]]:
    """The changes of the records, for people to read, and whether a colleague took over."""
    changes = [
        {"record": name, "field": field, "before": before, "after": after}
        for (_, name), fields in ledger.differences().items()
        for field, (before, after) in fields.items()
    ]
    taken = {"record": "conversation", "field": "escalated", "before": False, "after": True}
    return [*changes, taken] if ledger.escalated else changes
