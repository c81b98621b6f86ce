"""Scoring of answers by the rule that each question names: ours for generated conversations, and
those of the published data, by source. Questions with a rubric are for a judge, if there is one.

Departs from Mem-α's scorer: every list of alternatives counts, not only its first; case never
matters; a right answer that is empty after normalisation ("A") does not match everything; text in
several lines has no empty recommendations.
"""

from __future__ import annotations

import re
import string
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, BeforeValidator, Field

from reflectkit.env import Claim, Judge
from reflectkit.envs.memory.retrieval import UNSPACED, content_words
from reflectkit.errors import ConfigError
from reflectkit.eventloop import followed

RUBRIC = "rubric"
ROUGE = "rouge"
FIRST_ITEMS = 5  # of a recommendation count
BOXED = re.compile(r"\\boxed\{([^}]*)\}")
NUMBERED = re.compile(r"^\d+[.)、]?\s*[-—–]?\s*")
ARTICLES = re.compile(r"\b(a|an|the)\b")
ANSWER = re.compile(r"Answer:(.*)", re.IGNORECASE)
PUNCTUATION = str.maketrans("", "", string.punctuation)


Text = Annotated[str, Field(pattern=r"\S")]
"""A text that is not empty."""


def _check_kind(kind: str) -> str:
    if kind not in RULES:
        raise ValueError(f"is one of {', '.join(RULES)}, found {kind!r:.60}")
    return kind


