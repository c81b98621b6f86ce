"""Questions about files: the original toolkit's records, read, checked, merged and written in its own field names.

A record is `{question, answer, optimal_path, filename, root, n_level, model, trajectories}`; ours hold `id` beside
them, which theirs need not. In the pipeline a question is a `Task` of env "auto_explore": level is the depth, group the
repository.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reflectkit.core.errors import DataError
from reflectkit.core.types import Task, from_json

ENV = "auto_explore"
OWN = ("question", "answer", "optimal_path", "filename", "root", "n_level", "model")
"""The fields of a question, in the order in which they are written."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question, the file that answers it, and the way there.

    answer: may be empty. optimal_path: commands. filename: from the repository's root. root: the repository's name.
    n_level: number of `cd` on the way, 0 at the root. model: who asked it.
    """

    question: str
    filename: str
    root: str
    answer: str = ""
    optimal_path: tuple[str, ...] = ()
    n_level: int = 0
    model: str = ""

    @property
    def id(self) -> str:
        """The same for the same question about the same file, and only then."""
        key = "\x1f".join((self.root, self.filename, self.question))
        return f"{self.root}-{hashlib.blake2b(key.encode('utf-8', 'surrogatepass'), digest_size=6).hexdigest()}"


def to_json(question: Question) -> dict[str, Any]:
    """The record that `gen-task` and `filter-task` write."""
    values = {name: getattr(question, name) for name in OWN}
    return values | {"optimal_path": list(question.optimal_path)}


def read_question(value: object, where: Path | str) -> Question:
    """`value`, from a JSON file, checked; fields that are not a question's are passed over. Raises DataError."""
    if isinstance(value, Mapping) and isinstance(value.get("filename"), str):
        value = dict(value) | {"filename": plain_path(value["filename"])}
    return from_json(Question, value, path=where)


def to_task(question: Question, teacher_answers: list[str]) -> Task:
    """The problem that `question` is. teacher_answers: files that teachers named for it."""
    data = to_json(question) | ({"teacher_answers": teacher_answers} if teacher_answers else {})
    return Task(question.id, ENV, str(question.filename.count("/")), question.root, data)


def from_record(value: object, where: Path | str) -> object:
    """A record in the original's layout as one in ours (`id, env, level, group, data, trajectories`); others as they
    are.
    """
    if not isinstance(value, Mapping) or "data" in value or "question" not in value:
        return value
    question = read_question(value, where)
    demonstrations = value.get("trajectories") or []
    if not isinstance(demonstrations, list) or not all(isinstance(item, Mapping) for item in demonstrations):
        raise DataError(where, "expected a list of objects", field="trajectories")
    named = [plain_path(item.get("filename")) for item in demonstrations]
    task = to_task(question, sorted({name for name in named if name}))
    return {
        "id": value.get("id", task.id),
        "env": ENV,
        "level": task.level,
        "group": task.group,
        "data": task.data,
        "trajectories": [_demonstration(dict(item), number) for number, item in enumerate(demonstrations)],
    }


def to_record(task: Task, trajectories: list[dict[str, Any]]) -> dict[str, Any]:
    """The record of a task in the original's layout."""
    return {"id": task.id, **{name: task.data.get(name) for name in OWN}, "trajectories": trajectories}


def _demonstration(item: dict[str, Any], number: int) -> dict[str, Any]:
    """A demonstration of the original's, whose steps are not marked: in a negative the last step is the correction."""
    given = item.get("trajectory")
    steps = given if isinstance(given, list) else []
    info = item.get("info", f"positive{number}")
    negative = isinstance(info, str) and info.startswith("negative")
    marked = []
    for index, step in enumerate(steps):
        if isinstance(step, Mapping):
            note = {1: "correction", 2: "mistake"}.get(len(steps) - index, "positive") if negative else "positive"
            command = step.get("cmd")
            plain = {"cmd": normal_command(command)} if isinstance(command, str) else {}
            step = {"note": note} | dict(step) | plain | ({"reflection": ""} if step.get("reflection") is None else {})
        marked.append(step)
    named = {"filename": plain_path(item.get("filename"))}
    return (
        {"model_name": "", "seed": 0}
        | item
        | named
        | {"info": info, "trajectory": marked if isinstance(given, list) else given}
    )


def plain_path(name: object) -> str:
    """A file's path from the root as we write it: without a leading "./" or "/"; "" for what is no text."""
    return re.sub(r"^(\./|/)+", "", name.strip()) if isinstance(name, str) else ""


def normal_command(command: str) -> str:
    """A command as the env offers it: single spaces behind the verb, no quotes around the name.

    >>> normal_command('cat  "my notes.txt"')
    'cat my notes.txt'
    """
    verb, _, name = command.strip().partition(" ")
    name = name.strip()
    if len(name) > 1 and name[0] == name[-1] and name[0] in "\"'":
        name = name[1:-1]
    return f"{verb} {name}".strip()


def normal_path(commands: tuple[str, ...]) -> tuple[str, ...]:
    """A way without `ls`, its commands as the env offers them, with `id FILE` after a last `cat FILE`."""
    kept = [normal_command(command) for command in commands if command.strip() != "ls"]
    if kept and kept[-1].startswith("cat "):
        kept.append("id" + kept[-1][3:])
    return tuple(kept)
