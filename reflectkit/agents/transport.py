"""One HTTP request to a chat server, under a deadline for the whole of it, and its body read as an `Answer`.

No body can make the reading fail: what is not a chat completion becomes an answer that says so, with the tokens on its
bill.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reflectkit.agents.endpoints import Endpoint, NoAccessError, connect
from reflectkit.agents.journal import MOST_TOKENS, Answer
from reflectkit.core.encodings import encoding_fault
from reflectkit.core.keys import masked
from reflectkit.core.text import count_tokens

LONGEST_BODY = 16 * 2**20  # bytes
CHARACTERS_A_TOKEN = 32  # at most, on average over an answer
LONGEST_WAIT_S = 60.0  # that a server may ask for between two tries
BROKEN = 500  # the status of a failure that names none
MALFORMED = "malformed"
FINISHED = ("stop", "length", "content_filter")
SHOWN = 300  # characters of a body that cannot be read


class ConnectionLostError(Exception):
    """The server was not reached, or hung up before the end of its response."""


class _RefusedError(Exception):
    """A response with another status than 2xx came."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status)
        self.response = response


@dataclass(frozen=True, slots=True)
class Response:
    """status: of HTTP. retry_after_s: how long the server asks to wait, where it does so reasonably. body: as sent."""

    status: int
    retry_after_s: float | None
    body: bytes


