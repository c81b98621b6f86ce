"""Chat completions from OpenAI, Azure, or any server that speaks the same protocol: kept in a journal, within a budget,
and never paid for twice.

Keys are read from the environment alone, and are removed from every text that leaves.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from reflectkit.agents.budget import Budget
from reflectkit.agents.calls import Caller, NoAnswerError, redacted
from reflectkit.agents.endpoints import ApiError, Endpoint
from reflectkit.agents.journal import Answer, Journal, open_journal
from reflectkit.agents.prices import Prices
from reflectkit.agents.transport import MALFORMED
from reflectkit.core.eventloop import wait_for
from reflectkit.core.text import count_tokens
from reflectkit.core.types import Message

ASKED_AGAIN = 2  # times, after an answer that cannot be used
THINKING_TOKENS = 4000  # that a thinking model may write before its answer, on the bill and within its limit
MESSAGE_TOKENS = 4  # what a chat format adds to a message
PROMPT_MARGIN = 1.25  # by which a prompt may be longer than we count
HOPELESS = 3  # requests in a row without an answer, after which it is the server or the settings, not the requests

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Request:
    """One question.

    name: what it is about, for people. messages: the chat. max_tokens: of the answer. draw: tells apart equal questions
    that are each to be answered anew, where answers are sampled.
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
    """A request without a usable answer. reason: why the last answer could not be used. text: its beginning."""

    name: str
    reason: str
    text: str


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


def written_limit(endpoint: Endpoint, request: Request) -> int:
    """The tokens that the model may write, seen and unseen; it is sent along, and servers keep to it."""
    return request.max_tokens + (THINKING_TOKENS if endpoint.thinks else 0)


def most_usd(endpoint: Endpoint, prices: Prices, request: Request) -> float:
    """The most that one call can cost, in US dollars."""
    return prices.cost(request.prompt_tokens * PROMPT_MARGIN, written_limit(endpoint, request))


