"""Labelled decisions: a state, a question about it with its options, and the answer, or the options' probabilities."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reflectkit.decisions.questions import (
    FEWEST_OPTIONS,
    MOST_OPTIONS,
    NO,
    YES,
    Question,
    option_text,
    text_of,
)
from reflectkit.decisions.replies import distribution
from reflectkit.errors import DataError
from reflectkit.jsonl import read_jsonl
from reflectkit.types import Observation

TOLERANCE = 0.02
"""By how much the probabilities of a row may miss 1."""
COLUMNS = ("state", "question", "options", "answer", "probabilities")
FORM = '{"state": …, "question": …, "options": […], "answer": …}'


@dataclass(frozen=True, slots=True)
class LabelledDecision:
    """A row."""

    state: str
    question: Question
    probabilities: tuple[float, ...]
    """Of the options (K), 1 for the answer where there is one; their sum is 1."""

    @property
    def observation(self) -> Observation:
        """What the policy sees."""
        return self.question.observation(self.state)

    @property
    def best(self) -> list[int]:
        """The likeliest options."""
        highest = max(self.probabilities)
        return [index for index, share in enumerate(self.probabilities) if share == highest]


def read_labelled(path: Path) -> list[LabelledDecision]:
    """The rows of `path`. Raises DataError with the line and the field."""
    rows = [labelled(row, path, line) for line, row in read_jsonl(path)]
    if not rows:
        raise DataError(path, f"has no rows; a row is {FORM}")
    return rows


def labelled(
    row: Mapping[str, Any],
    path: Path | str,
    line: int | None = None,
) -> LabelledDecision:
    """A decision from its row. Raises DataError.

    state, question: a text, or a structure that is read as JSON. options: names, or each with its description; default:
    yes and no. answer: an option, or true or false. probabilities: by option, or in their order.
    """

    def error(field: str, message: str) -> DataError:
        return DataError(path, message, line=line, field=field)

    # 1. The state and the question
    unknown_names = sorted(set(row) - {*COLUMNS, "split"})
    if unknown_names:
        raise error(unknown_names[0], f"unknown; a row is {FORM}")
    if row.get("state") in (None, ""):
        raise error("state", f"missing; a row is {FORM}")
    state = text_of(row["state"])
    options = _options(row.get("options"), error)
    names = list(options)
    texts = tuple(option_text(name, description) for name, description in options.items())
    if len(set(texts)) < len(texts):
        raise error("options", "two of them read the same")
    kind = "choice" if row.get("options") is not None else "predicate"
    question = Question(kind, text_of(row.get("question")), texts)  # type: ignore[arg-type]

    # 2. Probabilities
    answer = row.get("answer")
    shares = row.get("probabilities")
    if answer is not None and shares is not None:
        raise error("answer", "give an answer or probabilities, not both")
    if shares is not None:
        return LabelledDecision(state, question, _shares(shares, names, error))

    # 3. Or an answer
    if answer is None:
        raise error("answer", "give an answer or probabilities, this row has neither")
    if isinstance(answer, bool) and kind == "predicate":
        answer = YES if answer else NO
    if answer not in names:
        message = f"{row['answer']!r:.60} is none of the options {', '.join(names):.100}"
        raise error("answer", message)
    return LabelledDecision(state, question, tuple(float(name == answer) for name in names))


def _options(value: Any, error: Callable[[str, str], DataError]) -> dict[str, Any]:
    """The description of each option, or None."""
    if value is None:
        return {YES: None, NO: None}
    names = list(value) if isinstance(value, list | dict) else []
    if not names or not all(isinstance(name, str) and name.strip() for name in names):
        expected = "expected texts that are not empty, or descriptions by option"
        raise error("options", f"{expected}, found {value!r:.60}")
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise error("options", f"{repeated!r:.60} is there twice")
    if not FEWEST_OPTIONS <= len(names) <= MOST_OPTIONS:
        expected = f"expected {FEWEST_OPTIONS} to {MOST_OPTIONS}"
        raise error("options", f"there are {len(names)}; {expected}")
    return dict(value) if isinstance(value, dict) else dict.fromkeys(names)


def _shares(
    value: Any,
    names: Sequence[str],
    error: Callable[[str, str], DataError],
) -> tuple[float, ...]:
    """The probability of each option, from a list or by option; of options that are left out it is 0."""
    if isinstance(value, list) and len(value) == len(names):
        value = dict(zip(names, value, strict=True))
    if not isinstance(value, dict) or not value.keys() <= set(names):
        expected = "expected a probability by option, or one for each option in their order"
        raise error("probabilities", expected)
    shares = [value.get(name, 0.0) for name in names]
    return distribution(shares, TOLERANCE, lambda message: error("probabilities", message))
