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
    stems = []
    for word in words(text):
        is_letter = len(word) == 1 and "a" <= word <= "z"
        if word not in STOP_WORDS and not is_letter:
            stems.append(stem(word))
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
    # The last vector is the query's
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
    # 1. The best of each list
    matches = []
    for kind in LISTS:
        candidates = [item.text for item in store.listed(kind)]
        matches.append([candidates[index] for index in retrieve(candidates, question, limit)])
    # 2. The core, and the matches of both lists in turn, without those that do not fit
    texts = [store.core] if store.core else []
    room = READER_TOKENS - count_tokens(store.core)
    for rank in zip_longest(*matches):
        for text in rank:
            if text is not None and count_tokens(text) <= room:
                texts.append(text)
                room -= count_tokens(text)
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
        answers = []
        for query, texts in zip(queries, memories, strict=True):
            answers.append(self._quote(query.question, texts))
        return answers

    def _quote(self, question: str, texts: Sequence[str]) -> str:
        question_words = set(content_words(question))
        best, answer = (ENOUGH, ""), UNKNOWN
        sentences: dict[str, None] = {}
        for text in texts:
            sentences.update(dict.fromkeys(SENTENCES.split(text)))
        for sentence in sentences:
            if len(sentence.split()) > LONGEST_SENTENCE:
                continue
            overlap = len(question_words.intersection(content_words(sentence)))
            pair = f"{question}\0{sentence}".encode("utf-8", "surrogateescape")
            digest = hashlib.blake2b(pair).hexdigest()
            rank = overlap / max(1, len(question_words)), digest
            if rank > best:
                best, answer = rank, sentence
        return answer
