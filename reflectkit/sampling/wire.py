"""JSON over HTTP to one server: a deadline for each request, and patience with a server that is busy or restarting.

Nothing but the address that was given is called: no redirects are followed, and no proxy of the environment is used.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import httpx2

from reflectkit.errors import EnvironmentFailure, ReflectkitError
from reflectkit.keys import PLAIN, encoding_fault, header_text, masked, without_keys

TRIES = 12
"""A request that fails so often while the server answers others is given up."""
LONGEST_PAUSE_S = 15.0
LONGEST_BODY = 256 * 2**20  # bytes
SHOWN = 300  # characters of a message


class GoneError(ReflectkitError):
    """The server did not answer for longer than the user's patience."""


class RefusedError(ReflectkitError):
    """The server refused a request as such. status: of HTTP. reason: its message in one line."""

    def __init__(self, url: str, status: int, reason: str) -> None:
        super().__init__(f"{url} refused the request ({status}): {reason}")
        self.status, self.reason = status, reason


class _TransientError(Exception):
    """A failure that may pass. wait_s: how long the server asks to wait."""

    def __init__(self, reason: str, wait_s: float | None = None) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


@dataclass
class _Line:
    """The connections of one event loop."""

    client: httpx2.AsyncClient
    open: asyncio.Semaphore


class Wire:
    """Requests to `url`, from any number of event loops.

    timeout_s: for a whole request. patience_s: how long the server may be away. connections: most requests at once.
    pause_s: before the second try; it doubles up to `LONGEST_PAUSE_S`.
    """

    def __init__(
        self,
        url: str,
        key_name: str,
        *,
        timeout_s: float,
        patience_s: float,
        connections: int,
        pause_s: float = 0.25,
    ) -> None:
        self.url, self.timeout_s, self.patience_s, self.pause_s = url, timeout_s, patience_s, pause_s
        self.connections = connections
        self.retries = 0
        """How many requests were sent again."""
        self._key = header_text(key_name)
        self._answered = time.monotonic()
        self._lines: WeakKeyDictionary[asyncio.AbstractEventLoop, _Line] = WeakKeyDictionary()

    async def get(self, path: str, *, patient: bool = True) -> Any:
        """The JSON value at `path`; see `post`."""
        return await self._ask("GET", path, None, patient, (500, 501))

    async def post(
        self, path: str, body: Mapping[str, Any], *, patient: bool = True, final: tuple[int, ...] = ()
    ) -> Any:
        """The JSON value, or the text, that the server answers to `body`.

        Parameters
        ----------
        patient: whether to wait for a server that is away. final: statuses that are not tried again, besides 4xx.

        Raises
        ------
        RefusedError: status 4xx except 408 and 429, or a `final` one. EnvironmentFailure: this request fails though
        the server answers others. GoneError: the server is away.
        """
        return await self._ask("POST", path, body, patient, final)

    async def close(self) -> None:
        """End the connections of this event loop."""
        line = self._lines.pop(asyncio.get_running_loop(), None)
        if line is not None:
            await line.client.aclose()

    async def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None, patient: bool, final: tuple[int, ...]
    ) -> Any:
        started, tries, alone = time.monotonic(), 0, 0
        while True:
            try:
                return await self._once(method, path, body, final)
            except _TransientError as error:
                tries += 1
                failure, wait_s = str(error), error.wait_s
            away_s = time.monotonic() - max(started, self._answered)
            if not patient or away_s >= self.patience_s:
                waited = f" for {away_s:.0f} s" if patient else ""
                raise GoneError(
                    f"{self.url} does not answer{waited} ({failure}); start the server, then run the same again"
                )
            alone += self._answered > started  # it answers others
            if alone >= TRIES:
                raise EnvironmentFailure(f"{self.url}{path} failed {tries} times, the last time with: {failure}")
            self.retries += 1
            pause_s = min(self.pause_s * 2 ** (tries - 1), LONGEST_PAUSE_S) if wait_s is None else wait_s
            await asyncio.sleep(min(pause_s, self.patience_s))

    async def _once(self, method: str, path: str, body: Mapping[str, Any] | None, final: tuple[int, ...]) -> Any:
        """One try. Raises _TransientError, RefusedError."""
        line = self._line()
        async with line.open:
            try:
                async with asyncio.timeout(self.timeout_s):
                    async with line.client.stream(method, self.url + path, json=body) as response:
                        content = await _received(response)
            except TimeoutError:
                raise _TransientError(f"no answer within {self.timeout_s:g} s") from None
            except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
                raise _TransientError(masked(str(error)) or type(error).__name__) from None
        status, fault = response.status_code, encoding_fault(response.headers)
        if status == 200 and fault:
            raise ReflectkitError(f"{self.url}: {fault}")
        if status == 200:
            self._answered = time.monotonic()
            return _value(content)
        reason = fault or _reason(content)
        if status in (408, 429) or (status >= 500 and status not in final):
            raise _TransientError(f"status {status}: {reason}", _wait_s(response.headers))
        self._answered = time.monotonic()
        raise RefusedError(self.url + path, status, reason)

    def _line(self) -> _Line:
        loop = asyncio.get_running_loop()
        if loop not in self._lines:
            headers = PLAIN | ({"Authorization": f"Bearer {self._key}"} if self._key else {})
            limits = httpx2.Limits(max_connections=self.connections, max_keepalive_connections=self.connections)
            client = httpx2.AsyncClient(
                headers=headers, timeout=None, limits=limits, follow_redirects=False, trust_env=False
            )
            self._lines[loop] = _Line(client, asyncio.Semaphore(self.connections))
        return self._lines[loop]


async def _received(response: Any) -> bytes:
    body = bytearray()
    if encoding_fault(response.headers):
        return b""
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > LONGEST_BODY:
            raise _TransientError(f"an answer of more than {LONGEST_BODY:,} bytes")
    return bytes(body)


def _value(content: bytes) -> Any:
    """The JSON value of a body, or its text where it is none; without keys, as parts of it are shown."""
    text = without_keys(content.decode("utf-8", "replace"))
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _reason(content: bytes) -> str:
    """What an error's body says, in one line."""
    value = _value(content)
    for name in ("error", "detail", "message", "error_message"):
        if isinstance(value, dict) and value.get(name):
            value = value[name]
    return " ".join(masked(str(value)).split())[:SHOWN]


def _wait_s(headers: Mapping[str, str]) -> float | None:
    with contextlib.suppress(ValueError):
        seconds = float(headers.get("retry-after", ""))
        if 0 <= seconds <= LONGEST_PAUSE_S:
            return seconds
    return None
