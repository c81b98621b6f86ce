"""Client of a chat model: requests in, outcomes out, within a budget, and no answer is paid for
twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from reflectkit.chat.config import (
    ApiError,
    BudgetSpentError,
    ChatConfig,
    Endpoint,
    NoAnswerError,
    Prices,
)
from reflectkit.chat.journal import MALFORMED, ChatAnswer, Journal, open_journal
from reflectkit.console import Progress
from reflectkit.eventloop import in_thread, run_sync
from reflectkit.jsonl import write_jsonl
from reflectkit.keys import redacted
from reflectkit.text import count_tokens, pluralize
from reflectkit.types import Message

if TYPE_CHECKING:
    from reflectkit.chat.calls import Caller

ASKED_AGAIN = 2  # times, after an unusable answer
HOPELESS = 3  # unanswered requests in a row, after which the server or the settings are at fault
# Room for reasoning, whose tokens are billed and count towards the limit
THINKING_TOKENS = 4000
SPENT = "the budget is spent"
MESSAGE_TOKENS = 4  # added to a message by the chat format
PROMPT_MARGIN = 1.25  # by which a prompt may exceed our count of its tokens

CALL_FIGURES = ("calls", "replayed", "rejected", "prompt_tokens", "completion_tokens", "usd")
"""Figures of a teacher's calls, in the order in which they are shown; usd is None if the price is
unknown.
"""

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    name: its subject, for people. messages: the chat. max_tokens: limit of the answer. draw:
    distinguishes equal requests that should each get their own sampled answer. cuts: whether an
    answer that is cut off at the limit is used as it is. again: how often it is repeated after an
    unusable answer.

    For a decision model, the content of the one message is the JSON body that is sent; see
    `chat.decisions`.
    """

    name: str
    messages: tuple[Message, ...]
    max_tokens: int
    draw: int = 0
    cuts: bool = False
    again: int = ASKED_AGAIN

    @property
    def prompt_tokens(self) -> int:
        """Approximate number of tokens in the chat."""
        return sum(count_tokens(message.content) + MESSAGE_TOKENS for message in self.messages)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A request without a usable answer. reason: why the last answer was unusable. text: its
    beginning. journal: where its answers were kept already; None if the server was asked now.
    unanswered: whether the server gave no answer.
    """

    name: str
    reason: str
    text: str
    journal: Path | None = field(default=None, compare=False)
    unanswered: bool = field(default=False, compare=False)

    @property
    def explained(self) -> str:
        """The reason, and how to ask again where it was kept."""
        if self.journal is None:
            return self.reason
        return f"{self.reason} (kept in {self.journal}; delete that file to ask again)"


@dataclass(frozen=True, slots=True)
class Outcome(Generic[Value]):
    """The result of a request: its value, or why it was rejected, or neither if the budget ran out
    first.

    unparsed: number of complete answers that did not parse. cost_usd, tokens, answers: cost,
    completion tokens and number of all its answers, including those from the journal.
    """

    value: Value | None = None
    rejected: Rejected | None = None
    unparsed: int = 0
    cost_usd: float = 0.0
    tokens: int = 0
    answers: int = 0

    @property
    def reason(self) -> str:
        """Why there is no value."""
        return self.rejected.explained if self.rejected else SPENT


class IncompleteAnswerError(ValueError):
    """An answer that is cut off, empty, refused, filtered or malformed."""


def written_limit(
    endpoint: Endpoint,
    request: Request,
    most: int | None = None,
) -> int:
    """The limit of completion tokens that is sent to the server, reasoning included. most: of any
    answer, as the user says; otherwise models that think, or may, have room for it.
    """
    if most is not None:
        return most
    may_think = endpoint.thinks or (endpoint.kind == "local" and not request.cuts)
    return request.max_tokens + (THINKING_TOKENS if may_think else 0)


class _Session:
    """The calls in flight in one event loop, by key. failure: the error that ended its requests."""

    def __init__(self, concurrency: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.slots = asyncio.Semaphore(concurrency)
        self.connecting = asyncio.Lock()
        self.caller: Caller | None = None
        self.calls: dict[str, asyncio.Task[ChatAnswer | None]] = {}
        self.failure: Exception | None = None

    async def finish(self, while_: Callable[[], bool] = lambda: True) -> None:
        """Wait until no call is in flight, or `while_` no longer holds."""
        while self.calls and while_():
            await asyncio.wait(list(self.calls.values()), return_when=asyncio.FIRST_COMPLETED)

    async def close(self) -> None:
        """Cancel the calls and close the connections, unless they belong to another event loop,
        which is gone.
        """
        if self.loop is asyncio.get_running_loop():
            for call in self.calls.values():
                call.cancel()
            if self.caller is not None:
                await self.caller.close()


@dataclass(slots=True)
class Budget:
    """A budget in US dollars that several clients may share."""

    limit: float | None = None
    """None: unlimited."""
    paid: float = 0.0
    """Total cost of the answers in their journals."""
    reserved: list[float] = field(default_factory=list)
    """Maximum cost of each call in flight."""
    margin: float = 1.0
    """The largest ratio so far of an actual cost to its expected maximum."""
    released: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    """Set, and replaced, when a reservation ends."""

    @contextlib.asynccontextmanager
    async def reserve(self, max_cost: float) -> AsyncIterator[bool]:
        """Reserve `max_cost` dollars, times the margin, for a call; yields False if the remaining
        budget is too small.

        Waits if only the reservations of calls in flight prevent it, since most calls cost less
        than they reserve.
        """
        while self._fits(max_cost) and not self._fits(max_cost + sum(self.reserved)):
            await self.released.wait()
        if not self._fits(max_cost):
            yield False
            return
        self.reserved.append(max_cost)
        try:
            yield True
        finally:
            self.reserved.remove(max_cost)
            self.released.set()
            self.released = asyncio.Event()

    def pay(self, cost: float, max_cost: float) -> None:
        """Add the cost of a call whose maximum, by our count of its tokens, was `max_cost`."""
        self.paid += cost
        if cost > max_cost > 0:
            self.margin = max(self.margin, cost / max_cost)

    def _fits(self, cost: float) -> bool:
        return self.limit is None or self.paid + cost * self.margin <= self.limit


class ChatClient:
    """Asks a chat model. Use `open_client`.

    calls: number of calls to the server. replayed: number of answers from the journal.
    prompt_tokens, completion_tokens, cost_usd: of both, each answer once. stopped: whether the
    budget, which counts all answers of this model in the journal, left a request unanswered.
    concurrency: limit of concurrent calls. timeout_s: for a whole response, from connecting to its
    last byte. max_answer_tokens: see `written_limit`.

    Any number of coroutines of one event loop may use it concurrently; another loop may use it
    after they finish.
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
        max_answer_tokens: int | None = None,
    ) -> None:
        self.max_answer_tokens = max_answer_tokens
        self.endpoint, self.journal, self.prices = endpoint, journal, prices
        self.concurrency, self.budget = concurrency, budget or Budget()
        self.temperature, self.timeout_s = temperature, timeout_s
        self.calls = self.replayed = self.prompt_tokens = self.completion_tokens = 0
        self.cost_usd = 0.0
        self._paid_keys: set[str] = set()
        self.stopped = False
        self.forgets_unusable = False
        """Whether an equal request, later, asks again where no answer was usable."""
        self._pay_for(journal.answers.values())
        self._unanswered = 0  # requests in a row
        self._trouble: ApiError | None = None  # why the last of them got no answer
        self._session: _Session | None = None
        self.notes: list[str] = []
        """How the server is asked otherwise than others."""

    async def ask(
        self,
        request: Request,
        parse: Callable[[str], Value],
    ) -> Outcome[Value]:
        """The outcome of `request`. parse: maps the text of an answer to its value; raises
        ValueError with the reason if the text is unusable.

        A request whose answer is cut off, empty, refused, filtered or does not parse is repeated,
        as often as it says. Equal concurrent requests share one call.

        Raises
        ------
        ApiError: the server is unusable: it answered nothing, or failed several
        requests in a row. All requests in progress then end with this error, after the calls in
        flight are in the journal.
        """
        (outcome,) = await self.ask_all([request], lambda _, text: parse(text))
        return outcome

    async def ask_all(
        self,
        requests: Sequence[Request],
        parse: Callable[[int, str], Value],
        advance: Callable[[], None] = lambda: None,
    ) -> list[Outcome[Value]]:
        """`ask` for several requests; returns their outcomes in order. parse: also gets the number
        of the request. advance: called after each request that the budget allowed.
        """
        session, waiting = self._session_here(), iter(enumerate(requests))
        outcomes: dict[int, Outcome[Value]] = {}
        failures: list[Exception] = []
        if not session.calls:
            session.failure = None

        # 1. Requests in their order, a limited number at once
        async def work() -> None:
            for number, request in waiting:
                try:
                    outcomes[number] = await self._outcome(session, request, partial(parse, number))
                # It is raised below, when the calls in flight are in the journal
                except Exception as error:
                    session.failure = session.failure or error
                    failures.append(session.failure)
                    return
                if outcomes[number].value is not None or outcomes[number].rejected is not None:
                    advance()

        await asyncio.gather(*(work() for _ in range(min(self.concurrency, len(requests)))))
        # 2. Errors
        if failures:
            await session.finish()
            raise failures[0]
        if any(outcome.value is None for outcome in outcomes.values()):
            # Another call may yet show that the server answers
            await session.finish(while_=self._is_silent)
            if self._is_silent() and self._trouble:
                raise self._trouble
        return [outcomes[number] for number in range(len(requests))]

    async def finish(self) -> None:
        """Wait until no call of this event loop is in flight: all paid answers are then in the
        journal.
        """
        await self._session_here().finish()

    def replay(
        self,
        request: Request,
        parse: Callable[[str], Value],
    ) -> Outcome[Value] | None:
        """The outcome of `request` from the journal alone; None if the server would have to be
        asked.
        """
        answers, reason = self._journal_answers(request), ""
        for answer in answers:
            try:
                return Outcome(_value(answer, request, parse))
            except ValueError as error:
                reason = str(error)
        if len(answers) <= request.again:
            return None
        return Outcome(rejected=Rejected(request.name, reason, redacted(answers[-1].text)))

    def catch_up(self, others: Iterable[Path]) -> None:
        """Use the answers in the journals of other processes, and count what they cost."""
        self._pay_for(self.journal.catch_up(others))

    def close(self) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        if session is not None:
            run_sync(session.close())

    def key(self, request: Request, attempt: int) -> str:
        """The key of the answer in the journal."""
        identity: dict[str, Any] = {
            "kind": self.endpoint.kind,
            "base_url": self.endpoint.base_url,
            "model": self.endpoint.model,
            "messages": [[message.role, message.content] for message in request.messages],
            "max_tokens": self.max_answer_tokens or request.max_tokens,
            "temperature": self.temperature,
            "attempt": attempt,
        }
        # Without a temperature, all draws get the same answer
        if request.draw and (self.temperature or self.endpoint.thinks):
            identity["draw"] = request.draw
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()

    def calls_left(self, request: Request) -> int:
        """How many calls `request` may still take; 0 if the journal has a usable answer."""
        answers = self._journal_answers(request)
        if answers and not _fault(answers[-1], request):
            return 0
        return 1 + request.again - len(answers)

    def _journal_answers(self, request: Request) -> list[ChatAnswer]:
        """The answers to `request` in the journal, up to the first that is missing."""
        answers: list[ChatAnswer] = []
        for attempt in range(1 + request.again):
            answer = self.journal.answers.get(self.key(request, attempt))
            if answer is None:
                break
            answers.append(answer)
        return answers

    @property
    def usage(self) -> dict[str, float]:
        """Calls, answers from the journal, tokens, and US dollars if the price is known."""
        counts: dict[str, float] = {
            "calls": self.calls,
            "replayed": self.replayed,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
        }
        if self.prices.known:
            counts["usd"] = round(self.cost_usd, 6)
        return counts

    def report(self, progress: Progress) -> None:
        """Report unusable lines of the journal, and how this server had to be asked otherwise."""
        for note in self.notes:
            progress.news(note)
        if self.journal.damaged:
            lines = pluralize(self.journal.damaged, "damaged line")
            progress.news(
                f"{self.journal.path}: ignored {lines}; what they answered was asked again"
            )

    def stop_if_spent(self, progress: str) -> None:
        """Raises BudgetSpentError if the budget left requests unanswered; called after all files
        are written. progress: what is there, in words.
        """
        if self.stopped:
            raise BudgetSpentError(
                f"stopped at the budget: ${self.budget.paid:.4f} of --max-cost-usd"
                f" {self.budget.limit:g} spent; {progress}; run it again with a larger one to continue"
            )

    def call_figures(
        self,
        rejected: Sequence[Rejected],
        path: Path,
        progress: Progress,
    ) -> dict[str, Any]:
        """Write the rejected items to `path`, and return the figures of the calls."""
        # An earlier run's file is written anew, so that it does not stay
        if rejected or path.exists():
            rows = []
            for item in rejected:
                rows.append({"item": item.name, "reason": item.reason, "text": item.text})
            write_jsonl(path, rows)
        self.report(progress)
        if rejected:
            progress.news(
                f"{pluralize(len(rejected), 'item')} had no usable answer after retries; see {path}"
            )
        figures = self.usage | {"rejected": len(rejected)}
        return {name: figures.get(name) for name in CALL_FIGURES}

    def _session_here(self) -> _Session:
        """The session of the running event loop."""
        if self._session is None or self._session.loop is not asyncio.get_running_loop():
            self._session = _Session(self.concurrency)
        return self._session

    def _is_silent(self) -> bool:
        """Whether the server has answered nothing so far, although it was asked."""
        return self._trouble is not None and self.calls == 0

    async def _outcome(
        self,
        session: _Session,
        request: Request,
        parse: Callable[[str], Value],
    ) -> Outcome[Value]:
        """The outcome of one request. Raises what ended the session, if anything did."""
        answers: list[ChatAnswer] = []
        value, rejected, reason, unparsed = None, None, "", 0
        # Whether all answers come from the journal
        is_replay = True
        for attempt in range(1 + request.again):
            # 1. An answer; none if the server gives none, or the budget allows none
            is_replay = is_replay and self.key(request, attempt) in self.journal.answers
            try:
                answer = await self._answer(session, request, attempt)
            except NoAnswerError as error:
                rejected = Rejected(request.name, f"no answer: {error}", "", unanswered=True)
                break
            if answer is None:
                break
            # 2. Its value
            answers.append(answer)
            try:
                value = _value(answer, request, parse)
                break
            except ValueError as error:
                reason = str(error)
                unparsed += not isinstance(error, IncompleteAnswerError)
        else:
            if self.forgets_unusable:
                for attempt in range(1 + request.again):
                    key = self.key(request, attempt)
                    self.journal.answers.pop(key, None)
                    self._paid_keys.discard(key)  # the next answer is paid for, too
            journal = self.journal.path if is_replay else None
            rejected = Rejected(request.name, reason, redacted(answers[-1].text), journal)
        # 3. What it took
        cost = sum(map(self._cost, answers))
        tokens = sum(answer.completion_tokens for answer in answers)
        return Outcome(value, rejected, unparsed, cost, tokens, len(answers))

    async def _answer(
        self,
        session: _Session,
        request: Request,
        attempt: int,
    ) -> ChatAnswer | None:
        """An answer from the journal, a call in flight, or a new call; None if the budget does not
        allow one.
        """
        if session.failure is not None:
            raise session.failure
        key = self.key(request, attempt)
        answer, call = self.journal.answers.get(key), session.calls.get(key)
        # 1. A new call
        if answer is None and call is None:
            call = session.calls[key] = asyncio.create_task(self._call(session, request, key))
            call.add_done_callback(lambda _: session.calls.pop(key))
            # The answer is paid for, even if nobody waits for it any more
            return await asyncio.shield(call)
        # 2. One in flight for an equal request, or an answer that is there
        if answer is None and call is not None:
            answer = await asyncio.shield(call)
        if answer is not None:
            self.replayed += 1
            self._count(key, answer)
        return answer

    async def _call(
        self,
        session: _Session,
        request: Request,
        key: str,
    ) -> ChatAnswer | None:
        """Make a call and keep its answer; None if the budget does not allow it."""
        limit = self._limit(request)
        max_cost = self.prices.cost(request.prompt_tokens * PROMPT_MARGIN, limit)
        async with session.slots, self.budget.reserve(max_cost) as affordable:
            if session.failure is not None:
                raise session.failure
            if not affordable:
                self.stopped = True
                return None
            # 1. Call the server
            try:
                async with session.connecting:
                    if session.caller is None:
                        session.caller = await in_thread(self._connect)
                answer = await session.caller.call(
                    request.messages,
                    limit,
                    request.prompt_tokens,
                    min(limit, request.max_tokens),
                )
                self.notes = session.caller.notes
            except NoAnswerError as error:
                # Others were answered with the same settings, so only this request is at fault
                if error.refused and self.calls + self.replayed > 0:
                    self._unanswered = 0
                    raise
                self._unanswered += 1
                self._trouble = ApiError(error.fatal)
                if self._unanswered < HOPELESS:
                    raise
                session.failure = self._trouble
                raise session.failure from None
            except Exception as error:
                session.failure = session.failure or error
                raise
            # 2. Keep the answer before it is used, and pay it
            self.journal.add(key, self.endpoint.model, answer)
            self.budget.pay(self._cost(answer), max_cost)
        self._count(key, answer)
        self.calls += 1
        self._unanswered, self._trouble = 0, None
        return answer

    def _limit(self, request: Request) -> int:
        return written_limit(self.endpoint, request, self.max_answer_tokens)

    def _connect(self) -> Caller:
        from reflectkit.chat.calls import Caller  # imports openai
        from reflectkit.chat.decisions import DecisionCaller

        caller = DecisionCaller if self.endpoint.decides else Caller
        return caller(self.endpoint, self.temperature, self.timeout_s, self._keep_error)

    def _keep_error(
        self,
        body: bytes,
        prompt_tokens: int,
        completion_tokens: int,
    ) -> None:
        """Keep and pay the bill of an error."""
        bill = ChatAnswer("", MALFORMED, "", prompt_tokens, completion_tokens)
        key = f"{hashlib.sha256(body).hexdigest()}/{len(self.journal.answers)}"
        self.journal.add(key, self.endpoint.model, bill)
        self.budget.paid += self._cost(bill)
        self._count(key, bill)

    def _count(self, key: str, answer: ChatAnswer) -> None:
        """Add the tokens and the cost of an answer, once."""
        if key in self._paid_keys:
            return
        self._paid_keys.add(key)
        self.prompt_tokens += answer.prompt_tokens
        self.completion_tokens += answer.completion_tokens
        self.cost_usd += self._cost(answer)

    def _pay_for(self, answers: Iterable[ChatAnswer]) -> None:
        """Count what this model's answers cost."""
        for answer in answers:
            if answer.model == self.endpoint.model:
                self.budget.paid += self._cost(answer)

    def _cost(self, answer: ChatAnswer) -> float:
        return self.prices.cost(answer.prompt_tokens, answer.completion_tokens)


