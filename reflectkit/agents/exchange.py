"""One request to a chat model: what is asked, what may come of it, and what it may cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from reflectkit.agents.endpoints import Endpoint
from reflectkit.agents.journal import Answer
from reflectkit.agents.prices import Prices
from reflectkit.agents.transport import MALFORMED
from reflectkit.core.text import count_tokens
from reflectkit.core.types import Message

ASKED_AGAIN = 2  # times, after an unusable answer
THINKING_TOKENS = 4000  # allowance for reasoning tokens, which are billed and count towards the limit
MESSAGE_TOKENS = 4  # added to a message by the chat format
PROMPT_MARGIN = 1.25  # by which a prompt may exceed our count of its tokens

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    name: its subject, for people. messages: the chat. max_tokens: limit of the answer. draw: distinguishes equal
    requests that should each get their own sampled answer. cuts: whether an answer that is cut off at the limit is used
    as it is.
    """

    name: str
    messages: tuple[Message, ...]
    max_tokens: int
    draw: int = 0
    cuts: bool = False

    @property
    def prompt_tokens(self) -> int:
        """Approximate number of tokens in the chat."""
        return sum(count_tokens(message.content) + MESSAGE_TOKENS for message in self.messages)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A request without a usable answer. reason: why the last answer was unusable. text: its beginning. journal: where
    its answers were kept already; None if the server was asked now.
    """

    name: str
    reason: str
    text: str
    journal: Path | None = field(default=None, compare=False)
    unanswered: bool = field(default=False, compare=False)
    """Whether the server gave no answer."""

    @property
    def explained(self) -> str:
        """The reason, and how to ask again where it was kept."""
        if self.journal is None:
            return self.reason
        return f"{self.reason} (kept in {self.journal}; delete that file to ask again)"


@dataclass(frozen=True, slots=True)
class Outcome(Generic[Value]):
    """The result of a request: its value, or why it was rejected, or neither if the budget ran out first."""

    value: Value | None = None
    rejected: Rejected | None = None
    unparsed: int = 0
    """Number of complete answers that did not parse."""
    cost_usd: float = 0.0
    """Cost of all its answers, including those from the journal."""
    tokens: int = 0
    """Completion tokens of all its answers, including those from the journal."""
    answers: int = 0
    """Number of its answers, usable or not."""


def written_limit(endpoint: Endpoint, request: Request) -> int:
    """The limit of completion tokens that is sent to the server, reasoning included."""
    return request.max_tokens + (THINKING_TOKENS if endpoint.thinks else 0)


def most_usd(endpoint: Endpoint, prices: Prices, request: Request) -> float:
    """The most that one call can cost, in US dollars."""
    return prices.cost(request.prompt_tokens * PROMPT_MARGIN, written_limit(endpoint, request))


def fault_of(answer: Answer, request: Request) -> str:
    """Why an answer cannot be used, or ""."""
    if answer.finish_reason == MALFORMED:
        return answer.refusal
    if answer.finish_reason == "content_filter":
        return "held back by the server's content filter"
    if answer.refusal:
        return f"refused: {answer.refusal[:200]}"
    if answer.finish_reason == "length" and not request.cuts:
        return "cut off at its token limit"
    return "" if answer.text.strip() else "an empty answer"
