"""Errors that a user can cause or fix. Each message is one line: what is wrong, with the value, and
the fix.

The command line prints the message and exits with 2. Any other exception is an internal error and
exits with 1.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import inspect
import os
import reprlib
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Error numbers of writes that did not fit: a full disk, a quota, or a file size limit (`ulimit
-f`).
"""


MOST_LISTED = 40  # names in an error


class ReflectkitError(Exception):
    """Base class of errors that a user can fix; `str(error)` is one line that names the fix."""


class ConfigError(ReflectkitError):
    """A setting has an invalid value, or two settings contradict each other."""


def refuse(applies: object, reason: str) -> None:
    """Raises ConfigError with `reason` if it applies."""
    if applies:
        raise ConfigError(reason)


class UnknownNameError(ConfigError):
    """An unknown name (env, recipe, role, …); the message suggests the closest match."""


class DataError(ReflectkitError):
    """A data file is missing, unreadable or has the wrong shape.

    Parameters
    ----------
    path: the file.
    message: what is wrong, and the fix.
    line: 1-based line number, if known.
    field: dotted name of the field, if known.
    """

    def __init__(
        self, path: Path | str, message: str, *, line: int | None = None, field: str | None = None
    ) -> None:
        self.path, self.message, self.line, self.field = str(path), message, line, field
        place = self.path if line is None else f"{self.path}:{line}"
        super().__init__(
            f"{place}: {message}" if field is None else f"{place}: field '{field}': {message}"
        )

    def __reduce__(self) -> tuple[object, ...]:  # errors cross process borders
        return (_data_error, (self.path, self.message, self.line, self.field))


def _data_error(path: str, message: str, line: int | None, field: str | None) -> DataError:
    return DataError(path, message, line=line, field=field)


class CheckpointError(ReflectkitError):
    """A model folder is incomplete, damaged, or has the wrong role."""


class DivergedError(ReflectkitError):
    """A loss, gradient or weight became NaN or infinite. samples: the rows in which it happened, if
    known.
    """

    def __init__(self, message: str, samples: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.samples = list(samples)


class MismatchError(ReflectkitError):
    """A sampler's log-probabilities are not those of the weights that it was given."""


class IllegalActionError(ReflectkitError, ValueError):
    """An action that the observation did not offer."""


class AgentError(ReflectkitError):
    """An agent could not decide: the observation is too long for its model, or a chat model gave no
    usable answer.
    """


class EnvironmentFailure(ReflectkitError):
    """The engine behind an environment failed. The episode is ABORTED: counted, and never trained
    on.
    """


class _Brief(reprlib.Repr):
    """`repr` that shortens the parts of a value, and not its end."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = 40
        self.maxlist = self.maxtuple = self.maxdict = 8

    def repr_int(self, value: int, level: int) -> str:
        """The digits of an integer; the number of its bits where Python refuses to write them."""
        try:
            return super().repr_int(value, level)
        except ValueError:
            return f"an integer of {value.bit_length():,} bits"


brief = _Brief().repr
"""The `repr` of any value for a message, in which long texts, numbers and lists are shortened.

>>> brief(("a" * 1000, float("nan"), True))
"('aaaaaaaaaaaaaaaaa...aaaaaaaaaaaaaaaaaa', nan, True)"
"""


def cause_of(error: BaseException) -> BaseException:
    """`error`, or the StopIteration that a coroutine turned into it."""
    return (
        error.__cause__
        if isinstance(error.__cause__, StopIteration | StopAsyncIteration)
        else error
    )


def user_code_line(error: BaseException) -> str:
    """The file and line of the user's own code that raised `error`; empty if there is none."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if is_user_code(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}, line {line}"
    return ""


def env_code_line(error: BaseException) -> str:
    """The file and line of the `step` or `reset` of an installed environment that raised `error`;
    empty if there is none.
    """
    # 1. What our code called last, from the outermost call inwards
    called: list[tuple[CodeType, int]] = []
    for frame, line in traceback.walk_tb(error.__traceback__):
        if _is_ours(frame.f_code.co_filename):
            called = []
        else:
            called.append((frame.f_code, line))

    # 2. The innermost of the environment's methods, below those of its wrappers
    methods = ("step", "reset")
    if not called or called[0][0].co_name not in methods:
        return ""
    code, line = [call for call in called if call[0].co_name in methods][-1]
    return f"{code.co_filename}, line {line}"


def code_place(code: Any) -> str:
    """The file and line where a class or function is written; its name if Python does not know."""
    try:
        return f"{inspect.getsourcefile(code)}, line {inspect.getsourcelines(code)[1]}"
    except (OSError, TypeError):
        return str(getattr(code, "__name__", code))


def is_user_code(file: str) -> bool:
    """Whether Python's `file` belongs to neither reflectkit, nor Python, nor an installed package."""
    if _is_ours(file) or file.startswith((sysconfig.get_path("stdlib"), "<")):
        return False
    return not {"site-packages", "dist-packages"} & set(Path(file).parts)


def _is_ours(file: str) -> bool:
    """Whether Python's `file` belongs to reflectkit."""
    return file.startswith(f"{Path(__file__).parent}{os.sep}")


def unknown_name(kind: str, name: str, names: Iterable[str], hint: str = "") -> UnknownNameError:
    """The error for `name`, which is not among the `names` of this `kind`; suggests the closest
    match, or lists them.

    >>> str(unknown_name("env", "taxii", ["taxi", "corridor"]))
    "no env named 'taxii'; did you mean 'taxi'?"
    """
    # The nearest name, or else a list of names
    options = sorted(names)
    closest = difflib.get_close_matches(name, options, n=1, cutoff=0.5)
    more = ", …" if len(options) > MOST_LISTED else ""
    listed = f"choose from {', '.join(options[:MOST_LISTED])}{more}" if options else "there is none"
    if len(options) == 1:
        listed = f"there is only '{options[0]}'"
    advice = f"did you mean '{closest[0]}'?" if closest else listed
    return UnknownNameError(f"no {kind} named {name!r}; {advice}{' ' + hint if hint else ''}")


NO_MEMORY = (
    "can't allocate memory",
    "not enough memory",
    "size calculation overflowed",
    "CUBLAS_STATUS_ALLOC_FAILED",
)


def out_of_memory(error: BaseException) -> bool:
    """Whether `error` means that a CPU or GPU has too little memory left, or in total, for a
    request.
    """
    if isinstance(error, RuntimeError):
        return type(error).__name__ == "OutOfMemoryError" or any(
            words in str(error) for words in NO_MEMORY
        )
    return isinstance(error, MemoryError)


@contextlib.contextmanager
def memory_explained(advice: str) -> Iterator[None]:
    """Raises ReflectkitError, with `advice`, if memory runs out inside the context."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        raise ReflectkitError(f"out of memory; {advice}") from None
