"""Chat completions from OpenAI, Azure, or any server that speaks the same protocol: journalled, budgeted, never asked twice.

Retries with backoff for 429, 5xx and timeouts are the `openai` package's own, `Retry-After` included. Keys are read here,
from the environment alone, and are taken out of every text that leaves.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from reflectkit.agents.endpoints import KEYS, ApiError, Endpoint, connect, secrets
from reflectkit.agents.journal import Answer, Journal, open_journal
from reflectkit.agents.prices import Prices
from reflectkit.core.text import count_tokens
from reflectkit.core.types import Message

ASKED_AGAIN = 2  # times, after an answer that is of no use
RETRIES = 6  # of the transport, for one request
THINKING_MODELS = ("o1", "o3", "o4", "gpt-5")
THINKING_TOKENS = 4000  # that such a model may write before its answer, on the bill and within its limit
MESSAGE_TOKENS = 4  # what a chat format adds to a message
HOPELESS = 3  # requests refused as malformed before any answer came, after which the settings are wrong, not the requests

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Request:
    """One question. name: what a person knows it by. messages: the chat. max_tokens: of the answer. draw: tells apart equal
    questions of which each is to be answered by itself, where answers are sampled.
    """

    name: str
    messages: tuple[Message, ...]
    max_tokens: int
    draw: int = 0

    @property
    def prompt_tokens(self) -> int:
        """About how many tokens the chat is."""
        return sum(count_tokens(message.content) + MESSAGE_TOKENS for message in self.messages)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A request without a usable answer. reason: why the last one was of no use. text: what it said."""

    name: str
    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class Outcome(Generic[Value]):
    """What became of a request: its value, or why it was rejected, or neither where the budget was spent before it.

    unfit: how many answers came whole and did not parse. cost_usd, tokens: what all its answers cost and have, those of the
    journal too.
    """

    value: Value | None = None
    rejected: Rejected | None = None
    unfit: int = 0
    cost_usd: float = 0.0
    tokens: int = 0


@dataclass(slots=True)
class Budget:
    """What clients may spend together, in US dollars. limit: None for any amount. paid: all that their journals paid for.
    reserved: the most that the calls under way will cost.
    """

    limit: float | None = None
    paid: float = 0.0
    reserved: float = 0.0


