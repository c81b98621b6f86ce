"""Converts turns to SFT rows: the original's five files, in which each row has a `prompt` and a `completion`, and
`"answer": "text"` where a choice is answered in its own words rather than by its label.

The original's own rows, with a `text` alone, are read too: the completion is what follows their last marker.

A wrong move gives no row for a policy, but the comment before it was right and gives a row for the reflector. A move
that corrects a mistake is in the full files but not in the `_positive` ones. A policy's turns of one conversation are
one row, with those after the first in its list `then`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reflectkit.errors import DataError
from reflectkit.jsonl import lone_surrogate, read_jsonl
from reflectkit.prompts import (
    THEN_ACT,
    TURN_END,
    action_completion,
    answers,
    listed_answers,
    policy_prompt,
    reflection_completion,
    reflection_prompt,
    thinking_prompt,
    with_comments,
)
from reflectkit.types import AGENT_MARKER, ANSWERS, Observation, ToolUse, Turn

ORIGINAL_MARKERS = (" # Action:\n", " # Analyze:\n")
"""Before the completion in the original's rows: the action where there is one, else the comment."""
FILE_OF_ROLE = {
    "plain": "sft.jsonl",
    "reflection": "sft_reflection.jsonl",
    "policy": "sft_policy.jsonl",
    "think": "sft_think.jsonl",
}


@dataclass(frozen=True, slots=True)
class Lesson:
    """One step to learn from. completion: the policy's target. note: "positive", "mistake" or "correction". earlier:
    the steps before it in its conversation, whose comments the policy has read; empty outside of conversations. form:
    of the answer for a choice.
    """

    observation: Observation
    reflection: str
    completion: str
    note: str
    earlier: tuple[Lesson, ...] = ()
    form: str = ANSWERS[0]

    @property
    def choice(self) -> int:
        """The index of the answer among the choices, which the observation must have."""
        return answers(self.observation.choices, self.form).index(self.completion)


def lessons(episodes: Sequence[Sequence[Turn]], form: str = ANSWERS[0]) -> list[Lesson]:
    """The steps of `episodes`, in order; choices are answered with "label" or "text". Raises ConfigError."""
    steps: list[Lesson] = []
    for turns in episodes:
        earlier: list[Lesson] = []
        for turn in turns:
            decision = turn.decision
            step = Lesson(
                turn.observation,
                decision.reflection or "",
                _completion(turn.observation, decision.action, form),
                decision.note or "positive",
                tuple(earlier),
                form,
            )
            steps.append(step)
            if turn.observation.replies:
                earlier.append(replace(step, earlier=()))
    return steps


def _completion(observation: Observation, action: int | str | ToolUse, form: str) -> str:
    """What the policy should answer."""
    return answers(observation.choices, form)[action] if isinstance(action, int) else action_completion(action)


def plain_row(lesson: Lesson) -> dict[str, str]:
    """Prompt without comment → the answer."""
    return _row(lesson, lesson.observation, None)


def reflection_row(lesson: Lesson) -> dict[str, str]:
    """Prompt without the actions → the teacher's reflection."""
    return {"prompt": reflection_prompt(lesson.observation), "completion": reflection_completion(lesson.reflection)}


def policy_row(lesson: Lesson, comment: str, earlier: Sequence[str] = ()) -> dict[str, str]:
    """Prompt with `comment` → the answer. earlier: the comments on `lesson.earlier`."""
    observation = with_comments(lesson.observation, earlier) if earlier else lesson.observation
    return _row(lesson, observation, comment)


def _row(lesson: Lesson, observation: Observation, comment: str | None) -> dict[str, str]:
    row = {"prompt": policy_prompt(observation, comment, lesson.form), "completion": lesson.completion}
    return row | ({"answer": lesson.form} if lesson.form != ANSWERS[0] and observation.choices else {})


def mismatched(comments: Sequence[str], share: float, generator: random.Random) -> list[str]:
    """`comments` with about `share` of them replaced by the comment of another lesson, drawn with `generator`.

    A policy trained on such rows learns to check comments against the observation instead of following them blindly.
    """
    return [generator.choice(comments) if generator.random() < share else comment for comment in comments]


