"""Lines for the terminal: nothing in them can steer it, and no encoding stops them.

Everything that is printed goes through `say`, or through the `Screen` of `cli/display.py`.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import sys
from typing import TextIO

from reflectkit.core.text import visible

PLAIN = {"→": "->", "…": "...", "─": "-", "│": "|", "×": "x", "±": "+-", "−": "-", "–": "-", "·": ".", "•": "*"}
"""What is printed for a character that the terminal's encoding lacks; any other is spelled out as `\\xe9`."""
PLAIN_ERRORS = "reflectkit-plain"


def prepare() -> None:
    """Make the standard streams take any text. One that was closed before the start is the null device."""
    codecs.register_error(PLAIN_ERRORS, _plain)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  for as long as the process lives
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=PLAIN_ERRORS)


def say(text: str, file: TextIO | None = None) -> None:
    """Print `text` and a line end; to standard output, or `file`."""
    print(visible(text), file=file)


def complain(text: str, code: int) -> int:
    """Print `text` as one line on standard error; returns `code`."""
    who = f" (process {process_number()})" if process_number() else ""
    with contextlib.suppress(OSError):  # nobody reads it
        say(f"reflectkit{who}: {' '.join(text.split())}", sys.stderr)
    return code


def process_number() -> int:
    """This process' number among those that torchrun or `accelerate launch` started; 0 alone."""
    number = os.environ.get("RANK", "0")
    return int(number) if number.isdecimal() else 0


def _plain(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(PLAIN.get(one) or one.encode("ascii", "backslashreplace").decode() for one in missing), error.end
