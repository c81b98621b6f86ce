"""Locks on folders and files, against other processes, killed ones among them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from reflectkit.errors import ConfigError
from reflectkit.jsonl import is_locked, locked, take

HOLD = """
import sys, pathlib
from reflectkit.jsonl import locked
with locked(pathlib.Path(sys.argv[1])):
    print(1, flush=True)
    input()
"""


def holder(folder: Path) -> subprocess.Popen[str]:
    """A process that holds the lock of `folder` until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "1\n"
    return process


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    assert not is_locked(tmp_path)
    with holder(tmp_path) as process:
        assert is_locked(tmp_path)
        with pytest.raises(ConfigError, match="another process is working on"), locked(tmp_path, patience_s=0):
            raise AssertionError
        process.send_signal(signal.SIGKILL)
    assert not is_locked(tmp_path)
    with locked(tmp_path, patience_s=0):
        assert is_locked(tmp_path)


def test_a_lock_is_of_the_folder_that_is_there_now(tmp_path: Path) -> None:
    """The holder's folder is renamed away and another put in its place: who waited holds the new one."""
    run, aside = tmp_path / "run", tmp_path / "aside"
    run.mkdir()
    entered, leave = threading.Event(), threading.Event()

    def wait() -> None:
        with locked(run, patience_s=60):
            entered.set()
            leave.wait(60)

    with holder(run) as process:
        waiter = threading.Thread(target=wait)
        waiter.start()
        run.rename(aside)
        run.mkdir()
        assert entered.wait(60)
        assert is_locked(run)
        leave.set()
        waiter.join()
        assert not is_locked(run)
        assert is_locked(aside)
        process.kill()


@pytest.mark.skipif(not hasattr(os, "O_PATH"), reason="Linux only")
def test_a_file_system_without_locks_is_named(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    file = os.fdopen(os.open(tmp_path / ".lock", os.O_PATH), closefd=True)  # flock refuses it
    with file, pytest.raises(ConfigError, match=r"cannot lock files \(.+\); use a folder on a local disk"):
        take(file)
