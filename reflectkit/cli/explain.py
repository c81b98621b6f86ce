"""What went wrong, as one line and an exit code."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
import sysconfig
import traceback
from pathlib import Path

import typer

from reflectkit.cli.screen import complain, say
from reflectkit.core.errors import NO_ROOM, ReflectkitError

FULL_DISK_BYTES = 4 * 2**20
FULL = "the disk is full; free some space and run the same command again, it goes on"
TOO_LARGE = (
    "a file would be larger than this shell allows (`ulimit -f`); allow more and run the same command again, it goes on"
)
PLACES = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP)


def explain(error: BaseException, *, with_traceback: bool = False) -> int:
    """Print `error` as one line; returns the exit code. with_traceback: print where it came from, too."""
    if with_traceback:
        say("".join(traceback.format_exception(error)).rstrip(), sys.stderr)
    if isinstance(error, typer.TyperException):
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "reflectkit"
        if not error.format_message().strip():  # no command at all: the help is on the screen already
            return 2
        return complain(f"{error.format_message().rstrip('.')} (see `{command} --help`{_elsewhere(error)})", 2)
    if isinstance(error, ReflectkitError):
        return complain(str(error), 2)
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EFBIG or "File too large" in str(error):
        return complain(TOO_LARGE, 2)
    if number in NO_ROOM or "No space left" in str(error) or _disk_is_full():
        return complain(FULL, 2)
    if isinstance(error, OSError) and number in PLACES:
        place = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else "a file"
        return complain(f"{place}: {error.strerror}; choose another place, or change its permissions", 2)
    if isinstance(error, MemoryError):
        return complain("out of memory; close other programs, or give smaller numbers", 2)
    what = f"{type(error).__name__}: {error}".strip(": ").splitlines()[0]
    if place := _in_code_of_theirs(error):
        return complain(f"{place}: {what} (`reflectkit --traceback …` shows how it came there)", 2)
    return complain(f"{what} (internal error; `reflectkit --traceback …` shows where)", 1)


def interrupted(error: BaseException) -> bool:
    """Whether Ctrl-C is at the bottom of `error`: an import that was stopped half-way may end in another error."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, KeyboardInterrupt):
        seen = seen.__cause__ or seen.__context__
    return seen is not None


def _disk_is_full() -> bool:
    with contextlib.suppress(OSError):
        return shutil.disk_usage(os.getcwd()).free < FULL_DISK_BYTES
    return False


def _in_code_of_theirs(error: BaseException) -> str:
    """The line of the user's own environment that `error` came out of; empty where there is none."""
    ours = (str(Path(__file__).parents[1]), sysconfig.get_path("stdlib"), "<")
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        file = frame.f_code.co_filename
        if not file.startswith(ours) and not {"site-packages", "dist-packages"} & set(Path(file).parts):
            return f"{file}, line {line}"
    return ""


def _elsewhere(error: BaseException) -> str:
    """Which one command has the flag that this one lacks."""
    if type(error).__name__ != "NoSuchOption":
        return ""
    from reflectkit.cli.command import stage_flags

    missing = getattr(error, "option_name", None)
    having = [name for name, flags in stage_flags(every_env=True).items() if missing in flags]
    return f"; `reflectkit {having[0]}` has it" if len(having) == 1 else ""
