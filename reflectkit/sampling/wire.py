"""JSON over HTTP to an inference server: a deadline for each request, and patience with a server
that is busy or away.

Only the address that was given is called: redirects are not followed, and no proxy of the
environment is used.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import httpx2

from reflectkit.errors import EnvironmentFailure, ReflectkitError
from reflectkit.keys import PLAIN, header_text, masked, read_body, redacted

TRIES = 12
"""Failures of one request, while the server answers others, after which it is given up."""
LONGEST_PAUSE_S = 15.0
LONGEST_BODY = 256 * 2**20  # bytes


class GoneError(ReflectkitError):
    """The server did not answer for longer than the user's patience."""


class RefusedError(ReflectkitError):
    """The server refused a request. status: of HTTP. reason: its message in one line."""

    def __init__(
        self,
        url: str,
        status: int,
        reason: str,
    ) -> None:
        super().__init__(f"{url} refused the request ({status}): {reason}")
        self.status, self.reason = status, reason


class _TransientError(Exception):
    """A failure that may pass. wait_s: how long the server asks to wait."""

    def __init__(self, reason: str, wait_s: float | None = None) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


class Wire:
    """Requests to `url`, from any number of event loops.

    timeout_s: for a whole request. patience_s: how long the server may be away. connections: most
    requests at once, in each event loop. pause_s: before the second try; it doubles up to
    `LONGEST_PAUSE_S`.
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
        self.url, self.timeout_s, self.patience_s, self.pause_s = (
            url,
            timeout_s,
            patience_s,
            pause_s,
        )
        self.connections = connections
        self.retries = 0
        """Number of requests that were sent again."""
        self._key = header_text(key_name)
        self._answered = time.monotonic()
        self._clients: WeakKeyDictionary[
            asyncio.AbstractEventLoop, tuple[httpx2.AsyncClient, asyncio.Semaphore]
        ]
        self._clients = WeakKeyDictionary()

    async def get(self, path: str, *, patient: bool = True) -> Any:
        """The JSON value at `path`; see `post`."""
        return await self._request("GET", path, None, patient, (500, 501))

    async def post(
        self,
        path: str,
        body: Mapping[str, Any],
        *,
        patient: bool = True,
        final: tuple[int, ...] = (),
    ) -> Any:
        """The JSON value, or the text, that the server answers to `body`.

        patient: whether to wait for a server that is away. final: statuses that are not tried
        again, like 4xx.

        Raises RefusedError: status 4xx except 408 and 429, or a `final` one. EnvironmentFailure:
        this request fails though the server answers others. GoneError: the server is away.
        """
        return await self._request("POST", path, body, patient, final)

    async def _request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        patient: bool,
        final: tuple[int, ...],
    ) -> Any:
        start_s, tries, failures = time.monotonic(), 0, 0
        while True:
            try:
                return await self._try(method, path, body, final)
            except _TransientError as error:
                tries += 1
                failure, wait_s = str(error), error.wait_s
            # 1. No server has answered for too long: it is away
            away_s = time.monotonic() - max(start_s, self._answered)
            if not patient or away_s >= self.patience_s:
                waited = f" for {away_s:.0f} s" if patient else ""
                raise GoneError(
                    f"{self.url} does not answer{waited} ({failure}); start the server, then"
                    " run the same again"
                )
            # 2. It answers others: this request alone fails, which is tried TRIES times
            failures += self._answered > start_s  # it answers other requests
            if failures >= TRIES:
                raise EnvironmentFailure(
                    f"{self.url}{path} failed {tries} times, the last time with: {failure}"
                )
            # 3. Wait, longer each time, or as long as the server asks
            self.retries += 1
            pause_s = (
                min(self.pause_s * 2 ** (tries - 1), LONGEST_PAUSE_S) if wait_s is None else wait_s
            )
            await asyncio.sleep(min(pause_s, self.patience_s))

    async def _try(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        final: tuple[int, ...],
    ) -> Any:
        """The answer to one request. Raises _TransientError, RefusedError."""
        # 1. The answer, or why there is none
        client, free = self._client()
        async with free:
            try:
                async with (
                    asyncio.timeout(self.timeout_s),
                    client.stream(method, self.url + path, json=body) as response,
                ):
                    content, fault = await read_body(response, LONGEST_BODY)
            except TimeoutError:
                raise _TransientError(f"no answer within {self.timeout_s:g} s") from None
            except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
                raise _TransientError(masked(str(error)) or type(error).__name__) from None
        if len(content) > LONGEST_BODY:
            raise _TransientError(fault)
        # 2. Statuses that may pass, and those that are final
        status = response.status_code
        if status == 200 and fault:
            raise ReflectkitError(f"{self.url}: {fault}")
        value = _value(content)
        if status != 200:
            reason = fault or _reason(value)
            if status in (408, 429) or (status >= 500 and status not in final):
                raise _TransientError(f"status {status}: {reason}", _wait_s(response.headers))
        self._answered = time.monotonic()
        if status != 200:
            raise RefusedError(self.url + path, status, reason)
        return value

    def _client(self) -> tuple[httpx2.AsyncClient, asyncio.Semaphore]:
        """The client of this event loop, and how many requests it may still send."""
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            headers = PLAIN | ({"Authorization": f"Bearer {self._key}"} if self._key else {})
            limits = httpx2.Limits(
                max_connections=self.connections, max_keepalive_connections=self.connections
            )
            client = httpx2.AsyncClient(
                headers=headers,
                timeout=None,
                limits=limits,
                follow_redirects=False,
                trust_env=False,
            )
            # Waiting for a free connection is not part of the deadline
            self._clients[loop] = (client, asyncio.Semaphore(self.connections))
        return self._clients[loop]


def _value(content: bytes) -> Any:
    """The JSON value of a body, or its text where it is not JSON; keys are removed, since messages
    quote it.
    """
    text = masked(content.decode("utf-8", "replace"))
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _reason(value: Any) -> str:
    """The message in an error's body, in one line."""
    for name in ("error", "detail", "message", "error_message"):
        if isinstance(value, dict) and value.get(name):
            value = value[name]
    return redacted(str(value))


def _wait_s(headers: Mapping[str, str]) -> float | None:
    with contextlib.suppress(ValueError):
        seconds = float(headers.get("retry-after", ""))
        if 0 <= seconds <= LONGEST_PAUSE_S:
            return seconds
    return None
