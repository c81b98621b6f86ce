"""One event loop a process, in a thread of its own: what waits for servers runs there, and any thread may wait for it.

Callers need not be asynchronous, and may themselves be inside a running event loop.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

Value = TypeVar("Value")

_loops: dict[int, asyncio.AbstractEventLoop] = {}
"""By process: a forked child has none of its parent's threads."""
_starting = threading.Lock()


def wait_for(coroutine: Coroutine[Any, Any, Value]) -> Value:
    """Run `coroutine` in the process's loop, and wait for what it returns; it is cancelled where the wait is
    interrupted.
    """
    future = asyncio.run_coroutine_threadsafe(coroutine, _loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def _loop() -> asyncio.AbstractEventLoop:
    with _starting:
        loop = _loops.get(os.getpid())
        if loop is None:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="reflectkit-requests", daemon=True).start()
        return loop
