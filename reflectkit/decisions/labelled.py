"""Labelled decisions: rows with a state, a question with options, and the right answer.

Instead of an answer, a row may have the probability of each option. Shapes: K options.
"""

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
    refuse_alike,
    text_of,
)
from reflectkit.decisions.replies import distribution
from reflectkit.errors import DataError
from reflectkit.jsonl import first_repeated, lone_surrogate, read_jsonl
from reflectkit.types import Observation

TOLERANCE = 0.02
"""How far the sum of a row's probabilities may be from 1."""
COLUMNS = ("state", "question", "options", "answer", "probabilities")
FORM = '{"state": …, "question": …, "options": […], "answer": …}'
"""A row, as error messages show it."""

ErrorMaker = Callable[[str, str], DataError]
"""Makes the error of a row from the name of a field and a message."""


@dataclass(frozen=True, slots=True)
class LabelledDecision:
    """A question about a state, and how likely each option is the right one."""

    state: str
    question: Question
    probabilities: tuple[float, ...]
    """The probability of each option (K). Their sum is 1. A row with an answer has 1 for it."""

    @property
    def observation(self) -> Observation:
        """The question, as the policy reads it."""
        return self.question.observation(self.state)

    @property
    def best(self) -> list[int]:
        """Indices of the likeliest options."""
        highest = max(self.probabilities)
        return [index for index, share in enumerate(self.probabilities) if share == highest]


def read_labelled(path: Path) -> list[LabelledDecision]:
    """The decisions of the JSON Lines file `path`. Raises DataError with the line and the field."""
    rows = [labelled_decision(row, path, line) for line, row in read_jsonl(path)]
    if not rows:
        raise DataError(path, f"has no rows; a row is {FORM}")
    return rows


def labelled_decision(
    row: Mapping[str, Any],
    path: Path | str,
    line: int | None = None,
) -> LabelledDecision:
    """The decision of a row. path, line: where the row is, for errors. Raises DataError.

    The fields of a row:

    - state, question: a text, or a structure, which is shown as JSON.
    - options: a list of names, or an object with their descriptions; by default yes and no.
    - answer: the name of an option; of yes and no also true or false.
    - probabilities: an object by option, or a list in the order of the options.
    """

    def error(field: str, message: str) -> DataError:
        return DataError(path, message, line=line, field=field)

    # 1. The state
    unknown_names = sorted(set(row) - {*COLUMNS, "split"})
    if unknown_names:
        raise error(unknown_names[0], f"unknown; a row is {FORM}")
    if row.get("state") in (None, ""):
        raise error("state", f"missing; a row is {FORM}")
    state = text_of(row["state"])

    # 2. The question and its options
    options = _options(row.get("options"), error)
    names = list(options)
    texts = tuple(option_text(name, description) for name, description in options.items())
    try:
        refuse_alike(texts)
    except ValueError as fault:
        raise error("options", str(fault)) from None
    kind = "choice" if row.get("options") is not None else "predicate"
    question = Question(kind, text_of(row.get("question")), texts)  # type: ignore[arg-type]
    written = {"state": state, "question": question.instructions, "options": "".join(texts)}
    for field, text in written.items():
        if lone_surrogate(text):
            raise error(field, "has half a surrogate pair")

    # 3. The probabilities of the options
    answer = row.get("answer")
    shares = row.get("probabilities")
    if answer is not None and shares is not None:
        raise error("answer", "give an answer or probabilities, not both")
    if shares is not None:
        return LabelledDecision(state, question, _shares(shares, names, error))

    # 4. Or the right answer, which gets probability 1
    if answer is None:
        raise error("answer", "give an answer or probabilities, this row has neither")
    if isinstance(answer, bool) and kind == "predicate":
        answer = YES if answer else NO
    if answer not in names:
        message = f"{row['answer']!r:.60} is none of the options {', '.join(map(repr, names)):.100}"
        raise error("answer", message)
    probabilities = tuple(float(name == answer) for name in names)
    return LabelledDecision(state, question, probabilities)


def _options(value: Any, error: ErrorMaker) -> dict[str, Any]:
    """The description of each option, None for an option without one.

    value: the field `options` of a row. Raises what `error` makes.
    """
    if value is None:
        return {YES: None, NO: None}
    names = list(value) if isinstance(value, list | dict) else []
    if not names or not all(isinstance(name, str) and name.strip() for name in names):
        expected = "expected texts that are not empty, or descriptions by option"
        raise error("options", f"{expected}, found {value!r:.60}")
    repeated = first_repeated(names)
    if repeated is not None:
        raise error("options", f"{repeated!r:.60} is there twice")
    if not FEWEST_OPTIONS <= len(names) <= MOST_OPTIONS:
        expected = f"expected {FEWEST_OPTIONS} to {MOST_OPTIONS}"
        raise error("options", f"there are {len(names)}; {expected}")
    return dict(value) if isinstance(value, dict) else dict.fromkeys(names)


def _shares(
    value: Any,
    names: Sequence[str],
    error: ErrorMaker,
) -> tuple[float, ...]:
    """The probability of each option (K).

    value: the field `probabilities` of a row, a list or an object. An option that the object leaves
    out has probability 0. Raises what `error` makes.
    """
    if isinstance(value, list) and len(value) == len(names):
        value = dict(zip(names, value, strict=True))
    if not isinstance(value, dict) or not value.keys() <= set(names):
        expected = "expected a probability by option, or one for each option in their order"
        raise error("probabilities", expected)
    shares = [value.get(name, 0.0) for name in names]
    return distribution(shares, TOLERANCE, lambda message: error("probabilities", message))
