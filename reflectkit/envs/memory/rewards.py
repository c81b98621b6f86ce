"""Mem-α's rewards (arXiv 2509.25911, eq. 2 to 5), corrected: the effect of a call counts, and written text is checked
against the chunk.
"""

from __future__ import annotations

from collections.abc import Sequence

from reflectkit.envs.memory.facts import Fact, ValidFacts
from reflectkit.envs.memory.language import content_words
from reflectkit.envs.memory.tools import Outcome

FAITHFUL = 0.8  # share of a text's words that its source must contain


def calls_done(outcomes: Sequence[Outcome], malformed: int) -> float:
    """r2: the share of a chunk's calls that succeeded, malformed ones included; 0 without calls. Duplicates are
    excluded.
    """
    counted = [outcome.ok for outcome in outcomes if outcome.counts]
    return sum(counted) / max(1, len(counted) + malformed)


def compression(memory_tokens: int, read_tokens: int) -> float:
    """r3: 1 minus the ratio of memory to text read; at least -1, so that a huge memory cannot outweigh all else."""
    return max(-1.0, 1 - memory_tokens / max(1, read_tokens))


def content(outcomes: Sequence[Outcome], chunk: str, facts: Sequence[Fact], valid: ValidFacts) -> float:
    """r4: the share of a chunk's changes that are correct; 0 without changes.

    A written text is correct if it is faithful to the chunk, adds something from it to the text that it replaces, loses
    nothing valid and, if the chunk's facts are known, is in the right kind of memory. A removal is correct if the
    removed text was stale and not written at this chunk. valid: the facts that are valid at the end of the chunk.
    """
    verdicts = [_right(outcome, chunk, facts, valid) for outcome in outcomes if outcome.ok]
    return sum(verdicts) / max(1, len(verdicts))


def _right(outcome: Outcome, chunk: str, facts: Sequence[Fact], valid: ValidFacts) -> bool:
    written, removed, kind = outcome.written, outcome.removed, outcome.call.arguments["memory_type"]
    if not written:
        return not outcome.fresh and valid.stale(removed, chunk)
    if valid.lost(removed, written):
        return False
    new_facts = [fact for fact in facts if valid.facts.get(fact.key) == fact]
    if any(fact.kind == kind and fact.says(written) and not fact.says(removed) for fact in new_facts):
        rest = (
            set(content_words(removed))
            | {word for fact in new_facts for word in content_words(fact.text)}
            | set(content_words(chunk))
        )
        return _share(written, rest) >= FAITHFUL
    if any(fact.is_about(written) for fact in facts):
        return False
    adds = set(content_words(written)) & set(content_words(chunk)) - set(content_words(removed))
    return bool(adds) and _share(written, set(content_words(chunk)) | set(content_words(removed))) >= FAITHFUL


def _share(text: str, source: set[str]) -> float:
    words = content_words(text)
    return sum(word in source for word in words) / max(1, len(words))
