"""Lines for the terminal, and errors as one line with an exit code.

All output goes through `say`, or through `Screen` in `cli/display.py`.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import os
import re
import shutil
import sys
from typing import TYPE_CHECKING, TextIO

from reflectkit.text import visible

if TYPE_CHECKING:
    import typer

PLAIN = {"→": "->", "…": "...", "─": "-", "│": "|", "×": "x", "±": "+-", "−": "-", "–": "-", "·": ".", "•": "*"}
"""Substitutes for characters that the terminal's encoding lacks; all others are escaped as in `\\xe9`."""
EXTRA = re.compile(r"unexpected extra argument(?:\(s\))? \((\w+)")
FULL_DISK_BYTES = 4 * 2**20
BAD_PATH = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP)


def prepare() -> None:
    """Make the standard streams accept any text. A stream that was closed at the start becomes the null device."""
    codecs.register_error("reflectkit-plain", _plain)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  open until the process ends
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="reflectkit-plain")


def _plain(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    characters = error.object[error.start : error.end]
    plain = (PLAIN.get(character) or character.encode("ascii", "backslashreplace").decode() for character in characters)
    return "".join(plain), error.end


def say(text: str, file: TextIO | None = None) -> None:
    """Print `text`, without control characters, and a newline to standard output or to `file`."""
    print(visible(text), file=file)


def print_error(text: str, code: int) -> int:
    """Print `text` as one line on standard error; returns `code`."""
    from reflectkit.console import process_number
    from reflectkit.keys import masked

    process = f" (process {process_number()})" if process_number() else ""
    with contextlib.suppress(OSError):  # standard error is closed
        say(f"reflectkit{process}: {' '.join(masked(text).split())}", sys.stderr)
    return code


def explain(error: BaseException, *, with_traceback: bool = False) -> int:
    """Print `error` as one line; returns the exit code. with_traceback: print its traceback as well."""
    import traceback

    from reflectkit.errors import ReflectkitError
    from reflectkit.keys import masked

    if with_traceback:
        say(masked("".join(traceback.format_exception(error))).rstrip(), sys.stderr)
    if isinstance(error, ReflectkitError):
        return print_error(str(error), 2)
    if hasattr(error, "format_message") and not error.format_message().strip():
        return 2  # no command was given, and the help was printed already
    return print_error(*_reason(error))


def _reason(error: BaseException) -> tuple[str, int]:
    """What to print for an error that is not ours, and the exit code."""
    import typer

    from reflectkit.errors import NO_ROOM, user_code_line
    from reflectkit.registry import damaged_package

    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, typer.TyperException):
        return _usage(error), 2
    if number == errno.EFBIG or "File too large" in str(error):
        limit = "a file would exceed this shell's size limit (`ulimit -f`); raise it"
        return f"{limit} and run the same command again to resume", 2
    if number in NO_ROOM or "No space left" in str(error) or _disk_is_full():
        return "the disk is full; free some space and run the same command again to resume", 2
    if isinstance(error, OSError) and number in BAD_PATH:
        path = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else "a file"
        return f"{path}: {error.strerror}; choose another location or change its permissions", 2
    if isinstance(error, MemoryError):
        return "out of memory; close other programs or use smaller settings", 2
    if isinstance(error, UnicodeDecodeError) and (package := damaged_package()):  # some library reads all packages
        return f"{package}: its entry_points.txt is not UTF-8; reinstall or remove that package", 2
    summary = f"{type(error).__name__}: {error}".strip(": ").splitlines()[0]
    if line := user_code_line(error):
        return f"{line}: {summary} (`reflectkit --traceback …` shows the traceback)", 2
    return f"{summary} (internal error; `reflectkit --traceback …` shows the traceback)", 1


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


def _usage(error: typer.TyperException) -> str:
    """What is wrong in the command line, with the nearest flag, the command that has it, or a missing `--env`."""
    context = getattr(error, "ctx", None)
    message, hint = error.format_message().rstrip("."), ""
    if argument := EXTRA.search(str(error)):
        from reflectkit.envs import ENVS

        hint = f"; did you mean `--env {argument[1]}`?" if argument[1] in ENVS else ""
    if type(error).__name__ == "NoSuchOption" and context and context.parent:
        from reflectkit.cli.command import stage_flags
        from reflectkit.commands import config_class, is_own
        from reflectkit.config import leaves, unknown_setting
        from reflectkit.errors import UnknownNameError

        written, stage = str(getattr(error, "option_name", "")), context.info_name
        kind = None if stage == "list" or is_own(stage) else config_class(stage)
        if kind is not None:
            name = written.removeprefix("--").removeprefix("no-").replace("-", "_")
            known = unknown_setting(kind, name, [leaf.name for leaf in leaves(kind)], "")
            if not isinstance(known, UnknownNameError):
                return str(known)
        having = [name for name, flags in stage_flags().items() if written in flags]
        hint = f"; `reflectkit {having[0]}` has it" if len(having) == 1 else ""
    return f"{message} (see `{context.command_path if context else 'reflectkit'} --help`{hint})"
