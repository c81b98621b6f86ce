"""Locks on folders; the system releases them when the process that holds them ends."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from reflectkit.core.errors import ConfigError


@contextlib.contextmanager
def locked(folder: Path, patience_s: float = 10.0) -> Iterator[None]:
    """Lock `folder` for this process; the system releases the lock when the process ends, however it ends.

    Raises ConfigError if another process still holds it after `patience_s`; a killed process takes a moment to end.
    """
    try:
        import fcntl
    except ImportError:  # Windows: runs are not protected against a second process
        yield
        return
    deadline = time.monotonic() + patience_s
    while True:
        with (folder / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ConfigError(f"another process is working on {folder}; wait for it or stop it") from None
                time.sleep(0.2)
                continue
            if not os.path.samestat(os.fstat(file.fileno()), (folder / ".lock").stat()):
                continue  # the folder has been replaced
            yield
            return


def is_locked(folder: Path) -> bool:
    """Whether a process on this machine has locked `folder`; True if that is unknown."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        with (folder / ".lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
