"""Retrieval over texts: those most related to a chunk or a question, by BM25 (bm25s package) or by embeddings."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from reflectkit.envs.memory.language import words
from reflectkit.errors import ConfigError
from reflectkit.registry import resolve

BM25 = "bm25"
EMBEDDING = "embedding:"
PACKAGE = "sentence_transformers"
OPEN_EMBEDDER = "reflectkit.models.embedding:open_embedder"

Related = Callable[[Sequence[str], str, int], list[int]]
"""Indices of up to so many texts that are related to the query, best first."""


def check_retrieval(name: str) -> None:
    """Raises ConfigError for what is no way to retrieve, and where the package of embeddings is missing."""
    kind, _, model = name.partition(":")
    if name != BM25 and (f"{kind}:" != EMBEDDING or not model.strip()):
        raise ConfigError(
            f"--retrieval is {BM25} or {EMBEDDING}MODEL, with a sentence-transformers model, got {name!r}"
        )
    if name != BM25 and importlib.util.find_spec(PACKAGE) is None:
        raise ConfigError(f"--retrieval {name} needs sentence-transformers: pip install 'reflectkit[memory]'")


def retriever(name: str) -> Related:
    """`related` for "bm25", or `nearest` with the model of "embedding:MODEL". Raises ConfigError, CheckpointError."""
    check_retrieval(name)
    if name == BM25:
        return related
    return partial(nearest, resolve("embedder", OPEN_EMBEDDER, {})(name.removeprefix(EMBEDDING)))


def nearest(embed: Callable[[Sequence[str]], Any], texts: Sequence[str], query: str, limit: int) -> list[int]:
    """Indices of the `limit` texts with the highest cosine similarity to `query`, best first; ties in their order.

    embed: unit vectors of N texts, shape N, D.
    """
    if not texts or limit <= 0 or not query.strip():
        return []
    vectors_ND = embed([*texts, query])
    similarity_N = vectors_ND[:-1] @ vectors_ND[-1]
    return [int(index) for index in np.argsort(-similarity_N, kind="stable")[:limit]]


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
