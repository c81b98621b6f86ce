"""Engines in child processes: one game each, used again by later games, stopped when they do not answer.

The children are forked from a process of their own (see `worker`), not from this one: that is quick, works from threads
and daemonic processes and under any main module, and copies nothing of this process's memory.
"""

from __future__ import annotations

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

from reflectkit.core.errors import EnvironmentFailure
from reflectkit.envs.alfworld.engine import State, check_installed
from reflectkit.envs.alfworld.worker import DONE, REFUSED

START_SECONDS = 60.0


class Engine:
    """A child process with an engine. What fails or does not answer in time is stopped, and is of no use any more."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.alive = True
        self.pid = 0
        self.played: Path | None = None
        self.pid = self._answer(START_SECONDS, "started")

    def reset(self, folder: Path, expert: str | None, seconds: float) -> State:
        """Begin the game in `folder`. Raises DataError for a game that cannot be played, and EnvironmentFailure."""
        self.played = folder
        state: State = self.ask(seconds, "reset", folder, expert)
        return state

    def step(self, command: str, seconds: float) -> State:
        """Take `command`. Raises EnvironmentFailure."""
        state: State = self.ask(seconds, "step", command)
        return state

    def ask(self, seconds: float, name: str, *arguments: Any) -> Any:
        """What method `name` of `worker.Play` returns. Raises what it raises; EnvironmentFailure after `seconds`."""
        if not self.alive:
            raise EnvironmentFailure("the engine was stopped; reset begins with another")
        with contextlib.suppress(OSError):  # that it is gone, the answer says
            self.connection.send((name, *arguments))
        return self._answer(seconds, f"answered '{name}'")

    def _answer(self, seconds: float, what: str) -> Any:
        try:
            if not self.connection.poll(seconds):
                self.stop()
                raise EnvironmentFailure(f"the engine has not {what} within {seconds:g} s, and was stopped")
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
        """End the process, whatever it is doing."""
        self.alive = False
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self.connection.close()


class Pool:
    """The engines of this process, and the process that they are forked from."""

    def __init__(self) -> None:
        self._lock = (
            threading.RLock()
        )  # a collection of garbage may give an engine back at any moment, this thread's own too
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
        """Put back what was taken."""
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
    """Our end of a line to a new `worker` process."""
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
    """The pool of this process; one that was forked from it gets its own."""
    return _pools.setdefault(os.getpid(), Pool())