class Transport:
    """Connections to `endpoint`, through the openai package, whose retries and reading of bodies are not used.

    Raises ConfigError without a key or address, ApiError where nothing listens.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint, self._client = endpoint, connect(endpoint, _take_refusals)

    async def post(self, body: Mapping[str, Any], timeout_s: float) -> Response:
        """Send `body` as JSON. Raises TimeoutError where no whole response came within `timeout_s`,
        ConnectionLostError, NoAccessError where an answer is compressed.
        """
        import httpx2
        import openai

        try:
            async with (
                asyncio.timeout(timeout_s),
                self._client.chat.completions.with_streaming_response.create(**body) as response,
            ):
                if fault := encoding_fault(response.headers):
                    raise NoAccessError(f"{self._endpoint}: {fault}")
                return await _received(response.http_response)
        except _RefusedError as error:
            return error.response
        except (openai.APIError, httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise ConnectionLostError(str(error.__cause__ or error) or type(error).__name__) from None

    async def close(self) -> None:
        """End the connections."""
        await self._client.close()


async def _take_refusals(response: Any) -> None:
    """Raises _RefusedError: the package would read the whole of an error, however long, and in any encoding that it
    names.
    """
    if not response.is_success:
        raise _RefusedError(await _received(response))


async def _received(response: Any) -> Response:
    """`response` with a body of at most a byte more than `LONGEST_BODY`, or with what is wrong with its encoding."""
    retry_s = retry_after_s(response.headers)
    if fault := encoding_fault(response.headers):
        return Response(response.status_code, retry_s, fault.encode())
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk[: LONGEST_BODY + 1 - len(body)]
        if len(body) > LONGEST_BODY:
            break
    return Response(response.status_code, retry_s, bytes(body))


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """How long a response asks to wait, in seconds; None where it does not say, or asks for more than a minute.

    >>> retry_after_s({"retry-after": "2"}), retry_after_s({"retry-after-ms": "50"})
    (2.0, 0.05)
    >>> retry_after_s({"retry-after": "nan"})
    """
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        text = headers.get(name, "")
        try:
            seconds = float(text) * unit
        except ValueError:
            try:
                seconds = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
            except (ValueError, OverflowError, OSError):
                continue
        if 0 <= seconds <= LONGEST_WAIT_S:
            return seconds
    return None


def status_of(response: Response) -> int:
    """The status of `response`: that of HTTP, or where that is a success but the body an error instead of an answer,
    the error's. Gateways answer so, which promise success before the model begins.

    >>> status_of(Response(200, None, b'{"error": {"message": "busy", "code": 429}}'))
    429
    """
    if not 200 <= response.status < 300:
        return response.status
    value = _json(response.body)[0]
    error = _error_in(value) if isinstance(value, dict) else None
    if not error:
        return response.status
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) and 400 <= code < 600 else BROKEN


def error_of(body: bytes) -> Mapping[str, Any]:
    """The error object in the body of a response, with `message` as text in it whatever the body is."""
    value = _json(body)[0]
    error = (_error_in(value) or value) if isinstance(value, dict) else None
    if isinstance(error, dict):
        return {**error, "message": str(error.get("message") or error)}
    return {"message": error if isinstance(error, str) else body.decode("utf-8", "replace")}


def usage_of(body: bytes) -> tuple[int | None, int | None]:
    """(prompt tokens, completion tokens) on the bill in a body; None for one that is not there or cannot be a number of
    tokens.

    >>> usage_of(b'{"usage": {"prompt_tokens": 7, "completion_tokens": "many"}}')
    (7, None)
    """
    value = _json(body)[0]
    usage = value.get("usage") if isinstance(value, dict) else None
    if not isinstance(usage, dict):
        return None, None
    return _tokens(usage.get("prompt_tokens")), _tokens(usage.get("completion_tokens"))


def read_answer(body: bytes, prompt_tokens: int, limit: int, *, thinks: bool) -> Answer:
    """A response's body as an answer; where it is none, one with finish_reason "malformed" whose `refusal` says why.

    prompt_tokens: counted where the bill does not say. limit: tokens that the server may write; a model that `thinks`
    unseen is taken to have used it all where the bill does not say.
    """
    value, fault = _json(body)
    text, refusal, finish = "", "", "stop"
    if not fault:
        try:
            text, refusal, finish = _choice(value)
            if len(text) > limit * CHARACTERS_A_TOKEN:
                fault = f"the answer is longer than {limit} tokens can be"
        except ValueError as error:
            fault = str(error)
    if fault:
        text = masked(body.decode("utf-8", "replace"))[:SHOWN]
        finish, refusal = MALFORMED, fault
    read, written = usage_of(body)
    if written is None:
        written = limit if thinks else min(limit, count_tokens(text))
    return Answer(_valid(text), finish, _valid(refusal), prompt_tokens if read is None else read, written)


def _choice(value: Any) -> tuple[str, str, str]:
    """(text, refusal, finish_reason) of the first choice. Raises ValueError saying what is not as it must be."""
    choices = value.get("choices") if isinstance(value, dict) else None
    if not isinstance(choices, list) or not choices:
        raise ValueError("the server's answer holds no choice")
    message = choices[0].get("message") if isinstance(choices[0], dict) else None
    if not isinstance(message, dict):
        raise ValueError("the server's answer holds no message")
    text, refusal, finish = message.get("content"), message.get("refusal"), choices[0].get("finish_reason")
    for name, field in (("content", text), ("refusal", refusal), ("finish_reason", finish)):
        if not isinstance(field, str | None):
            raise ValueError(f"the server's answer has a {name} that is not text")
    return text or "", refusal or "", finish if finish in FINISHED else "stop"


def _error_in(value: Mapping[str, Any]) -> Any:
    """The error in a body, in place of its choices or of the first one's answer; None where there is an answer."""
    choices = value.get("choices")
    if not isinstance(choices, list) or not choices:
        return value.get("error")
    return choices[0].get("error") if isinstance(choices[0], dict) else None


def _json(body: bytes) -> tuple[Any, str]:
    """(the JSON value in `body`, what is wrong with it). Of a body that is not UTF-8 the rest is read all the same."""
    if len(body) > LONGEST_BODY:
        return None, f"the server's answer is longer than {LONGEST_BODY:,} bytes"
    try:
        return json.loads(body.decode("utf-8-sig")), ""
    except UnicodeDecodeError:
        fault = "the server's answer is not UTF-8"
    except (ValueError, RecursionError):
        return None, "the server's answer is not JSON"
    try:
        return json.loads(body.decode("utf-8", "replace")), fault
    except (ValueError, RecursionError):
        return None, fault


def _tokens(value: Any) -> int | None:
    """A number of tokens, of any type that servers write it as; None for what cannot be one."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST_TOKENS:
        return None
    return round(value)


def _valid(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
