"""split: 7:2:1 into train, validate and test, by what a split must not tear apart (a start state, a repository, a game)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from reflectkit.core.config import one_of, option
from reflectkit.core.console import Progress
from reflectkit.core.errors import ConfigError
from reflectkit.core.jsonl import write_json
from reflectkit.core.runs import Report, Table, open_run, write_permission
from reflectkit.core.seeding import generator
from reflectkit.data.splits import NAMES, SHARES, split_groups, split_weighted
from reflectkit.data.trajectories import read_records, record_to_json
from reflectkit.envs import env_class
from reflectkit.stages.common import RECORDS, EnvConfig

EXAMPLES = (
    "reflectkit split --env taxi",
    "reflectkit split --env auto_explore --by repo",
    "reflectkit split --env auto_explore --by question --seed 3",
)
BY = ("group", "repo", "question")
UNBALANCED = 0.05  # share of all questions by which a split may miss its own before it is said


@dataclass(frozen=True)
class Config(EnvConfig):
    """Settings of split."""

    task_file: Path | None = option(None, help=f"Records to split; default: {RECORDS} in the env's data folder.")
    by: str = option(
        "", help="What is not torn apart: group (a start state), repo or question; default: repo for auto_explore."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.by:
            one_of("by", self.by, BY)
        explores = hasattr(env_class(self.env), "records_folder")
        if (explores and self.by == "group") or (not explores and self.by in ("repo", "question")):
            raise ConfigError(f"--by {self.by} is not for env '{self.env}'; leave it out")


def run(config: Config, progress: Progress) -> Report:
    """Write `{train,validate,test}.json`.

    By repository the splits hold about 7:2:1 of the questions. Else groups with demonstrations and groups without are each
    split so.
    """
    source = config.task_file or config.folder / RECORDS
    write_permission(config.folder)
    with open_run("split", config, [source]) as current:
        if current.done:
            return current.done
        records = read_records(source, config.env_name)
        by_repo = hasattr(env_class(config.env), "records_folder") and config.by in ("", "repo")
        group_of = {record.task.id: record.task.id if config.by == "question" else record.task.group for record in records}
        if by_repo:
            sizes = Counter(group_of.values())
            name_of_group = split_weighted(sizes, generator(config.seed, "split"))
            _say_if_unbalanced(sizes, name_of_group, progress)
        else:
            taught: dict[str, bool] = {}
            for record in records:
                group = group_of[record.task.id]
                taught[group] = taught.get(group, False) or bool(record.trajectories)
            name_of_group = split_groups(taught, generator(config.seed, "split"))
        outputs, rows, figures = [], [], {}
        for name in NAMES:
            part = [record for record in records if name_of_group[group_of[record.task.id]] == name]
            path = config.folder / f"{name}.json"
            write_json(path, [record_to_json(record) for record in part])
            outputs.append(path)
            shown = sum(bool(record.trajectories) for record in part)
            figures[name] = {"tasks": len(part), "demonstrated": shown}
            rows.append((name, str(len({group_of[record.task.id] for record in part})), str(len(part)), str(shown)))
            if not part:
                progress.news(f"{path} holds no task: {len(name_of_group)} groups are too few for 7:2:1")
        current.tables.append(Table(f"Split of {source}", ("split", "groups", "tasks", "with demonstration"), tuple(rows)))
        return current.finish(figures, outputs)


def _say_if_unbalanced(sizes: Mapping[str, int], name_of_group: Mapping[str, str], progress: Progress) -> None:
    total = sum(sizes.values())
    held = {name: sum(size for group, size in sizes.items() if name_of_group[group] == name) / total for name in NAMES}
    if all(abs(held[name] - share / sum(SHARES)) <= UNBALANCED for name, share in zip(NAMES, SHARES, strict=True)):
        return
    largest = max(sizes, key=lambda group: sizes[group])
    shares = ":".join(f"{100 * held[name]:.0f}" for name in NAMES)
    progress.news(
        f"whole repositories cannot be split 70:20:10, this is {shares}: {largest} alone holds"
        f" {100 * sizes[largest] / total:.0f} % of the questions of"
        f" {len(sizes)} repositories; add some, or use --by question"
    )
