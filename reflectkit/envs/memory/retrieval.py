"""BM25 retrieval over texts (bm25s package): those most related to a chunk or a question."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from reflectkit.envs.memory.language import words


def related(texts: Sequence[str], query: str, limit: int) -> list[int]:
    """Indices of up to `limit` texts that share a word with `query`, best first; ties in their order.

    Robertson and Zaragoza 2009, with Lucene's idf, k1 1.5 and b 0.75.
    """
    if not texts or limit <= 0:
        return []
    query_words = words(query)
    if not query_words:
        return []
    scores = _index(tuple(texts)).get_scores(list(query_words)) if any(map(words, texts)) else []
    order = sorted(range(len(scores)), key=lambda index: -scores[index])
    return [index for index in order[:limit] if scores[index] > 0]


@lru_cache(maxsize=512)
def _index(texts: tuple[str, ...]) -> Any:
    import bm25s

    index = bm25s.BM25()
    index.index([list(words(text)) for text in texts], show_progress=False)
    return index
