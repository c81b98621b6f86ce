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
def locked(folder: Path, patience_s: float = 10.0) -> Iterator[None]:
    """Lock `folder` for this process.

    Raises ConfigError if another process still holds it after `patience_s`; a killed process takes a moment to end.
    """
    refuse_pipe(folder / ".lock")
    deadline = time.monotonic() + patience_s
    while True:
        with (folder / ".lock").open("w") as file:
            if not take(file):
                if time.monotonic() > deadline:
                    raise ConfigError(f"another process is working on {folder}; wait for it or stop it")
                time.sleep(0.2)
            elif os.path.samestat(os.fstat(file.fileno()), (folder / ".lock").stat()):  # otherwise it was replaced
                yield
                return


def is_locked(folder: Path) -> bool:
    """Whether a process on this machine has locked `folder`; True if that is unknown."""
    try:
        with opened(folder / ".lock") as file:
            return not take(file)
    except FileNotFoundError:
        return False
    except (OSError, ReflectkitError):
        return True
