"""filter-task: merge the files of gen-task, or of the original toolkit, into one clean list of questions.

Drops empty questions and missing files, writes commands as the environment offers them, appends `id FILE` after a final
`cat`, and merges duplicate questions with their trajectories.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import field_validator

from reflectkit.commands import Traits
from reflectkit.config import Config, option
from reflectkit.console import Progress, Report, Table
from reflectkit.data.questions import Question, normal_path, read_question, to_json
from reflectkit.env import Explorer
from reflectkit.envs.setup import EnvSetup, explorer
from reflectkit.errors import DataError
from reflectkit.jsonl import read_json_list, write_json
from reflectkit.runs.folders import RunConfig, write_permission
from reflectkit.runs.run import open_run

EXAMPLES = (
    "reflectkit filter-task",
    "reflectkit filter-task --task-file data/auto_explore/tasks/",
)


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

    @field_validator("env")
    @classmethod
    def _explores(cls, env: str) -> str:
        explorer("filter-task", env)
        return env


def run(config: FilterTaskConfig, progress: Progress) -> Report:
    """Write `tasks_filtered/data.json`. Raises DataError, naming file, record and field."""
    source = config.task_file or config.setup.env_folder / "tasks"
    files = _json_files(source)
    repos, tasks = config.repos_dir or config.setup.repos_folder, explorer("filter-task", config.env)
    write_permission(config.setup.folder)
    with open_run("filter-task", config, files) as current:
        if current.done:
            return current.done
        dropped: Counter[str] = Counter()
        kept: dict[str, tuple[Question, list[Any]]] = {}
        with progress.bar("Filtering questions", len(files)) as bar:
            for path in files:
                for number, value in enumerate(read_json_list(path)):
                    _take(value, f"{path}, record {number}", repos, tasks, kept, dropped)
                bar.advance()
        if not kept:
            raise DataError(
                source, f"no questions are left: {dict(dropped)}; were the repositories filtered into {repos}?"
            )
        target = config.setup.folder / "data.json"
        write_json(target, [_record(question, trajectories) for question, trajectories in kept.values()])
        levels = Counter(question.n_level for question, _ in kept.values())
        figures = {
            "kept": len(kept),
            "dropped": dict(sorted(dropped.items())),
            "by_level": dict(sorted(levels.items())),
        }
        rows = [
            ("kept", str(len(kept))),
            *((f"  depth {level}", str(count)) for level, count in sorted(levels.items())),
        ]
        rows += [(f"dropped: {reason}", str(count)) for reason, count in sorted(dropped.items())]
        current.tables.append(Table(f"Questions in {target}", ("what", "count"), tuple(rows)))
        return current.finish(figures, [target])


def _json_files(source: Path) -> list[Path]:
    if not source.is_dir():
        return [source]
    files = sorted(path for path in source.glob("*.json") if not path.name.startswith("."))
    if not files:
        raise DataError(source, "contains no .json file; run `reflectkit gen-task` first, or give --task-file")
    return files


def _take(
    value: object,
    where: str,
    repos: Path,
    tasks: Explorer,
    kept: dict[str, tuple[Question, list[Any]]],
    dropped: Counter[str],
) -> None:
    """Add one record to `kept`, or count in `dropped` why not."""
    if not isinstance(value, dict):
        raise DataError(where, f"expected a JSON object, found {type(value).__name__}")
    empty = {name: "" for name in ("question", "answer", "model") if value.get(name, "") is None}
    value = value | empty | ({"optimal_path": []} if value.get("optimal_path", []) is None else {})
    question = read_question(value, where)
    question_text = " ".join(question.question.split())
    if not (question_text + question.answer).isascii() and _has_surrogates(question_text + question.answer):
        dropped["text that is not valid Unicode"] += 1
        return
    if not question_text:
        dropped["empty question"] += 1
        return
    try:
        if "/" in question.root or question.root in ("", ".", ".."):
            raise DataError(where, f"{question.root!r} is not a repository name", field="root")
        repository = tasks.open_repository(repos / question.root)
    except DataError:
        dropped["no such repository"] += 1
        return
    if question.filename not in repository.sizes:
        dropped["vanished file"] += 1
        return
    if not tasks.reaches(repository, question.filename) or str(question.filename.count("/")) not in tasks.env.levels:
        dropped["file that commands cannot reach"] += 1
        return
    way = normal_path(question.optimal_path)
    if tasks.answer_of(repository, way) != question.filename:
        way = tasks.way_to(question.filename)
    clean = replace(question, question=question_text, optimal_path=way, n_level=question.filename.count("/"))
    trajectories = value.get("trajectories") or []
    if not isinstance(trajectories, list):
        raise DataError(where, "expected a list", field="trajectories")
    if clean.id in kept:
        dropped["there twice"] += 1
    merged = kept.setdefault(clean.id, (clean, []))[1]
    for trajectory in trajectories:
        merged.append(_renumbered(trajectory, merged, where))


def _has_surrogates(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def _renumbered(trajectory: Any, before: list[Any], where: str) -> Any:
    """`trajectory`, numbered among those of its kind: "positive0", "negative1", …"""
    if not isinstance(trajectory, dict) or not isinstance(trajectory.get("info"), str):
        raise DataError(where, "expected objects with `info`", field="trajectories")
    kind = "negative" if trajectory["info"].startswith("negative") else "positive"
    return trajectory | {"info": f"{kind}{sum(item['info'].startswith(kind) for item in before)}"}


def _record(question: Question, trajectories: list[Any]) -> dict[str, Any]:
    return to_json(question) | ({"trajectories": trajectories} if trajectories else {})
