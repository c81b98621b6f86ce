"""Journal of paid answers: each is appended before it is used, so that a killed run repeats no paid
call.

One JSON object a line: the request's hash, the model, the answer, how it ended, its tokens, and a
checksum of all these. Keys and headers are never in it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from reflectkit.errors import ConfigError
from reflectkit.jsonl import take

CHECKSUM = "sha256"
MALFORMED = "malformed"
"""finish_reason of a response that is no chat completion."""


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """What came back. finish_reason: "stop", "length", "content_filter", …; prompt_tokens,
    completion_tokens: as billed. model: whose it is, in a journal.
    """

    text: str
    finish_reason: str
    refusal: str
    prompt_tokens: int
    completion_tokens: int
    model: str = field(default="", compare=False)


class JournalHeldError(ConfigError):
    """Another process writes into this journal."""


class Journal:
    """The answers in file `path`, by request hash. Use `open_journal`. damaged: lines of it that
    could not be read.
    """

    def __init__(self, path: Path, file: IO[bytes] | None = None) -> None:
        self.path, self.file = path, file
        self.answers: dict[str, ChatAnswer] = {}
        self.damaged = 0
        self._read_to: dict[Path, int] = {}

    def add(self, key: str, model: str, answer: ChatAnswer) -> None:
        """Keep `answer`; the operating system has it when this returns."""
        assert self.file is not None, "the journal was opened for reading"
        answer = replace(answer, model=model)
        # The checksum tells of a line that a full disk or a person changed
        record = {"key": key, "model": model, **asdict(answer)}
        self.file.write(json.dumps(record | {CHECKSUM: _checksum(record)}).encode() + b"\n")
        self.file.flush()
        self.answers[key] = answer

    def catch_up(self, others: Iterable[Path]) -> list[ChatAnswer]:
        """Read what was added to the journals of other processes since the last call: all of these
        answers.
        """
        new = []
        for path in others:
            with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                new += self.read(path, file)[0]
        return new

    def read(self, path: Path, file: IO[bytes]) -> tuple[list[ChatAnswer], int]:
        """The answers in the whole lines of `file` that were not read before, and where the last of
        them ends.
        """
        new, end = [], self._read_to.get(path, 0)
        file.seek(end)
        for line in file:
            if not line.endswith(b"\n"):
                break  # it is being written, or a kill cut it off
            end += len(line)
            try:
                record = json.loads(line)
                if record.pop(CHECKSUM) != _checksum(record):
                    raise ValueError("the line was changed")
                key = record.pop("key")
                answer = ChatAnswer(**record)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                # Damage in others' journals is theirs to report
                self.damaged += path == self.path
                continue
            self.answers.setdefault(key, answer)
            new.append(answer)
        self._read_to[path] = end
        return new, end


@contextlib.contextmanager
def open_journal(path: Path, *, write: bool = True) -> Iterator[Journal]:
    """The journal in `path`, for this process alone while it writes; a last line that a kill cut
    off is removed.

    Raises JournalHeldError where another process writes into it.
    """
    if not write:
        journal = Journal(path)
        journal.catch_up([path])
        yield journal
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        if not take(file):
            raise JournalHeldError(f"another process writes into {path}; wait for it, or stop it")
        journal = Journal(path, file)
        # Reading also tells where the whole lines end
        file.truncate(journal.read(path, file)[1])
        yield journal


def _checksum(record: Mapping[str, Any]) -> str:
    """Digest of a record, whatever the order of its fields."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
