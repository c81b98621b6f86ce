"""What a stage reports: figures, files, and tables for a person."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


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
