"""Lines for the terminal, without control sequences and in any encoding.

All output goes through `say`, or through `Screen` in `cli/display.py`.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import sys
from typing import TextIO

from reflectkit.text import visible

PLAIN = {"→": "->", "…": "...", "─": "-", "│": "|", "×": "x", "±": "+-", "−": "-", "–": "-", "·": ".", "•": "*"}
"""Substitutes for characters that the terminal's encoding lacks; all others are escaped as in `\\xe9`."""
PLAIN_ERRORS = "reflectkit-plain"


def prepare() -> None:
    """Make the standard streams accept any text. A stream that was closed at the start becomes the null device."""
    codecs.register_error(PLAIN_ERRORS, _plain)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  open until the process ends
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=PLAIN_ERRORS)


def say(text: str, file: TextIO | None = None) -> None:
    """Print `text` and a newline to standard output, or to `file`."""
    print(visible(text), file=file)


def print_error(text: str, code: int) -> int:
    """Print `text` as one line on standard error; returns `code`."""
    from reflectkit.keys import masked

    process = f" (process {process_number()})" if process_number() else ""
    with contextlib.suppress(OSError):  # standard error is closed
        say(f"reflectkit{process}: {' '.join(masked(text).split())}", sys.stderr)
    return code


def process_number() -> int:
    """The rank of this process under torchrun or `accelerate launch`; 0 without them."""
    number = os.environ.get("RANK", "0")
    return int(number) if number.isdecimal() else 0


def _plain(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    characters = error.object[error.start : error.end]
    plain = (PLAIN.get(character) or character.encode("ascii", "backslashreplace").decode() for character in characters)
    return "".join(plain), error.end
