"""The command's event loop: reuse, interruption, callers inside another loop, blocking work."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from reflectkit.eventloop import run_sync


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
