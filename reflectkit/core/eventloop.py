"""The event loop of a command: servers, engines and simulated users are all awaited in it.

Each thread has one loop, created on first use and kept, so that connections persist between calls. Code that already
runs inside a loop (a notebook) may call it too: its coroutines then run in the loop of another thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

Value = TypeVar("Value")
Changed = TypeVar("Changed")

_local = threading.local()


def wait_for(coroutine: Coroutine[Any, Any, Value]) -> Value:
    """Run `coroutine` to its end and return what it returns.

    Whatever interrupts it, such as Ctrl-C, is raised at once, and the coroutine and the tasks that it started are
    cancelled.
    """
    if _running():
        return _in_thread(coroutine)
    loop = _loop()
    try:
        return loop.run_until_complete(coroutine)
    except BaseException:
        _cancel_tasks(loop)
        raise


def result_of(value: Value | Awaitable[Value]) -> Value:
    """`value`, awaited if necessary. For callers that are not coroutines."""
    return wait_for(_awaited(value)) if inspect.isawaitable(value) else value


async def _awaited(value: Awaitable[Value]) -> Value:
    return await value


def followed(value: Value | Awaitable[Value], change: Callable[[Value], Changed]) -> Changed | Awaitable[Changed]:
    """`change(value)`; an awaitable of it if `value` is awaitable."""
    if not inspect.isawaitable(value):
        return change(value)

    async def later() -> Changed:
        return change(await value)

    return later()


async def in_thread(work: Callable[..., Value], *arguments: Any) -> Value:
    """The result of `work`, which blocks, run in a new thread. The thread does not keep the program running."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Value] = loop.create_future()
    threading.Thread(target=_run, args=(loop, future, work, arguments), daemon=True).start()
    try:
        return await future
    finally:
        del future  # breaks the cycle of error, traceback and frame, which would keep an env alive


def _run(
    loop: asyncio.AbstractEventLoop,
    future: asyncio.Future[Value],
    work: Callable[..., Value],
    arguments: tuple[Any, ...],
) -> None:
    try:
        settled = functools.partial(deliver, future, work(*arguments))
    except BaseException as error:
        settled = functools.partial(_fail, future, error)
    with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
        loop.call_soon_threadsafe(settled)


def deliver(future: asyncio.Future[Value], value: Value) -> None:
    """Set the result of `future`, unless it was cancelled or has one."""
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[Value], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


def _running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _loop() -> asyncio.AbstractEventLoop:
    """This thread's loop; a forked child gets its own."""
    if getattr(_local, "process", None) != os.getpid():
        _local.process, _local.loop = os.getpid(), asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = _local.loop
    return loop


def _cancel_tasks(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))


_helper: dict[int, asyncio.AbstractEventLoop] = {}
"""By process id: the loop, in its own thread, for callers that already run inside a loop."""


def _in_thread(coroutine: Coroutine[Any, Any, Value]) -> Value:
    loop = _helper.get(os.getpid())
    if loop is None:
        loop = _helper[os.getpid()] = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, name="reflectkit-event-loop", daemon=True).start()
    future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise
