"""Where engines live: one process that has imported the engine, and its children, one for each game in play.

Started by `pool` as `python -c … main(descriptor)`, with a fixed hash seed, so that the engine's sets have one order
and a plan is the same each time. It forks a child for each socket that it is sent; the children share its memory until
they write. Each ends when its own socket is closed at the other end, whatever it is doing, so nobody is left behind by
a killed parent.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import tempfile
import threading
from collections.abc import Generator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from reflectkit.envs.alfworld.engine import Game, lacking
from reflectkit.envs.alfworld.fast import memoised
from reflectkit.errors import ReflectkitError

DONE, REFUSED, FAILED = "done", "refused", "failed"


def main(descriptor: int) -> None:
    """Fork a child for each socket that comes through `descriptor`, until that is closed."""
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGCHLD,
    ):  # the parent handles the first two, and its end is ours
        signal.signal(number, signal.SIG_IGN)
    requests = _received(socket.socket(fileno=descriptor))
    try:
        with (
            tempfile.TemporaryDirectory(prefix="reflectkit-alfworld-", ignore_cleanup_errors=True) as shared,
            memoised(Path(shared)),
        ):
            play = Play(Game())
            gc.collect()
            gc.freeze()
            for connection in requests:
                if os.fork() == 0:
                    try:
                        requests.close()
                        serve(connection, play)
                    finally:
                        os._exit(0)
                connection.close()
    except (ImportError, OSError) as error:
        for connection in requests:
            connection.send((REFUSED, lacking(str(error))))


def _received(control: socket.socket) -> Generator[Connection]:
    """The sockets that come through `control`, until it is closed."""
    with control:
        while received := socket.recv_fds(control, 1, 1)[1]:
            yield Connection(received[0])


def serve(connection: Connection, play: Play) -> None:
    """Answer requests (name of a method of `play`, arguments) until the other end is closed."""
    threading.Thread(target=_leave_with, args=(connection.fileno(),), daemon=True).start()
    connection.send((DONE, os.getpid()))
    with contextlib.suppress(EOFError, OSError):
        while True:
            name, *arguments = connection.recv()
            try:
                connection.send((DONE, getattr(play, name)(*arguments)))
            except ReflectkitError as error:
                connection.send((REFUSED, error))
            except Exception as error:
                connection.send((FAILED, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"))


class Play:
    """The methods of an engine in a child process."""

    def __init__(self, game: Game) -> None:
        self.game = game

    def reset(self, folder: Path, expert: str | None) -> Any:
        """The first State of the game in `folder`."""
        self.game.load(folder)
        return self.game.reset(expert)

    def step(self, command: str) -> Any:
        """The State after `command`."""
        return self.game.step(command)

    def facts(self) -> list[str]:
        """The facts of the current state."""
        return self.game.facts()

    def plan(self) -> list[str]:
        """Commands that win."""
        return self.game.plan()


def _leave_with(descriptor: int) -> None:
    """End this process as soon as the socket's other end is closed, even during planning."""
    poll = select.poll()
    poll.register(descriptor, 0)  # only POLLHUP and POLLERR, which cannot be left out
    poll.poll()
    os._exit(1)