@contextlib.contextmanager
def open_client(
    endpoint: Endpoint,
    journal_path: Path,
    prices: Prices,
    **settings: Any,
) -> Iterator[ChatClient]:
    """A `ChatClient` with these settings, whose answers are kept in `journal_path`."""
    with open_journal(journal_path) as journal:
        client = ChatClient(endpoint, journal, prices, **settings)
        try:
            yield client
        finally:
            client.close()


def client_at(
    chat: ChatConfig,
    endpoint: Endpoint,
    journal: Path,
    budget: Budget | None = None,
    temperature: float = 1.0,
) -> contextlib.AbstractContextManager[ChatClient]:
    """`open_client` with the settings `chat`. budget: shared with other clients, if any."""
    return open_client(
        endpoint,
        journal,
        chat.prices_at(endpoint),
        concurrency=chat.concurrency,
        budget=budget or Budget(chat.max_cost_usd),
        temperature=temperature,
        timeout_s=chat.timeout_s,
        max_answer_tokens=chat.max_answer_tokens,
    )


def _fault(answer: ChatAnswer, request: Request) -> str:
    """Why an answer is incomplete, or ""."""
    if answer.finish_reason == MALFORMED:
        return answer.refusal
    if answer.finish_reason == "content_filter":
        return "held back by the server's content filter"
    if answer.refusal:
        return f"refused: {answer.refusal[:200]}"
    if answer.finish_reason == "length" and not request.cuts:
        return "cut off at its token limit; raise --max-answer-tokens"
    return "" if answer.text.strip() else "an empty answer"


def _value(
    answer: ChatAnswer,
    request: Request,
    parse: Callable[[str], Value],
) -> Value:
    """What `parse` makes of an answer. Raises ValueError with the reason if it is unusable."""
    fault = _fault(answer, request)
    if fault:
        raise IncompleteAnswerError(fault)
    return parse(answer.text)
