"""Scores of answers, by the rule that each question names.

Some rules are ours, for generated conversations; the others are those of the published data. A
question with a rubric is for a judge, if there is one.

This departs from Mem-α's scorer: all alternatives count, not only the first, and case never
matters. A right answer that is empty after normalisation ("A") does not match everything. A text of
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
"""The kind of questions that are for a judge."""
ROUGE = "rouge"
"""The kind of questions that need the package rouge-score."""
FIRST_ITEMS = 5
"""How many items of a recommendation count."""
BOXED = re.compile(r"\\boxed\{([^}]*)\}")
NUMBERED = re.compile(r"^\d+[.)、]?\s*[-—–]?\s*")
"""The number before an item of a list."""
ARTICLES = re.compile(r"\b(a|an|the)\b")
ANSWER = re.compile(r"Answer:(.*)", re.IGNORECASE)
PUNCTUATION = str.maketrans("", "", string.punctuation)
"""A translation that removes punctuation."""


Text = Annotated[str, Field(pattern=r"\S")]
"""A text that is not empty."""


def _check_kind(kind: str) -> str:
    """`kind`, which has a rule. Raises ValueError if it has none."""
    if kind not in RULES:
        raise ValueError(f"is one of {', '.join(RULES)}, found {kind!r:.60}")
    return kind


def _alternatives(value: Any) -> Any:
    """A list of alternatives, which may be given as one text."""
    return [value] if isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class MemoryQuestion:
    """A question about a conversation, in tasks and in files of questions."""

    question: str
    """The text of the question."""
    answers: Annotated[
        tuple[Text, ...],
        BeforeValidator(_alternatives),
        Field(alias="answer", min_length=1),
    ]
    """The right answers: alternatives, or parts of one answer, depending on `kind`."""
    kind: Annotated[str, AfterValidator(_check_kind)] = "contain"
    """The rule that scores an answer, a key of `RULES`."""
    wrong: tuple[str, ...] = ()
    """Texts that an answer must not contain. With these, a list of all possible answers scores 0.
    """
    titles: tuple[str, ...] = ()
    """All titles that can be recommended. An item of a recommendation counts as the title that is
    nearest to it.
    """


def score(question: MemoryQuestion, answer: str) -> float:
    """The score of `answer`, 0 to 1, by the question's rule.

    Reasoning before `</think>` does not count. An answer whose reasoning does not end is empty.
    """
    # 1. The answer without its reasoning
    answer = _after_reasoning(answer)
    if "<think>" in answer:
        answer = ""

    # 2. 0 for a wrong text, else by the rule
    answer_text = plain(answer)
    for wrong in question.wrong:
        if _contains(answer_text, plain(wrong)):
            return 0.0
    rule = RULES[question.kind]
    return float(rule(question, answer))


def _after_reasoning(answer: str) -> str:
    """`answer` from the last `</think>`."""
    parts = answer.split("</think>")
    return parts[-1].strip()


def scores(
    questions: Sequence[MemoryQuestion],
    answers: Sequence[str],
    judge: Judge | None,
) -> list[float] | Awaitable[list[float]]:
    """The score of each answer, 0 to 1; awaitable if the judge is asked asynchronously.

    judge: decides on questions with a rubric; without one, they have a rule, too. Raises
    EnvironmentFailure if the judge cannot be reached.
    """
    # 1. Score by rules, and collect what is for the judge
    results: list[float] = []
    claims: list[Claim] = []
    claim_numbers: list[int] = []
    for question, answer in zip(questions, answers, strict=True):
        if judge is not None and question.kind == RUBRIC:
            right = "; ".join(question.answers)
            claims.append(Claim(question.question, right, _after_reasoning(answer)))
            claim_numbers.append(len(results))
            results.append(0.0)
        else:
            results.append(score(question, answer))
    if judge is None or not claims:
        return results

    # 2. Add the judge's verdicts
    def merge(verdicts: list[bool]) -> list[float]:
        for number, verdict in zip(claim_numbers, verdicts, strict=True):
            results[number] = float(verdict)
        return results

    return followed(judge.verdicts(claims), merge)


def plain(text: str) -> str:
    """`text` in lower case, with single spaces."""
    return " ".join(text.lower().split())


def _contains(text: str, part: str) -> bool:
    """Whether `text` contains `part` as whole words.

    Scripts without spaces have no borders of words: there, `part` may be anywhere.
    """
    if not part:
        return False
    before = "" if UNSPACED.match(part[0]) else r"(?<!\w)"
    after = "" if UNSPACED.match(part[-1]) else r"(?!\w)"
    return re.search(f"{before}{re.escape(part)}{after}", text) is not None


def _without_quotes(text: str) -> str:
    """`text` in lower case, without quotation marks and full stops around it."""
    return plain(text).strip(" .\"'")


def _squad_text(text: str) -> str:
    """`text` in lower case, without articles and punctuation: SQuAD's normalisation."""
    letters = text.lower().translate(PUNCTUATION)
    words = ARTICLES.sub(" ", letters).split()
    return " ".join(words)


def _normal(question: MemoryQuestion, answer: str) -> bool:
    """The rule `normal`, see `RULES`."""
    text = _squad_text(answer)
    for right in question.answers:
        short = _squad_text(right)
        if short and short in text:
            return True
        # Nothing is left of a right answer such as "A", and nothing is in every text
        if not short and _contains(plain(answer), plain(right)):
            return True
    return False


