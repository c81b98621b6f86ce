"""`--env decisions`: labelled decisions as problems of one step, for evaluation against labels and
for RL.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from reflectkit.config import Config, option
from reflectkit.decisions.labelled import COLUMNS, LabelledDecision, labelled_decision
from reflectkit.env import Action, Env, StepResult, Taskset, Teacher, check_choice, check_task
from reflectkit.errors import ConfigError, DataError
from reflectkit.jsonl import dumps, read_jsonl
from reflectkit.types import Observation, Task


class LabelledSettings(Config):
    """Labelled decisions."""

    dataset: str = option(
        "",
        help='Labelled decisions, a line {"state", "question", "options", "answer"} each;'
        ' "probabilities" may take the place of "answer", and without "options" they are yes and'
        " no.",
        essential=True,
    )


class LabelledTasks(Taskset):
    """The rows of `--dataset`: a problem each; those with the same state stay in one split."""

    needs_settings: ClassVar[bool] = True

    @property
    def records_folder(self) -> str:  # type: ignore[override]
        """Each file has a folder of its own."""
        dataset = self.settings.dataset if self.settings else ""
        return re.sub(r"[^\w.-]+", "--", dataset).strip(".-")

    def tasks(self, level: str) -> list[Task]:
        """A problem for each row."""
        if not (self.settings and self.settings.dataset):
            raise ConfigError("env 'decisions' needs --dataset, a file of labelled decisions")
        path = Path(self.settings.dataset)
        tasks: list[Task] = []
        # The first line with a state names the group of all lines with it
        first: dict[str, str] = {}
        for line, row in read_jsonl(path):
            # Raises DataError for a row that is none
            labelled_decision(row, path, line)
            # Other columns are of no use to the env
            data = {name: row[name] for name in COLUMNS if row.get(name) is not None}
            group = first.setdefault(dumps(row["state"]), str(line))
            tasks.append(Task(str(line), self.env.name, level, group, data))
        if not tasks:
            raise DataError(path, "has no rows")
        return tasks

    def cluster(self, task: Task) -> str:
        """The state."""
        return json.dumps(task.data.get("state"))

    def input_files(
        self,
        settings: Any,
        folder: Path,
        tasks: Sequence[Task],
    ) -> list[Path]:
        """The file."""
        return [Path(settings.dataset)]


class LabelTeacher(Teacher):
    """The label."""

    env: Decisions

    def action(self) -> int:
        """The first of the likeliest options."""
        return self.env.row.best[0]

    def best_actions(self) -> list[int]:
        """The likeliest options."""
        return self.env.row.best


class Decisions(Env):
    """Answer a question about a state, from labelled decisions (--dataset).

    The reward is the label's probability of the option that was chosen. It is a success if no other is likelier.
    """

    name = "decisions"
    horizons: ClassVar[Mapping[str, int]] = {"all": 1}
    Settings: ClassVar[type[Config]] = LabelledSettings
    taskset: ClassVar[Taskset] = LabelledTasks()
    teacher_type: ClassVar[type[Teacher]] = LabelTeacher

    row: LabelledDecision
    """The decision at hand."""

    def reset(self, task: Task, seed: int) -> Observation:
        """Show the state, the question and its options."""
        check_task(task, self.name, self.levels)
        self.row = labelled_decision(task.data, task.id)
        return self.row.observation

    def step(self, action: Action) -> StepResult:
        """Compare the option with the label."""
        index = check_choice(action, self.row.question.options, self.name)
        info = {"success": index in self.row.best}
        return StepResult(self.row.observation, self.row.probabilities[index], True, info=info)
