"""What requests of one event loop have in common: their connections, their locks, and their end if the server fails."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from reflectkit.agents.calls import Caller


class Asks:
    """The calls of `ask` in progress. If one of them fails, all do.

    failure: the error that ended them.
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
        """One of them has finished."""
        self.under_way -= 1
        self._left.set()
        self._left = asyncio.Event()

    async def others(self, while_: Callable[[], bool] = lambda: True) -> None:
        """Wait until all of them have finished, or `while_` no longer holds."""
        while self.under_way and while_():
            await self._left.wait()


@dataclass(slots=True)
class Session:
    """The state of one event loop.

    slots: limits concurrent calls. turns: locks of equal requests, by key, while one of them is in progress. asks: the
    calls of `ask` in progress.
    """

    loop: asyncio.AbstractEventLoop
    caller: Caller
    slots: asyncio.Semaphore
    turns: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)
    asks: Asks = field(default_factory=Asks)

    @contextlib.asynccontextmanager
    async def join(self) -> AsyncIterator[Asks]:
        """Be one of the asks under way, for as long as the context lasts; not of those that failed already."""
        if self.asks.failure is not None:
            self.asks = Asks()
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
