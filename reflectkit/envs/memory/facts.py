"""The facts in a generated conversation, chunk by chunk: for the oracle, and for scoring changes of the memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from reflectkit.envs.memory.language import content_words
from reflectkit.envs.memory.store import CORE, EPISODIC, SEMANTIC


@dataclass(frozen=True, slots=True)
class Fact:
    """kind: the memory that it belongs in. key: what it is about, e.g. "Anna's city". text: the whole fact, e.g.
    "Anna's city is Rome"; "" if it is to be forgotten.
    """

    kind: str
    key: str
    text: str

    def is_about(self, text: str) -> bool:
        """Whether `text` contains all words of the key."""
        return set(content_words(self.key)) <= set(content_words(text))

    def says(self, text: str) -> bool:
        """Whether `text` contains all words of the fact."""
        return bool(self.text) and set(content_words(self.text)) <= set(content_words(text))


@dataclass
class ValidFacts:
    """The currently valid facts by key. complete: whether the conversation's facts are known."""

    facts: dict[str, Fact] = field(default_factory=dict)
    complete: bool = True

    def learn(self, facts: Iterable[Fact]) -> None:
        """Add a chunk's facts, replacing older ones."""
        for fact in facts:
            self.facts.pop(fact.key, None)
            if fact.text:
                self.facts[fact.key] = fact

    def core(self) -> str:
        """The core memory that states all facts of that kind."""
        return " ".join(f"{fact.text}." for fact in self.facts.values() if fact.kind == CORE)

    def lost(self, before: str, after: str) -> bool:
        """Whether `after` misses a valid fact that `before` states."""
        return any(fact.says(before) and not fact.says(after) for fact in self.facts.values())

    def stale(self, text: str, chunk: str) -> bool:
        """Whether `text` states no valid fact, so that removing it is correct.

        If the facts are not known, it is stale if the chunk is about the same thing and differs.
        """
        if self.complete:
            return not any(fact.says(text) for fact in self.facts.values())
        text_words, chunk_words = set(content_words(text)), set(content_words(chunk))
        return (
            bool(text_words) and len(text_words & chunk_words) >= len(text_words) / 2 and not text_words <= chunk_words
        )


def as_facts(value: Any, chunks: int) -> list[list[Fact]] | None:
    """The facts of each chunk in a task's data, if it has any. Raises ValueError."""
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != chunks:
        raise ValueError(f"'facts' has one list a chunk, of which there are {chunks}")
    return [[_fact(entry) for entry in _rows(row)] for row in value]


def _rows(row: Any) -> Sequence[Any]:
    if not isinstance(row, list):
        raise ValueError("'facts' has one list a chunk")
    return row


def _fact(entry: Any) -> Fact:
    fields: list[Any] = [entry.get(name) for name in ("kind", "key", "text")] if isinstance(entry, dict) else []
    if (
        len(fields) != 3
        or not all(isinstance(value, str) for value in fields)
        or fields[0] not in (CORE, SEMANTIC, EPISODIC)
    ):
        raise ValueError("a fact has a kind (of memory), a key and a text")
    return Fact(fields[0], fields[1], fields[2])
