"""Converts turns to SFT rows: the original's five files, in which each row has a `prompt` and a `completion`.

A wrong move gives no row for a policy, but the comment before it was right and gives a row for the reflector. A move
that corrects a mistake is in the full files but not in the `_positive` ones.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from reflectkit.core.errors import DataError
from reflectkit.core.jsonl import lone_surrogate, read_jsonl
from reflectkit.core.prompts import (
    action_completion,
    policy_prompt,
    reflection_completion,
    reflection_prompt,
    with_comments,
)
from reflectkit.core.types import Observation, Trajectory

FILES = ("sft", "sft_reflection", "sft_policy", "sft_reflection_positive", "sft_policy_positive")
FILE_OF_ROLE = {"plain": "sft.jsonl", "reflection": "sft_reflection.jsonl", "policy": "sft_policy.jsonl"}


@dataclass(frozen=True, slots=True)
class Lesson:
    """One step to learn from. completion: the policy's target. note: "positive", "mistake" or "correction". earlier:
    the steps before it in its conversation, whose comments the policy has read; empty outside of conversations.
    """

    observation: Observation
    reflection: str
    completion: str
    note: str
    earlier: tuple[Lesson, ...] = ()


def lessons(trajectories: Sequence[Trajectory]) -> list[Lesson]:
    """The steps of `trajectories`, in order."""
    steps: list[Lesson] = []
    for trajectory in trajectories:
        earlier: list[Lesson] = []
        for turn in trajectory.turns:
            decision = turn.decision
            step = Lesson(
                turn.observation,
                decision.reflection or "",
                action_completion(decision.action),
                decision.note or "positive",
                tuple(earlier),
            )
            steps.append(step)
            if turn.observation.replies:
                earlier.append(replace(step, earlier=()))
    return steps


def plain_row(lesson: Lesson) -> dict[str, str]:
    """Prompt without comment → label."""
    return {"prompt": policy_prompt(lesson.observation), "completion": lesson.completion}


def reflection_row(lesson: Lesson) -> dict[str, str]:
    """Prompt without the actions → the teacher's reflection."""
    return {"prompt": reflection_prompt(lesson.observation), "completion": reflection_completion(lesson.reflection)}


def policy_row(lesson: Lesson, comment: str, earlier: Sequence[str] = ()) -> dict[str, str]:
    """Prompt with `comment` → label. earlier: the comments on `lesson.earlier`."""
    observation = with_comments(lesson.observation, earlier) if earlier else lesson.observation
    return {"prompt": policy_prompt(observation, comment), "completion": lesson.completion}


def mismatched(comments: Sequence[str], share: float, generator: random.Random) -> list[str]:
    """`comments` with about `share` of them replaced by the comment of another lesson, drawn with `generator`.

    A policy trained on such rows learns to check comments against the observation instead of following them blindly.
    """
    return [generator.choice(comments) if generator.random() < share else comment for comment in comments]


def read_rows(path: Path) -> list[tuple[int, str, str]]:
    """(line, prompt, completion) of each row of `path`. Raises DataError with line and field."""
    rows = []
    for number, row in read_jsonl(path):
        for name in ("prompt", "completion"):
            if not isinstance(row.get(name), str) or not row[name]:
                raise DataError(path, f"expected non-empty text, found {row.get(name)!r:.60}", line=number, field=name)
            if place := lone_surrogate(row[name]):
                raise DataError(
                    path, f"half a surrogate pair at character {place}; fix the text", line=number, field=name
                )
        rows.append((number, row["prompt"], row["completion"]))
    return rows
