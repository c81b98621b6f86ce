"""What of a memory is found: words of any script, BM25 and embeddings, what the reader sees, and
the offline reader.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import zip_longest
from typing import Any

import numpy as np

from reflectkit.env import Query
from reflectkit.envs.memory.store import LISTS, Store
from reflectkit.registry import resolve
from reflectkit.text import STOP_WORDS, bm25, count_tokens, stem

SCRIPTS = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
UNSPACED = re.compile(f"[{SCRIPTS}]")
WORD = re.compile(rf"[{SCRIPTS}]|[^\W_{SCRIPTS}]+")
SENTENCES = re.compile(r"(?<=[.!?。！？])\s*(?=\S)")
BM25 = "bm25"
EMBEDDING = "embedding:"
READER_TOKENS = 8192  # of the items that the reader gets
LONG_CONTEXT_TOKENS = 30_720  # of a memory that the reader gets whole
EXTRACTIVE = "extractive"
"""Name of the offline reader."""
UNKNOWN = "unknown"
ENOUGH = 0.6  # share of a question's words that an answer must contain
LONGEST_SENTENCE = 40  # words; longer sentences are not quoted

Related = Callable[[Sequence[str], str, int], list[int]]
"""Indices of up to so many texts that are related to the query, best first."""


@lru_cache(maxsize=100_000)
def words(text: str) -> tuple[str, ...]:
    """The words of `text` in lower case, in order. Each CJK character is a word."""
    return tuple(word.lower() for word in WORD.findall(text))


@lru_cache(maxsize=100_000)
def content_words(text: str) -> tuple[str, ...]:
    """The distinct content words of `text`, in order: no stop words, single letters or plural
    endings.

    >>> content_words("What is Anna's city?"), content_words("Где живёт Анна?")
    (('anna', 'city'), ('где', 'живёт', 'анна'))
    """
    stems = [
        stem(word)
        for word in words(text)
        if word not in STOP_WORDS and (len(word) > 1 or not "a" <= word <= "z")
    ]
    return tuple(dict.fromkeys(stems))


def retriever(name: str) -> Related:
    """`related` for "bm25", or `nearest` with the model of "embedding:MODEL". Raises ConfigError,
    CheckpointError.
    """
    if name == BM25:
        return related
    open_embedder = resolve("embedder", "reflectkit.models.embedding:open_embedder", {})
    return partial(nearest, open_embedder(name.removeprefix(EMBEDDING)))


def nearest(
    embed: Callable[[Sequence[str]], Any],
    texts: Sequence[str],
    query: str,
    limit: int,
) -> list[int]:
    """Indices of the `limit` texts with the highest cosine similarity to `query`, best first; ties
    in their order.

    embed: unit vectors of N texts, shape N, D.
    """
    if not texts or limit <= 0 or not query.strip():
        return []
    vectors_ND = embed([*texts, query])
    similarity_N = vectors_ND[:-1] @ vectors_ND[-1]
    return [int(index) for index in np.argsort(-similarity_N, kind="stable")[:limit]]


def related(texts: Sequence[str], query: str, limit: int) -> list[int]:
    """Indices of up to `limit` texts that share a word with `query`, best first; ties in their
    order.
    """
    query_words = words(query)
    if limit <= 0 or not query_words or not any(map(words, texts)):
        return []
    scores = _index(tuple(texts)).get_scores(list(query_words))
    order = sorted(range(len(scores)), key=lambda index: -scores[index])
    return [index for index in order[:limit] if scores[index] > 0]


@lru_cache(maxsize=512)
def _index(texts: tuple[str, ...]) -> Any:
    return bm25([words(text) for text in texts])


def most_related(
    store: Store,
    limit: int,
    retrieve: Related,
    question: str,
) -> list[str]:
    """The core, and up to `limit` of the most related items of each list (the paper's
    `search_memory`), best first, within READER_TOKENS.
    """
    found = []
    for kind in LISTS:
        listed = [item.text for item in store.listed(kind)]
        found.append([listed[index] for index in retrieve(listed, question, limit)])
    texts = [store.core] if store.core else []
    room = READER_TOKENS - count_tokens(store.core)
    for text in (text for rank in zip_longest(*found) for text in rank if text is not None):
        tokens = count_tokens(text)
        if tokens <= room:
            texts.append(text)
            room -= tokens
    return texts


def latest(store: Store, question: str = "") -> list[str]:
    """All items in their order, whatever the question, or as many of the last as fit into
    LONG_CONTEXT_TOKENS.
    """
    texts: list[str] = []
    room = LONG_CONTEXT_TOKENS
    for item in reversed(store.items.values()):
        room -= count_tokens(item.text)
        if room < 0:
            break
        texts.insert(0, item.text)
    return texts


class Extractive:
    """The offline reader: quotes the sentence with the largest share of the question's words, or
    says "unknown" if none has enough.

    Ties are broken by a hash of question and sentence, so that neither older nor newer sentences
    are favoured.
    """

    def answer(
        self,
        queries: Sequence[Query],
        memories: Sequence[Sequence[str]],
    ) -> list[str]:
        """See `env.Reader`."""
        return [
            self._quote(query.question, texts)
            for query, texts in zip(queries, memories, strict=True)
        ]

    def _quote(self, question: str, texts: Sequence[str]) -> str:
        question_words = set(content_words(question))
        best, answer = (ENOUGH, ""), UNKNOWN
        for sentence in dict.fromkeys(part for text in texts for part in SENTENCES.split(text)):
            if len(sentence.split()) > LONGEST_SENTENCE:
                continue
            overlap = len(question_words.intersection(content_words(sentence))) / max(
                1, len(question_words)
            )
            rank = (
                overlap,
                hashlib.blake2b(
                    f"{question}\0{sentence}".encode("utf-8", "surrogateescape")
                ).hexdigest(),
            )
            if rank > best:
                best, answer = rank, sentence
        return answer
