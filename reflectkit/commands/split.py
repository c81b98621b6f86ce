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
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
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
from reflectkit.jsonl import read_json, write_json
from reflectkit.runs.run import RunConfig, open_run
from reflectkit.seeding import generator
from reflectkit.text import pluralize

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
        # The given file, or the first one that exists
        places = (
            [self.task_file]
            if self.task_file
            else [self.folder / name for name in (RECORDS, PROBLEMS)]
        )
        existing = next((place for place in places if place.exists()), None)
        return existing or (None if self.taskset.has("tasks") and not self.task_file else places[0])

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
    # 1. The records
    source, kind, taskset = config.source, env_class(config.env), config.taskset
    if source is not None:
        config.setup.require(source)
    config.setup.claim_folder()
    inputs = [source] if source else []
    inputs += config.setup.input_files([]) if taskset.needs_settings else config.setup.code_files
    with open_run("split", config, inputs) as current:
        if current.done:
            return current.done
        if source is None:
            records = [
                Record(task, ()) for level in kind.levels for task in config.setup.listed(level)
            ]
        else:
            records = read_records(source, kind.name)

        # 2. The unit that stays in one split, and the rooms that no split gets
        by = config.by or taskset.split_by[0]
        group_of = {
            record.task.id: record.task.id if by == "question" else record.task.group
            for record in records
        }
        room_of = {record.task.id: taskset.room_of(record.task) for record in records}
        unseen = _unseen_rooms(set(room_of.values()), config, source)
        held_out = [record for record in records if room_of[record.task.id] in unseen]
        records = [record for record in records if room_of[record.task.id] not in unseen]

        # 3. Problems that come with a split stay in it; the others are free
        split_by_id = {
            record.task.id: "" if by == "question" else split_of(config.env, record.task)
            for record in records
        }
        free = [record for record in records if not split_by_id[record.task.id]]
        chance, kinds = generator(config.run.seed, "split"), ""

        # 4. A split for each unit
        if by == "repo":
            sizes = Counter(group_of[record.task.id] for record in free)
            name_of_group = split_weighted(sizes, chance, config.shares)
        else:
            levels = levels_by_group(record.task for record in free) if source is None else {}
            taught = {group_of[record.task.id] for record in free if record.trajectories}
            strata = {}
            for record in free:
                group = group_of[record.task.id]
                room_level = record.task.level if room_of[record.task.id] else ""
                strata[group] = (
                    (group in taught, room_level) if source else levels[record.task.group]
                )
            kinds = f" of {many} kinds" if (many := len(set(strata.values()))) > 1 else ""
            name_of_group = split_groups(strata, chance, config.shares)

        # 5. The records of each split
        parts: dict[str, list[Record]] = {name: [] for name in SPLITS}
        for record in records:
            parts[split_by_id[record.task.id] or name_of_group[group_of[record.task.id]]].append(
                record
            )
        for name, part in parts.items():
            if not part:
                _refuse_emptying(
                    config, config.folder / f"{name}.json", source, come_with_splits=not free
                )
        # Whole repositories may miss the shares by far
        if by == "repo":
            targets = [len(records) * share / sum(config.shares) for share in config.shares]
            off = max(
                abs(len(part) - share) for part, share in zip(parts.values(), targets, strict=True)
            )
            if off > len(records) / 10:
                sizes_text = ":".join(str(len(part)) for part in parts.values())
                progress.news(
                    f"whole repositories make {sizes_text} questions, not {config.ratio}; try --by"
                    " question"
                )
        # the rooms of an earlier split may be in this one's training split
        (config.folder / f"{UNSEEN}.json").unlink(missing_ok=True)

        # 6. The files
        outputs, rows, figures = [], [], {}
        for name, part in (parts | ({UNSEEN: held_out} if unseen else {})).items():
            path = config.folder / f"{name}.json"
            write_json(path, [record_to_json(record) for record in part])
            outputs.append(path)
            demonstrated = sum(bool(record.trajectories) for record in part)
            figures[name] = {"tasks": len(part), "demonstrated": demonstrated}
            groups = {group_of[record.task.id] for record in part}
            rows.append((name, str(len(groups)), str(len(part)), str(demonstrated)))
            if not part:
                number = pluralize(len(name_of_group), "group")
                too_few = (
                    f"{config.ratio} needs more than {number}{kinds}; use another --ratio, or"
                    " smaller groups"
                )
                progress.news(
                    f"{path} has no tasks: {too_few if free else 'none comes with this split'}"
                )
        headings = ("split", "groups", "tasks", "with demonstration")
        current.tables.append(Table(f"Split of {source or kind.name}", headings, tuple(rows)))
        return current.finish(figures, outputs)


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
    # The largest first, and equal ones in random order
    groups = sorted(sizes)
    generator.shuffle(groups)
    groups.sort(key=lambda group: -sizes[group])
    total = sum(sizes.values())
    targets = {
        name: total * share / sum(shares) for name, share in zip(SPLITS, shares, strict=True)
    }
    assigned_sizes = dict.fromkeys(SPLITS, 0)
    assigned: dict[str, str] = {}
    for place, group in enumerate(groups):
        # The last groups go to splits that have none
        empty = [name for name in SPLITS if not assigned_sizes[name]]
        open_to = empty if len(groups) - place <= len(empty) else SPLITS
        name = max(open_to, key=lambda name: targets[name] - assigned_sizes[name])
        assigned[group] = name
        assigned_sizes[name] += sizes[group]
    return assigned


def _refuse_emptying(
    config: SplitConfig, path: Path, source: Path | None, *, come_with_splits: bool
) -> None:
    """Raises ConfigError if `path`, which would get no problems, has some."""
    if not path.is_file() or not (count := len(read_json(path))):
        return
    why = (
        "whose problems come with their splits"
        if come_with_splits
        else f"with --ratio {config.ratio}"
    )
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
    chance = generator(config.run.seed, "unseen rooms")
    unseen: set[str] = set()
    # Some rooms of each kind
    for kind in sorted(set(map(config.taskset.kind_of_room, rooms))):
        of_kind = sorted(room for room in rooms if config.taskset.kind_of_room(room) == kind)
        unseen |= set(chance.sample(of_kind, max(1, round(config.unseen_rooms * len(of_kind)))))
    if unseen == rooms:
        raise DataError(
            source or config.env,
            (
                f"--unseen-rooms {config.unseen_rooms:g} holds out every room, {len(rooms)} in"
                " all; use a smaller share"
            ),
        )
    return frozenset(unseen)
