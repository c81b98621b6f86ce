"""filter-task: merge the files of gen-task, or of the original toolkit, into one clean list of
questions.

Drops empty questions and missing files, writes commands as the environment offers them, appends `id
FILE` after a final `cat`, and merges duplicate questions with their trajectories.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from typing_extensions import override

from reflectkit.commands import Traits
from reflectkit.config import Config, Rule, option
from reflectkit.console import Progress, Report, Table
from reflectkit.envs import PROBLEMS
from reflectkit.envs.auto_explore.questions import FileQuestion, normal_path, read_question, to_json
from reflectkit.envs.auto_explore.repository import (
    answer_of,
    can_be_named,
    find_repository,
    shortest_path,
)
from reflectkit.envs.setup import EnvSetup, check_explores
from reflectkit.errors import DataError
from reflectkit.files import is_there
from reflectkit.jsonl import lone_surrogate, read_json_list, write_json
from reflectkit.runs.run import Run, RunConfig, open_run, write_permission

EXAMPLES = (
    "reflectkit filter-task",
    "reflectkit filter-task --task-file data/auto_explore/tasks/",
)
NULL: dict[str, Any] = {"question": "", "answer": "", "model": "", "optimal_path": []}
MINOR = ("seed",)  # nothing is random
TRAITS = Traits(writes_data=True)


class FilterTaskConfig(Config):
    """Settings of filter-task."""

    env: str = option("auto_explore", help="The environment that the questions are for.")
    task_file: Path | None = option(
        None, help="A JSON file, or a folder of them; default: tasks in the env's data folder."
    )
    repos_dir: Path | None = option(
        None, help="The filtered repositories; default: repos_filtered in the env's data folder."
    )
    run: RunConfig = RunConfig()

    @property
    def setup(self) -> EnvSetup:
        """The environment."""
        return EnvSetup(self.env, self.run.data_dir)

    @property
    def source(self) -> Path:
        """The file of the questions, or the folder of their files."""
        return self.task_file or self.setup.env_folder / "tasks"

    @property
    def repos_folder(self) -> Path:
        """The folder of the filtered repositories."""
        return self.repos_dir or self.setup.repos_folder

    @override
    def contradictions(self) -> Iterator[Rule]:
        check_explores("filter-task", self.env)
        yield from ()


CONFIG = FilterTaskConfig


def run(config: FilterTaskConfig, progress: Progress) -> Report:
    """Write `tasks_filtered/data.json`. Raises DataError, naming file, record and field."""
    # 1. Resolve: the files of questions
    source = config.source
    if not config.task_file and not is_there(source):
        raise DataError(
            source, "no such folder; run `reflectkit gen-task` first, or give --task-file"
        )
    files = _json_files(source)
    write_permission(config.setup.folder)
    with open_run("filter-task", config, files) as current:
        if current.done:
            return current.done

        # 2. The questions, and what was dropped
        collection = _collection(config, files, progress)
        if not collection.questions:
            counts = dict(collection.drop_counts)
            fix = f"were the repositories filtered into {config.repos_folder}?"
            raise DataError(source, f"no questions are left: {counts}; {fix}")

        # 3. Their list
        target = config.setup.folder / PROBLEMS
        write_json(target, collection.records())

        # 4. Report
        return _report(collection, target, current)


@dataclass(frozen=True)
class Collection:
    """The questions of all files."""

    questions: Mapping[str, FileQuestion]
    """By id, once each."""
    trajectories: Mapping[str, Sequence[Any]]
    """Those of all copies of a question, by its id."""
    drop_counts: Mapping[str, int]
    """The number of dropped questions by reason."""

    def records(self) -> list[dict[str, Any]]:
        """The questions as `data.json` has them."""
        records = []
        for identifier, question in self.questions.items():
            record = to_json(question)
            if self.trajectories[identifier]:
                record |= {"trajectories": self.trajectories[identifier]}
            records.append(record)
        return records


def _collection(config: FilterTaskConfig, files: Sequence[Path], progress: Progress) -> Collection:
    """The questions of `files`, once each, with the trajectories of all their copies. Raises
    DataError.
    """
    repos, levels = config.repos_folder, config.setup.kind.levels
    questions: dict[str, FileQuestion] = {}
    trajectories: dict[str, list[Any]] = {}
    drop_counts: Counter[str] = Counter()
    with progress.bar("Filtering questions", len(files)) as bar:
        for path in files:
            for number, value in enumerate(read_json_list(path)):
                # 1. The question, or why it is dropped
                where = f"{path}, record {number}"
                # The original toolkit's files have null in optional fields
                if isinstance(value, dict):
                    value |= {name: NULL[name] for name in NULL if value.get(name, "") is None}
                question = _clean(read_question(value, where), repos, levels)
                if isinstance(question, str):
                    drop_counts[question] += 1
                    continue

                # 2. Its first copy, and the trajectories of all
                if question.id in questions:
                    drop_counts["there twice"] += 1
                questions.setdefault(question.id, question)
                merged = trajectories.setdefault(question.id, [])
                _merge(merged, value.get("trajectories") or [], where)
            bar.advance()
    return Collection(questions, trajectories, drop_counts)


def _report(collection: Collection, target: Path, current: Run) -> Report:
    """The table and figures: what is in file `target`, by level, and what was dropped."""
    # 1. What is counted
    kept = len(collection.questions)
    levels = Counter(question.n_level for question in collection.questions.values())
    level_counts = dict(sorted(levels.items()))
    drop_counts = dict(sorted(collection.drop_counts.items()))

    # 2. The table
    rows = [("kept", str(kept))]
    rows += [(f"  depth {level}", str(count)) for level, count in level_counts.items()]
    rows += [(f"dropped: {reason}", str(count)) for reason, count in drop_counts.items()]
    current.tables.append(Table(f"Questions in {target}", ("what", "count"), tuple(rows)))
    figures = {"kept": kept, "dropped": drop_counts, "by_level": level_counts}
    return current.finish(figures, [target])


def _json_files(source: Path) -> list[Path]:
    if not source.is_dir():
        return [source]
    files = sorted(path for path in source.glob("*.json") if not path.name.startswith("."))
    if not files:
        raise DataError(
            source, "contains no .json file; run `reflectkit gen-task` first, or give --task-file"
        )
    return files


def _clean(question: FileQuestion, repos: Path, levels: Sequence[str]) -> FileQuestion | str:
    """The question as the environment can ask it, or why it is dropped."""
    # 1. Its text
    text = " ".join(question.question.split())
    if lone_surrogate(text + question.answer):
        return "text that is not valid Unicode"
    if not text:
        return "empty question"

    # 2. Its file
    try:
        repository = find_repository(repos, question.root)
    except DataError:
        return "no such repository"
    filename, level = question.filename, question.filename.count("/")
    if filename not in repository.sizes:
        return "vanished file"
    if not can_be_named(repository, filename) or str(level) not in levels:
        return "file that commands cannot reach"

    # 3. The commands that lead there, as the environment offers them
    way = normal_path(question.optimal_path)
    if answer_of(repository, way) != filename:
        way = tuple(shortest_path(filename))
    return replace(question, question=text, optimal_path=way, n_level=level)


def _merge(merged: list[Any], trajectories: Any, where: str) -> None:
    """Add `trajectories`, numbered among those of their kind: "positive0", "negative1", … Raises
    DataError.
    """
    try:
        for trajectory in trajectories:
            kind = "negative" if trajectory["info"].startswith("negative") else "positive"
            merged.append(
                trajectory
                | {"info": f"{kind}{sum(item['info'].startswith(kind) for item in merged)}"}
            )
    except (TypeError, KeyError, AttributeError):
        raise DataError(
            where, "expected a list of objects with `info`", field="trajectories"
        ) from None
