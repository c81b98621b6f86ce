"""Mem-α's rewards of changes (arXiv 2509.25911, eq. 2 to 5) and the facts that they are checked
with.

Departs from the paper: the effect of a call counts, and written text is checked against the chunk.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from reflectkit.envs.memory.retrieval import content_words
from reflectkit.envs.memory.store import CORE, CallOutcome

FAITHFUL = 0.8  # share of a text's words that its source must contain


@dataclass(frozen=True, slots=True)
class ConversationFact:
    """kind: the memory that it belongs in. key: what it is about, e.g. "Anna's city". text: the
    whole fact, e.g. "Anna's city is Rome"; "" if it is to be forgotten.
    """

    kind: Literal["core_memory", "semantic_memory", "episodic_memory"]
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

    facts: dict[str, ConversationFact] = field(default_factory=dict)
    complete: bool = True

    def learn(self, facts: Iterable[ConversationFact]) -> None:
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
        words, chunk_words = set(content_words(text)), set(content_words(chunk))
        is_related = len(words & chunk_words) >= len(words) / 2
        return bool(words) and is_related and not words <= chunk_words


def calls_done(outcomes: Sequence[CallOutcome], malformed: int) -> float:
    """r2: the share of a chunk's calls that succeeded, malformed ones included; 0 without calls.
    Duplicates are excluded.
    """
    successes = [outcome.ok for outcome in outcomes if outcome.counts]
    return sum(successes) / max(1, len(successes) + malformed)


def compression(memory_tokens: int, read_tokens: int) -> float:
    """r3: 1 minus the ratio of memory to text read; at least -1, so that a huge memory cannot
    outweigh all else.
    """
    return max(-1.0, 1 - memory_tokens / max(1, read_tokens))


def content(
    outcomes: Sequence[CallOutcome],
    chunk: str,
    facts: Sequence[ConversationFact],
    valid: ValidFacts,
) -> float:
    """r4: the share of a chunk's changes that are correct; 0 without changes.

    A written text is correct if it is faithful to the chunk, adds something from it to the text
    that it replaces, loses nothing valid and, if the chunk's facts are known, is in the right kind
    of memory. A removal is correct if the removed text was stale and not written at this chunk.
    valid: the facts that are valid at the end of the chunk.
    """
    verdicts = [_right(outcome, chunk, facts, valid) for outcome in outcomes if outcome.ok]
    return sum(verdicts) / max(1, len(verdicts))


def _right(
    outcome: CallOutcome,
    chunk: str,
    facts: Sequence[ConversationFact],
    valid: ValidFacts,
) -> bool:
    """Whether a change is correct; see `content`."""
    text, removed, kind = outcome.written, outcome.removed, outcome.call.arguments["memory_type"]
    # 1. A removal
    if not text:
        return not outcome.fresh and valid.stale(removed, chunk)
    # 2. A text that loses something valid
    if valid.lost(removed, text):
        return False
    # 3. What the text adds: a new fact in the right memory, or else words of the chunk where it is
    #    about none of the chunk's facts
    words, old_words, chunk_words = map(content_words, (text, removed, chunk))
    source = {*old_words, *chunk_words}
    new_facts = [fact for fact in facts if valid.facts.get(fact.key) == fact]
    for fact in new_facts:
        if fact.kind == kind and fact.says(text) and not fact.says(removed):
            for other in new_facts:
                source.update(content_words(other.text))
            break
    else:
        is_misplaced = any(fact.is_about(text) for fact in facts)
        if is_misplaced or not set(words) & set(chunk_words) - set(old_words):
            return False
    # 4. Whether it is faithful to its sources
    return sum(word in source for word in words) / max(1, len(words)) >= FAITHFUL
