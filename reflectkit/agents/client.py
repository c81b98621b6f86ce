"""Chat completions from OpenAI, Azure, or any server with the same protocol, with a budget, and a journal so that no
answer is paid for twice.

Keys are read only from the environment, and are removed from all logged and displayed text.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from reflectkit.agents.budget import Budget
from reflectkit.agents.calls import Caller, NoAnswerError, redacted
from reflectkit.agents.endpoints import ApiError, Endpoint
from reflectkit.agents.exchange import ASKED_AGAIN, Outcome, Rejected, Request, Value, fault_of, most_usd, written_limit
from reflectkit.agents.journal import Answer, Journal, open_journal
from reflectkit.agents.prices import Prices
from reflectkit.agents.sessions import Asks, Session
from reflectkit.core.eventloop import wait_for

HOPELESS = 3  # unanswered requests in a row, after which the server or the settings are at fault


class ChatClient:
    """Asks a chat model. Use `open_client`.

    calls: number of calls to the server. replayed: number of answers from the journal. prompt_tokens,
    completion_tokens, cost_usd: totals of both. stopped: whether the budget, which counts everything in the journal,
    left a request unanswered. concurrency: limit of concurrent calls. timeout_s: for a whole call, from connecting to
    the last byte, without the waits before retries.

    Any number of coroutines of one event loop may use it concurrently; another loop may use it after they finish.
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
        self._trouble: ApiError | None = None  # why the last of them got no answer
        self._session: Session | None = None

    async def ask(self, request: Request, parse: Callable[[str], Value]) -> Outcome[Value]:
        """The outcome of `request`. parse: maps the text of an answer to its value; raises ValueError with the reason
        if the text is unusable.

        A request whose answer is cut off, empty, refused, filtered or does not parse is repeated, at most twice. Equal
        concurrent requests share one call.

        Raises
        ------
        ApiError: the server is unusable: it answered nothing, or failed several requests in a row. All requests in
        progress then end with this error, after the calls in flight are in the journal.
        """
        (outcome,) = await self.ask_all([request], lambda _, text: parse(text))
        return outcome

    async def ask_all(
        self,
        requests: Sequence[Request],
        parse: Callable[[int, str], Value],
        advance: Callable[[], None] = lambda: None,
    ) -> list[Outcome[Value]]:
        """`ask` for several requests; returns their outcomes in order. parse: also gets the number of the request.
        advance: called after each request.
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
        """The outcome of `request` from the journal alone; None if the server would have to be asked."""
        reason = text = ""
        for attempt in range(1 + ASKED_AGAIN):
            answer = self.journal.answers.get(self.key(request, attempt))
            if answer is None:
                return None
            reason, text = fault_of(answer, request), answer.text
            if not reason:
                try:
                    return Outcome(parse(text))
                except ValueError as error:
                    reason = str(error)
        return Outcome(rejected=Rejected(request.name, reason, redacted(text)))

    def catch_up(self, others: Iterable[Path]) -> None:
        """Use the answers in the journals of other processes, and count what they cost."""
        self.budget.paid += sum(map(self._cost, self.journal.catch_up(others)))

    def close(self) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        if session is not None:
            wait_for(session.close())

    def key(self, request: Request, attempt: int) -> str:
        """The key of the answer in the journal."""
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
        """How many calls `request` may still take; 0 if the journal has a usable answer."""
        for attempt in range(1 + ASKED_AGAIN):
            answer = self.journal.answers.get(self.key(request, attempt))
            if answer is None:
                return 1 + ASKED_AGAIN - attempt
            if not fault_of(answer, request) and self.key(request, attempt + 1) not in self.journal.answers:
                return 0
        return 0

    def _session_here(self) -> Session:
        """The session of the running event loop."""
        loop = asyncio.get_running_loop()
        if self._session is None or self._session.loop is not loop:
            caller = Caller(self.endpoint, self.temperature, self.timeout_s)
            self._session = Session(loop, caller, asyncio.Semaphore(self.concurrency))
        return self._session

    def _nothing_answered(self) -> bool:
        return self._trouble is not None and self.calls == 0

    async def _outcome(
        self, session: Session, asks: Asks, number: int, request: Request, parse: Callable[[int, str], Value]
    ) -> Outcome[Value]:
        """The outcome of one request. Raises what ended `asks`, if anything did."""
        answers: list[Answer] = []
        reason, unparsed, kept = "", 0, True

        def ended(value: Value | None = None, rejected: Rejected | None = None) -> Outcome[Value]:
            tokens = sum(answer.completion_tokens for answer in answers)
            return Outcome(value, rejected, unparsed, sum(map(self._cost, answers)), tokens, len(answers))

        for attempt in range(1 + ASKED_AGAIN):
            asks.check()
            kept = kept and self.key(request, attempt) in self.journal.answers
            try:
                answer = await self._answer(session, asks, request, attempt)
            except NoAnswerError as error:
                reason = f"no answer: {error}"
                if error.retry and attempt < ASKED_AGAIN:
                    continue
                self._count_unanswered(error)
                return ended(rejected=Rejected(request.name, reason, "", unanswered=True))
            if answer is None:
                return ended()
            answers.append(answer)
            reason = fault_of(answer, request)
            if not reason:
                try:
                    return ended(parse(number, answer.text))
                except ValueError as error:
                    reason = str(error)
                    unparsed += 1
        text = redacted(answers[-1].text if answers else "")
        return ended(rejected=Rejected(request.name, reason, text, self.journal.path if kept else None))

    async def _answer(self, session: Session, asks: Asks, request: Request, attempt: int) -> Answer | None:
        """An answer from the journal or the server; None if the budget does not allow a call."""
        key = self.key(request, attempt)
        async with session.turns.setdefault(key, asyncio.Lock()):  # only the first of equal requests makes a call
            answer = self.journal.answers.get(key)
            if answer is not None:
                self.replayed += 1
                self._count(answer)
                return answer
            max_cost = most_usd(self.endpoint, self.prices, request)
            async with session.slots, self.budget.reserve(max_cost) as affordable:
                asks.check()
                if not affordable:
                    self.stopped = True
                    return None
                answer = await self._call(session, key, request)
                self._keep(key, request, answer)
        self.calls += 1
        self._unanswered, self._trouble = 0, None
        return answer

    async def _call(self, session: Session, key: str, request: Request) -> Answer:
        def keep_bill(answer: Answer) -> None:
            self._keep(f"{key}/{len(self.journal.answers)}", request, answer)

        limit = written_limit(self.endpoint, request)
        return await session.caller.call(request.messages, limit, request.prompt_tokens, key, keep_bill)

    def _keep(self, key: str, request: Request, answer: Answer) -> None:
        """Record a paid answer in the journal and the budget."""
        self.journal.add(key, self.endpoint.model, answer)
        self.budget.pay(self._cost(answer), most_usd(self.endpoint, self.prices, request))
        self._count(answer)

    def _count(self, answer: Answer) -> None:
        self.prompt_tokens += answer.prompt_tokens
        self.completion_tokens += answer.completion_tokens
        self.cost_usd += self._cost(answer)

    @property
    def usage(self) -> dict[str, float]:
        """Calls, answers from the journal, tokens, and US dollars if the price is known."""
        counts: dict[str, float] = {
            "calls": self.calls,
            "replayed": self.replayed,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
        }
        return counts | ({"usd": round(self.cost_usd, 6)} if self.prices.known else {})

    def _cost(self, answer: Answer) -> float:
        return self.prices.cost(answer.prompt_tokens, answer.completion_tokens)

    def _count_unanswered(self, error: NoAnswerError) -> None:
        """Count an unanswered request. Raises ApiError if the server is at fault."""
        if error.refused and self.calls + self.replayed > 0:
            self._unanswered = 0  # others were answered with the same settings
            return
        self._unanswered += 1
        self._trouble = ApiError(error.fatal)
        if self._unanswered >= HOPELESS:
            raise self._trouble


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
