"""How `gen-task` makes an env's problems without a teacher: a generator with its own settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from reflectkit.config import Config
from reflectkit.console import Progress, Table
from reflectkit.types import Task


@dataclass(frozen=True)
class Generated:
    """What a generator made."""

    tasks: Mapping[str, Sequence[Task]]
    """Problems by the name of their file of records, without `.json`. A file without problems is
    removed.
    """
    figures: Mapping[str, Any]
    """Figures for the report: JSON values by name."""
    tables: tuple[Table, ...] = ()
    outputs: tuple[Path, ...] = ()
    """Files and folders besides the records."""


class ProblemGenerator:
    """Makes the problems of one env; named by its `problem_generator`."""

    Settings: ClassVar[type[Config]]
    """A `Config` with fields made by `option`: flags of `gen-task` for this env."""
    noun: ClassVar[str]
    """What the problems are called, in the plural."""

    def __init__(self, settings: Any, folder: Path, seed: int) -> None:
        self.settings, self.folder, self.seed = settings, folder, seed
        """folder: the env's data folder."""

    def inputs(self) -> list[Path]:
        """The files and folders to read. Raises DataError if they cannot be used."""
        return []

    def outputs(self) -> list[Path]:
        """Folders to write to, besides that of the records."""
        return []

    def generate(self, progress: Progress) -> Generated:
        """Make the problems; resumes a killed run. Raises DataError."""
        raise NotImplementedError
