"""The event loop of a command: servers, engines and simulated users are all awaited in it.

Each thread has one loop, created on first use and kept: connections persist between calls. Users'
code that is not a coroutine is called `outside_loop`: in the same thread, usually the main one, but
as if no loop ran there. It may start its own. Code that already runs inside a loop (a notebook) may
call `run_sync`, too: its loop waits meanwhile, and ours runs in the same thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar
from weakref import WeakSet

Value = TypeVar("Value")
Changed = TypeVar("Changed")

_local = threading.local()
_our_loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
"""The loops that were made here; `asyncio.get_event_loop` returns none of them outside of it."""
_inherited: list[Any] = []
"""The loops of a forked child's parent. Closing one would stop the parent's from waking, as both
share its epoll.
"""


def run_sync(coroutine: Coroutine[Any, Any, Value]) -> Value:
    """Run `coroutine` to its end and return what it returns.

    Whatever interrupts it, such as Ctrl-C, is raised at once, and the coroutine and the tasks that
    it started are cancelled.
    """
    loop = _loop()
    with _loop_set_aside():
        try:
            return loop.run_until_complete(coroutine)
        except BaseException:
            _cancel_tasks(loop)
            raise


def outside_loop(function: Callable[..., Value], /, *arguments: Any, **keywords: Any) -> Value:
    """What `function` returns, called as if no event loop ran in this thread: it may start one.
    What it returns may be awaited in the running loop.
    """
    with _loop_set_aside():
        return function(*arguments, **keywords)


@contextlib.contextmanager
def _loop_set_aside() -> Iterator[None]:
    """The running loop and its task, if any, wait until the context ends, as during any call that
    blocks.

    asyncio lets those who write loops and tasks of their own switch them with these functions
    (docs.python.org/3/library/asyncio-extending.html).
    """
    # 1. Outside of a loop there is nothing to set aside
    loop = asyncio._get_running_loop()
    if loop is None:
        yield
        return

    # 2. The task and its loop wait
    task, somebody_elses = asyncio.current_task(loop), loop not in _our_loops
    if task is not None:
        asyncio._leave_task(loop, task)
    asyncio._set_running_loop(None)
    if somebody_elses:
        asyncio.set_event_loop(_spare_loop())

    # 3. Both resume
    try:
        yield
    finally:
        if somebody_elses:
            asyncio.set_event_loop(loop)
        asyncio._set_running_loop(loop)
        if task is not None:
            asyncio._enter_task(loop, task)


def _spare_loop() -> asyncio.AbstractEventLoop:
    """What `asyncio.get_event_loop` returns in this thread while another's loop waits."""
    _leave_inherited()
    spare: asyncio.AbstractEventLoop | None = _local.spare
    if spare is None or spare.is_closed():
        spare = _local.spare = asyncio.new_event_loop()
    return spare


def result_of(value: Value | Awaitable[Value]) -> Value:
    """`value`, awaited if necessary. For callers that are not coroutines."""
    return run_sync(_awaited(value)) if inspect.isawaitable(value) else value


def shared_result_of(value: Value | Awaitable[Value]) -> Value:
    """`value`, awaited if necessary in one loop for all threads of the process, so that they can
    share connections.
    """
    return _helper.result(_awaited(value)) if inspect.isawaitable(value) else value


async def _awaited(value: Awaitable[Value]) -> Value:
    return await value


def followed(
    value: Value | Awaitable[Value], change: Callable[[Value], Changed | Awaitable[Changed]]
) -> Changed | Awaitable[Changed]:
    """`change(value)`; an awaitable of it if `value` is awaitable. `change` may call code of users."""
    if not inspect.isawaitable(value):
        return change(value)

    async def later() -> Changed:
        changed = outside_loop(change, await value)
        return await changed if inspect.isawaitable(changed) else changed

    return later()


async def in_thread(work: Callable[..., Value], *arguments: Any) -> Value:
    """The result of `work`, which blocks, run in a new thread. The thread does not keep the program
    running.
    """
    future: Future[Value] = Future()

    def run(future: Future[Value] = future) -> None:
        future.set_running_or_notify_cancel()
        try:
            future.set_result(work(*arguments))
        # Which a future cannot hold; a coroutine turns it into the same
        except StopIteration as error:
            explanation = RuntimeError("coroutine raised StopIteration")
            explanation.__cause__ = error
            future.set_exception(explanation)
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        return await asyncio.wrap_future(future)
    finally:
        # Breaks the cycle of error, traceback and frame, which would keep an env alive
        del future, run


def deliver(future: asyncio.Future[Value], value: Value) -> None:
    """Set the result of `future`, unless it was cancelled or has one."""
    if not future.done():
        future.set_result(value)


def _loop() -> asyncio.AbstractEventLoop:
    """This thread's loop, or another for a call from within it."""
    _leave_inherited()
    loops: list[asyncio.AbstractEventLoop] = _local.loops
    for loop in loops:
        if not loop.is_running():
            return loop
    loops.append(_new_loop())
    return loops[-1]


def _leave_inherited() -> None:
    """A forked child gets its own loops."""
    # They are kept, as closing them would close the parent's
    if getattr(_local, "process", None) != os.getpid():
        _inherited.append([getattr(_local, "loops", None), getattr(_local, "spare", None)])
        _local.process, _local.loops, _local.spare = os.getpid(), [], None


def _new_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    _our_loops.add(loop)
    return loop


def _cancel_tasks(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))


class LoopThread:
    """An event loop in its own thread, which starts with the first coroutine and does not keep the
    program running.

    Coroutines that wait in it at the same time can share batches, whatever threads they come from.
    A forked child gets its own.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._starting = threading.Lock()
        self._process = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    def submit(self, coroutine: Coroutine[Any, Any, Value]) -> Future[Value]:
        """Start `coroutine`; the future of its result. Raises RuntimeError after `close`."""
        # A fork has the object, but not the thread
        with self._starting:
            if self._process != os.getpid():
                _inherited.append(self._loop)
                self._process, self._loop = os.getpid(), _new_loop()
                self._thread = threading.Thread(
                    target=_run_forever, args=(self._loop,), name=self.name, daemon=True
                )
                self._thread.start()
            loop = self._loop
        if loop is None:
            coroutine.close()
            raise RuntimeError(f"{self.name} was closed")
        return asyncio.run_coroutine_threadsafe(coroutine, loop)

    def result(self, coroutine: Coroutine[Any, Any, Value]) -> Value:
        """Run `coroutine` to its end and return what it returns. Whatever interrupts the caller
        cancels it.
        """
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
    asyncio.set_event_loop(_spare_loop())  # as there is one in the main thread
    try:
        loop.run_forever()
    finally:
        _cancel_tasks(loop)
        loop.close()
        _spare_loop().close()


_helper = LoopThread("reflectkit-event-loop")
"""For `shared_result_of`."""