def _keywords(question: MemoryQuestion, answer: str) -> float:
    """The rule `keywords`, see `RULES`."""
    # 1. The parts between semicolons or commas
    parts = []
    for right in question.answers:
        for part in re.split(r"[;,]", plain(right)):
            if part.strip():
                parts.append(part.strip())

    # 2. The share of them in the answer
    text = plain(answer)
    matches = sum(_contains(text, part) for part in parts)
    return matches / max(1, len(parts))


def _boxed_text(answer: str) -> str:
    """The text in `\\boxed{}`, or the whole answer if there is none."""
    match = BOXED.search(answer)
    text = match[1] if match else answer
    return text.strip()


def _unquoted(text: str) -> str:
    """`text` without quotation marks around it."""
    return text.strip("\"'").strip()


def _label(question: MemoryQuestion, answer: str) -> bool:
    """The rule `label`, see `RULES`."""
    label = _unquoted(_boxed_text(answer))
    labels = map(_unquoted, question.answers)
    return label.isdecimal() and label in labels


def _rouge(question: MemoryQuestion, answer: str) -> float:
    """The rule `rouge`, see `RULES`."""
    # 1. The answer, and the part of it that is meant
    short, _, _ = answer.partition("\n")
    match = ANSWER.search(answer)
    if match:
        short = match[1]

    # 2. The better of both, for the best of the right answers
    best = 0.0
    for right in question.answers:
        for text in (answer, short.strip()):
            result = rouge_scorer().score(right, text)
            f1 = float(result["rougeL"].fmeasure)
            best = max(best, f1)
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
    """The rule `recommend`, see `RULES`."""
    # 1. The lines of a numbered list, or the parts of a list with commas
    _, mark, rest = answer.partition("1.")
    listing = rest if mark else answer.replace(",", "\n")

    # 2. The items, without the years in brackets, and without their numbers
    items = []
    for line in listing.split("\n"):
        name = re.sub(r"\([^()]*\)", "", line.strip())
        words = NUMBERED.sub("", name).split()
        if words:
            items.append(" ".join(words))
    items = items[:FIRST_ITEMS]

    # 3. The share of the right titles that are among them
    if question.titles:
        titles = {nearest(item, question.titles) for item in items}
        matches = sum(right in titles for right in question.answers)
    else:
        names = {plain(item) for item in items}
        matches = sum(plain(right) in names for right in question.answers)
    return matches / len(question.answers)


def nearest(name: str, titles: Sequence[str]) -> str:
    """The title with the smallest edit distance to `name`, the first of several. Case does not
    matter.

    The distances are those of Wagner and Fischer 1974, for all T titles at once. L: letters of the
    longest title.

    >>> nearest("toy stori", ["Heat", "Toy Story"])
    'Toy Story'
    """
    # 1. The letters of all titles
    count = len(titles)
    lower_titles = [title.lower() for title in titles]
    lengths_T = np.array(list(map(len, lower_titles)))
    letters_TL = np.array(lower_titles).view(np.int32).reshape(count, -1)
    longest = letters_TL.shape[1]

    # 2. The distances from the first letters of `name` to the first letters of each title
    steps = np.arange(longest + 1, dtype=np.int32)
    row_TL = np.broadcast_to(steps, (count, longest + 1))
    for number, letter in enumerate(name.lower(), 1):
        differs_TL = letters_TL != ord(letter)
        replacement_TL = row_TL[:, :-1] + differs_TL
        deletion_TL = row_TL[:, 1:] + 1
        next_TL = np.empty_like(row_TL)
        next_TL[:, 0] = number
        next_TL[:, 1:] = np.minimum(replacement_TL, deletion_TL)
        # An insertion adds 1 to the distance on its left
        row_TL = np.minimum.accumulate(next_TL - steps, axis=1) + steps

    # 3. The distances to the whole titles
    distances_T = row_TL[np.arange(count), lengths_T]
    return titles[int(np.argmin(distances_T))]


def _rubric(question: MemoryQuestion, answer: str) -> float:
    """The rule `rubric`, see `RULES`."""
    words: set[str] = set()
    for right in question.answers:
        words.update(content_words(right))
    if not words:
        return RULES["contain"](question, answer)
    matches = words.intersection(content_words(answer))
    return len(matches) / len(words)


def _share(question: MemoryQuestion, answer: str) -> float:
    """The rule `share`, see `RULES`."""
    text = plain(answer)
    matches = sum(plain(right) in text for right in question.answers)
    return matches / len(question.answers)


def _contain(question: MemoryQuestion, answer: str) -> bool:
    """The rule `contain`, see `RULES`."""
    text = plain(answer)
    return any(_contains(text, plain(right)) for right in question.answers)


def _boxed(question: MemoryQuestion, answer: str) -> bool:
    """The rule `boxed`, see `RULES`."""
    alternatives = map(str.strip, question.answers)
    return _boxed_text(answer) in alternatives


def _exact(question: MemoryQuestion, answer: str) -> bool:
    """The rule `exact`, see `RULES`."""
    alternatives = map(_without_quotes, question.answers)
    return _without_quotes(answer) in alternatives


Rule = Callable[[MemoryQuestion, str], float]
"""The score of an answer."""
RULES: dict[str, Rule] = {
    # one of the alternatives, as whole words
    "contain": _contain,
    # equal to one of the alternatives
    "exact": _exact,
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