class ChatClient:
    """Asks a chat model. Use `open_client`.

    calls: made to the server. replayed: answers taken from the journal. prompt_tokens, completion_tokens, cost_usd: of
    both together. stopped: whether the budget, which counts all that the journal paid for, left a request unanswered.
    concurrency: calls at once, of all requests together. timeout_s: for a whole call, from connecting to the last byte,
    not counting the waits before retries.

    Any number of coroutines of one event loop may ask at once; another loop may ask when they have finished.
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
        self.budget.paid += sum(map(self._cost, journal.answers.values()))
        self._unanswered = 0  # requests in a row
        self._trouble: ApiError | None = None  # why the last of them was not answered
        self._session: _Session | None = None

    async def ask(self, request: Request, parse: Callable[[str], Value]) -> Outcome[Value]:
        """What becomes of `request`. parse: from the text of an answer to its value; raises ValueError with the reason
        where the text cannot be used.

        An answer that is cut off, empty, refused, filtered or does not parse is asked for again, twice at most. Equal
        requests that are asked at once share one call.

        Raises
        ------
        ApiError: the server cannot be used: nothing was answered, or several requests in a row were not. All requests
        that are under way then end with it, after the calls in flight are in the journal.
        """
        (outcome,) = await self.ask_all([request], lambda _, text: parse(text))
        return outcome

    async def ask_all(
        self,
        requests: Sequence[Request],
        parse: Callable[[int, str], Value],
        advance: Callable[[], None] = lambda: None,
    ) -> list[Outcome[Value]]:
        """As `ask`, of many requests; their outcomes in order. parse: gets the number of the request, too. advance:
        called as each request is through.
        """
        if not requests:
            return []
        session = self._session_here()
        outcomes: list[Outcome[Value] | None] = [None] * len(requests)
        waiting = iter(enumerate(requests))
        async with session.join() as asks:

            async def work() -> None:
                for number, request in waiting:
                    try:
                        outcomes[number] = await self._outcome(session, asks, number, request, parse)
                    except Exception as error:  # raised below, when the calls in flight are in the journal
                        asks.failure = asks.failure or error
                        return
                    advance()

            workers = [work() for _ in range(min(self.concurrency, len(requests)))]
            await (asyncio.gather(*workers) if len(workers) > 1 else workers[0])
        complete = [outcome for outcome in outcomes if outcome is not None]
        if len(complete) < len(requests):
            await asks.others()
            assert asks.failure is not None
            raise asks.failure
        if any(outcome.value is None for outcome in complete) and self._nothing_answered():
            await asks.others(while_=self._nothing_answered)  # one of them may yet show that the server answers
            if self._nothing_answered():
                assert self._trouble is not None
                raise self._trouble
        return complete

    def replay(self, request: Request, parse: Callable[[str], Value]) -> Outcome[Value] | None:
        """What the journal makes of `request`, without asking; None where the server would have to be asked."""
        reason = text = ""
        for attempt in range(1 + ASKED_AGAIN):
            answer = self.journal.answers.get(self.key(request, attempt))
            if answer is None:
                return None
            reason, text = _fault(answer), answer.text
            if not reason:
                try:
                    return Outcome(parse(text))
                except ValueError as error:
                    reason = str(error)
        return Outcome(rejected=Rejected(request.name, reason, redacted(text)))

    def close(self) -> None:
        """End the connections."""
        session, self._session = self._session, None
        if session is not None:
            wait_for(session.close())

    def key(self, request: Request, attempt: int) -> str:
        """What the journal finds the answer by."""
        identity = {
            "kind": self.endpoint.kind,
            "base_url": self.endpoint.base_url,
            "model": self.endpoint.model,
            "messages": [[message.role, message.content] for message in request.messages],
            "max_tokens": request.max_tokens,
            "temperature": self.temperature,
            "attempt": attempt,
        } | ({"draw": request.draw} if request.draw and (self.temperature or self.endpoint.thinks) else {})
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()

    def calls_left(self, request: Request) -> int:
        """How many calls `request` may still take: none where the journal has an answer to it that can be read."""
        for attempt in range(1 + ASKED_AGAIN):
            answer = self.journal.answers.get(self.key(request, attempt))
            if answer is None:
                return 1 + ASKED_AGAIN - attempt
            if not _fault(answer) and self.key(request, attempt + 1) not in self.journal.answers:
                return 0
        return 0

    def _session_here(self) -> _Session:
        """The session of the running event loop."""
        loop = asyncio.get_running_loop()
        if self._session is None or self._session.loop is not loop:
            caller = Caller(self.endpoint, self.temperature, self.timeout_s)
            self._session = _Session(loop, caller, asyncio.Semaphore(self.concurrency))
        return self._session

    def _nothing_answered(self) -> bool:
        return self._trouble is not None and self.calls == 0

    async def _outcome(
        self, session: _Session, asks: _Asks, number: int, request: Request, parse: Callable[[int, str], Value]
    ) -> Outcome[Value]:
        """Raises what ended `asks`, if anything; nothing is asked again then."""
        answers: list[Answer] = []
        reason, unparsed = "", 0

        def ended(value: Value | None = None, rejected: Rejected | None = None) -> Outcome[Value]:
            tokens = sum(answer.completion_tokens for answer in answers)
            return Outcome(value, rejected, unparsed, sum(map(self._cost, answers)), tokens)

        for attempt in range(1 + ASKED_AGAIN):
            asks.check()
            try:
                answer = await self._answer(session, asks, request, attempt)
            except NoAnswerError as error:
                reason = f"no answer: {error}"
                if error.retry and attempt < ASKED_AGAIN:
                    continue
                self._count_unanswered(error)
                return ended(rejected=Rejected(request.name, reason, ""))
            if answer is None:
                return ended()
            answers.append(answer)
            reason = _fault(answer)
            if not reason:
                try:
                    return ended(parse(number, answer.text))
                except ValueError as error:
                    reason = str(error)
                    unparsed += 1
        return ended(rejected=Rejected(request.name, reason, redacted(answers[-1].text if answers else "")))

    async def _answer(self, session: _Session, asks: _Asks, request: Request, attempt: int) -> Answer | None:
        """From the journal, or from the server; None where the budget does not allow it."""
        key = self.key(request, attempt)
        async with session.turns.setdefault(key, asyncio.Lock()):  # of equal requests the first one is called for
            answer = self.journal.answers.get(key)
            if answer is not None:
                self.replayed += 1
                self._count(answer)
                return answer
            most = most_usd(self.endpoint, self.prices, request)
            async with session.slots, self.budget.reserve(most) as affordable:
                asks.check()
                if not affordable:
                    self.stopped = True
                    return None
                answer = await self._call(session, key, request)
                self._keep(key, request, answer)
        self.calls += 1
        self._unanswered, self._trouble = 0, None
        return answer

    async def _call(self, session: _Session, key: str, request: Request) -> Answer:
        def keep_bill(answer: Answer) -> None:
            self._keep(f"{key}/{len(self.journal.answers)}", request, answer)

        limit = written_limit(self.endpoint, request)
        return await session.caller.call(request.messages, limit, request.prompt_tokens, key, keep_bill)

    def _keep(self, key: str, request: Request, answer: Answer) -> None:
        """Put a paid answer into the journal and on the bill."""
        self.journal.add(key, self.endpoint.model, answer)
        self.budget.pay(self._cost(answer), most_usd(self.endpoint, self.prices, request))
        self._count(answer)

    def _count(self, answer: Answer) -> None:
        self.prompt_tokens += answer.prompt_tokens
        self.completion_tokens += answer.completion_tokens
        self.cost_usd += self._cost(answer)

    def _cost(self, answer: Answer) -> float:
        return self.prices.cost(answer.prompt_tokens, answer.completion_tokens)

    def _count_unanswered(self, error: NoAnswerError) -> None:
        """Raises ApiError where a request got no answer for a reason that is not its own."""
        if error.refused and self.calls + self.replayed > 0:
            self._unanswered = 0  # others were answered with the same settings
            return
        self._unanswered += 1
        self._trouble = ApiError(error.fatal)
        if self._unanswered >= HOPELESS:
            raise self._trouble


class _Asks:
    """The asks that are under way at the same time. Where one of them fails, all do.

    failure: what ended them.
    """

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self.under_way = 0
        self._left = asyncio.Event()

    def check(self) -> None:
        """Raises what ended them."""
        if self.failure is not None:
            raise self.failure

    def leave(self) -> None:
        """One of them is through."""
        self.under_way -= 1
        self._left.set()
        self._left = asyncio.Event()

    async def others(self, while_: Callable[[], bool] = lambda: True) -> None:
        """Wait until all of them are through, or `while_` no longer holds."""
        while self.under_way and while_():
            await self._left.wait()


@dataclass(slots=True)
class _Session:
    """What belongs to one event loop.

    slots: one for each call at once. turns: of equal requests, by key, as long as one of them is under way. asks: those
    that are under way.
    """

    loop: asyncio.AbstractEventLoop
    caller: Caller
    slots: asyncio.Semaphore
    turns: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)
    asks: _Asks = field(default_factory=_Asks)

    @contextlib.asynccontextmanager
    async def join(self) -> AsyncIterator[_Asks]:
        """Be one of the asks under way, for as long as the context lasts; not of those that failed already."""
        if self.asks.failure is not None:
            self.asks = _Asks()
        asks = self.asks
        asks.under_way += 1
        try:
            yield asks
        finally:
            asks.leave()

    async def close(self) -> None:
        """End the connections, unless their event loop is another one, and gone."""
        if self.loop is asyncio.get_running_loop():
            await self.caller.close()


@contextlib.contextmanager
def open_client(
    endpoint: Endpoint, journal_path: Path, prices: Prices, *, earlier: Path | None = None, **settings: Any
) -> Iterator[ChatClient]:
    """A `ChatClient` with these settings, whose answers are kept in `journal_path`.

    earlier: where an earlier version kept them, possibly with those of other models, which are then left out; they are
    read from there, too.
    """
    with open_journal(journal_path, model=endpoint.model if earlier else None, earlier=earlier) as journal:
        client = ChatClient(endpoint, journal, prices, **settings)
        try:
            yield client
        finally:
            client.close()


def _fault(answer: Answer) -> str:
    """Why an answer cannot be used, or ""."""
    if answer.finish_reason == MALFORMED:
        return answer.refusal
    if answer.finish_reason == "content_filter":
        return "held back by the server's content filter"
    if answer.refusal:
        return f"refused: {answer.refusal[:200]}"
    if answer.finish_reason == "length":
        return "cut off at its token limit"
    return "" if answer.text.strip() else "empty"
