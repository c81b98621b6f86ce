"""Converts turns to SFT rows: the original's five files, in which each row has a `prompt` and a
`completion`, and `"answer": "text"` where a choice is answered in its own words rather than by its
label. Where each choice is read alone and given a score, a row has `"answer": "score"` and the
choices in its list `options`. `probabilities`, of the listed answers or the options in their order,
take the place of the completion as the target.

The original's own rows, with a `text` alone, are read too: the completion is what follows their
last marker.

A wrong move gives no row for a policy, but the comment before it was right and gives a row for the
reflector. A move that corrects a mistake is in the full files but not in the `_positive` ones. A
policy's turns of one conversation are one row, with those after the first in its list `then`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from reflectkit.decisions.labelled import TOLERANCE, LabelledDecision
from reflectkit.decisions.questions import question_about
from reflectkit.decisions.replies import distribution
from reflectkit.errors import ConfigError, DataError
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
from reflectkit.types import (
    AGENT_MARKER,
    ANSWERS,
    SCORE,
    TEXT,
    Answer,
    Observation,
    StateQuestion,
    ToolUse,
    Turn,
)

ORIGINAL_MARKERS = ("# Action:\n", "# Analyze:\n")
"""Before the completion in the original's rows: the action where there is one, else the comment."""
ROWS_SETTINGS = "sft_settings.json"
"""The file beside rows with the settings of the env that showed them, and the version of its
prompts.
"""
VERSION = "prompt_version"
"""The key of the latter."""
TYPED = Path("sft_typed.jsonl")
"""The file of a typed reflector's rows."""
FILE_OF_ROLE = {
    "plain": "sft.jsonl",
    "reflection": "sft_reflection.jsonl",
    "policy": "sft_policy.jsonl",
    "think": "sft_think.jsonl",
}


@dataclass(frozen=True, slots=True)
class Lesson:
    """One step to learn from. completion: the policy's target. note: "positive", "mistake" or
    "correction". earlier: the steps before it in its conversation, whose comments the policy has
    read; empty outside of conversations. form: of the answer for a choice. answers: to the env's
    questions about the state, by name: the probability of each option.
    """

    observation: Observation
    reflection: str
    completion: str
    note: str
    earlier: tuple[Lesson, ...] = ()
    form: str = ANSWERS[0]
    answers: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def choice(self) -> int:
        """The index of the answer among the choices, which the observation must have."""
        return answers(self.observation.choices, self.form).index(self.completion)

    def answered_in(self, form: str) -> Lesson:
        """The same step, answered in another form where it chooses. Raises ConfigError."""
        choices = self.observation.choices
        return replace(
            self,
            completion=answers(choices, form)[self.choice] if choices else self.completion,
            form=form,
            earlier=tuple(step.answered_in(form) for step in self.earlier),
        )

    @property
    def answer_form(self) -> dict[str, Any]:
        """What its rows say of the form of their answer; nothing if that is the usual one."""
        return _form_in_row(self.observation.choices, self.form)


def _form_in_row(choices: Sequence[str], form: str) -> dict[str, Any]:
    """What a row says of the form of its answer; nothing if that is the usual one."""
    if form == ANSWERS[0] or not choices:
        return {}
    options = {"options": list(choices)} if form == SCORE else {}
    return {"answer": form, **options}


def usual_form(offers: Sequence[tuple[str, tuple[str, ...]]]) -> Answer:
    """The form in which a model learns to answer: the number of an option where each question always
    has the same ones. Where they change, a number means another option each time, which small models
    learn badly; there, the option's words.

    offers: the text of each question, "" for the next action, and its options; none if it has no
    options. Questions that are asked once count as one.
    """
    times = Counter(text for text, _ in offers)
    options_of: dict[str, tuple[str, ...]] = {}
    for text, options in offers:
        question = text if times[text] > 1 else ""
        if options and options_of.setdefault(question, options) != options:
            return TEXT
    return ANSWERS[0]


def lessons(episodes: Sequence[Sequence[Turn]], form: str = ANSWERS[0]) -> list[Lesson]:
    """The steps of `episodes`, in order; form: of the answer for a choice. Raises ConfigError."""
    steps: list[Lesson] = []
    for turns in episodes:
        earlier: list[Lesson] = []
        for turn in turns:
            observation, decision = turn.observation, turn.decision

            # 1. The answer in the form of the rows
            action = decision.action
            if observation.replies and isinstance(action, str):
                action = ToolUse(action)  # a reply, which may have several lines
            answer = (
                answers(observation.choices, form)[action]
                if isinstance(action, int)
                else action_completion(action)
            )

            # 2. The step, with those before it in its conversation
            note = decision.note or "positive"
            steps.append(
                Lesson(
                    observation,
                    decision.reflection or "",
                    answer,
                    note,
                    tuple(earlier),
                    form,
                    decision.answers,
                )
            )
            if observation.replies:
                earlier.append(replace(steps[-1], earlier=()))
    return steps


