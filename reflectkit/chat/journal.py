"""Journal of paid answers: each is appended before it is used, so that a killed run repeats no paid call.

One JSON object a line: the request's hash, the answer, how it ended, its tokens, and a checksum of all these. Lines of
earlier versions have no checksum. Keys and headers are never in it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from reflectkit.errors import ConfigError
from reflectkit.jsonl import opened, refuse_pipe
from reflectkit.runs.locks import take

MOST_TOKENS = 10_000_000  # in a prompt or an answer; more is an error of the bill
CHECKSUM = "sha256"


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


class JournalHeldError(ConfigError):
    """Another process writes into this journal."""


class Journal:
    """The answers in file `path`, by request hash. Use `open_journal`.

    damaged: lines of it that could not be read. model: whose answers are read; None for all.
    """

    def __init__(self, path: Path, model: str | None = None) -> None:
        self.path, self.model = path, model
        self.answers: dict[str, Answer] = {}
        self.damaged = 0
        self.file: IO[bytes] | None = None
        """Open for writing, or None."""
        self._read_to: dict[Path, int] = {}

    def add(self, key: str, model: str, answer: Answer) -> None:
        """Keep `answer`; the operating system has it when this returns."""
        if self.file is None:
            raise ValueError("this journal was opened for reading alone")
        record = {"key": key, "model": model, **asdict(answer)}
        self.file.write(json.dumps(record | {CHECKSUM: _checksum(record)}).encode() + b"\n")
        self.file.flush()
        self.answers[key] = answer

    def catch_up(self, others: Iterable[Path]) -> list[Answer]:
        """Read what was added to the journals of other processes since the last call: all of these answers."""
        new = []
        for path in others:
            with contextlib.suppress(FileNotFoundError), opened(path) as file:
                new += self.read(path, file)[0]
        return new

    def read(self, path: Path, file: IO[bytes]) -> tuple[list[Answer], int]:
        """The answers in the whole lines of `file` that were not read before, and where the last of them ends."""
        new, end = [], self._read_to.get(path, 0)
        file.seek(end)
        for line in file:
            if not line.endswith(b"\n"):
                break  # it is being written, or a kill cut it off
            end += len(line)
            try:
                key, model, answer = _parse(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                self.damaged += path == self.path
                continue
            if self.model in (None, model):
                self.answers.setdefault(key, answer)
                new.append(answer)
        self._read_to[path] = end
        return new, end


@contextlib.contextmanager
def open_journal(
    path: Path, *, write: bool = True, model: str | None = None, earlier: Path | None = None
) -> Iterator[Journal]:
    """The journal in `path`, for this process alone while it writes; a last line that a kill cut off is removed.

    model: whose answers alone are read; None for all. earlier: another journal, whose answers are read too.

    Raises JournalHeldError where another process writes into it.
    """
    journal = Journal(path, model)
    with contextlib.ExitStack() as stack:
        if write:
            path.parent.mkdir(parents=True, exist_ok=True)
            refuse_pipe(path)
            journal.file = stack.enter_context(path.open("a+b"))
            if not take(journal.file):
                raise JournalHeldError(f"another process writes into {path}; wait for it, or stop it")
            journal.file.truncate(journal.read(path, journal.file)[1])
        journal.catch_up(other for other in (path, earlier) if other is not None)
        yield journal


def _parse(record: dict[str, Any]) -> tuple[str, str, Answer]:
    """(key, model, answer) of a line. Raises ValueError, KeyError, TypeError or AttributeError if it is damaged."""
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
    """Digest of a record, whatever the order of its fields."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
