"""One call to a chat model: openai's client under a deadline, a size limit, and our own retries.

429, 5xx and lost connections are retried, after as long as `Retry-After` says; an error in the body of a 200 counts as
its own status. A body that is no chat completion becomes an answer that says so, with the tokens on its bill. No key is
left in any text that comes back.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reflectkit.chat.endpoints import KEYS, Endpoint, NoAccessError, connect
from reflectkit.chat.journal import MOST_TOKENS, Answer
from reflectkit.eventloop import in_thread
from reflectkit.keys import encoding_fault, masked, without_keys
from reflectkit.seeding import uniform
from reflectkit.text import count_tokens
from reflectkit.types import Message

LONGEST_BODY = 16 * 2**20  # bytes
CHARACTERS_A_TOKEN = 32  # at most, on average over an answer
RETRIES = 6  # of one call
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.5, 8.0
LONGEST_WAIT_S = 60.0  # that a server may ask for between two tries
BUSY = (408, 409, 429)  # and 5xx: worth another try
FINISHED = ("stop", "length", "content_filter")
MALFORMED = "malformed"
RESUMES = "run the same command again, it resumes from here"
SHOWN = 300  # characters of a message, or of a body that cannot be read


class NoAnswerError(Exception):
    """A call that got no answer.

    fatal: the message if no call gets an answer. retry: whether another attempt may help. refused: whether the server
    rejected the request itself.
    """

    def __init__(self, reason: str, fatal: str, *, retry: bool = False, refused: bool = False) -> None:
        super().__init__(reason)
        self.fatal, self.retry, self.refused = fatal, retry, refused


@dataclass(frozen=True, slots=True)
class Response:
    """A whole response. headers: of HTTP. text: its body, of at most `LONGEST_BODY`. value: the JSON object in it, {}
    if it is none. fault: why the body cannot be used.
    """

    http_status: int
    headers: Mapping[str, str]
    text: str
    value: dict[str, Any]
    fault: str

    @property
    def error(self) -> Any:
        """The error in the body, in place of its choices or of the first one's answer."""
        choices = self.value.get("choices")
        holder = choices[0] if isinstance(choices, list) and choices else self.value
        return holder.get("error") if isinstance(holder, dict) else None

    @property
    def status(self) -> int:
        """The HTTP status, or that of the error in the body of a success: gateways promise success before the model
        begins.
        """
        if not (200 <= self.http_status < 300 and self.error):
            return self.http_status
        code = self.error.get("code") if isinstance(self.error, dict) else None
        return code if isinstance(code, int) and 400 <= code < 600 else 500

    def named(self, name: str) -> Any:
        """Field `name` of the error."""
        error = self.error or self.value
        return error.get(name) if isinstance(error, dict) else None

    @property
    def message(self) -> str:
        """What the error says, in full and with keys."""
        return str(self.named("message") or self.error or self.value or self.text or self.fault)

    def billed(self, name: str) -> int | None:
        """The number of tokens `name` on the bill; None if there is no possible number."""
        usage = self.value.get("usage")
        count = usage.get(name) if isinstance(usage, dict) else None
        if isinstance(count, bool) or not isinstance(count, int | float) or not 0 <= count <= MOST_TOKENS:
            return None
        return round(count)


