"""What a generated conversation really says, chunk by chunk: for the oracle, and for judging what is written and
deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from reflectkit.envs.memory.language import content_words
from reflectkit.envs.memory.store import CORE, EPISODIC, SEMANTIC


@dataclass(frozen=True, slots=True)
class Fact:
    """kind: the memory it belongs in. key: what it is about, as "Anna's city". text: all of it, as "Anna's city is
    Rome"; "" where it is to be forgotten.
    """

    kind: str
    key: str
    text: str

    def is_about(self, text: str) -> bool:
        """Whether `text` has all words of the key."""
        return set(content_words(self.key)) <= set(content_words(text))

    def says(self, text: str) -> bool:
        """Whether `text` has all words of the fact."""
        return bool(self.text) and set(content_words(self.text)) <= set(content_words(text))


@dataclass
class ValidFacts:
    """What is valid now, by key; and whether the conversation's facts are known at all."""

    facts: dict[str, Fact] = field(default_factory=dict)
    complete: bool = True

    def learn(self, facts: Iterable[Fact]) -> None:
        """Take up a chunk's facts."""
        for fact in facts:
            self.facts.pop(fact.key, None)
            if fact.text:
                self.facts[fact.key] = fact

    def core(self) -> str:
        """The core paragraph that says all there is for it."""
        return " ".join(f"{fact.text}." for fact in self.facts.values() if fact.kind == CORE)

    def lost(self, before: str, after: str) -> bool:
        """Whether a valid fact that `before` says is not said by `after`."""
        return any(fact.says(before) and not fact.says(after) for fact in self.facts.values())

    def stale(self, text: str, chunk: str) -> bool:
        """Whether `text` says nothing that is valid: then its removal is right.

        Where the facts are not known, it is stale if the chunk is about the same and says something else.
        """
        if self.complete:
            return not any(fact.says(text) for fact in self.facts.values())
        text_words, chunk_words = set(content_words(text)), set(content_words(chunk))
        return (
            bool(text_words) and len(text_words & chunk_words) >= len(text_words) / 2 and not text_words <= chunk_words
        )


def as_facts(value: Any, chunks: int) -> list[list[Fact]] | None:
    """The facts of each chunk in a task's data; None where it has none. Raises ValueError."""
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
