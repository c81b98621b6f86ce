"""Which problems an env has, and what belongs together among them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

from reflectkit.console import Progress
from reflectkit.envs.part import Part
from reflectkit.errors import ConfigError
from reflectkit.types import Task


class Taskset(Part):
    """The problems of an env, which is `self.env`, a class. A subclass defines what its env has of these."""

    problem_generator: ClassVar[str] = ""
    """The class with which `gen-task` makes problems, as "module:Class"; see `envs.problems.ProblemGenerator`."""
    repositories_folder: ClassVar[str] = ""
    """Where the problems are questions about the files of repositories (`Explorer`): the folder of these in the env's
    data folder, which `filter-repo` fills. `gen-task` and `filter-task` then make the problems.
    """
    records_folder: ClassVar[str] = ""
    """Subfolder of the env's data folder for records, splits and rows; "": the data folder itself."""
    problems_advice: ClassVar[str] = ""
    """How to make problems, as advice to users who have none."""
    split_by: ClassVar[tuple[str, ...]] = ("group",)
    """What `split` may keep in one split: "group" (`Task.group`), "repo" (the same, by the number of its problems) or
    "question" (each problem alone); the first unless told otherwise.
    """
    keeps_other_levels: ClassVar[bool] = True
    """Whether the records keep problems of levels other than the demonstrated one, for evaluation."""

    def __iter__(self) -> Iterator[Task]:
        """All problems of all levels, the easiest level first."""
        for level in self.env.levels:
            yield from self.tasks(level)

    def tasks(self, level: str) -> list[Task]:
        """All problems of `level`. An env without this method takes its problems from a file."""
        raise ConfigError(f"env '{self.env.name}' does not list its own problems; give --task-file")

    def example(self, level: str, seed: int) -> Task:
        """A problem for users without a file of them."""
        raise ConfigError(f"env '{self.env.name}' has no example of a problem; give --task-file")

    def at_level(self, task: Task, level: str) -> Task | None:
        """The same problem at another curriculum level, or None where it has no such version."""
        return task if task.level == level else None

    def cluster(self, task: Task) -> str:
        """What a problem is about, e.g. a file; problems of one cluster are not independent in the statistics."""
        return task.id

    def aspects(self, task: Task) -> Mapping[str, str]:
        """What the results of problems are broken down by, e.g. {"mood": "terse"}."""
        return {}

    def split_of(self, task: Task) -> str:
        """The split that a problem comes with: "train", "validate" or "test"; "" leaves it to `split`."""
        return ""

    def room_of(self, task: Task) -> str:
        """The room of a problem, if `split` can hold out rooms; else ""."""
        return str(task.data.get("room", ""))

    def kind_of_room(self, room: str) -> str:
        """The kind of a room; `split --unseen-rooms` holds out a share of each kind."""
        return room.rstrip("0123456789")

    def episode_steps(self, task: Task) -> int | None:
        """Number of steps of an episode of `task`, if it is known in advance."""
        return None

    def input_files(self, settings: Any, folder: Path, tasks: Sequence[Task]) -> list[Path]:
        """The files and folders that these tasks are set in, besides their records: inputs of a run.

        folder: the env's data folder.
        """
        return []

    def benchmark(self, folder: Path, files: int, seed: int, progress: Progress) -> tuple[list[Task], dict[str, Any]]:
        """(problems to measure the env on, settings to play them with). Raises ConfigError where a file is needed.

        folder: empty, for what the problems are set in. files: how many files a repository gets.
        """
        return self.tasks(self.env.levels[-1]), {}


class Explorer(Protocol):
    """The further methods of a taskset with a `repositories_folder`. Its env's levels are folder depths."""

    env: Any
    repositories_folder: ClassVar[str]

    def open_repository(self, folder: Path) -> Any:
        """The repository in `folder`: `sizes` by path, `view(path, tokens)`. Raises DataError."""

    def way_to(self, path: str) -> tuple[str, ...]:
        """The commands from the root that read file `path` and name it, which is the last of them."""

    def reaches(self, repository: Any, path: str) -> bool:
        """Whether the offered commands can reach and name file `path`."""

    def answer_of(self, repository: Any, commands: Sequence[str]) -> str:
        """The file that the sequence `commands` ends by naming; "" if none."""
