"""The event loop of a command: servers, engines and simulated users are all awaited in it.

Each thread has one loop, created on first use and kept, so that connections persist between calls. Code that already
runs inside a loop (a notebook) may call it too: its coroutines then run in the loop of another thread.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

Value = TypeVar("Value")
Changed = TypeVar("Changed")

_local = threading.local()
_inherited: list[Any] = []
"""The loops of a forked child's parent. Closing one would stop the parent's from waking, as both share its epoll."""


def run_sync(coroutine: Coroutine[Any, Any, Value]) -> Value:
    """Run `coroutine` to its end and return what it returns.

    Whatever interrupts it, such as Ctrl-C, is raised at once, and the coroutine and the tasks that it started are
    cancelled.
    """
    if _running():
        return _helper.result(coroutine)
    loop = _loop()
    try:
        return loop.run_until_complete(coroutine)
    except BaseException:
        _cancel_tasks(loop)
        raise


def result_of(value: Value | Awaitable[Value]) -> Value:
    """`value`, awaited if necessary. For callers that are not coroutines."""
    return run_sync(_awaited(value)) if inspect.isawaitable(value) else value


def shared_result_of(value: Value | Awaitable[Value]) -> Value:
    """`value`, awaited if necessary in one loop for all threads of the process, so that they can share connections."""
    return _helper.result(_awaited(value)) if inspect.isawaitable(value) else value


async def _awaited(value: Awaitable[Value]) -> Value:
    return await value


def followed(
    value: Value | Awaitable[Value], change: Callable[[Value], Changed | Awaitable[Changed]]
) -> Changed | Awaitable[Changed]:
    """`change(value)`; an awaitable of it if `value` is awaitable."""
    if not inspect.isawaitable(value):
        return change(value)

    async def later() -> Changed:
        changed = change(await value)
        return await changed if inspect.isawaitable(changed) else changed

    return later()


async def in_thread(work: Callable[..., Value], *arguments: Any) -> Value:
    """The result of `work`, which blocks, run in a new thread. The thread does not keep the program running."""
    future: Future[Value] = Future()

    def run(future: Future[Value] = future) -> None:
        future.set_running_or_notify_cancel()
        try:
            future.set_result(work(*arguments))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        return await asyncio.wrap_future(future)
    finally:
        del future, run  # breaks the cycle of error, traceback and frame, which would keep an env alive


def deliver(future: asyncio.Future[Value], value: Value) -> None:
    """Set the result of `future`, unless it was cancelled or has one."""
    if not future.done():
        future.set_result(value)


def _running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _loop() -> asyncio.AbstractEventLoop:
    """This thread's loop; a forked child gets its own."""
    if getattr(_local, "process", None) != os.getpid():
        _inherited.append(getattr(_local, "loop", None))
        _local.process, _local.loop = os.getpid(), asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = _local.loop
    return loop


def _cancel_tasks(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))


class LoopThread:
    """An event loop in its own thread, which starts with the first coroutine and does not keep the program running.

    Coroutines that wait in it at the same time can share batches, whatever threads they come from. A forked child gets
    its own.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._starting = threading.Lock()
        self._process = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    def submit(self, coroutine: Coroutine[Any, Any, Value]) -> Future[Value]:
        """Start `coroutine`; the future of its result. Raises RuntimeError after `close`."""
        with self._starting:
            if self._process != os.getpid():
                _inherited.append(self._loop)
                self._process, self._loop = os.getpid(), asyncio.new_event_loop()
                self._thread = threading.Thread(target=_run_forever, args=(self._loop,), name=self.name, daemon=True)
                self._thread.start()
            loop = self._loop
        if loop is None:
            coroutine.close()
            raise RuntimeError(f"{self.name} was closed")
        # in an empty context, as the seat that an episode has at the table of another loop means nothing in this one
        return contextvars.Context().run(asyncio.run_coroutine_threadsafe, coroutine, loop)

    def result(self, coroutine: Coroutine[Any, Any, Value]) -> Value:
        """Run `coroutine` to its end and return what it returns. Whatever interrupts the caller cancels it."""
        future = self.submit(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """End the thread; coroutines that still wait are cancelled."""
        with self._starting:
            loop, self._loop = self._loop, None
            if self._process != os.getpid():
                _inherited.append(loop)
                loop = None
            self._process = os.getpid()
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)
            if self._thread is not threading.current_thread():
                self._thread.join(5)


def _run_forever(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        _cancel_tasks(loop)
        loop.close()


_helper = LoopThread("reflectkit-event-loop")
"""For callers that already run inside a loop."""
