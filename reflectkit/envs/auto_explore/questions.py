"""Questions about files: the original toolkit's records, read, checked, merged and written in its
own field names.

A record is `{question, answer, optimal_path, filename, root, n_level, model, trajectories}`.
Records written here also have an `id`, which the original's need not have. In the pipeline, a
question is a `Task` of env "auto_explore": its level is the depth and its group the repository.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from reflectkit.envs.auto_explore.repository import shortest_path
from reflectkit.errors import DataError
from reflectkit.text import bm25, keywords
from reflectkit.types import Task, from_json

ENV = "auto_explore"
FIELDS = ("question", "answer", "optimal_path", "filename", "root", "n_level", "model")
"""The fields of a question, in the order of the file format."""


@dataclass(frozen=True, slots=True)
class FileQuestion:
    """A question, the file that answers it, and the path to it."""

    question: str
    filename: str
    """Path from the repository's root."""
    root: str
    """Name of the repository."""
    answer: str = ""
    """May be empty."""
    optimal_path: tuple[str, ...] = ()
    """Commands that lead to the answer."""
    n_level: int = 0
    """Number of `cd` commands on the path; 0 at the root."""
    model: str = ""
    """The teacher that asked it."""

    @classmethod
    def about(
        cls,
        root: str,
        filename: str,
        question: str,
        answer: str,
        model: str,
    ) -> Self:
        """A question about file `filename`, with the path to it."""
        commands = shortest_path(filename)
        return cls(
            question=question,
            filename=filename,
            root=root,
            answer=answer,
            optimal_path=tuple(commands[:-1]),
            n_level=filename.count("/"),
            model=model,
        )

    @property
    def id(self) -> str:
        """Equal exactly for the same question about the same file."""
        parts = (self.root, self.filename, self.question)
        key = "\x1f".join(parts).encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(key, digest_size=6)
        return f"{self.root}-{digest.hexdigest()}"


def to_json(question: FileQuestion) -> dict[str, Any]:
    """The record that `gen-task` and `filter-task` write."""
    record = {name: getattr(question, name) for name in FIELDS}
    record["optimal_path"] = list(question.optimal_path)
    return record


def read_question(value: object, where: Path | str) -> FileQuestion:
    """`value` from a JSON file, checked; other fields are ignored. Raises DataError."""
    if isinstance(value, Mapping):
        filename = value.get("filename")
        if isinstance(filename, str):
            value = {**value, "filename": plain_path(filename)}
    return from_json(FileQuestion, value, path=where)


def from_record(value: object, where: Path | str) -> object:
    """A record in the original's layout, converted to `id, env, level, group, data, trajectories`;
    others unchanged.
    """
    if not isinstance(value, Mapping) or "data" in value or "question" not in value:
        return value

    # 1. The problem
    question = read_question(value, where)
    data = to_json(question)

    # 2. The demonstrations
    items = value.get("trajectories") or []
    if not _is_list_of(Mapping, items):
        raise DataError(where, "expected a list of objects", field="trajectories")
    demonstrations = []
    for number, item in enumerate(items):
        demonstrations.append(_demonstration(item, number))

    # 3. The files that these named
    answers = {plain_path(item.get("filename")) for item in items}
    answers.discard("")
    if answers:
        data["teacher_answers"] = sorted(answers)
    return {
        "id": value.get("id", question.id),
        "env": ENV,
        "level": str(question.filename.count("/")),
        "group": question.root,
        "data": data,
        "trajectories": demonstrations,
    }


def _is_list_of(kind: type, value: object) -> bool:
    """Whether `value` is a list whose items are all of `kind`."""
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)


def to_record(task: Task, trajectories: list[dict[str, Any]]) -> dict[str, Any]:
    """The record of a task in the original's layout."""
    return {
        "id": task.id,
        **{name: task.data.get(name) for name in FIELDS},
        "trajectories": trajectories,
    }


def _demonstration(record: Mapping[str, Any], number: int) -> dict[str, Any]:
    """A demonstration in the original's layout, with its steps marked; a negative ends with the
    correction. `ls`, which is no action here, is left out, and `id FILE` follows a final `cat
    FILE`.

    number: of the demonstration among those of its question.
    """
    # 1. The demonstration
    item = {"model_name": "", "seed": 0, "info": f"positive{number}", **record}
    item["filename"] = plain_path(item.get("filename"))
    if not _is_list_of(dict, item.get("trajectory")):
        return item

    # 2. Commands as the env has them
    steps = []
    for step in item["trajectory"]:
        command = step.get("cmd")
        if isinstance(command, str):
            command = normal_command(command)
        step = {**step, "cmd": command}
        step["reflection"] = step.get("reflection") or ""
        if command not in ("ls", "ls ."):
            steps.append(step)

    # 3. The answer
    is_negative = str(item["info"]).startswith("negative")
    if steps and not is_negative:
        last = str(steps[-1]["cmd"])
        if last.startswith("cat "):
            steps.append({"reflection": "", "cmd": answer_of(last)})

    # 4. The marks, by the distance from the end
    notes = {1: "correction", 2: "mistake"} if is_negative else {}
    for index, step in enumerate(steps):
        distance = len(steps) - index
        step.setdefault("note", notes.get(distance, "positive"))
    item["trajectory"] = steps
    return item


def answer_of(command: str) -> str:
    """The command that answers with a file, given the command that shows it.

    >>> answer_of("cat notes.txt")
    'id notes.txt'
    """
    return "id" + command.removeprefix("cat")


def plain_path(name: object) -> str:
    """A file's path from the root, without a leading "./" or "/"; "" if `name` is not text."""
    if not isinstance(name, str):
        return ""
    return re.sub(r"^(\./|/)+", "", name.strip())


def normal_command(command: str) -> str:
    """A command as the env offers it: a single space after the verb, no quotes around the name.

    >>> normal_command('cat  "my notes.txt"')
    'cat my notes.txt'
    """
    verb, _, name = command.strip().partition(" ")
    name = name.strip()
    for quote in ('"', "'"):
        is_quoted = name.startswith(quote) and name.endswith(quote)
        if is_quoted and len(name) > 1:
            name = name[1:-1]
            break
    return f"{verb} {name}".strip()


def normal_path(commands: tuple[str, ...]) -> tuple[str, ...]:
    """A path without `ls`, with commands as the env offers them, and `id FILE` after a final `cat
    FILE`.
    """
    path = []
    for command in commands:
        if command.strip() != "ls":
            path.append(normal_command(command))
    if path and path[-1].startswith("cat "):
        path.append(answer_of(path[-1]))
    return tuple(path)


def found_by_words(questions: Sequence[FileQuestion], files: Mapping[str, str]) -> int:
    """Number of `questions` whose keywords rank their own file first among `files` (path → text),
    before all others: a measure of how much like quotations they are. By BM25 of the texts, not of
    their names.
    """
    paths = sorted(files)
    words = [keywords(files[path]) for path in paths]
    if not questions or not any(words):
        return 0
    index = bm25(words)
    count = 0
    for question in questions:
        keys = keywords(question.question)
        if not keys:
            continue
        scores = dict(zip(paths, index.get_scores(keys), strict=True))
        score = scores.pop(question.filename, 0.0)
        # A tie is no first place
        best_other = max(scores.values(), default=0.0)
        if score > 0 and score > best_other:
            count += 1
    return count