def think_row(lesson: Lesson) -> dict[str, Any]:
    """Prompt without comment → the teacher's reflection, and then the answer."""
    first = {
        "prompt": thinking_prompt(lesson.observation, lesson.form),
        "completion": reflection_completion(lesson.reflection),
        "then": [{"prompt": THEN_ACT, "completion": lesson.completion}],
    }
    return first | ({"answer": lesson.form} if lesson.form != ANSWERS[0] and lesson.observation.choices else {})


def joined(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """`rows`, in which each that goes on from the one before it, as the turns of a conversation do, is added to it as
    `{prompt, completion}` in the list `then`, with the new part of its prompt. A conversation is then one row.
    """
    long_rows: list[dict[str, Any]] = []
    so_far = ""
    for row in rows:
        if so_far and row["prompt"].startswith(so_far):
            new = {"prompt": row["prompt"][len(so_far) :], "completion": row["completion"]}
            long_rows[-1].setdefault("then", []).append(new)
        else:
            long_rows.append(dict(row))
        so_far = f"{row['prompt']}{row['completion']}{TURN_END}" if row["prompt"].endswith(AGENT_MARKER) else ""
    return long_rows


@dataclass(frozen=True, slots=True)
class Row:
    """A row to train on. line: its number in the file. parts: (prompt, completion); several in a conversation, where
    each prompt but the first is what was said after the completion before it. form: of the answer for a choice.
    """

    line: int
    parts: tuple[tuple[str, str], ...]
    form: str = ANSWERS[0]

    @property
    def text(self) -> str:
        """All of its text."""
        return "".join(prompt + completion for prompt, completion in self.parts)


def read_rows(path: Path) -> list[Row]:
    """The rows of `path`. Raises DataError with line and field."""
    return [Row(number, tuple(_parts(path, number, row)), _form(path, number, row)) for number, row in read_jsonl(path)]


def form_of(path: Path, rows: Sequence[Row]) -> str:
    """What the rows of `path` answer a choice with: "label" or "text". Raises DataError if some differ."""
    text = next((row for row in rows if row.form != ANSWERS[0]), None)
    if text is None:
        return ANSWERS[0]
    for row in rows:
        if row.form != text.form and listed_answers(row.parts[0][0], row.form):
            raise DataError(
                path,
                f"the row answers with a label, and line {text.line} with text; keep them in two files",
                line=row.line,
            )
    return text.form


def _form(path: Path, line: int, row: Mapping[str, Any]) -> str:
    form = row.get("answer", ANSWERS[0])
    if form not in ANSWERS:
        raise DataError(path, f"expected {' or '.join(ANSWERS)}, found {form!r:.60}", line=line, field="answer")
    return str(form)


def _of_original(path: Path, line: int, row: Mapping[str, Any]) -> dict[str, str]:
    """A row of the original's files as prompt and completion."""
    text = row["text"]
    for marker in ORIGINAL_MARKERS if isinstance(text, str) else ():
        prompt, found, completion = text.rpartition(marker)
        if found:
            return {"prompt": prompt + marker, "completion": completion}
    wanted = " or ".join(repr(marker) for marker in ORIGINAL_MARKERS)
    raise DataError(
        path, f"expected text with {wanted} before the completion, found {text!r:.60}", line=line, field="text"
    )


def _parts(path: Path, line: int, row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if "text" in row and "prompt" not in row:
        row = _of_original(path, line, row)
    then: Any = row.get("then", [])
    if not isinstance(then, list) or not all(isinstance(part, dict) for part in then):
        raise DataError(path, f"expected a list of objects, found {then!r:.60}", line=line, field="then")
    for number, part in enumerate([row, *then]):
        for name in ("prompt", "completion"):
            field = f"then[{number - 1}].{name}" if number else name
            if not isinstance(part.get(name), str) or not part[name]:
                raise DataError(path, f"expected non-empty text, found {part.get(name)!r:.60}", line=line, field=field)
            if place := lone_surrogate(part[name]):
                raise DataError(
                    path, f"half a surrogate pair at character {place}; fix the text", line=line, field=field
                )
        yield part["prompt"], part["completion"]
