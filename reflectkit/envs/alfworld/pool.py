"""Engines in child processes, one game each; later games reuse them, and they are killed if they do
not answer.

A *nursery* process imports the engine once and forks a child for each engine. That is quick, works
from threads and daemonic processes and under any main module, and copies nothing of this process's
memory. The nursery has a fixed hash seed: the engine's sets have one order, and a plan is the same
each time. A child ends when the other end of its socket is closed, whatever it is doing, so none
outlives a killed parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from reflectkit.envs.alfworld.engine import Game, State, check_installed, not_installed
from reflectkit.envs.alfworld.fast import memoised
from reflectkit.errors import EnvironmentFailure, ReflectkitError
from reflectkit.eventloop import deliver

START_SECONDS = 60.0
RESULT, REFUSED, FAILED = "done", "refused", "failed"


class Engine:
    """A child process with an engine. Once it has failed, or has not answered in time, it is
    killed.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.alive = True
        self.last_game: Path | None = None
        """The folder of its last game, which it has in memory."""
        self.pid = 0
        """The child's process id; 0 before `start`."""

    async def start(self) -> int:
        """Wait until the child runs; its process id. Raises ConfigError if the engine cannot be
        imported.
        """
        if not self.pid:
            self.pid = await self._answer(START_SECONDS, "started")
        return self.pid

    async def reset(
        self,
        folder: Path,
        expert: str | None,
        seconds: float,
    ) -> State:
        """Begin the game in `folder`. Raises DataError if it cannot be played, and
        EnvironmentFailure.
        """
        self.last_game = folder
        return await self._ask(seconds, "reset", folder, expert)  # type: ignore[no-any-return]

    async def step(self, command: str, seconds: float) -> State:
        """Take `command`. Raises EnvironmentFailure."""
        return await self._ask(seconds, "step", command)  # type: ignore[no-any-return]

    async def plan(self, seconds: float) -> list[str]:
        """Commands that win; empty if there are none. Raises EnvironmentFailure."""
        return await self._ask(seconds, "plan")  # type: ignore[no-any-return]

    async def _ask(self, seconds: float, name: str, *arguments: Any) -> Any:
        """What method `name` of the child's `Game` returns. Raises its errors, and
        EnvironmentFailure.
        """
        if not self.alive:
            raise EnvironmentFailure("the engine was stopped; reset begins with another")
        try:
            await self.start()
            # Reading the answer reports that the process has ended
            with contextlib.suppress(OSError):
                self.connection.send((name, *arguments))
            return await self._answer(seconds, f"answered '{name}'")
        except asyncio.CancelledError:  # the next caller would get this answer
            self.stop()
            raise

    async def _answer(self, seconds: float, what: str) -> Any:
        if not await _readable(self.connection, seconds):
            self.stop()
            raise EnvironmentFailure(
                f"the engine has not {what} within {seconds:g} s, and was stopped"
            )
        try:
            kind, value = self.connection.recv()
        except (EOFError, OSError):
            self.stop()
            raise EnvironmentFailure(
                f"the engine's process ended before it {what}; it may have run out of memory"
            ) from None
        if kind == RESULT:
            return value
        # An engine that failed, or did not start, is of no more use
        if kind == FAILED or not self.pid:
            self.stop()
        raise value if kind == REFUSED else EnvironmentFailure(f"the engine failed: {value}")

    def stop(self) -> None:
        """Kill the process."""
        self.alive = False
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self.connection.close()


