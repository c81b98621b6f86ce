"""Who answers questions from a memory, and who judges answers: protocols for rules and chat models."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Protocol

ANSWER_TOKENS = 100


@dataclass(frozen=True, slots=True)
class Query:
    """A question as the reader gets it.

    advice: what the reader is told about questions of this source, in place of its own advice; "" leaves it. tokens:
    most tokens of the answer.
    """

    question: str
    advice: str = ""
    tokens: int = ANSWER_TOKENS


@dataclass(frozen=True, slots=True)
class Claim:
    """An answer to be judged: the question, what a right answer has to meet, and the answer."""

    question: str
    rubric: str
    answer: str


class Reader(Protocol):
    """Answers questions from memories."""

    def answer(self, queries: Sequence[Query], memories: Sequence[Sequence[str]]) -> list[str] | Awaitable[list[str]]:
        """An answer to each question, from the texts that were retrieved for it, best first; awaitable if the reader is
        a server.

        Raises EnvironmentFailure if the reader cannot be reached.
        """
        ...


class Judge(Protocol):
    """Decides whether answers meet their rubrics."""

    def verdicts(self, claims: Sequence[Claim]) -> list[bool] | Awaitable[list[bool]]:
        """Whether each answer is right; awaitable if the judge is a server. Raises EnvironmentFailure if the judge
        cannot be reached.
        """
        ...
