"""Mem-α's rewards of changes to a memory (arXiv 2509.25911, eq. 2 to 5), and the facts behind them.

This departs from the paper: the effect of a call counts, and a text that is written is compared
with the chunk.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from reflectkit.envs.memory.retrieval import content_words
from reflectkit.envs.memory.store import CORE, CallOutcome

FAITHFUL = 0.8
"""A faithful text has at least this share of its words from its sources."""


@dataclass(frozen=True, slots=True)
class ConversationFact:
    """A fact that a conversation states."""

    kind: Literal["core_memory", "semantic_memory", "episodic_memory"]
    """The memory to which the fact belongs."""
    key: str
    """What the fact is about, e.g. "Anna's city"."""
    text: str
    """The whole fact, e.g. "Anna's city is Rome"; "" if it should be forgotten."""

    def is_about(self, text: str) -> bool:
        """Whether `text` contains all words of the key."""
        return _contains_words(text, self.key)

    def says(self, text: str) -> bool:
        """Whether `text` contains all words of the fact."""
        return bool(self.text) and _contains_words(text, self.text)


def _contains_words(text: str, part: str) -> bool:
    """Whether `text` contains all content words of `part`."""
    words = content_words(part)
    return set(words).issubset(content_words(text))


@dataclass
class ValidFacts:
    """The facts that are valid now."""

    facts: dict[str, ConversationFact] = field(default_factory=dict)
    """The facts by their key."""
    complete: bool = True
    """Whether all facts of the conversation are known."""

    def learn(self, facts: Iterable[ConversationFact]) -> None:
        """Add the facts of a chunk, which replace older ones with the same keys."""
        for fact in facts:
            self.facts.pop(fact.key, None)
            if fact.text:
                self.facts[fact.key] = fact

    def core(self) -> str:
        """The text of a core memory that states all facts of that kind."""
        core_facts = [fact for fact in self.facts.values() if fact.kind == CORE]
        return " ".join(f"{fact.text}." for fact in core_facts)

    def lost(self, before: str, after: str) -> bool:
        """Whether `after` lacks a valid fact that `before` states."""
        facts_before = [fact for fact in self.facts.values() if fact.says(before)]
        return not all(fact.says(after) for fact in facts_before)

    def stale(self, text: str, chunk: str) -> bool:
        """Whether `text` states no valid fact. Then it is correct to remove it.

        If the facts are not known, it is stale if `chunk` is about the same thing and differs.
        """
        # 1. By the facts
        if self.complete:
            return not any(fact.says(text) for fact in self.facts.values())

        # 2. By the words: at least half are in the chunk, but not all
        words = set(content_words(text))
        chunk_words = set(content_words(chunk))
        is_related = len(words & chunk_words) >= len(words) / 2
        return bool(words) and is_related and not words <= chunk_words


def calls_done(outcomes: Sequence[CallOutcome], malformed: int) -> float:
    """r2: the share of a chunk's calls that succeeded; 0 without calls.

    malformed: the number of malformed calls, which count as failures. Duplicates do not count.
    """
    successes = [outcome.ok for outcome in outcomes if outcome.counts]
    return sum(successes) / max(1, len(successes) + malformed)


def compression(memory_tokens: int, read_tokens: int) -> float:
    """r3: 1 minus the ratio of the memory to the text that was read, both in tokens.

    It is at least -1: a huge memory cannot outweigh all other rewards.
    """
    ratio = memory_tokens / max(1, read_tokens)
    return max(-1.0, 1 - ratio)


def content(
    outcomes: Sequence[CallOutcome],
    chunk: str,
    facts: Sequence[ConversationFact],
    valid: ValidFacts,
) -> float:
    """r4: the share of a chunk's changes that are correct; 0 without changes.

    A new text is correct if all of these are true:

    - It is faithful to the chunk.
    - It adds something from the chunk to the text that it replaces.
    - It loses nothing valid.
    - It is in the right kind of memory, if the chunk's facts are known.

    A removal is correct if the text was stale, and was not written at this chunk.

    outcomes: of the calls. facts: of the chunk. valid: the facts at the end of the chunk.
    """
    verdicts = [_is_correct(outcome, chunk, facts, valid) for outcome in outcomes if outcome.ok]
    return sum(verdicts) / max(1, len(verdicts))


def _is_correct(
    outcome: CallOutcome,
    chunk: str,
    facts: Sequence[ConversationFact],
    valid: ValidFacts,
) -> bool:
    """Whether a change is correct; see `content`."""
    text = outcome.written
    removed_text = outcome.removed
    kind = outcome.call.arguments["memory_type"]

    # 1. A removal
    if not text:
        return not outcome.fresh and valid.stale(removed_text, chunk)

    # 2. A text that loses something valid
    if valid.lost(removed_text, text):
        return False

    # 3. A text that adds a new fact, in the right memory
    words = content_words(text)
    old_words = set(content_words(removed_text))
    chunk_words = set(content_words(chunk))
    source_words = old_words | chunk_words
    new_facts = [fact for fact in facts if valid.facts.get(fact.key) == fact]
    facts_of_kind = [fact for fact in new_facts if fact.kind == kind]
    if any(fact.says(text) and not fact.says(removed_text) for fact in facts_of_kind):
        for fact in new_facts:
            source_words.update(content_words(fact.text))

    # 4. Or one that is about none of the chunk's facts, and adds words of the chunk
    else:
        is_misplaced = any(fact.is_about(text) for fact in facts)
        new_words = chunk_words - old_words
        if is_misplaced or new_words.isdisjoint(words):
            return False

    # 5. It must be faithful to its sources
    faithful_count = sum(word in source_words for word in words)
    share = faithful_count / max(1, len(words))
    return share >= FAITHFUL
