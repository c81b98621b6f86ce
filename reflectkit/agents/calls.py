"""One call to a chat model, repeated with backoff while the server is busy or loses the connection.

429, 5xx and lost connections are retried, after as long as `Retry-After` says where it does; an error in the body of a
200 counts as its own status. No key is left in any text that comes back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from reflectkit.agents.endpoints import KEYS, Endpoint, NoAccessError
from reflectkit.agents.journal import Answer
from reflectkit.agents.transport import (
    MALFORMED,
    ConnectionLostError,
    Response,
    Transport,
    error_of,
    read_answer,
    status_of,
    usage_of,
)
from reflectkit.core.eventloop import in_thread
from reflectkit.core.keys import masked, without_keys
from reflectkit.core.seeding import uniform
from reflectkit.core.types import Message

RETRIES = 6  # of one call, while the server is busy or hangs up
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.5, 8.0
BUSY = (408, 409, 429)  # and 5xx: worth another try
RESUMES = "run the same command again, it resumes from here"
LONGEST_LINE = 300  # characters of a message


class NoAnswerError(Exception):
    """A call that got no answer.

    fatal: the message if no call gets an answer. retry: whether another attempt may help. refused: whether the server
    rejected the request itself.
    """

    def __init__(self, reason: str, fatal: str, *, retry: bool = False, refused: bool = False) -> None:
        super().__init__(reason)
        self.fatal, self.retry, self.refused = fatal, retry, refused


class Caller:
    """Calls one endpoint over persistent connections.

    timeout_s: for a whole call, from connecting to the last byte, without the waits between retries. The connections
    belong to one event loop; `close` closes them.
    """

    def __init__(self, endpoint: Endpoint, temperature: float, timeout_s: float) -> None:
        self.endpoint, self.temperature, self.timeout_s = endpoint, temperature, timeout_s
        self._sends_temperature = not endpoint.thinks
        self._transport: Transport | None = None
        self._connecting = asyncio.Lock()

    async def call(
        self, messages: Sequence[Message], limit: int, prompt_tokens: int, key: str, on_bill: Callable[[Answer], None]
    ) -> Answer:
        """The server's answer to `messages`, of at most `limit` tokens.

        prompt_tokens: our count, used if the response has no usage. key: seeds the backoff. on_bill: called with each
        error that reports usage.

        Raises
        ------
        NoAnswerError: this call got no answer. NoAccessError: no call will.
        """
        transport = await self._connected()
        left_s, retries = self.timeout_s, 0
        clock = asyncio.get_running_loop().time
        while True:
            started = clock()
            response: Response | None = None
            body = self._body(messages, limit)
            try:
                response = await transport.post(body, left_s)
            except TimeoutError:
                reason = f"{self.endpoint} does not answer within {self.timeout_s:g} s"
                raise NoAnswerError(reason, f"{reason}; raise --timeout-s, or {RESUMES}", retry=True) from None
            except ConnectionLostError as error:
                reason = f"{self.endpoint} cannot be reached ({redacted(str(error))})"
            left_s = max(left_s - (clock() - started), 0.0)
            if response is not None:
                response = replace(response, status=status_of(response))
                if response.status < 300:
                    return self._read(response, limit, prompt_tokens)
                message = redacted(error_of(response.body)["message"])
                self._report_bill(response, message, on_bill)
                if response.status not in BUSY and response.status < 500:
                    if "temperature" in body and _refuses_temperature(response):
                        self._sends_temperature = False
                        continue
                    return self._refusal(response, message)
                reason = f"{self.endpoint} keeps answering {response.status}: {message}"
            if retries == RETRIES:
                raise NoAnswerError(reason, f"{reason}; {RESUMES}")
            requested_s = response.retry_after_s if response is not None else None
            backoff_s = min(FIRST_BACKOFF_S * 2**retries, LONGEST_BACKOFF_S) * (1 - uniform(0, key, retries) / 4)
            await asyncio.sleep(backoff_s if requested_s is None else requested_s)
            retries += 1

    async def close(self) -> None:
        """Close the connections; the next call opens new ones."""
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.close()

    async def _connected(self) -> Transport:
        async with self._connecting:
            if self._transport is None:
                self._transport = await in_thread(Transport, self.endpoint)
            return self._transport

    def _body(self, messages: Sequence[Message], limit: int) -> dict[str, Any]:
        body = {
            "model": self.endpoint.model,
            "messages": [{"role": message.role, "content": message.content} for message in messages],
            "max_tokens" if self.endpoint.kind == "local" else "max_completion_tokens": limit,
        }
        return body | ({"temperature": self.temperature} if self._sends_temperature else {})

    def _read(self, response: Response, limit: int, prompt_tokens: int) -> Answer:
        answer = read_answer(response.body, prompt_tokens, limit, thinks=self.endpoint.thinks)
        return replace(answer, text=without_keys(answer.text), refusal=redacted(answer.refusal))

    def _report_bill(self, response: Response, message: str, on_bill: Callable[[Answer], None]) -> None:
        """Report the usage of an error response; few servers charge for errors."""
        read, written = usage_of(response.body)
        if read or written:
            on_bill(Answer("", MALFORMED, message, read or 0, written or 0))

    def _refusal(self, response: Response, message: str) -> Answer:
        """The answer for a status that a retry cannot change. Raises NoAnswerError, NoAccessError."""
        error = error_of(response.body)
        if response.status == 400 and (error.get("code") == "content_filter" or "content_filter" in error["message"]):
            return Answer("", "content_filter", "", 0, 0)
        if response.status == 401:
            raise NoAccessError(
                f"{self.endpoint} does not accept the key in {KEYS[self.endpoint.kind]}; set the right one"
            )
        if response.status == 402:
            raise NoAccessError(f"{self.endpoint} asks for payment: {message}; add credit, then {RESUMES}")
        if response.status == 403:
            raise NoAccessError(f"{self.endpoint} is not allowed with this key: {message}")
        if response.status == 404:
            raise NoAccessError(f"{self.endpoint}: no such model or address: {message}")
        if response.status < 400:
            message = "it redirects to another address; give that as --base-url"
        raise NoAnswerError(message, f"{self.endpoint} refuses every request: {message}", refused=True)


def _refuses_temperature(response: Response) -> bool:
    error = error_of(response.body)
    return response.status in (400, 422) and (
        error.get("param") == "temperature" or "'temperature'" in error["message"]
    )


def redacted(text: str) -> str:
    """The beginning of `text` on one line, without keys."""
    return " ".join(masked(text).split())[:LONGEST_LINE]
