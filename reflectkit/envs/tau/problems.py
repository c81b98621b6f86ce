"""The problems of env `tau`: the package's tasks by domain, split and index, without their texts."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from reflectkit.config import Config, option
from reflectkit.console import Progress, Table
from reflectkit.envs.problems import Generated, ProblemGenerator
from reflectkit.envs.tau.env import FILE_OF_SPLIT, NAME, Tau
from reflectkit.envs.tau.package import SPLITS, problems
from reflectkit.errors import ConfigError
from reflectkit.types import Task


class ProblemSettings(Config):
    """The generator's settings."""

    domain: tuple[Literal["retail", "airline"], ...] = option(
        (), help="Only this domain: retail or airline (repeat the flag)."
    )
    split: tuple[Literal["train", "dev", "test"], ...] = option(
        (), help="Only this split: train, dev, test (repeat the flag)."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.selected:
            raise ConfigError(f"--split {', '.join(self.split)}: {self.domain[0]} has only test")
        return self

    @property
    def selected(self) -> list[tuple[str, str]]:
        """(domain, split), in the package's order."""
        return [
            (name, split)
            for name, splits in SPLITS.items()
            for split in splits
            if name in (self.domain or SPLITS) and split in (self.split or splits)
        ]


class Problems(ProblemGenerator):
    """The tasks of the chosen domains and splits."""

    Settings: ClassVar[type[Config]] = ProblemSettings
    noun: ClassVar[str] = "tasks"
    settings: ProblemSettings

    def generate(self, progress: Progress) -> Generated:
        """`data.json` with all of them, and `train.json`, `validate.json` (the package's "dev") and `test.json`.

        Raises ConfigError if the package is missing.
        """
        tasks: list[Task] = []
        rows = []
        with progress.bar("Splits", len(self.settings.selected)) as bar:
            for name, split in self.settings.selected:
                listed = tasks_of(name, split)
                tasks += listed
                rows.append((name, split, str(len(listed)), str(len({task.group for task in listed}))))
                bar.advance()
        figures = {"tasks": len(tasks)} | {f"{name}_{split}": int(count) for name, split, count, _ in rows}
        files = {
            name: [task for task in tasks if Tau.taskset.split_of(task) == name] for name in FILE_OF_SPLIT.values()
        }
        table = Table(f"Tasks in {self.folder}", ("domain", "split", "tasks", "customers"), tuple(rows))
        return Generated({"data": tasks, **files}, figures, (table,))


def tasks_of(name: str, split: str) -> list[Task]:
    """The tasks of one split. Raises ConfigError if the package is missing."""
    return [
        Task(
            f"{name}-{split}-{index}",
            NAME,
            name,
            f"{name}/{problem.customer}",
            {"domain": name, "split": split, "index": index, "digest": problem.digest},
        )
        for index, problem in enumerate(problems(name, split))
    ]