class _ReceivedError(Exception):
    """Carries a response past openai's client, which would read all of an error, in any encoding that it names."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.http_status)
        self.response = response


async def _receive(response: Any) -> None:
    """Raises _ReceivedError with `response`; a compressed body is not read, as a few bytes can fill the memory."""
    body, fault = bytearray(), encoding_fault(response.headers)
    if not fault:
        async for chunk in response.aiter_raw():
            body += chunk[: LONGEST_BODY + 1 - len(body)]
            if len(body) > LONGEST_BODY:
                fault = f"the server's answer is longer than {LONGEST_BODY:,} bytes"
                break
    text, value = body.decode("utf-8-sig", "replace"), None
    if not fault:
        try:
            value = json.loads(text)
            body.decode()
        except UnicodeDecodeError:
            fault = "the server's answer is not UTF-8"
        except (ValueError, RecursionError):
            fault = "the server's answer is not JSON"
    value = value if isinstance(value, dict) else {}
    raise _ReceivedError(Response(response.status_code, response.headers, text, value, fault))


class Caller:
    """Calls one endpoint over persistent connections, which belong to one event loop.

    timeout_s: for a whole call, from connecting to the last byte, without the waits between retries.
    """

    def __init__(self, endpoint: Endpoint, temperature: float, timeout_s: float) -> None:
        self.endpoint, self.temperature, self.timeout_s = endpoint, temperature, timeout_s
        self._sends_temperature = not endpoint.thinks
        self._client: Any = None
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
        async with self._connecting:
            if self._client is None:
                self._client = await in_thread(connect, self.endpoint, _receive)
        body: dict[str, Any] = {
            "model": self.endpoint.model,
            "messages": [{"role": message.role, "content": message.content} for message in messages],
            "max_tokens" if self.endpoint.kind == "local" else "max_completion_tokens": limit,
        }
        left_s, retries, clock = self.timeout_s, 0, asyncio.get_running_loop().time
        while True:
            sent = body | ({"temperature": self.temperature} if self._sends_temperature else {})
            started, wait_s, response = clock(), None, None
            try:
                response = await self._post(sent, left_s)
            except TimeoutError:
                reason = f"{self.endpoint} does not answer within {self.timeout_s:g} s"
                raise NoAnswerError(reason, f"{reason}; raise --timeout-s, or {RESUMES}", retry=True) from None
            except ConnectionError as error:
                reason = f"{self.endpoint} cannot be reached ({redacted(str(error))})"
            left_s = max(left_s - (clock() - started), 0.0)
            if response is not None:
                if response.status < 300:
                    return self._answer(response, limit, prompt_tokens)
                message = redacted(response.message)
                read, written = response.billed("prompt_tokens"), response.billed("completion_tokens")
                if read or written:  # few servers charge for errors
                    on_bill(Answer("", MALFORMED, message, read or 0, written or 0))
                if response.status not in BUSY and response.status < 500:
                    if "temperature" in sent and _refuses_temperature(response):
                        self._sends_temperature = False
                        continue
                    return self._refusal(response, message)
                reason = f"{self.endpoint} keeps answering {response.status}: {message}"
                wait_s = retry_after_s(response.headers)
            if retries == RETRIES:
                raise NoAnswerError(reason, f"{reason}; {RESUMES}")
            if wait_s is None:
                wait_s = min(FIRST_BACKOFF_S * 2**retries, LONGEST_BACKOFF_S) * (1 - uniform(0, key, retries) / 4)
            await asyncio.sleep(wait_s)
            retries += 1

    async def close(self) -> None:
        """Close the connections; the next call opens new ones."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _post(self, body: Mapping[str, Any], timeout_s: float) -> Response:
        """The response to `body`. Raises TimeoutError, or ConnectionError if the server was not reached, or hung up
        before the end of its response.
        """
        import httpx2
        import openai

        try:
            async with asyncio.timeout(timeout_s):
                await self._client.chat.completions.create(**body)
        except _ReceivedError as received:
            return received.response
        except TimeoutError:
            raise
        except (openai.APIError, httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            raise ConnectionError(str(error.__cause__ or error) or type(error).__name__) from None
        raise AssertionError("openai read a response itself")

    def _answer(self, response: Response, limit: int, prompt_tokens: int) -> Answer:
        """The answer in a success; if there is none, one with finish_reason "malformed" whose `refusal` says why."""
        if fault := encoding_fault(response.headers):
            raise NoAccessError(f"{self.endpoint}: {fault}")
        fault, text, refusal, finish = response.fault, "", "", "stop"
        if not fault:
            try:
                text, refusal, finish = _choice(response.value)
                if len(text) > limit * CHARACTERS_A_TOKEN:
                    fault = f"the answer is longer than {limit} tokens can be"
            except ValueError as error:
                fault = str(error)
        if fault:
            text, refusal, finish = masked(response.text)[:SHOWN], fault, MALFORMED
        read, written = response.billed("prompt_tokens"), response.billed("completion_tokens")
        if written is None:  # a model that thinks may have used it all
            written = limit if self.endpoint.thinks else min(limit, count_tokens(text))
        text, refusal = (part.encode("utf-8", "replace").decode() for part in (text, refusal))
        return Answer(without_keys(text), finish, redacted(refusal), prompt_tokens if read is None else read, written)

    def _refusal(self, response: Response, message: str) -> Answer:
        """The answer for a status that a retry cannot change. Raises NoAnswerError, NoAccessError."""
        if response.status == 400 and "content_filter" in f"{response.named('code')} {response.message}":
            return Answer("", "content_filter", "", 0, 0)
        reasons = {
            401: f"does not accept the key in {KEYS[self.endpoint.kind]}; set the right one",
            402: f"asks for payment: {message}; add credit, then {RESUMES}",
            403: f"is not allowed with this key: {message}",
            404: f"has no such model or address: {message}",
        }
        if response.status in reasons:
            raise NoAccessError(f"{self.endpoint} {reasons[response.status]}")
        if response.status < 400:
            message = "it redirects to another address; give that as --base-url"
        raise NoAnswerError(message, f"{self.endpoint} refuses every request: {message}", refused=True)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """How long a response asks to wait, in seconds; None if it does not say, or asks for more than a minute.

    >>> retry_after_s({"retry-after": "2"}), retry_after_s({"retry-after-ms": "50"})
    (2.0, 0.05)
    >>> retry_after_s({"retry-after": "nan"})
    """
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * unit
        except ValueError:
            continue
        if 0 <= seconds <= LONGEST_WAIT_S:
            return seconds
    return None


def redacted(text: str) -> str:
    """The beginning of `text` on one line, without keys."""
    return " ".join(masked(text).split())[:SHOWN]


def _choice(value: Mapping[str, Any]) -> tuple[str, str, str]:
    """(text, refusal, finish_reason) of the first choice. Raises ValueError if it is not as it must be."""
    try:
        choice = value["choices"][0]
        fields = [choice["message"].get("content"), choice["message"].get("refusal"), choice.get("finish_reason")]
    except (LookupError, TypeError, AttributeError):
        raise ValueError("the server's answer holds no message") from None
    if not all(isinstance(field, str | None) for field in fields):
        raise ValueError("the server's answer has a message that is not text")
    text, refusal, finish = fields
    return text or "", refusal or "", finish if finish in FINISHED else "stop"


def _refuses_temperature(response: Response) -> bool:
    return response.status in (400, 422) and (
        response.named("param") == "temperature" or "'temperature'" in response.message
    )
