"""The command's event loop: reuse, interruption, callers inside another loop, blocking work."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from reflectkit.eventloop import LoopThread, in_thread, outside_loop, run_sync


async def current() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def test_calls_share_a_loop_and_other_threads_have_their_own() -> None:
    assert run_sync(current()) is run_sync(current())
    loops = []
    thread = threading.Thread(target=lambda: loops.append(run_sync(current())))
    thread.start()
    thread.join()
    assert loops[0] is not run_sync(current())


def test_an_interruption_is_raised_at_once_and_leaves_no_task_behind() -> None:
    ended = []

    async def patient() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("patient")

    async def interrupted() -> None:
        waiting = asyncio.create_task(patient())
        await asyncio.sleep(0)
        assert not waiting.done()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sync(interrupted())
    assert ended == ["patient"]
    assert not asyncio.all_tasks(run_sync(current()))


def test_a_caller_inside_a_loop_may_wait_too() -> None:
    async def notebook_cell() -> tuple[bool, str]:
        async def work() -> str:
            await asyncio.sleep(0)
            return "done"

        inner = run_sync(current())
        return inner is asyncio.get_running_loop(), run_sync(work())

    assert asyncio.run(notebook_cell()) == (False, "done")


async def doubled(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


def by_run(number: int) -> int:
    return asyncio.run(doubled(number))


def by_new_loop(number: int) -> int:
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(doubled(number))
    finally:
        loop.close()


def by_own_loop(number: int) -> int:
    return asyncio.get_event_loop().run_until_complete(doubled(number))


def by_run_sync(number: int) -> int:
    return run_sync(doubled(number))


async def outside(work: Callable[[int], int]) -> int:
    """What `work` does outside the loop, which then runs on: its task can be cancelled and has a clock."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    value = outside_loop(work, 4)
    assert (asyncio.get_running_loop(), asyncio.current_task()) == (loop, task)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await asyncio.Event().wait()
    with pytest.raises(ZeroDivisionError):
        outside_loop(lambda: 1 // 0)
    assert asyncio.current_task() is task
    return value


@pytest.mark.parametrize("work", [by_run, by_new_loop, by_own_loop, by_run_sync])
@pytest.mark.parametrize("place", ["main thread", "thread of a loop", "notebook"])
def test_work_outside_the_loop_may_start_one(work: Callable[[int], int], place: str) -> None:
    async def notebook_cell() -> int:
        return run_sync(outside(work))

    asyncio.set_event_loop(spare := asyncio.new_event_loop())  # which `asyncio.run` of another test has taken away
    if place == "main thread":
        assert run_sync(outside(work)) == 8
    elif place == "notebook":
        assert asyncio.run(notebook_cell()) == 8
    else:
        thread = LoopThread("test")
        assert thread.result(outside(work)) == 8
        thread.close()
    spare.close()


def test_a_caller_inside_a_loop_stays_in_its_thread() -> None:
    async def current_thread() -> threading.Thread:
        return threading.current_thread()

    async def notebook_cell() -> threading.Thread:
        return run_sync(current_thread())

    assert asyncio.run(notebook_cell()) is threading.main_thread()


def test_a_forked_child_leaves_the_parents_loop_as_it_is() -> None:
    """Otherwise the parent would wait forever for a thread, since the child had closed the loop that both share."""
    code = """
import faulthandler, gc, os, time
from reflectkit.eventloop import in_thread, run_sync

async def waits():
    await in_thread(time.sleep, 0.05)

async def nothing():
    pass

faulthandler.dump_traceback_later(20, exit=True)
run_sync(waits())
if (child := os.fork()) == 0:
    run_sync(nothing())
    gc.collect()
    os._exit(0)
os.waitpid(child, 0)
run_sync(waits())
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_stop_iteration_in_a_thread_ends_what_waits_for_it() -> None:
    with pytest.raises(RuntimeError) as caught:
        run_sync(in_thread(lambda: next(iter(()))))
    assert isinstance(caught.value.__cause__, StopIteration)
