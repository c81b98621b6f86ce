"""split: divide the problems into train, validate and test, 7:2:1 or as asked, keeping each group
(a start state, a repository, a game) in one split.

If tasks are set in rooms, some rooms can be held out first with all their tasks. A problem that
comes with a split of its own, as a benchmark's, stays in it, except with `--by question`. A file of
problems is never replaced by an empty one.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import field_validator
from typing_extensions import override

from reflectkit.commands import Traits
from reflectkit.config import Config, Rule, option
from reflectkit.console import Progress, Report, Table
from reflectkit.data.problems import (
    SHARES,
    Record,
    levels_by_group,
    read_records,
    record_to_json,
    split_groups,
)
from reflectkit.env import Taskset
from reflectkit.envs import ENV_HELP, PROBLEMS, RECORDS, SPLITS, env_class, split_of
from reflectkit.envs.setup import EnvSetup, problem_settings
from reflectkit.errors import ConfigError, DataError
from reflectkit.files import is_there
from reflectkit.jsonl import read_json, write_json
from reflectkit.runs.run import Run, RunConfig, open_run
from reflectkit.seeding import generator
from reflectkit.text import pluralize
from reflectkit.types import Task

EXAMPLES = (
    "reflectkit split --env taxi",
    "reflectkit split --env auto_explore --by repo",
    "reflectkit split --env auto_explore --by question --seed 3",
    "reflectkit split --env auto_explore --ratio 8:2:2",
    "reflectkit split --env alfworld --unseen-rooms 0.2",
)
UNSEEN = "unseen"
TRAITS = Traits(writes_data=True)


class SplitConfig(Config):
    """Settings of split."""

    env: str = option(help=ENV_HELP)
    settings: Any = problem_settings("env")
    task_file: Path | None = option(
        None,
        help=f"Records to split; default: {RECORDS} in the env's data folder; before there are any,"
        f" {PROBLEMS} or the"
        " env's own list.",
    )
    by: Literal["", "group", "repo", "question"] = option(
        "",
        help=(
            "Unit to keep in one split: group (a start state), repo or question; default: the"
            " env's own."
        ),
    )
    ratio: str = option("7:2:1", help="Shares of train, validate and test.")
    unseen_rooms: float = option(
        0.0,
        help="If problems are set in rooms, as in alfworld: share of each kind of room (at least one)"
        " whose problems"
        " all go to unseen.json; 0: none.",
        ge=0,
        le=1,
    )
    run: RunConfig = RunConfig()

    @field_validator("ratio")
    @classmethod
    def _three_numbers(cls, ratio: str) -> str:
        if not re.fullmatch("[1-9][0-9]*:[1-9][0-9]*:[1-9][0-9]*", ratio):
            raise ValueError(f"{ratio!r:.40}: write three whole numbers from 1, e.g. 7:2:1")
        return ratio

    @override
    def contradictions(self) -> Iterator[Rule]:
        is_other = self.by and self.by not in self.taskset.split_by
        yield is_other, f"--by {self.by} is not for env '{self.env}'; leave it out"

    @property
    def taskset(self) -> Taskset:
        """The env's problems."""
        return self.setup.taskset

    @property
    def setup(self) -> EnvSetup:
        """The environment."""
        return EnvSetup(self.env, self.run.data_dir, self.settings)

    @property
    def folder(self) -> Path:
        """The folder of the env's records and splits."""
        return self.setup.folder

    @property
    def source(self) -> Path | None:
        """The file to split; None for an env that lists its own problems, before there are records
        of them.
        """
        # 1. The given file
        if self.task_file:
            return self.task_file

        # 2. The first one that exists
        places = [self.folder / RECORDS, self.folder / PROBLEMS]
        for place in places:
            if is_there(place):
                return place

        # 3. The env's own list; a file that is missing is refused later
        return None if self.taskset.has("tasks") else places[0]

    def file_of(self, split: str) -> Path:
        """The file of a split."""
        return self.folder / f"{split}.json"

    @property
    def shares(self) -> tuple[int, ...]:
        """`ratio` in numbers."""
        return tuple(map(int, self.ratio.split(":")))


CONFIG = SplitConfig


def run(config: SplitConfig, progress: Progress) -> Report:
    """Write `{train,validate,test}.json`.

    By repository the splits hold about --ratio of the questions. Otherwise groups with
    demonstrations and groups without are each split in this ratio.
    """
    # 1. Resolve: the records
    source = config.source
    if source is not None:
        config.setup.require(source)
    config.setup.claim_folder()
    with open_run("split", config, _inputs(config, source)) as current:
        if current.done:
            return current.done
        records = _records(config, source)

        # 2. The records of each split, without those in rooms that no split gets
        seen, unseen = _seen_and_unseen(records, config, source)
        division = _divide(seen, config, is_from_list=source is None)
        parts = division.parts(seen)
        _check_parts(parts, division, config, source, progress)
        if unseen:
            parts[UNSEEN] = unseen

        # 3. The files. The rooms of an earlier split may be in this one's training split
        config.file_of(UNSEEN).unlink(missing_ok=True)
        for name, part in parts.items():
            write_json(config.file_of(name), [record_to_json(record) for record in part])

        # 4. Report
        return _report(config, source, parts, division, current, progress)


