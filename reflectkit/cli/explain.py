"""Turns an error into one line and an exit code."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import sys
import traceback

import typer

from reflectkit.cli.screen import print_error, say
from reflectkit.errors import NO_ROOM, ReflectkitError, user_code_line
from reflectkit.keys import masked
from reflectkit.registry import damaged_package

EXTRA = re.compile(r"unexpected extra argument(?:\(s\))? \((\w+)")
FULL_DISK_BYTES = 4 * 2**20
FULL = "the disk is full; free some space and run the same command again to resume"
TOO_LARGE = (
    "a file would exceed this shell's size limit (`ulimit -f`); raise it and run the same command again to resume"
)
BAD_PATH = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP)


def explain(error: BaseException, *, with_traceback: bool = False) -> int:
    """Print `error` as one line; returns the exit code. with_traceback: print its traceback as well."""
    if with_traceback:
        say(masked("".join(traceback.format_exception(error))).rstrip(), sys.stderr)
    if isinstance(error, typer.TyperException):
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "reflectkit"
        if not error.format_message().strip():  # no command was given, and the help was printed already
            return 2
        hints = _other_command(error) + _env_flag(error)
        return print_error(f"{error.format_message().rstrip('.')} (see `{command} --help`{hints})", 2)
    if isinstance(error, ReflectkitError):
        return print_error(str(error), 2)
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EFBIG or "File too large" in str(error):
        return print_error(TOO_LARGE, 2)
    if number in NO_ROOM or "No space left" in str(error) or _disk_is_full():
        return print_error(FULL, 2)
    if isinstance(error, OSError) and number in BAD_PATH:
        path = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else "a file"
        return print_error(f"{path}: {error.strerror}; choose another location or change its permissions", 2)
    if isinstance(error, MemoryError):
        return print_error("out of memory; close other programs or use smaller settings", 2)
    if isinstance(error, UnicodeDecodeError) and (package := damaged_package()):  # of a library that reads all of them
        return print_error(f"{package}: its entry_points.txt is not UTF-8; reinstall or remove that package", 2)
    summary = f"{type(error).__name__}: {error}".strip(": ").splitlines()[0]
    if line := user_code_line(error):
        return print_error(f"{line}: {summary} (`reflectkit --traceback …` shows the traceback)", 2)
    return print_error(f"{summary} (internal error; `reflectkit --traceback …` shows the traceback)", 1)


def interrupted(error: BaseException) -> bool:
    """Whether Ctrl-C caused `error`: an interrupted import may end in another error."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__cause__ or cause.__context__
    return cause is not None


def _disk_is_full() -> bool:
    with contextlib.suppress(OSError):
        return shutil.disk_usage(os.getcwd()).free < FULL_DISK_BYTES
    return False


def _other_command(error: BaseException) -> str:
    """The only other command that has the unknown flag, if there is exactly one."""
    if type(error).__name__ != "NoSuchOption":
        return ""
    from reflectkit.cli.command import stage_flags

    flag = getattr(error, "option_name", None)
    commands = [name for name, flags in stage_flags(every_env=True).items() if flag in flags]
    return f"; `reflectkit {commands[0]}` has it" if len(commands) == 1 else ""


def _env_flag(error: BaseException) -> str:
    """The flag to write before an environment's name that stands alone."""
    argument = EXTRA.search(str(error))
    if argument is None:
        return ""
    from reflectkit.envs import ENVS

    return f"; did you mean `--env {argument[1]}`?" if argument[1] in ENVS else ""
