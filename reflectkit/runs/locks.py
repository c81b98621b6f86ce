"""Locks on folders and open files. The system releases a lock when the process that holds it ends, however it ends.

The system's own locks, through the filelock package: no lock file with a process number, which a kill would leave
behind.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from reflectkit.errors import ConfigError, ReflectkitError
from reflectkit.jsonl import opened, refuse_pipe

LOCK = ".lock"
"""The file in a folder that is locked."""
PATIENCE_S = 10.0
"""Seconds to wait for a lock: a killed process takes a moment to end."""


class LockedError(ConfigError):
    """Another process holds the lock."""


def take(file: IO[Any]) -> bool:
    """Lock the open `file` until it is closed; False if another process holds its lock.

    Raises ConfigError where the file system has no locks, such as NFS without its lock service.
    """
    from filelock import lock_descriptor

    try:
        return lock_descriptor(file.fileno(), blocking=False)
    except OSError as error:
        fix = "use a folder on a local disk"
        raise ConfigError(f"{file.name}: the file system cannot lock files ({error.strerror}); {fix}") from None


@contextlib.contextmanager
def locked(folder: Path, patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Lock `folder` for this process. Raises LockedError if another process still holds it after `patience_s`."""
    refuse_pipe(folder / LOCK)
    deadline = time.monotonic() + patience_s
    while True:
        with (folder / LOCK).open("w") as file:
            if not take(file):
                if time.monotonic() > deadline:
                    raise LockedError(f"another process is working on {folder}; wait for it or stop it")
                time.sleep(0.2)
            elif os.path.samestat(os.fstat(file.fileno()), (folder / LOCK).stat()):  # otherwise it was replaced
                yield
                return


def is_locked(folder: Path) -> bool:
    """Whether a process on this machine has locked `folder`; True if that is unknown."""
    try:
        with opened(folder / LOCK) as file:
            return not take(file)
    except FileNotFoundError:
        return False
    except (OSError, ReflectkitError):
        return True