def _inputs(config: SplitConfig, source: Path | None) -> list[Path]:
    """The files that the run reads: `source`, and those of the env."""
    inputs = [source] if source else []
    if config.taskset.needs_settings:
        return inputs + config.setup.input_files([])
    return inputs + config.setup.code_files


def _records(config: SplitConfig, source: Path | None) -> list[Record]:
    """The records of file `source`, or of the env's own list. Raises DataError."""
    kind = env_class(config.env)
    if source is not None:
        return read_records(source, kind.name)
    records = []
    for level in kind.levels:
        for task in config.setup.listed(level):
            records.append(Record(task, ()))
    return records


def _seen_and_unseen(
    records: Sequence[Record], config: SplitConfig, source: Path | None
) -> tuple[list[Record], list[Record]]:
    """(the records to split, those in rooms that no split gets)."""
    taskset = config.taskset
    room_of = {record.task.id: taskset.room_of(record.task) for record in records}
    unseen_rooms = _unseen_rooms(set(room_of.values()), config, source)
    seen: list[Record] = []
    unseen: list[Record] = []
    for record in records:
        part = unseen if room_of[record.task.id] in unseen_rooms else seen
        part.append(record)
    return seen, unseen


def _check_parts(
    parts: Mapping[str, Sequence[Record]],
    division: Division,
    config: SplitConfig,
    source: Path | None,
    progress: Progress,
) -> None:
    """Say if the shares are missed. Raises ConfigError if a file with problems would be emptied."""
    for name, part in parts.items():
        if not part:
            _refuse_emptying(config, name, source, come_with_splits=not division.has_free)
    if division.unit == "repo":
        _tell_shares(list(map(len, parts.values())), config, progress)


def _report(
    config: SplitConfig,
    source: Path | None,
    parts: Mapping[str, Sequence[Record]],
    division: Division,
    current: Run,
    progress: Progress,
) -> Report:
    """The table and figures: the size of each split."""
    outputs, rows, figures = [], [], {}
    for name, part in parts.items():
        path = config.file_of(name)
        outputs.append(path)
        demonstration_count = sum(bool(record.trajectories) for record in part)
        figures[name] = {"tasks": len(part), "demonstrated": demonstration_count}
        groups = {group_of(record.task, division.unit) for record in part}
        rows.append((name, str(len(groups)), str(len(part)), str(demonstration_count)))
        if not part:
            progress.news(f"{path} has no tasks: {division.why_empty()}")
    headings = ("split", "groups", "tasks", "with demonstration")
    title = f"Split of {source or env_class(config.env).name}"
    current.tables.append(Table(title, headings, tuple(rows)))
    return current.finish(figures, outputs)


def group_of(task: Task, unit: str) -> str:
    """The group of a problem, which stays in one split. unit: "group", "repo" or "question"."""
    return task.id if unit == "question" else task.group


@dataclass(frozen=True, slots=True)
class Division:
    """The split of each problem."""

    unit: str
    """What stays in one split, see `group_of`."""
    ratio: str
    """Shares of the splits."""
    origins: Mapping[str, str]
    """By the id of a problem, the split that it comes with; "" for one that is free."""
    split_by_group: Mapping[str, str]
    """The split of each group of free problems."""
    stratum_count: int
    """The number of kinds of groups; each kind is divided by the ratio."""

    @property
    def has_free(self) -> bool:
        """Whether any problem comes without a split."""
        return not all(self.origins.values())

    def split_of(self, task: Task) -> str:
        """The split of a problem."""
        return self.origins[task.id] or self.split_by_group[group_of(task, self.unit)]

    def parts(self, records: Sequence[Record]) -> dict[str, list[Record]]:
        """The records of each split."""
        parts: dict[str, list[Record]] = {name: [] for name in SPLITS}
        for record in records:
            parts[self.split_of(record.task)].append(record)
        return parts

    def why_empty(self) -> str:
        """Why a split has no problems, and what to do."""
        if not self.has_free:
            return "none comes with this split"
        number = pluralize(len(self.split_by_group), "group")
        kinds = f" of {self.stratum_count} kinds" if self.stratum_count > 1 else ""
        fix = "use another --ratio, or smaller groups"
        return f"{self.ratio} needs more than {number}{kinds}; {fix}"


def _divide(
    records: Sequence[Record],
    config: SplitConfig,
    *,
    is_from_list: bool,
) -> Division:
    """A split for each of `records`. is_from_list: whether they are the env's own list."""
    unit = config.by or config.taskset.split_by[0]

    # 1. Problems that come with a split stay in it; the others are free
    origins = dict.fromkeys([record.task.id for record in records], "")
    if unit != "question":
        origins = {record.task.id: split_of(config.env, record.task) for record in records}
    free = [record for record in records if not origins[record.task.id]]

    # 2. Repositories by their numbers of questions, other groups within their kind
    chance = generator(config.run.seed, "split")
    stratum_count = 1
    if unit == "repo":
        sizes = Counter(group_of(record.task, unit) for record in free)
        split_by_group = split_weighted(sizes, chance, config.shares)
    else:
        strata = _strata(free, unit, config.taskset, is_from_list=is_from_list)
        stratum_count = len(set(strata.values()))
        split_by_group = split_groups(strata, chance, config.shares)
    return Division(unit, config.ratio, origins, split_by_group, stratum_count)


