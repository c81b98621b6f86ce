"""split: 7:2:1 into train, validate and test, by what a split must not tear apart (a start state, a repository, a game)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from reflectkit.core.config import option
from reflectkit.core.console import Progress
from reflectkit.core.jsonl import write_json
from reflectkit.core.runs import Report, Table, open_run, write_permission
from reflectkit.core.seeding import generator
from reflectkit.data.splits import NAMES, split_groups
from reflectkit.data.trajectories import read_records, record_to_json
from reflectkit.stages.common import RECORDS, EnvConfig

EXAMPLES = ("reflectkit split --env taxi", "reflectkit split --env taxi --task-file data/taxi/data_reflection_negative.json")


@dataclass(frozen=True)
class Config(EnvConfig):
    """Settings of split."""

    task_file: Path | None = option(None, help=f"Records to split; default: {RECORDS} in the env's data folder.")


def run(config: Config, progress: Progress) -> Report:
    """Write `{train,validate,test}.json`; groups with demonstrations and groups without are each split 7:2:1."""
    source = config.task_file or config.folder / RECORDS
    write_permission(config.folder)
    with open_run("split", config, [source]) as current:
        if current.done:
            return current.done
        records = read_records(source, config.env_name)
        taught: dict[str, bool] = {}
        for record in records:
            taught[record.task.group] = taught.get(record.task.group, False) or bool(record.trajectories)
        name_of_group = split_groups(taught, generator(config.seed, "split"))
        outputs, rows, figures = [], [], {}
        for name in NAMES:
            part = [record for record in records if name_of_group[record.task.group] == name]
            path = config.folder / f"{name}.json"
            write_json(path, [record_to_json(record) for record in part])
            outputs.append(path)
            shown = sum(bool(record.trajectories) for record in part)
            figures[name] = {"tasks": len(part), "demonstrated": shown}
            rows.append((name, str(len({record.task.group for record in part})), str(len(part)), str(shown)))
            if not part:
                progress.news(f"{path} holds no task: {len(taught)} groups are too few for 7:2:1")
        current.tables.append(Table(f"Split of {source}", ("split", "groups", "tasks", "with demonstration"), tuple(rows)))
        return current.finish(figures, outputs)