class ChatClient:
    """Asks many requests at once. calls: made to the server; replayed: taken from the journal; cost_usd: of both together.

    thinking_tokens: that the model may write unseen, a call. stopped: whether the budget, which counts all that the journal
    paid for, ended the asking. Use `open_client`.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        journal: Journal,
        prices: Prices,
        *,
        concurrency: int = 8,
        budget: Budget | None = None,
        temperature: float = 1.0,
        timeout_s: float = 120.0,
    ) -> None:
        self.endpoint, self.journal, self.prices = endpoint, journal, prices
        self.concurrency, self.budget = concurrency, budget or Budget()
        self.temperature, self.timeout_s = temperature, timeout_s
        self.calls = self.replayed = self.prompt_tokens = self.completion_tokens = 0
        self.cost_usd = 0.0
        self.stopped = False
        self._secrets = secrets()
        self.budget.paid += sum(map(self._cost, journal.answers.values()))
        self.thinking_tokens = THINKING_TOKENS if endpoint.model.startswith(THINKING_MODELS) else 0
        self._runner = asyncio.Runner()
        self._sdk: Any = None
        self._refused = 0
        self._under_way: dict[str, asyncio.Lock] = {}

    def ask(
        self, requests: Sequence[Request], parse: Callable[[int, str], Value], advance: Callable[[], None] = lambda: None
    ) -> list[Outcome[Value]]:
        """An outcome for each request, in order. parse: (number, text) → value; raises ValueError, saying what is wrong.

        An answer that is cut off, empty, refused, filtered or does not parse is asked for again, twice at most.

        Raises
        ------
        ApiError: the server cannot be used. What was answered until then is in the journal.
        """
        return self._runner.run(self._ask(requests, parse, advance))

    def close(self) -> None:
        """End the connections."""
        if self._sdk is not None:
            self._runner.run(self._sdk.close())
        self._runner.close()

    def key(self, request: Request, attempt: int) -> str:
        """What the journal knows the answer by."""
        identity = {
            "kind": self.endpoint.kind,
            "base_url": self.endpoint.base_url,
            "model": self.endpoint.model,
            "messages": [[message.role, message.content] for message in request.messages],
            "max_tokens": request.max_tokens,
            "temperature": self.temperature,
            "attempt": attempt,
        } | ({"draw": request.draw} if request.draw and self.temperature else {})
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()

    def redact(self, text: str) -> str:
        """`text` on one line, without keys."""
        return " ".join(self._without_keys(text).split())[:300]

    def _without_keys(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "[key]")
        return text

    async def _ask(
        self, requests: Sequence[Request], parse: Callable[[int, str], Value], advance: Callable[[], None]
    ) -> list[Outcome[Value]]:
        outcomes: list[Outcome[Value]] = [Outcome() for _ in requests]
        waiting = iter(enumerate(requests))
        failed: list[BaseException] = []

        async def work() -> None:
            for number, request in waiting:
                if failed:
                    return
                try:
                    outcomes[number] = await self._one(number, request, parse)
                except Exception as error:  # told once, below, when the calls in flight have been journalled
                    failed.append(error)
                    return
                advance()

        await asyncio.gather(*(work() for _ in range(min(self.concurrency, len(requests)))))
        if failed:
            raise failed[0]
        return outcomes

    async def _one(self, number: int, request: Request, parse: Callable[[int, str], Value]) -> Outcome[Value]:
        answers: list[Answer] = []
        reason, unfit = "", 0

        def ended(value: Value | None = None, rejected: Rejected | None = None) -> Outcome[Value]:
            tokens = sum(answer.completion_tokens for answer in answers)
            return Outcome(value, rejected, unfit, sum(map(self._cost, answers)), tokens)

        for attempt in range(1 + ASKED_AGAIN):
            answer = await self._answer(request, attempt)
            if answer is None:
                return ended()
            answers.append(answer)
            reason = _fault(answer)
            if not reason:
                try:
                    return ended(parse(number, answer.text))
                except ValueError as error:
                    reason = str(error)
                    unfit += 1
        return ended(rejected=Rejected(request.name, reason, self.redact(answers[-1].text)))

    async def _answer(self, request: Request, attempt: int) -> Answer | None:
        """From the journal, or from the server; None where the budget does not allow it."""
        key = self.key(request, attempt)
        async with self._under_way.setdefault(key, asyncio.Lock()):  # the same request twice is asked once
            return await self._answer_alone(key, request)

    async def _answer_alone(self, key: str, request: Request) -> Answer | None:
        known = self.journal.answers.get(key)
        if known is None:
            worst = self.prices.cost(request.prompt_tokens * 1.25, request.max_tokens + self.thinking_tokens)
            budget = self.budget
            if budget.limit is not None and budget.paid + budget.reserved + worst > budget.limit:
                self.stopped = True
                return None
            budget.reserved += worst
            try:
                known = await self._call(request)
            finally:
                budget.reserved -= worst
            if known.finish_reason != "unanswered":
                self.journal.add(key, self.endpoint.model, known)
                budget.paid += self._cost(known)
                self.calls += 1
        else:
            self.replayed += 1
        self.prompt_tokens += known.prompt_tokens
        self.completion_tokens += known.completion_tokens
        self.cost_usd += self._cost(known)
        return known

    def _cost(self, answer: Answer) -> float:
        return self.prices.cost(answer.prompt_tokens, answer.completion_tokens)

    async def _call(self, request: Request) -> Answer:
        """One request to the server, with the package's retries."""
        import openai

        if self._sdk is None:
            self._sdk = connect(self.endpoint, self.timeout_s, RETRIES)
        limit = "max_tokens" if self.endpoint.kind == "local" else "max_completion_tokens"
        messages = [{"role": message.role, "content": message.content} for message in request.messages]
        try:
            completion = await self._sdk.chat.completions.create(
                model=self.endpoint.model,
                messages=messages,
                temperature=self.temperature,
                **{limit: request.max_tokens + self.thinking_tokens},
            )
        except openai.BadRequestError as error:
            if error.code == "content_filter" or "content_filter" in str(error.body):
                return Answer("", "content_filter", "", 0, 0)
            self._refused += 1
            if self.calls == 0 and self._refused >= HOPELESS:
                raise ApiError(f"{self.endpoint} refuses every request: {self.redact(_said(error))}") from None
            return Answer("", "unanswered", self.redact(_said(error)), 0, 0)
        except openai.AuthenticationError:
            raise ApiError(
                f"{self.endpoint} does not accept the key in {KEYS[self.endpoint.kind]}; set the right one"
            ) from None
        except openai.PermissionDeniedError as error:
            raise ApiError(f"{self.endpoint} is not allowed with this key: {self.redact(_said(error))}") from None
        except openai.NotFoundError as error:
            raise ApiError(f"{self.endpoint}: no such model or address: {self.redact(_said(error))}") from None
        except openai.APITimeoutError:
            raise ApiError(
                f"{self.endpoint} does not answer within {self.timeout_s:g} s, {1 + RETRIES} times; {GOES_ON}"
            ) from None
        except openai.APIConnectionError as error:
            cause = self.redact(str(error.__cause__ or error))
            raise ApiError(f"{self.endpoint} cannot be reached ({cause}); {GOES_ON}") from None
        except openai.APIStatusError as error:
            raise ApiError(
                f"{self.endpoint} keeps answering {error.status_code}: {self.redact(_said(error))}; {GOES_ON}"
            ) from None
        except openai.OpenAIError as error:
            return Answer("", "unanswered", self.redact(str(error)), 0, 0)
        except ValueError:  # a body that is no JSON
            return Answer("", "unanswered", "the server's answer is not JSON", 0, 0)
        answer = _read(completion, request)
        return replace(answer, text=self._without_keys(answer.text), refusal=self.redact(answer.refusal))


