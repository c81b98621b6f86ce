"""Engines in child processes, one game each; they are reused by later games and stopped if they do not answer.

The children are forked from a process of their own (see `worker`), not from this one: that is quick, works from threads
and daemonic processes and under any main module, and copies nothing of this process's memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from reflectkit.envs.alfworld.engine import State, check_installed
from reflectkit.envs.alfworld.worker import DONE, REFUSED
from reflectkit.errors import ConfigError, EnvironmentFailure
from reflectkit.eventloop import deliver

START_SECONDS = 60.0


class Engine:
    """A child process with an engine. What fails or does not answer in time is stopped, and is of no use any more.

    Coroutines await its answers; `ask` is for callers that are none.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.alive = True
        self.played: Path | None = None
        self._pid = 0

    @property
    def pid(self) -> int:
        """The child's process id, which it sends on start; 0 if it was stopped before."""
        if not self._pid and self.alive:
            self._begun(self._wait(START_SECONDS))
        return self._pid

    async def reset(self, folder: Path, expert: str | None, seconds: float) -> State:
        """Begin the game in `folder`. Raises DataError if it cannot be played, and EnvironmentFailure."""
        return await self._awaited(seconds, "reset", folder, expert)  # type: ignore[no-any-return]

    async def step(self, command: str, seconds: float) -> State:
        """Take `command`. Raises EnvironmentFailure."""
        return await self._awaited(seconds, "step", command)  # type: ignore[no-any-return]

    def ask(self, seconds: float, name: str, *arguments: Any) -> Any:
        """The result of method `name` of `worker.Play`. Raises its errors, and EnvironmentFailure after `seconds`."""
        self._send(name, *arguments)
        return self._read(self.pid != 0 and self._wait(seconds), seconds, f"answered '{name}'")

    async def _awaited(self, seconds: float, name: str, *arguments: Any) -> Any:
        """`ask` for coroutines."""
        self._send(name, *arguments)
        try:
            if not self._pid:
                self._begun(await _readable(self.connection, START_SECONDS))
            ready = await _readable(self.connection, seconds)
        except asyncio.CancelledError:  # the next caller would get this answer
            self.stop()
            raise
        return self._read(ready, seconds, f"answered '{name}'")

    def _send(self, name: str, *arguments: Any) -> None:
        if not self.alive:
            raise EnvironmentFailure("the engine was stopped; reset begins with another")
        if name == "reset":
            self.played = arguments[0]
        with contextlib.suppress(OSError):  # reading the answer reports that the process has ended
            self.connection.send((name, *arguments))

    def _begun(self, ready: bool) -> None:
        """Read the first answer, the child's process id. Raises ConfigError if the engine cannot be imported."""
        try:
            self._pid = self._read(ready, START_SECONDS, "started")
        except ConfigError:
            self.stop()
            raise

    def _wait(self, seconds: float) -> bool:
        """Whether there is an answer, or the process has ended, within `seconds`."""
        try:
            return self.connection.poll(seconds)
        except (EOFError, OSError):
            return True

    def _read(self, ready: bool, seconds: float, what: str) -> Any:
        """The answer, if there is one. Raises the error that it contains, and EnvironmentFailure."""
        if not ready:
            self.stop()
            raise EnvironmentFailure(f"the engine has not {what} within {seconds:g} s, and was stopped")
        try:
            kind, value = self.connection.recv()
        except (EOFError, OSError):
            self.alive = False
            self.connection.close()
            raise EnvironmentFailure(
                f"the engine's process ended before it {what}; it may have run out of memory"
            ) from None
        if kind == DONE:
            return value
        if kind == REFUSED:
            raise value
        self.stop()
        raise EnvironmentFailure(f"the engine failed: {value}")

    def stop(self) -> None:
        """Kill the process."""
        self.alive = False
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
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
    """The engines of this process, and the process that they are forked from."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[Engine] = []
        self._control: socket.socket | None = None

    def take(self, folder: Path) -> Engine:
        """An engine that nobody uses: if there is one, that which played the game in `folder` last.

        Raises
        ------
        ConfigError: the packages are not installed. EnvironmentFailure: no process could be started.
        """
        with self._lock:
            if self._idle:
                ready = next((engine for engine in reversed(self._idle) if engine.played == folder), self._idle[-1])
                self._idle.remove(ready)
                return ready
            connection = self._forked()
        return Engine(connection)

    def give(self, engine: Engine) -> None:
        """Return an engine to the pool."""
        if engine.alive:
            with self._lock:
                self._idle.append(engine)

    def _forked(self) -> Connection:
        ours, theirs = socket.socketpair()
        with theirs:
            for attempt in range(2):
                if self._control is None:
                    check_installed()
                    self._control = _started()
                try:
                    socket.send_fds(self._control, [b"+"], [theirs.fileno()])
                    break
                except OSError as error:
                    self._control = None
                    if attempt:
                        ours.close()
                        raise EnvironmentFailure(f"the process of the engines cannot be started: {error}") from None
        return Connection(ours.detach())


def _started() -> socket.socket:
    """Our end of a socket to a new `worker` process."""
    ours, theirs = socket.socketpair()
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; from reflectkit.envs.alfworld.worker import main;"
        f" main({theirs.fileno()})"
    )
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    with theirs:
        subprocess.Popen(
            [sys.executable, "-c", code],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | one_thread | {"PYTHONHASHSEED": "0"},
        )
    return ours


_pools: dict[int, Pool] = {}


def pool() -> Pool:
    """The pool of this process; forked processes get their own."""
    return _pools.setdefault(os.getpid(), Pool())
