"""Demonstration records: the JSON that `gen-trajectory` writes, checked when it is read back; and splits of them.

A record is a task with its demonstrations, with the original toolkit's field names:
`{id, env, level, group, data, trajectories: [{model_name, info, seed, trajectory: [{reflection, cmd, note}]}]}`.
`info` is "positive0", "positive1", … Only decisions are stored; the env reproduces the observations. A step of an
episode that another player played has `best` where its action was a mistake: the teacher's.
"""

from __future__ import annotations

import json
import random
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from reflectkit.envs import SPLITS
from reflectkit.errors import DataError
from reflectkit.jsonl import lone_surrogate, read_json_list
from reflectkit.types import Task, Trajectory, from_json, to_json

SHARES = (7, 2, 1)
Note = Literal["positive", "mistake", "correction"]
EXPLORE = "auto_explore"
"""The env whose records have the original's fields."""
VISITED = "visited"
"""What `info` begins with in episodes of other players."""


@dataclass(frozen=True, slots=True)
class Step:
    """One decision. note: "positive", "mistake" or "correction". best: the teacher's action, if this one was another
    player's mistake and the action is chosen from a list.
    """

    reflection: str
    cmd: str
    note: Note = "positive"
    best: str = ""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One episode of a teacher, or of another player with the teacher's comments.

    model_name: the teacher. info: which of the task's demonstrations it is: "positive0", "negative1", "visited0", …
    seed: the episode's. filename: the file given as the answer, in envs that ask for one.
    """

    model_name: str
    info: str
    seed: int
    trajectory: tuple[Step, ...]
    filename: str = ""

    @property
    def negative(self) -> bool:
        """Whether it shows a mistake and its correction; only the correction is used for training."""
        return self.info.startswith("negative")

    @property
    def visited(self) -> bool:
        """Whether another player than the teacher acted."""
        return self.info.startswith(VISITED)


@dataclass(frozen=True, slots=True)
class Record:
    """A task and its demonstrations. A task without any is for RL and evaluation."""

    task: Task
    trajectories: tuple[Demonstration, ...]


@dataclass(frozen=True, slots=True)
class _File:
    trajectories: tuple[Demonstration, ...] = ()


def from_trajectory(trajectory: Trajectory, model_name: str, info: str) -> Demonstration:
    """A finished episode as a demonstration."""
    steps = tuple(
        Step(turn.decision.reflection or "", turn.action_text, cast(Note, turn.decision.note or "positive"))
        for turn in trajectory.turns
    )
    answer = trajectory.turns[-1].info.get("answer", "") if trajectory.turns else ""
    return Demonstration(model_name, info, trajectory.seed, steps, str(answer))


def record_to_json(record: Record) -> dict[str, Any]:
    """The record as one flat JSON object; a question has the original's fields."""
    demonstrations = [to_json(item) for item in record.trajectories]
    for item in demonstrations:
        if not item["filename"]:
            del item["filename"]
        for step in item["trajectory"]:
            if not step["best"]:
                del step["best"]
    if record.task.env == EXPLORE:
        from reflectkit.envs.auto_explore import questions

        return questions.to_record(record.task, demonstrations)
    flat: dict[str, Any] = to_json(record.task)
    return flat | {"trajectories": demonstrations}


def read_records(path: Path, env: str) -> list[Record]:
    """Every record of `path`, checked.

    Raises DataError: naming the record and field; also for records of another env and duplicate ids.
    """
    records: list[Record] = []
    ids: set[str] = set()
    for number, value in enumerate(read_json_list(path)):
        where = f"{path}, record {number}"
        if lone_surrogate(json.dumps(value, ensure_ascii=False)):
            raise DataError(where, "a text contains half a surrogate pair, which is not valid Unicode; fix the text")
        if env == EXPLORE:
            from reflectkit.envs.auto_explore import questions

            value = questions.from_record(value, where)
        task = from_json(Task, value, path=where)
        demonstrations = from_json(_File, value, path=where).trajectories
        if task.env != env:
            raise DataError(where, f"belongs to env '{task.env}', but --env is '{env}'", field="env")
        if task.id in ids:
            raise DataError(where, f"duplicate id {task.id!r}", field="id")
        ids.add(task.id)
        records.append(Record(task, demonstrations))
    return records


def split_groups(
    strata: Mapping[str, Hashable], generator: random.Random, shares: Sequence[int] = SHARES
) -> dict[str, str]:
    """A split name for each group, in `shares` within each stratum.

    Parameters
    ----------
    strata: group → the stratum it is balanced in (e.g. whether it has demonstrations).

    Within a stratum, the counts are the shares rounded by the largest remainder method.
    """
    assigned: dict[str, str] = {}
    members: dict[Hashable, list[str]] = {}
    for group in sorted(strata):
        members.setdefault(strata[group], []).append(group)
    for stratum in sorted(members, key=repr):
        groups = members[stratum]
        generator.shuffle(groups)
        start = 0
        for name, count in zip(SPLITS, apportion(len(groups), shares), strict=True):
            assigned |= dict.fromkeys(groups[start : start + count], name)
            start += count
    return assigned


def apportion(total: int, shares: Sequence[int]) -> list[int]:
    """`total` in whole parts proportional to `shares` (Hamilton's method); ties go to the earlier part.

    >>> apportion(300, (7, 2, 1)), apportion(4, (7, 2, 1))
    ([210, 60, 30], [3, 1, 0])
    """
    exact = [total * share / sum(shares) for share in shares]
    counts = [int(value) for value in exact]
    by_remainder = sorted(range(len(shares)), key=lambda index: (counts[index] - exact[index], index))
    for index in by_remainder[: total - sum(counts)]:
        counts[index] += 1
    return counts


def levels_by_group(tasks: Iterable[Task]) -> dict[str, tuple[str, ...]]:
    """The levels of each group's problems: the strata of an env's own list, so that each level is divided alike."""
    levels: dict[str, tuple[str, ...]] = {}
    for task in tasks:
        levels[task.group] = tuple(sorted({*levels.get(task.group, ()), task.level}))
    return levels
