"""The frozen reader, which answers from the memory alone: the offline one quotes a sentence. And scoring of answers."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from reflectkit.envs.memory.language import UNSPACED, content_words

EXTRACTIVE = "extractive"
"""Name of the offline reader."""
UNKNOWN = "unknown"
ENOUGH = 0.6  # share of a question's words that an answer must contain
SENTENCES = re.compile(r"(?<=[.!?。！？])\s*(?=\S)")
LONGEST_SENTENCE = 40  # words; longer sentences are not quoted


@dataclass(frozen=True, slots=True)
class Question:
    """kind: how an answer is scored: `contain`, `exact` or `keywords`. wrong: texts that an answer must not contain, so
    that listing every possible answer scores nothing.
    """

    question: str
    answer: str
    kind: str = "contain"
    wrong: tuple[str, ...] = ()


class Reader(Protocol):
    """Answers questions from memories."""

    def answer(self, questions: Sequence[str], memories: Sequence[Sequence[str]]) -> list[str] | Awaitable[list[str]]:
        """An answer to each question, from the texts that were retrieved for it, best first; awaitable if the reader is
        a server.

        Raises EnvironmentFailure if the reader cannot be reached.
        """
        ...


class Extractive:
    """Quotes the sentence with the largest share of the question's words, or says "unknown" if none has enough.

    Ties are broken by a hash of question and sentence, so that neither older nor newer sentences are favoured.
    """

    def answer(self, questions: Sequence[str], memories: Sequence[Sequence[str]]) -> list[str]:
        """See `Reader`."""
        return [self._one(question, texts) for question, texts in zip(questions, memories, strict=True)]

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


def score(question: Question, answer: str) -> float:
    """0 … 1. contain: `answer` contains the correct one; exact: it equals it; keywords: the share of the correct one's
    parts that it contains.
    """
    given, expected = _plain(answer), _plain(question.answer)
    if any(_within(_plain(other), given) for other in question.wrong):
        return 0.0
    if question.kind == "exact":
        return float(given.strip(" .\"'") == expected.strip(" .\"'"))
    if question.kind == "keywords":
        parts = [part.strip() for part in re.split(r"[;,]", expected) if part.strip()]
        return sum(_within(part, given) for part in parts) / max(1, len(parts))
    return float(_within(expected, given))


def kind_of(source: str, answer: str) -> str:
    """How questions of the published data are scored, by their source."""
    if source.startswith(("pubmed", "icl", "nlu", "trec")) or answer.strip().isdigit():
        return "exact"
    if source.startswith(("booksum", "infbench")) or (source.startswith("perltqa") and ";" in answer):
        return "keywords"
    return "contain"


def _plain(text: str) -> str:
    return " ".join(text.lower().split())


def _within(part: str, text: str) -> bool:
    """Whether `text` contains `part` as whole words; word borders are ignored in scripts without spaces."""
    before, after = (
        "" if UNSPACED.match(edge) else bound for edge, bound in ((part[:1], r"(?<!\w)"), (part[-1:], r"(?!\w)"))
    )
    return bool(part) and re.search(f"{before}{re.escape(part)}{after}", text) is not None


def as_question(value: Any) -> Question:
    """A question from a task's data. Raises ValueError."""
    if not isinstance(value, dict) or not all(isinstance(value.get(name), str) for name in ("question", "answer")):
        raise ValueError("a question needs the texts 'question' and 'answer'")
    kind = value.get("kind", "contain")
    if kind not in ("contain", "exact", "keywords"):
        raise ValueError(f"a question's kind is contain, exact or keywords, found {kind!r}")
    wrong = value.get("wrong", [])
    if not value["answer"].strip() or not isinstance(wrong, list) or not all(isinstance(other, str) for other in wrong):
        raise ValueError("a question's answer is not empty, and 'wrong' is a list of texts")
    return Question(value["question"], value["answer"], kind, tuple(wrong))
