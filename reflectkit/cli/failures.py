"""Errors of the command line: one line on standard error, and an exit code. `main` lists the codes."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from reflectkit.cli.screen import print_error, say
from reflectkit.commands import STAGES, config_class
from reflectkit.errors import (
    NO_ROOM,
    ReflectkitError,
    UnknownNameError,
    cause_of,
    env_code_line,
    user_code_line,
)

BAD_PATH = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.ELOOP,
)
"""Error numbers of places where nothing can be read or written."""
EXTRA = re.compile(r"unexpected extra argument\(s\) \((.+)\)")
"""What click says of a value without a flag in front."""


def exit_code(error: BaseException, arguments: Sequence[str]) -> int:
    """Explain why the command line `arguments` ended with `error`; returns the exit code."""
    # typer and rich end the process when the pipe is closed
    is_exit = isinstance(error, SystemExit)
    is_pipe_closed = type(error) is BrokenPipeError
    if is_pipe_closed or (is_exit and type(error.__context__) is BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # discards what is still in the buffer
        return 141
    if isinstance(error, typer.Abort) or _is_interrupt(error):
        advice = "run the same command again to resume"
        if arguments[:1] == ["play"]:
            advice = "finished episodes are kept"
        return print_error(f"stopped; {advice}", 130)
    if isinstance(error, SystemExit):  # after a completion
        return int(error.code or 0)
    return _explain(error, arguments)


def _is_interrupt(error: BaseException) -> bool:
    """Whether Ctrl-C caused `error`: an interrupted import may end in another error."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__cause__ or cause.__context__
    return cause is not None


def _explain(error: BaseException, arguments: Sequence[str]) -> int:
    """Print `error` of the command line `arguments` as one line; returns the exit code."""
    import traceback

    from reflectkit.keys import masked

    if "--traceback" in arguments:
        text = "".join(traceback.format_exception(error))
        say(masked(text).rstrip(), sys.stderr)

    # 1. Errors that name their fix
    if isinstance(error, ReflectkitError):
        return print_error(str(error), 2)
    if isinstance(error, typer.TyperException):
        has_message = bool(error.format_message().strip())  # else the help was printed already
        return print_error(_usage(error, arguments), 2) if has_message else 2

    # 2. Errors of the machine
    if what := _no_room(error):
        return print_error(f"{what}; free some space and run the same command again to resume", 2)
    if isinstance(error, OSError) and error.errno in BAD_PATH:
        # Of a move, the second place is the one that the user knows
        name = error.filename2 or error.filename
        path = os.fsdecode(name) if isinstance(name, str | bytes) else "a file"
        advice = "choose another location or change its permissions"
        if isinstance(error, IsADirectoryError):
            advice = "a file is to be written there; move the folder away"
        return print_error(f"{path}: {error.strerror}; {advice}", 2)
    if isinstance(error, MemoryError):
        return print_error("out of memory; close other programs or use smaller settings", 2)

    # 3. Errors of code: the user's, an installed environment's, or ours
    cause = cause_of(error)
    summary = f"{type(cause).__name__}: {_text(cause)}".strip(": ").splitlines()[0]
    more = "`reflectkit --traceback …` shows the traceback"
    if line := user_code_line(cause) or env_code_line(cause):
        return print_error(f"{line}: {summary} ({more})", 2)
    return print_error(f"{summary} (internal error; {more})", 1)


def _text(error: BaseException) -> str:
    """What `error` says; "" if its own class cannot."""
    try:
        return str(error)
    except Exception:
        return ""


def _no_room(error: BaseException) -> str:
    """Why a write did not fit; empty for another error."""
    number = error.errno if isinstance(error, OSError) else None
    for code in NO_ROOM:
        if code != number and os.strerror(code) not in _text(error):
            continue
        limit = "a file exceeds this shell's limit (`ulimit -f`)"
        return limit if code == errno.EFBIG else "the disk is full"
    return ""


def _usage(error: typer.TyperException, arguments: Sequence[str]) -> str:
    """What is wrong in the command line; of a flag of another choice or toolkit, what to do."""
    context = getattr(error, "ctx", None)
    stage = context.info_name if context else ""
    if type(error).__name__ == "NoSuchOption" and stage in STAGES:
        from reflectkit.config import leaves, unknown_setting

        kind = config_class(stage)
        option = str(getattr(error, "option_name", ""))
        name = option.removeprefix("--").removeprefix("no-").replace("-", "_")
        explanation = unknown_setting(kind, name, [leaf.name for leaf in leaves(kind)], "")
        if not isinstance(explanation, UnknownNameError):
            return str(explanation)
    if (value := EXTRA.search(error.format_message())) and stage in STAGES:
        return _without_flag(stage, value[1], context)
    # A flag without its value has no context
    command = "reflectkit"
    if context:
        command = context.command_path
    elif arguments and arguments[0] in STAGES:
        command = f"reflectkit {arguments[0]}"
    return f"{error.format_message().rstrip('.')} (see `{command} --help`)"


def _without_flag(stage: str, text: str, context: Any) -> str:
    """What is wrong with `text`, values of the command line without a flag in front.

    context: click's, with the flags that were given.
    """
    from reflectkit.config import flag, leaves
    from reflectkit.envs import ENVS, SCHEMES
    from reflectkit.models.hub import PACKAGED, TINY

    # 1. The flag that was probably meant
    value = text.split()[0]
    if value in ENVS or ".py:" in value or value.partition(":")[0] in SCHEMES:
        name = "env"
    elif value in (*TINY, *PACKAGED):
        name = "model"
    elif stage == "plot":
        name = "evals" if Path(value, "eval.json").is_file() else "runs"
    else:
        name = "policy"

    # 2. Whether the command has it, and it was not given
    is_known = name in {leaf.name for leaf in leaves(config_class(stage))}
    source = context.get_parameter_source(name)
    is_given = source is not None and source.name == "COMMANDLINE"
    if is_known and not is_given:
        advice = f"did you mean {flag(name)} {value}?"
    else:
        advice = "give its flag, or put a value with spaces in quotes"
    return f"{value!r} has no flag in front; {advice} (see `{context.command_path} --help`)"