def _strata(
    records: Sequence[Record],
    unit: str,
    taskset: Taskset,
    *,
    is_from_list: bool,
) -> dict[str, Hashable]:
    """The kind of each group.

    In the env's own list, that is the levels of the group's problems. In a file, it is whether the
    group has demonstrations, and its level if it is set in a room.
    """
    # 1. In the env's own list
    strata: dict[str, Hashable] = {}
    if is_from_list:
        levels = levels_by_group(record.task for record in records)
        for record in records:
            strata[group_of(record.task, unit)] = levels[record.task.group]
        return strata

    # 2. In a file
    with_demonstration = {group_of(each.task, unit) for each in records if each.trajectories}
    for record in records:
        group = group_of(record.task, unit)
        room_level = record.task.level if taskset.room_of(record.task) else ""
        strata[group] = (group in with_demonstration, room_level)
    return strata


def _tell_shares(sizes: Sequence[int], config: SplitConfig, progress: Progress) -> None:
    """Say if whole repositories miss the shares by more than a tenth of all questions.

    sizes: the number of questions in each split.
    """
    total = sum(sizes)
    targets = [total * share / sum(config.shares) for share in config.shares]
    largest_gap = max(abs(size - target) for size, target in zip(sizes, targets, strict=True))
    if largest_gap > total / 10:
        text = ":".join(map(str, sizes))
        progress.news(
            f"whole repositories make {text} questions, not {config.ratio}; try --by question"
        )


def split_weighted(
    sizes: Mapping[str, int], generator: random.Random, shares: Sequence[int] = SHARES
) -> dict[str, str]:
    """A split name for each group, so that the splits hold about `shares` of the *problems*.

    Parameters
    ----------
    sizes: group → how many problems it has.

    Groups are assigned from largest to smallest, in random order within a size, to the split that
    lacks most of its share. With three or more groups, no split stays empty.
    """
    # 1. The largest first, and equal ones in random order
    groups = sorted(sizes)
    generator.shuffle(groups)
    groups.sort(key=lambda group: -sizes[group])

    # 2. The number of problems that each split should have
    total = sum(sizes.values())
    targets = {}
    for name, share in zip(SPLITS, shares, strict=True):
        targets[name] = total * share / sum(shares)

    # 3. Each group to the split that lacks most; the last groups to splits that have none
    assigned_sizes = dict.fromkeys(SPLITS, 0)
    assigned: dict[str, str] = {}
    for place, group in enumerate(groups):
        empty = [name for name in SPLITS if not assigned_sizes[name]]
        open_to = empty if len(groups) - place <= len(empty) else SPLITS
        name = max(open_to, key=lambda name: targets[name] - assigned_sizes[name])
        assigned[group] = name
        assigned_sizes[name] += sizes[group]
    return assigned


def _refuse_emptying(
    config: SplitConfig, name: str, source: Path | None, *, come_with_splits: bool
) -> None:
    """Raises ConfigError if the file of split `name`, which would get no problems, has some."""
    # 1. The problems in the file
    path = config.file_of(name)
    count = len(read_json(path)) if path.is_file() else 0
    if not count:
        return

    # 2. Why there would be none, and what else to do
    why = f"with --ratio {config.ratio}"
    if come_with_splits:
        why = "whose problems come with their splits"
    by_question = "question" in config.taskset.split_by and config.by != "question"
    other = "add --by question" if by_question else "use another --ratio"
    raise ConfigError(
        f"{path} has {pluralize(count, 'problem')} and would get none from {source or config.env},"
        f" {why}; {other}, or move that file away"
    )


def _unseen_rooms(
    rooms: AbstractSet[str], config: SplitConfig, source: Path | None
) -> frozenset[str]:
    """The held-out rooms. rooms: those of all problems; "" for a problem without one.

    Raises ConfigError for tasks that are set in none, DataError where no room is left.
    """
    if not config.unseen_rooms:
        return frozenset()
    if "" in rooms:
        raise ConfigError(f"--unseen-rooms: env '{config.env}' has no rooms; leave it out")

    # 1. The rooms of each kind
    rooms_by_kind: dict[str, list[str]] = {}
    for room in sorted(rooms):
        rooms_by_kind.setdefault(config.taskset.kind_of_room(room), []).append(room)

    # 2. Some of each
    chance = generator(config.run.seed, "unseen rooms")
    unseen: set[str] = set()
    for kind in sorted(rooms_by_kind):
        count = round(config.unseen_rooms * len(rooms_by_kind[kind]))
        unseen |= set(chance.sample(rooms_by_kind[kind], max(1, count)))
    if unseen == rooms:
        share = f"--unseen-rooms {config.unseen_rooms:g}"
        raise DataError(
            source or config.env,
            f"{share} holds out every room, {len(rooms)} in all; use a smaller share",
        )
    return frozenset(unseen)
