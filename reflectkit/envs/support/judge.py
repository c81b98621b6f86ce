"""Whether a conversation was a success, and if not, why."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from reflectkit.core.errors import DataError
from reflectkit.envs.support.database import Database, Ledger
from reflectkit.envs.support.requests import Request
from reflectkit.envs.support.tools import execute

NUMBER = re.compile(r"(?<![\w.])\d+(?:[.,]\d+)?(?!\w)")


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


def judge(ledger: Ledger, expected: Ledger, missing_facts: Sequence[str], ended: bool) -> Verdict:
    """The verdict. missing_facts: the `untold` ones. ended: whether a satisfied user or a needed escalation ended the
    conversation.
    """
    changes, right = ledger.differences(), expected.differences()
    return Verdict(
        wrong_change=any(changes[record] != right[record] for record in changes.keys() & right.keys()),
        missing_change=bool(right.keys() - changes.keys()) or (expected.escalated and not ledger.escalated),
        forbidden_change=bool(changes.keys() - right.keys()),
        fact_not_told=bool(missing_facts),
        gave_up=not ended or (ledger.escalated and not expected.escalated),
    )


def untold(requests: Sequence[Request], replies: Sequence[str]) -> list[str]:
    """The facts that none of the agent's replies tells, each by its first wording."""
    text = " ".join(" ".join(replies).lower().split())
    numbers = {float(number.replace(",", ".")) for number in NUMBER.findall(text)}
    return [
        alternatives[0]
        for request in requests
        for alternatives in request.told
        if not any(_tells(text, numbers, fact.lower()) for fact in alternatives)
    ]


def _tells(text: str, numbers: set[float], fact: str) -> bool:
    if NUMBER.fullmatch(fact):
        return float(fact) in numbers
    return re.search(rf"(?<!\w){re.escape(fact)}(?!\w)", text) is not None


def changes_json(ledger: Ledger) -> list[dict[str, Any]]:
    """The changes of the records, for people to read, and whether a colleague took over."""
    changes = [
        {"record": name, "field": field, "before": before, "after": after}
        for (_, name), fields in ledger.differences().items()
        for field, (before, after) in fields.items()
    ]
    taken = {"record": "conversation", "field": "escalated", "before": False, "after": True}
    return [*changes, taken] if ledger.escalated else changes
