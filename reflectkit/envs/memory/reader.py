"""The offline reader, which answers from the memory alone by quoting a sentence."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from reflectkit.env import Query
from reflectkit.envs.memory.language import content_words

EXTRACTIVE = "extractive"
"""Name of the offline reader."""
UNKNOWN = "unknown"
ENOUGH = 0.6  # share of a question's words that an answer must contain
SENTENCES = re.compile(r"(?<=[.!?。！？])\s*(?=\S)")
LONGEST_SENTENCE = 40  # words; longer sentences are not quoted


class Extractive:
    """Quotes the sentence with the largest share of the question's words, or says "unknown" if none has enough.

    Ties are broken by a hash of question and sentence, so that neither older nor newer sentences are favoured.
    """

    def answer(self, queries: Sequence[Query], memories: Sequence[Sequence[str]]) -> list[str]:
        """See `env.Reader`."""
        return [self._one(query.question, texts) for query, texts in zip(queries, memories, strict=True)]

    def _one(self, question: str, texts: Sequence[str]) -> str:
        question_words = set(content_words(question))
        best, answer = (ENOUGH, ""), UNKNOWN
        for sentence in dict.fromkeys(part for text in texts for part in SENTENCES.split(text)):
            if len(sentence.split()) > LONGEST_SENTENCE:
                continue
            overlap = len(question_words.intersection(content_words(sentence))) / max(1, len(question_words))
            rank = (overlap, hashlib.blake2b(f"{question}\0{sentence}".encode("utf-8", "surrogateescape")).hexdigest())
            if rank > best:
                best, answer = rank, sentence
        return answer