def _alternatives(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class MemoryQuestion:
    """A question about a conversation, as tasks and files of questions have it."""

    question: str
    """Its text."""
    answers: Annotated[
        tuple[Text, ...], BeforeValidator(_alternatives), Field(alias="answer", min_length=1)
    ]
    """Right answers: alternatives, or parts of one, as `kind` has it."""
    kind: Annotated[str, AfterValidator(_check_kind)] = "contain"
    """The rule that scores an answer: a key of `RULES`."""
    wrong: tuple[str, ...] = ()
    """Texts that an answer must not contain, so that listing every possible answer scores nothing.
    """
    titles: tuple[str, ...] = ()
    """Everything that can be recommended; an item of a recommendation stands for the title nearest
    to it.
    """


def score(question: MemoryQuestion, answer: str) -> float:
    """The score of `answer`, 0 … 1, by the question's rule. Reasoning before `</think>` does not
    count; reasoning that has no end is no answer.
    """
    answer = answer.split("</think>")[-1].strip()
    if "<think>" in answer:
        answer = ""
    if any(_within(plain(other), plain(answer)) for other in question.wrong):
        return 0.0
    return float(RULES[question.kind](question, answer))


def scores(
    questions: Sequence[MemoryQuestion],
    answers: Sequence[str],
    judge: Judge | None,
) -> list[float] | Awaitable[list[float]]:
    """The score of each answer, 0 … 1; awaitable if the judge is. Raises EnvironmentFailure if it
    cannot be reached.
    """
    # 1. By rule, except what is for the judge
    results: list[float] = []
    claims: dict[int, Claim] = {}
    for number, (question, answer) in enumerate(zip(questions, answers, strict=True)):
        if judge is not None and question.kind == RUBRIC:
            answer = answer.split("</think>")[-1].strip()
            claims[number] = Claim(question.question, "; ".join(question.answers), answer)
            results.append(0.0)
        else:
            results.append(score(question, answer))
    if judge is None or not claims:
        return results

    # 2. By the judge
    def merge(verdicts: list[bool]) -> list[float]:
        for number, verdict in zip(claims, verdicts, strict=True):
            results[number] = float(verdict)
        return results

    return followed(judge.verdicts(list(claims.values())), merge)


def plain(text: str) -> str:
    """`text` in lower case, with single spaces."""
    return " ".join(text.lower().split())


def _within(part: str, text: str) -> bool:
    """Whether `text` contains `part` as whole words; word borders are ignored in scripts without
    spaces.
    """
    if not part:
        return False
    before = "" if UNSPACED.match(part[0]) else r"(?<!\w)"
    after = "" if UNSPACED.match(part[-1]) else r"(?!\w)"
    return re.search(f"{before}{re.escape(part)}{after}", text) is not None


def _bare(text: str) -> str:
    """`text` in lower case, without quotation marks and full stops around it."""
    return plain(text).strip(" .\"'")


def _normalised(text: str) -> str:
    """`text` in lower case, without articles and punctuation: SQuAD's normalisation."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def _normal(question: MemoryQuestion, answer: str) -> bool:
    text = _normalised(answer)
    for right in question.answers:
        short = _normalised(right)
        # Nothing is left of an answer such as "A", which would be in every text
        if short in text if short else _within(plain(right), plain(answer)):
            return True
    return False


def _keywords(question: MemoryQuestion, answer: str) -> float:
    parts = []
    for right in question.answers:
        parts += [part.strip() for part in re.split(r"[;,]", plain(right))]
    parts = [part for part in parts if part]
    return sum(_within(part, plain(answer)) for part in parts) / max(1, len(parts))


def _in_box(answer: str) -> str:
    """What is in `\\boxed{}`; without one, the whole answer."""
    match = BOXED.search(answer)
    return (match[1] if match else answer).strip()


def _label(question: MemoryQuestion, answer: str) -> bool:
    label = _in_box(answer).strip("\"'").strip()
    labels = [right.strip("\"'").strip() for right in question.answers]
    return label.isdecimal() and label in labels


def _rouge(question: MemoryQuestion, answer: str) -> float:
    match = ANSWER.search(answer)
    short = (match[1] if match else answer.partition("\n")[0]).strip()
    best = 0.0
    for right in question.answers:
        for text in (answer, short):
            result = rouge_scorer().score(right, text)
            best = max(best, float(result["rougeL"].fmeasure))
    return best


@lru_cache(maxsize=1)
def rouge_scorer() -> Any:
    """The scorer of ROUGE. Raises ConfigError if its package is missing."""
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError:
        raise ConfigError(
            "questions scored by ROUGE need rouge-score: pip install 'reflectkit[memory]'"
        ) from None
    return RougeScorer(["rougeL"], use_stemmer=True)


def _recommend(question: MemoryQuestion, answer: str) -> float:
    # 1. The items: without the year in brackets, and without their numbers
    _, mark, rest = answer.partition("1.")
    lines = (rest if mark else answer.replace(",", "\n")).split("\n")
    items = []
    for line in lines:
        name = re.sub(r"\([^()]*\)", "", line.strip())
        items.append(" ".join(NUMBERED.sub("", name).split()))
    items = [item for item in items if item][:FIRST_ITEMS]
    # 2. The share of the right titles among them
    if not question.titles:
        names = {plain(item) for item in items}
        return sum(plain(right) in names for right in question.answers) / len(question.answers)
    titles = {nearest(item, question.titles) for item in items}
    return sum(right in titles for right in question.answers) / len(question.answers)


def nearest(name: str, titles: Sequence[str]) -> str:
    """The title with the smallest edit distance to `name`, the first of equals. Case does not
    matter.

    >>> nearest("toy stori", ["Heat", "Toy Story"])
    'Toy Story'
    """
    lower_titles = [title.lower() for title in titles]
    lengths_T = np.array(list(map(len, lower_titles)))
    letters_TL = np.array(lower_titles).view(np.int32).reshape(len(titles), -1)
    steps = np.arange(letters_TL.shape[1] + 1, dtype=np.int32)
    row_TL = np.broadcast_to(steps, (len(titles), len(steps)))
    # Wagner and Fischer 1974, a row of all titles at once
    for number, letter in enumerate(name.lower(), 1):
        above_TL = np.empty_like(row_TL)
        above_TL[:, 0] = number
        above_TL[:, 1:] = np.minimum(
            row_TL[:, :-1] + (letters_TL != ord(letter)), row_TL[:, 1:] + 1
        )
        row_TL = np.minimum.accumulate(above_TL - steps, axis=1) + steps  # insertions
    return titles[int(np.argmin(row_TL[np.arange(len(titles)), lengths_T]))]


def _rubric(question: MemoryQuestion, answer: str) -> float:
    words: set[str] = set()
    for right in question.answers:
        words.update(content_words(right))
    if not words:
        return RULES["contain"](question, answer)
    return len(words.intersection(content_words(answer))) / len(words)


def _share(question: MemoryQuestion, answer: str) -> float:
    return sum(plain(right) in plain(answer) for right in question.answers) / len(question.answers)


def _contain(question: MemoryQuestion, answer: str) -> bool:
    return any(_within(plain(right), plain(answer)) for right in question.answers)


def _boxed(question: MemoryQuestion, answer: str) -> bool:
    return _in_box(answer) in {right.strip() for right in question.answers}


RULES: dict[str, Callable[[MemoryQuestion, str], float]] = {
    # one of the alternatives, as whole words
    "contain": _contain,
    # equal to one of the alternatives
    "exact": lambda question, answer: _bare(answer) in map(_bare, question.answers),
    # share of the parts between semicolons or commas, as whole words
    "keywords": _keywords,
    # one of the alternatives, anywhere in the text
    "substring": lambda question, answer: _share(question, answer) > 0,
    # the same, after SQuAD's normalisation (Rajpurkar et al. 2016), as in DrQA
    "normal": _normal,
    # share of the parts that occur anywhere in the text
    "share": _share,
    # all parts occur anywhere in the text
    "every": lambda question, answer: _share(question, answer) == 1.0,
    # a number, alone or in `\boxed{}`
    "label": _label,
    # one of the alternatives, alone or in `\boxed{}`
    "boxed": _boxed,
    # F1 of ROUGE-L (Lin 2004), with stemming; of the answer or of what follows "Answer:" in its
    # line (else the first line), whichever is better
    ROUGE: _rouge,
    # recall of the right titles among the first five of a numbered or comma-separated list
    "recommend": _recommend,
    # share of the rubric's content words in the answer: a stand-in for the verdict of a judge
    RUBRIC: _rubric,
}
"""The rules by the `kind` of questions."""
