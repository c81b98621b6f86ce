"""kill -9 of a command in a fork of this process at named points, and the files that it leaves.

A point is `PATTERN:N`: the N-th time that a process is about to put a file or folder in place whose path matches. What
a stage writes is renamed into place, so between two points lies everything that a kill can interrupt.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from reflectkit.cli.main import main


def arm(point: str) -> None:
    """Kill -9 this session when it is about to rename something, the N-th time, to a path that matches. point:
    PATTERN:N.
    """
    pattern, _, count = point.rpartition(":")
    left = int(count)

    def dying(move: Any) -> Any:
        def moved(source: Any, target: Any, **options: Any) -> Any:
            nonlocal left
            if re.search(pattern, os.fspath(target)):
                left -= 1
                if left == 0:
                    os.killpg(0, signal.SIGKILL)
            return move(source, target, **options)

        return moved

    os.replace, os.rename = dying(os.replace), dying(os.rename)


def started(
    arguments: list[str], folder: Path, point: str | None = None, call: Callable[[list[str]], int] = main
) -> int:
    """Start `reflectkit ARGUMENTS`, or another `call`, in `folder`, in a fork of this process, which has imported
    everything; its id.

    `point` names where it kills itself. What it prints is in `output.txt`.
    """
    child = os.fork()
    if child == 0:
        code = 70
        try:
            os.setsid()
            signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
            os.chdir(folder)
            output = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(output, 1)
            os.dup2(output, 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            if point is not None:
                arm(point)
            code = call(arguments)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return child


def forked(
    arguments: list[str], folder: Path, point: str | None = None, call: Callable[[list[str]], int] = main
) -> int:
    """The exit code of a command that is `started`; negative where a signal ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(started(arguments, folder, point, call), 0)[1])


def fork_killed_at(
    points: Sequence[str], arguments: list[str], folder: Path, call: Callable[[list[str]], int] = main
) -> None:
    """`reflectkit ARGUMENTS`, or another `call`, in `folder`, killed at each of `points` in turn, then left to end; it
    must end well.
    """
    for point in points:
        assert forked(arguments, folder, point, call) == -signal.SIGKILL, (point, (folder / "output.txt").read_text())
    assert forked(arguments, folder, call=call) == 0, (folder / "output.txt").read_text()


def hashes(folder: Path) -> dict[str, str]:
    """Digest of each file below `folder`."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
