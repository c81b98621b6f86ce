"""How a stage reports progress and asks questions without printing: progress bars, lines of text,
and prompts.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class Bar:
    """One progress bar; this one shows nothing."""

    def advance(self, amount: int = 1, **figures: float) -> None:
        """Move by `amount`, and show `figures` (name → value) next to the bar."""


class Progress(Bar):
    """Receives bars and lines of text, and shows nothing. The command line's subclass shows them."""

    @contextmanager
    def bar(self, title: str, total: int, start: int = 0) -> Iterator[Bar]:
        """A bar of `total` that starts at `start`; it disappears when the context ends."""
        yield self

    def news(self, text: str) -> None:
        """Text to read, of one or several lines."""

    @property
    def attended(self) -> bool:
        """Whether a person can answer questions; False if answers come from a file or nowhere."""
        return False

    def ask(self, question: str) -> str | None:
        """The line entered in reply; None at the end of the input."""
        return None


Quiet = Progress


@dataclass(frozen=True)
class Table:
    """A table for a person. columns: headings. rows: cells as text, one for each column."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def figures_table(title: str, heading: str, figures: Mapping[str, Any]) -> Table:
    """Figures by name as a table with two columns."""
    rows = [
        (name.replace("_", " "), f"{value:.4g}" if isinstance(value, float) else str(value))
        for name, value in figures.items()
    ]
    return Table(title, ("what", heading), tuple(rows))


@dataclass(frozen=True)
class Report:
    """What a stage did."""

    stage: str
    """Name of the stage."""
    folder: Path
    """Folder of the run."""
    figures: dict[str, Any]
    """JSON values by name."""
    outputs: tuple[Path, ...] = ()
    """Files and folders that it made."""
    tables: tuple[Table, ...] = ()
    """Results for a person."""
    skipped: bool = False
    """Whether the run had already finished."""
    closing: tuple[str, ...] = ()
    """Lines to end with, e.g. commands to type next."""
    code: int = 0
    """The command's exit code: 1 if something that it checked failed."""


def process_number() -> int:
    """The rank of this process under torchrun or `accelerate launch`; 0 without them."""
    number = os.environ.get("RANK", "0")
    return int(number) if number.isdecimal() else 0


def visible(text: str) -> str:
    """`text` made safe for a terminal: unprintable characters except newlines are escaped or become
    a space.

    >>> visible("red\\x1b[31m, \\u202eback, tab\\tend")
    'red\\\\x1b[31m, \\\\u202eback, tab end'
    """
    return text if text.isprintable() else "".join(map(_visible, text))


def _visible(character: str) -> str:
    if character == "\n" or character.isprintable():
        return character
    return (
        " "
        if character == "\t" or unicodedata.category(character) == "Zs"
        else repr(character)[1:-1]
    )