def plain_row(lesson: Lesson) -> dict[str, Any]:
    """Prompt without comment → the answer."""
    return policy_row(lesson, None)


def reflection_row(lesson: Lesson) -> dict[str, str]:
    """Prompt without the actions → the teacher's reflection."""
    return {
        "prompt": reflection_prompt(lesson.observation),
        "completion": reflection_completion(lesson.reflection),
    }


def policy_row(lesson: Lesson, comment: str | None, earlier: Sequence[str] = ()) -> dict[str, Any]:
    """Prompt with `comment` → the answer. earlier: the comments on `lesson.earlier`."""
    observation = with_comments(lesson.observation, earlier) if earlier else lesson.observation
    row = {
        "prompt": policy_prompt(observation, comment, lesson.form),
        "completion": lesson.completion,
    }
    return row | lesson.answer_form


def mismatched(comments: Sequence[str], share: float, generator: random.Random) -> list[str]:
    """`comments` with about `share` of them replaced by the comment of another lesson, drawn with
    `generator`.

    A policy trained on such rows learns to check comments against the observation instead of
    following them blindly.
    """
    return [
        generator.choice(comments) if generator.random() < share else comment
        for comment in comments
    ]


def think_row(lesson: Lesson) -> dict[str, Any]:
    """Prompt without comment → the teacher's reflection, and then the answer."""
    return {
        "prompt": thinking_prompt(lesson.observation, lesson.form),
        "completion": reflection_completion(lesson.reflection),
        "then": [{"prompt": THEN_ACT, "completion": lesson.completion}],
        **lesson.answer_form,
    }