GOES_ON = "run the same command again, it goes on from here"


@contextlib.contextmanager
def open_client(endpoint: Endpoint, journal_path: Path, prices: Prices, **settings: Any) -> Iterator[ChatClient]:
    """A `ChatClient` with these settings, whose answers are kept in `journal_path`."""
    with open_journal(journal_path) as journal:
        client = ChatClient(endpoint, journal, prices, **settings)
        try:
            yield client
        finally:
            client.close()


def _said(error: Any) -> str:
    """The server's own words."""
    body = error.body
    return str(body.get("message") or body) if isinstance(body, dict) else str(error.message)


def _fault(answer: Answer) -> str:
    """Why an answer is of no use, or ""."""
    if answer.finish_reason == "unanswered":
        return f"no answer: {answer.refusal}"
    if answer.finish_reason == "content_filter":
        return "held back by the server's content filter"
    if answer.refusal:
        return f"refused: {answer.refusal[:200]}"
    if answer.finish_reason == "length":
        return "cut off at its token limit"
    return "" if answer.text.strip() else "empty"


def _read(completion: Any, request: Request) -> Answer:
    """The package's object as an answer; whatever a server left out is put in."""
    try:
        choice = completion.choices[0]
        message = choice.message
        text, refusal = message.content or "", getattr(message, "refusal", None) or ""
    except (AttributeError, IndexError, TypeError):
        return Answer("", "unanswered", "the server's answer holds no choice", 0, 0)
    if not isinstance(text, str):
        return Answer("", "unanswered", "the server's answer holds no text", 0, 0)
    usage = completion.usage
    text = text.encode("utf-8", "replace").decode()
    prompt_tokens = getattr(usage, "prompt_tokens", None)
    completion_tokens = getattr(usage, "completion_tokens", None)
    return Answer(
        text,
        str(choice.finish_reason or "stop"),
        str(refusal),
        prompt_tokens if isinstance(prompt_tokens, int) else request.prompt_tokens,
        completion_tokens if isinstance(completion_tokens, int) else count_tokens(text),
    )
