"""Demonstration records: the JSON that `gen-trajectory` writes, and its checking when it is read back.

A record is a task with its demonstrations, in the original toolkit's field names:
`{id, env, level, group, data, trajectories: [{model_name, info, seed, trajectory: [{reflection, cmd, note}]}]}`.
`info` is "positive0", "positive1", … Only what was decided is kept; what was seen is made anew by the env.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from reflectkit.core.errors import DataError
from reflectkit.core.jsonl import lone_surrogate, read_json_list
from reflectkit.core.types import Task, Trajectory, from_json, to_json
from reflectkit.data import questions

Note = Literal["positive", "mistake", "correction"]


@dataclass(frozen=True, slots=True)
class Step:
    """One decision. note: "positive", "mistake" or "correction"."""

    reflection: str
    cmd: str
    note: Note = "positive"


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One episode of a teacher.

    model_name: who. info: which of the task's demonstrations: "positive0", "negative1", … seed: of the episode.
    filename: the file that it names at its end, in envs where one is named.
    """

    model_name: str
    info: str
    seed: int
    trajectory: tuple[Step, ...]
    filename: str = ""

    @property
    def negative(self) -> bool:
        """Whether it shows a mistake and how to recover: only that step of it is one to learn."""
        return self.info.startswith("negative")


@dataclass(frozen=True, slots=True)
class Record:
    """A task and its demonstrations, possibly none: such a task is for RL and evaluation."""

    task: Task
    trajectories: tuple[Demonstration, ...]


@dataclass(frozen=True, slots=True)
class _File:
    trajectories: tuple[Demonstration, ...] = ()


def from_trajectory(trajectory: Trajectory, model_name: str, info: str) -> Demonstration:
    """The demonstration that a finished episode is."""
    steps = tuple(
        Step(
            turn.decision.reflection or "",
            turn.said,
            cast(Note, turn.decision.note or "positive"),
        )
        for turn in trajectory.turns
    )
    answer = trajectory.turns[-1].info.get("answer", "") if trajectory.turns else ""
    return Demonstration(model_name, info, trajectory.seed, steps, str(answer))


def record_to_json(record: Record) -> dict[str, Any]:
    """The record as one flat JSON object; a question in the original's fields."""
    shown = [to_json(item) for item in record.trajectories]
    for item in shown:
        if not item["filename"]:
            del item["filename"]
    if record.task.env == questions.ENV:
        return questions.to_record(record.task, shown)
    flat: dict[str, Any] = to_json(record.task)
    return flat | {"trajectories": shown}


def read_records(path: Path, env: str) -> list[Record]:
    """Every record of `path`, checked.

    Raises
    ------
    DataError: naming the record and field; also for records of another env, or two of the same id.
    """
    records: list[Record] = []
    seen: set[str] = set()
    for number, value in enumerate(read_json_list(path)):
        where = f"{path}, record {number}"
        if lone_surrogate(json.dumps(value, ensure_ascii=False)):
            raise DataError(where, "some text holds half a surrogate pair, which is not Unicode; fix the text")
        if env == questions.ENV:
            value = questions.from_record(value, where)
        task = from_json(Task, value, path=where)
        demonstrations = from_json(_File, value, path=where).trajectories
        if task.env != env:
            raise DataError(where, f"is of env '{task.env}', but --env is '{env}'", field="env")
        if task.id in seen:
            raise DataError(where, f"the id {task.id!r} is there twice", field="id")
        seen.add(task.id)
        records.append(Record(task, demonstrations))
    return records


def demonstration_steps(demonstration: Demonstration) -> list[Mapping[str, Any]]:
    """The steps as `agents.scripted.Replay` takes them."""
    return [{"reflection": step.reflection, "cmd": step.cmd, "note": step.note} for step in demonstration.trajectory]
