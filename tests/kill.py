"""kill -9 of a command and all its processes at named points, and the files that it leaves.

A point is `PATTERN:N`: the N-th time that a process is about to put a file or folder in place whose path matches. What
a stage writes is renamed into place, so between two points lies everything that a kill can interrupt.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from reflectkit.cli.main import main
from tests.kill_at.sitecustomize import arm

KILL_AT = Path(__file__).with_name("kill_at")


def run_killed_at(points: Sequence[str], arguments: list[str], folder: Path) -> None:
    """`reflectkit ARGUMENTS` in `folder`, killed at each of `points` in turn, then left to end; it must end well.

    For commands that start processes of their own, which are killed too.
    """
    for point in (*points, None):
        environment = dict(os.environ)
        if point is not None:
            environment["REFLECTKIT_KILL_AT"] = point
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(KILL_AT), os.environ.get("PYTHONPATH", "")]))
        done = subprocess.run(
            [sys.executable, "-m", "reflectkit", *arguments],
            cwd=folder, env=environment, start_new_session=True, capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        assert done.returncode == (-signal.SIGKILL if point else 0), (point, done.stderr)


def forked(arguments: list[str], folder: Path, point: str | None = None) -> int:
    """The exit code of `reflectkit ARGUMENTS` in `folder`, in a fork of this process, which has imported everything.

    Negative where a signal ended it; `point` names where it kills itself. What it prints is in `output.txt`.
    """
    child = os.fork()
    if child == 0:
        code = 70
        try:
            os.setsid()
            os.chdir(folder)
            output = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(output, 1)
            os.dup2(output, 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            if point is not None:
                arm(point)
            code = main(arguments)
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def fork_killed_at(points: Sequence[str], arguments: list[str], folder: Path) -> None:
    """As `run_killed_at`, in forks of this process: for commands that work in one process."""
    for point in points:
        assert forked(arguments, folder, point) == -signal.SIGKILL, (point, (folder / "output.txt").read_text())
    assert forked(arguments, folder) == 0, (folder / "output.txt").read_text()


def hashes(folder: Path) -> dict[str, str]:
    """Digest of each file below `folder`."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