def joined(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """`rows`, in which each that goes on from the one before it, as the turns of a conversation do,
    is added to it as `{prompt, completion}` in the list `then`, with the new part of its prompt. A
    conversation is then one row.
    """
    long_rows: list[dict[str, Any]] = []
    # The text of the conversation so far, which the next row may begin with
    so_far = ""
    for row in rows:
        if so_far and row["prompt"].startswith(so_far):
            new = {"prompt": row["prompt"][len(so_far) :], "completion": row["completion"]}
            long_rows[-1].setdefault("then", []).append(new)
        else:
            long_rows.append(dict(row))
        so_far = (
            f"{row['prompt']}{row['completion']}{TURN_END}"
            if row["prompt"].endswith(AGENT_MARKER)
            else ""
        )
    return long_rows


@dataclass(frozen=True, slots=True)
class SFTRow:
    """A row to train on. line: its number in the file. parts: (prompt, completion); several in a
    conversation, where each prompt but the first is what was said after the completion before it.
    form: of the answer for a choice. probabilities: the target, of the K answers that the prompt
    lists or the options; empty where the completion is. options: the answers, of which the
    completion is one, where each is given a score; else none.
    """

    line: int
    parts: tuple[tuple[str, str], ...]
    form: str = ANSWERS[0]
    probabilities: tuple[float, ...] = ()
    options: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """All of its text."""
        return "".join(prompt + completion for prompt, completion in self.parts)

    @property
    def texts(self) -> tuple[str, ...]:
        """What a tokenizer reads of it at once: its text, or its prompt and each of its options."""
        return (self.parts[0][0], *self.options) if self.options else (self.text,)


def read_rows(path: Path) -> list[SFTRow]:
    """The rows of `path`. Raises DataError with line and field."""
    rows = []
    for line, row in read_jsonl(path):
        # 1. The form of the answer
        form = row.get("answer", ANSWERS[0])
        if form not in ANSWERS:
            form_text = f"expected {' or '.join(ANSWERS)}, found {form!r:.60}"
            raise DataError(path, form_text, line=line, field="answer")

        # 2. The texts, and what is trained instead of the completion
        parts = tuple(_parts(path, line, row))
        options = _options(path, line, row, parts) if form == SCORE else ()
        listed = options or listed_answers(parts[0][0], str(form))
        completion = parts[0][1]
        if listed and completion not in listed:
            fault = (
                f"{completion!r:.60} is none of the listed actions; write e.g. {listed[0]!r:.60}"
            )
            raise DataError(path, fault, line=line, field="completion")
        target = _target(path, line, row, len(listed))
        rows.append(SFTRow(line, parts, str(form), target, options))
    return rows


def _target(path: Path, line: int, row: Mapping[str, Any], listed: int) -> tuple[float, ...]:
    # Without them the completion is the target
    shares = row.get("probabilities")
    if shares is None:
        return ()

    def wrong(message: str) -> DataError:
        return DataError(path, message, line=line, field="probabilities")

    if not isinstance(shares, list) or len(shares) != listed or not listed:
        raise wrong(f"expected one for each of the {listed} listed actions")
    return distribution(shares, TOLERANCE, wrong)


def typed_decisions(lesson: Lesson, questions: Sequence[StateQuestion]) -> list[LabelledDecision]:
    """What a typed reflector learns from a step: those of the `questions` whose answer is known,
    with the probability of each option.
    """
    decisions = []
    for state_question in questions:
        question = question_about(state_question, lesson.observation)
        shares = lesson.answers.get(state_question.name, ())
        if question and len(question.options) > 1 and shares:
            decisions.append(LabelledDecision(lesson.observation.text, question, shares))
    return decisions


def decision_row(decision: LabelledDecision, form: str = ANSWERS[0]) -> dict[str, Any]:
    """Prompt without comment → the probability of each option, and the likeliest as the completion.
    form: of the answer. Raises ConfigError.
    """
    options = decision.question.options
    return {
        "prompt": policy_prompt(decision.observation, None, form),
        "completion": answers(options, form)[decision.best[0]],
        "probabilities": list(decision.probabilities),
        **_form_in_row(options, form),
    }


def _options(
    path: Path, line: int, row: Mapping[str, Any], parts: Sequence[tuple[str, str]]
) -> tuple[str, ...]:
    """The answers that are scored, with their leading space. Raises DataError."""
    listed: Any = row.get("options")
    if not isinstance(listed, list) or not all(isinstance(option, str) for option in listed):
        raise DataError(
            path, f"expected a list of texts, found {listed!r:.60}", line=line, field="options"
        )
    try:
        options = answers(listed, SCORE)
    except ConfigError as error:
        raise DataError(path, str(error), line=line, field="options") from None
    if len(parts) > 1 or parts[0][1] not in options:
        raise DataError(
            path, f"{parts[0][1]!r:.60} is none of the options", line=line, field="completion"
        )
    return options


def form_of(path: Path, rows: Sequence[SFTRow]) -> str:
    """What the rows of `path` answer a choice with: see `types.Answer`. Raises DataError if some
    differ.
    """
    # Rows that list no answers have no form that could differ
    text = next((row for row in rows if row.form != ANSWERS[0]), None)
    if text is None:
        return ANSWERS[0]
    for row in rows:
        if row.form != text.form and (
            row.options or text.options or listed_answers(row.parts[0][0], row.form)
        ):
            raise DataError(
                path,
                (
                    f"the row's answer is a {row.form}, and that of line {text.line} a"
                    f" {text.form}; keep them in two files"
                ),
                line=row.line,
            )
    return text.form


def _parts(path: Path, line: int, row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    # 1. The original's rows: the completion follows the last marker
    if "text" in row and "prompt" not in row:
        text = row["text"] if isinstance(row["text"], str) else ""
        cuts = (text.rpartition(marker) for marker in ORIGINAL_MARKERS)
        prompt, marker, completion = next((cut for cut in cuts if cut[1]), ("", "", ""))
        if not marker:
            form_text = (
                f"expected text with {' or '.join(map(repr, ORIGINAL_MARKERS))} before the"
                " completion"
            )
            raise DataError(
                path, f"{form_text}, found {row['text']!r:.60}", line=line, field="text"
            )
        row = {"prompt": prompt + marker, "completion": completion}

    # 2. Ours: a prompt and a completion, and those after it
    then: Any = row.get("then", [])
    if not isinstance(then, list) or not all(isinstance(part, dict) for part in then):
        raise DataError(
            path, f"expected a list of objects, found {then!r:.60}", line=line, field="then"
        )
    for number, part in enumerate([row, *then]):
        for name in ("prompt", "completion"):
            field = f"then[{number - 1}].{name}" if number else name
            if not isinstance(part.get(name), str) or not part[name]:
                raise DataError(
                    path,
                    f"expected non-empty text, found {part.get(name)!r:.60}",
                    line=line,
                    field=field,
                )
            if place := lone_surrogate(part[name]):
                raise DataError(
                    path,
                    f"half a surrogate pair at character {place}; fix the text",
                    line=line,
                    field=field,
                )
        yield part["prompt"], part["completion"]