async def _readable(connection: Connection, seconds: float) -> bool:
    """Whether, within `seconds`, there is data to read or the other end is closed."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    number = connection.fileno()
    loop.add_reader(number, deliver, ready, None)
    try:
        await asyncio.wait_for(ready, seconds)
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(number)
    return True


class Pool:
    """The engines of this process, and the nursery that they are forked from."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[Engine] = []
        self._nursery: socket.socket | None = None

    def take(self, folder: Path) -> Engine:
        """An idle engine, if possible the last to play the game in `folder`; else a new one.

        Raises ConfigError: the packages are not installed. EnvironmentFailure: no process could be
        started.
        """
        with self._lock:
            if not self._idle:
                return Engine(self._fork())
            index = len(self._idle) - 1
            for number, engine in enumerate(self._idle):
                if engine.last_game == folder:
                    index = number
            return self._idle.pop(index)

    def give(self, engine: Engine) -> None:
        """Return an engine to the pool."""
        if engine.alive:
            with self._lock:
                self._idle.append(engine)

    def _fork(self) -> Connection:
        """A connection to a new child of the nursery, which is started first if it does not run."""
        near_end, far_end = socket.socketpair()
        with far_end:
            # A nursery that was killed is started again
            for _ in range(2):
                if self._nursery is None:
                    check_installed()
                    self._nursery = _start_nursery()
                try:
                    socket.send_fds(self._nursery, [b"+"], [far_end.fileno()])
                    return Connection(near_end.detach())
                except OSError:
                    self._nursery = None
        near_end.close()
        raise EnvironmentFailure("the process of the engines cannot be started")


def _start_nursery() -> socket.socket:
    """Our end of a socket to a new nursery."""
    near_end, far_end = socket.socketpair()
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; from reflectkit.envs.alfworld.pool import"
        f" run_nursery; run_nursery({far_end.fileno()})"
    )
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    with far_end:
        subprocess.Popen(
            [sys.executable, "-c", code],
            pass_fds=[far_end.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | one_thread | {"PYTHONHASHSEED": "0"},
        )
    return near_end


_pools: dict[int, Pool] = {}


def pool() -> Pool:
    """The pool of this process; forked processes get their own."""
    return _pools.setdefault(os.getpid(), Pool())


# ----------------------------------------------------------------------------------------------------
# in the nursery


def run_nursery(descriptor: int) -> None:
    """Fork a child for each socket that comes through `descriptor`, until that is closed."""
    # 1. The parent handles signals, and the nursery ends with it
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_IGN)
    requests = _receive(socket.socket(fileno=descriptor))
    try:
        with (
            tempfile.TemporaryDirectory(
                prefix="reflectkit-alfworld-", ignore_cleanup_errors=True
            ) as folder,
            memoised(Path(folder)),
        ):
            # 2. Import the engine; its objects stay in memory that the children share
            game = Game()
            gc.collect()
            gc.freeze()
            # 3. A child for each request
            for connection in requests:
                if os.fork() == 0:
                    try:
                        requests.close()
                        _serve(connection, game)
                    finally:
                        os._exit(0)
                connection.close()
    except (ImportError, OSError) as error:
        for connection in requests:
            connection.send((REFUSED, not_installed(str(error))))


def _receive(control: socket.socket) -> Generator[Connection]:
    """The sockets that come through `control`, until it is closed."""
    with control:
        while True:
            _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
            if not descriptors:
                return
            yield Connection(descriptors[0])


def _serve(connection: Connection, game: Game) -> None:
    """Answer requests (name of a method of `game`, arguments) until the other end is closed."""
    threading.Thread(target=_exit_on_close, args=(connection.fileno(),), daemon=True).start()
    connection.send((RESULT, os.getpid()))
    with contextlib.suppress(EOFError, OSError):
        while True:
            name, *arguments = connection.recv()
            try:
                connection.send((RESULT, getattr(game, name)(*arguments)))
            except ReflectkitError as error:
                connection.send((REFUSED, error))
            except Exception as error:
                reason = " ".join(str(error).split())[:200]
                connection.send((FAILED, f"{type(error).__name__}: {reason}"))


def _exit_on_close(descriptor: int) -> None:
    """End this process as soon as the socket's other end is closed, even during planning."""
    poll = select.poll()
    poll.register(descriptor, 0)  # only POLLHUP and POLLERR, which cannot be left out
    poll.poll()
    os._exit(1)
