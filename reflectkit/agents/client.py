"""Chat completions from OpenAI, Azure, or any server that speaks the same protocol: journalled, budgeted, never asked
twice.

429, 5xx and lost connections are retried with backoff, as long as `Retry-After` says where it does. Keys are read from
the environment alone, and are taken out of every text that leaves.
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

from reflectkit.agents.background import wait_for
from reflectkit.agents.budget import Budget
from reflectkit.agents.endpoints import KEYS, ApiError, Endpoint, secrets
from reflectkit.agents.journal import Answer, Journal, open_journal
from reflectkit.agents.prices import Prices
from reflectkit.agents.transport import (
    MALFORMED,
    ConnectionLostError,
    Response,
    Transport,
    error_of,
    read_answer,
    usage_of,
)
from reflectkit.core.seeding import uniform
from reflectkit.core.text import count_tokens
from reflectkit.core.types import Message

ASKED_AGAIN = 2  # times, after an answer that is of no use
RETRIES = 6  # of one request, where the server is busy or hangs up
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.5, 8.0
BUSY = (408, 409, 429)  # and 5xx: worth another try
THINKING_TOKENS = 4000  # that a thinking model may write before its answer, on the bill and within its limit
MESSAGE_TOKENS = 4  # what a chat format adds to a message
PROMPT_MARGIN = 1.25  # by which a prompt may be longer than we count
HOPELESS = 3  # items in a row without an answer, after which it is the server or the settings, not the items
RESUMES = "run the same command again, it resumes from here"

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Request:
    """One question. name: what a person knows it by. messages: the chat. max_tokens: of the answer. draw: tells apart
    equal questions of which each is to be answered by itself, where answers are sampled.
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

    unfit: how many answers came whole and did not parse. cost_usd, tokens: what all its answers cost and have, those of
    the journal too.
    """

    value: Value | None = None
    rejected: Rejected | None = None
    unfit: int = 0
    cost_usd: float = 0.0
    tokens: int = 0


class _NoAnswerError(Exception):
    """A request got no answer. fatal: what to say where that is so of all of them. again: whether to ask once more."""

    def __init__(self, reason: str, fatal: str, *, again: bool = False, refused: bool = False) -> None:
        super().__init__(reason)
        self.fatal, self.again, self.refused = fatal, again, refused


def written_limit(endpoint: Endpoint, request: Request) -> int:
    """The tokens that the model may write, seen and unseen; it is sent along, and servers keep to it."""
    return request.max_tokens + (THINKING_TOKENS if endpoint.thinks else 0)


def most_usd(endpoint: Endpoint, prices: Prices, request: Request) -> float:
    """The most that one call can cost, in US dollars."""
    return prices.cost(request.prompt_tokens * PROMPT_MARGIN, written_limit(endpoint, request))


class ChatClient:
    """Asks many requests at once. calls: made to the server; replayed: taken from the journal; cost_usd: of both
    together.

    stopped: whether the budget, which counts all that the journal paid for, ended the asking. timeout_s: for a whole
    call, from connecting to the last byte, not counting the waits before retries. Any thread may ask, and several at
    once. Use `open_client`.
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
        self._sends_temperature = not endpoint.thinks
        self._transport: Transport | None = None
        self._connecting = asyncio.Lock()
        self._slots = asyncio.Semaphore(concurrency)
        self._under_way: dict[str, asyncio.Lock] = {}
        self._in_a_row = 0
        self._trouble: ApiError | None = None

    def ask(
        self,
        requests: Sequence[Request],
        parse: Callable[[int, str], Value],
        advance: Callable[[], None] = lambda: None,
    ) -> list[Outcome[Value]]:
        """An outcome for each request, in order. parse: (number, text) → value; raises ValueError, saying what is
        wrong.

        An answer that is cut off, empty, refused, filtered or does not parse is asked for again, twice at most.

        Raises
        ------
        ApiError: the server cannot be used: nothing was answered, or several items in a row were not. What was answered
        until then is in the journal.
        """
        return wait_for(self._ask(requests, parse, advance))

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
        return Outcome(rejected=Rejected(request.name, reason, self.redact(text)))

    def close(self) -> None:
        """End the connections."""
        if self._transport is not None:
            wait_for(self._transport.close())
            self._transport = None

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
                    outcomes[number] = await self._one(number, request, parse, failed)
                except Exception as error:  # told once, below, when the calls in flight have been journalled
                    failed.append(error)
                    return
                advance()

        await asyncio.gather(*(work() for _ in range(min(self.concurrency, len(requests)))))
        if failed:
            raise failed[0]
        if self._trouble is not None and self.calls == 0:
            raise self._trouble
        return outcomes

    async def _one(
        self, number: int, request: Request, parse: Callable[[int, str], Value], failed: Sequence[BaseException]
    ) -> Outcome[Value]:
        """failed: what ended the asking meanwhile, if anything; nothing is asked again then."""
        answers: list[Answer] = []
        reason, unfit = "", 0

        def ended(value: Value | None = None, rejected: Rejected | None = None) -> Outcome[Value]:
            tokens = sum(answer.completion_tokens for answer in answers)
            return Outcome(value, rejected, unfit, sum(map(self._cost, answers)), tokens)

        for attempt in range(1 + ASKED_AGAIN):
            if failed:
                break
            try:
                answer = await self._answer(request, attempt)
            except _NoAnswerError as error:
                reason = f"no answer: {error}"
                if error.again and attempt < ASKED_AGAIN:
                    continue
                self._fail(error)
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
                    unfit += 1
        return ended(rejected=Rejected(request.name, reason, self.redact(answers[-1].text if answers else "")))

    async def _answer(self, request: Request, attempt: int) -> Answer | None:
        """From the journal, or from the server; None where the budget does not allow it."""
        key = self.key(request, attempt)
        async with self._under_way.setdefault(key, asyncio.Lock()):  # the same request twice is asked once
            return await self._answer_alone(key, request)

    async def _answer_alone(self, key: str, request: Request) -> Answer | None:
        answer = self.journal.answers.get(key)
        if answer is not None:
            self.replayed += 1
            self._count(answer)
            return answer
        async with self._slots, self.budget.reserve(most_usd(self.endpoint, self.prices, request)) as fits:
            if not fits:
                self.stopped = True
                return None
            answer = await self._call(key, request)
            self._keep(key, request, answer)
        self.calls += 1
        self._in_a_row, self._trouble = 0, None
        return answer

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

    def _fail(self, error: _NoAnswerError) -> None:
        """Note that an item got no answer. Raises ApiError where it is not for the item's own sake."""
        if error.refused and self.calls + self.replayed > 0:
            self._in_a_row = 0  # others were answered with the same settings
            return
        self._in_a_row += 1
        self._trouble = ApiError(error.fatal)
        if self._in_a_row >= HOPELESS:
            raise self._trouble

    async def _call(self, key: str, request: Request) -> Answer:
        """One request to the server, with retries. Raises _NoAnswerError, ApiError."""
        async with self._connecting:
            if self._transport is None:
                self._transport = await asyncio.to_thread(Transport, self.endpoint)
        left_s, retries = self.timeout_s, 0
        clock = asyncio.get_running_loop().time
        while True:
            started = clock()
            response: Response | None = None
            body = self._body(request)
            try:
                response = await self._transport.post(body, left_s)
            except TimeoutError:
                reason = f"{self.endpoint} does not answer within {self.timeout_s:g} s"
                raise _NoAnswerError(reason, f"{reason}; raise --timeout-s, or {RESUMES}", again=True) from None
            except ConnectionLostError as error:
                reason = f"{self.endpoint} cannot be reached ({self.redact(str(error))})"
            left_s = max(left_s - (clock() - started), 0.0)
            if response is not None:
                if response.status < 300:
                    return self._read(response, request)
                self._keep_bill(key, request, response)
                said = self.redact(error_of(response.body)["message"])
                if response.status not in BUSY and response.status < 500:
                    if "temperature" in body and _refuses_temperature(response):
                        self._sends_temperature = False
                        continue
                    return self._refusal(response, said)
                reason = f"{self.endpoint} keeps answering {response.status}: {said}"
            if retries == RETRIES:
                raise _NoAnswerError(reason, f"{reason}; {RESUMES}")
            asked_s = response.retry_after_s if response is not None else None
            backoff_s = min(FIRST_BACKOFF_S * 2**retries, LONGEST_BACKOFF_S) * (1 - uniform(0, key, retries) / 4)
            await asyncio.sleep(backoff_s if asked_s is None else asked_s)
            retries += 1

    def _body(self, request: Request) -> dict[str, Any]:
        limit = "max_tokens" if self.endpoint.kind == "local" else "max_completion_tokens"
        body = {
            "model": self.endpoint.model,
            "messages": [{"role": message.role, "content": message.content} for message in request.messages],
            limit: written_limit(self.endpoint, request),
        }
        return body | ({"temperature": self.temperature} if self._sends_temperature else {})

    def _read(self, response: Response, request: Request) -> Answer:
        answer = read_answer(
            response.body, request.prompt_tokens, written_limit(self.endpoint, request), thinks=self.endpoint.thinks
        )
        return replace(answer, text=self._without_keys(answer.text), refusal=self.redact(answer.refusal))

    def _keep_bill(self, key: str, request: Request, response: Response) -> None:
        """Put what an error has cost on the bill; few servers charge for one."""
        read, written = usage_of(response.body)
        if read or written:
            said = self.redact(error_of(response.body)["message"])
            answer = Answer("", MALFORMED, said, read or 0, written or 0)
            self._keep(f"{key}/{len(self.journal.answers)}", request, answer)

    def _refusal(self, response: Response, said: str) -> Answer:
        """What a status that another try does not change means. Raises _NoAnswerError, ApiError."""
        error = error_of(response.body)
        if response.status == 400 and (error.get("code") == "content_filter" or "content_filter" in error["message"]):
            return Answer("", "content_filter", "", 0, 0)
        if response.status == 401:
            raise ApiError(f"{self.endpoint} does not accept the key in {KEYS[self.endpoint.kind]}; set the right one")
        if response.status == 403:
            raise ApiError(f"{self.endpoint} is not allowed with this key: {said}")
        if response.status == 404:
            raise ApiError(f"{self.endpoint}: no such model or address: {said}")
        if response.status < 400:
            said = "it redirects to another address; give that as --base-url"
        raise _NoAnswerError(said, f"{self.endpoint} refuses every request: {said}", refused=True)


@contextlib.contextmanager
def open_client(endpoint: Endpoint, journal_path: Path, prices: Prices, **settings: Any) -> Iterator[ChatClient]:
    """A `ChatClient` with these settings, whose answers are kept in `journal_path`."""
    with open_journal(journal_path) as journal:
        client = ChatClient(endpoint, journal, prices, **settings)
        try:
            yield client
        finally:
            client.close()


def _refuses_temperature(response: Response) -> bool:
    error = error_of(response.body)
    return response.status in (400, 422) and (
        error.get("param") == "temperature" or "'temperature'" in error["message"]
    )


def _fault(answer: Answer) -> str:
    """Why an answer is of no use, or ""."""
    if answer.finish_reason == MALFORMED:
        return answer.refusal
    if answer.finish_reason == "content_filter":
        return "held back by the server's content filter"
    if answer.refusal:
        return f"refused: {answer.refusal[:200]}"
    if answer.finish_reason == "length":
        return "cut off at its token limit"
    return "" if answer.text.strip() else "empty"
