"""Every paid answer, appended before it is used: a killed run repeats no paid call, and a rerun costs nothing.

One JSON object a line: the request's hash, the answer, how it ended, the tokens that it took, and a checksum of all
these. Lines of earlier versions have no checksum and are read without one. Keys and headers are never in it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from reflectkit.core.errors import ConfigError
from reflectkit.core.jsonl import opened, refuse_pipe
from reflectkit.core.locks import take

MOST_TOKENS = 10_000_000  # in a prompt or an answer; more is an error of the bill
CHECKSUM = "sha256"
DAMAGE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. finish_reason: "stop", "length", "content_filter", …; prompt_tokens, completion_tokens: as
    billed.
    """

    text: str
    finish_reason: str
    refusal: str
    prompt_tokens: int
    completion_tokens: int


class Journal:
    """The answers in file `path` by request hash. damaged: lines of it that could not be read."""

    def __init__(self, path: Path, file: IO[bytes] | None, before: Mapping[str, Answer]) -> None:
        self.path, self._file = path, file
        self.answers: dict[str, Answer] = dict(before)
        self.damaged = 0
        self._read_to: dict[Path, int] = {}

    def add(self, key: str, model: str, answer: Answer) -> None:
        """Keep `answer`; it is in the system's hands when this returns."""
        if self._file is None:
            raise ValueError("this journal was opened for reading alone")
        record = {"key": key, "model": model, **asdict(answer)}
        line = json.dumps(record | {CHECKSUM: _checksum(record)}) + "\n"
        self._file.write(line.encode())
        self._file.flush()
        self.answers[key] = answer

    def catch_up(self, others: Iterable[Path]) -> list[Answer]:
        """Take in what other processes have added to journals of theirs since the last time: all of these answers."""
        new = []
        for path in others:
            with contextlib.suppress(FileNotFoundError), opened(path) as file:
                file.seek(self._read_to.get(path, 0))
                for line in file:
                    if not line.endswith(b"\n"):
                        break  # it is being written
                    self._read_to[path] = self._read_to.get(path, 0) + len(line)
                    with contextlib.suppress(*DAMAGE):
                        key, _, answer = _read(json.loads(line))
                        self.answers.setdefault(key, answer)
                        new.append(answer)
        return new


class JournalHeldError(ConfigError):
    """Another process writes into this journal."""


@contextlib.contextmanager
def open_journal(
    path: Path, *, write: bool = True, model: str | None = None, earlier: Path | None = None
) -> Iterator[Journal]:
    """The journal in `path`, for this process alone while it writes; a last line that a kill cut off is removed.

    model: whose answers alone are read; None for all. earlier: another journal, whose answers are read first.

    Raises JournalHeldError where another process writes into it.
    """
    before: dict[str, Answer] = {}
    if earlier is not None and earlier != path:
        with open_journal(earlier, write=False, model=model) as other:
            before = other.answers
    if not write:
        journal = Journal(path, None, before)
        if path.exists():
            with opened(path) as file:
                _load(journal, file, model)
        yield journal
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    refuse_pipe(path)
    with path.open("a+b") as file:
        if not take(file):
            raise JournalHeldError(f"another process writes into {path}; wait for it, or stop it")
        journal = Journal(path, file, before)
        file.seek(0)
        whole = _load(journal, file, model)
        if whole < file.seek(0, os.SEEK_END):
            file.truncate(whole)
        yield journal


def _load(journal: Journal, file: IO[bytes], model: str | None) -> int:
    """Read every line, and keep those of `model`; returns where the last whole one ends, in bytes."""
    end = 0
    for line in file:
        if not line.endswith(b"\n"):
            break
        end += len(line)
        try:
            key, answered_by, answer = _read(json.loads(line))
            if model in (None, answered_by):
                journal.answers[key] = answer
        except DAMAGE:
            journal.damaged += 1
    return end


def _read(record: dict[str, Any]) -> tuple[str, str, Answer]:
    """(key, model, answer) of a line. Raises ValueError, KeyError, TypeError or AttributeError where it was changed."""
    checksum = record.pop(CHECKSUM, None)
    if checksum is not None and checksum != _checksum(record):
        raise ValueError("the line was changed")
    key, model, answer = record.pop("key"), record.pop("model"), Answer(**record)
    if not all(isinstance(text, str) for text in (key, model, answer.text, answer.finish_reason, answer.refusal)):
        raise TypeError("not text")
    for tokens in (answer.prompt_tokens, answer.completion_tokens):
        if type(tokens) is not int or not 0 <= tokens <= MOST_TOKENS:
            raise TypeError("not a number of tokens")
    return key, model, answer


def _checksum(record: Mapping[str, Any]) -> str:
    """Of a record without its checksum, whatever the order of its fields."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
