"""Mem-α's rewards (arXiv 2509.25911, eq. 2 to 5), its faults mended: what a call did decides, and writing is judged by the
chunk.
"""

from __future__ import annotations

from collections.abc import Sequence

from reflectkit.core.text import keywords
from reflectkit.envs.memory.facts import Fact, Known
from reflectkit.envs.memory.tools import Outcome

FAITHFUL = 0.8  # share of a text's words that must stand in what it was written from


def calls_done(outcomes: Sequence[Outcome], malformed: int) -> float:
    """r2: the share of a chunk's calls that were done, malformed ones counted; 0 without calls. Duplicates are left out."""
    counted = [outcome.ok for outcome in outcomes if outcome.counts]
    return sum(counted) / max(1, len(counted) + malformed)


def compression(memory_tokens: int, read_tokens: int) -> float:
    """r3: 1 less the memory's share of what was read; at least -1, so that no junk can outweigh all else."""
    return max(-1.0, 1 - memory_tokens / max(1, read_tokens))


def content(outcomes: Sequence[Outcome], chunk: str, facts: Sequence[Fact], known: Known) -> float:
    """r4: the share of a chunk's changes that are right; 0 without one.

    A text is right if it is faithful to the chunk (or to what it replaces) and, where the chunk's facts are known, of their
    kind of memory; a removal, if what it removed was stale. known: what was valid when the chunk ended.
    """
    verdicts = [_right(outcome, chunk, facts, known) for outcome in outcomes if outcome.ok]
    return sum(verdicts) / max(1, len(verdicts))


def _right(outcome: Outcome, chunk: str, facts: Sequence[Fact], known: Known) -> bool:
    if not outcome.written:
        return known.stale(outcome.removed, chunk)
    said = keywords(outcome.written)
    source = set(keywords(chunk)) | set(keywords(outcome.removed))
    faithful = bool(said) and sum(word in source for word in said) >= FAITHFUL * len(said)
    about = [fact for fact in facts if fact.is_about(outcome.written)]
    kind = outcome.call.arguments["memory_type"]
    return faithful and (not about or any(fact.kind == kind and fact.says(outcome.written) for fact in about))
