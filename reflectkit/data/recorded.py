"""Decisions that `serve --record` kept, joined with what came of them: one-step episodes of an
earlier policy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from reflectkit.decisions.labelled import TOLERANCE
from reflectkit.decisions.replies import distribution
from reflectkit.errors import DataError
from reflectkit.jsonl import read_jsonl
from reflectkit.types import (
    LARGEST,
    Decision,
    Observation,
    Status,
    Task,
    Trajectory,
    Turn,
    from_json,
)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """A line of the file of outcomes. question: whose; "": of all in the request. choice: the
    name of the option that was taken, or its whole text; None: the likeliest.
    """

    id: str
    reward: float
    question: str = ""
    choice: str | bool | None = None


FIELDS = {field.name for field in fields(_Outcome)}
FORM = '{"id": …, "reward": …}, with "question" and "choice" where needed'
"""An outcome, as error messages show it."""


def read_recorded(record: Path, outcomes: Path, env: str) -> tuple[list[Trajectory], int]:
    """(an episode of each decision that has an outcome, how many have none).

    The decision has the option that was taken and, as its log-probability, that of the recorded
    probability; its tokens are those of the likeliest option. Raises DataError: a line is not what
    the files hold; an outcome is of no recorded decision; or a decision with an outcome has no
    probabilities.
    """
    # 1. The outcomes
    rewards: dict[tuple[str, str], tuple[int, _Outcome]] = {}
    for line, row in read_jsonl(outcomes, growing=True):
        unknown = sorted(row.keys() - FIELDS)
        if unknown:
            reason = f"unknown; an outcome is {FORM}"
            raise DataError(outcomes, reason, line=line, field=unknown[0])
        if isinstance(row.get("reward"), bool):
            raise DataError(outcomes, "expected a number", line=line, field="reward")
        outcome = from_json(_Outcome, row, path=outcomes, line=line)
        key = outcome.id, outcome.question
        if key in rewards:
            raise DataError(
                outcomes, f"the outcome is there twice, first in line {rewards[key][0]}", line=line
            )
        if not abs(outcome.reward) <= LARGEST:
            raise DataError(
                outcomes,
                f"expected a number, found {outcome.reward!r:.40}",
                line=line,
                field="reward",
            )
        rewards[key] = line, outcome

    # 2. The decisions that have one
    episodes: list[Trajectory] = []
    used_keys: set[tuple[str, str]] = set()
    first_lines: dict[tuple[str, str], int] = {}
    without = 0
    for line, row in read_jsonl(record, growing=True):
        if "id" not in row or "decision" not in row:  # an answer in words, or a reward
            continue
        number, question = str(row["id"]), str(row.get("question", ""))
        first = first_lines.setdefault((number, question), line)
        if first != line:
            raise DataError(
                record, f"the decision is there twice, first in line {first}", line=line, field="id"
            )
        # An outcome without a question is of all of a request's
        key = (number, question) if (number, question) in rewards else (number, "")
        if key not in rewards:
            without += 1
            continue
        used_keys.add(key)
        turn = _turn(row, rewards[key][1], record, line, (outcomes, rewards[key][0]))
        task = Task(f"{number}-{question}", env, "recorded", number, {})
        episodes.append(Trajectory(task, 0, (turn,), Status.COMPLETED, False, group=number))
    recorded_ids = {number for number, _ in first_lines}
    for key, (line, outcome) in rewards.items():
        if key in used_keys:
            continue
        reason = f"{record} has no decision {outcome.id!r:.80}"
        if outcome.id in recorded_ids and outcome.question:
            reason += f" on the question {outcome.question!r:.80}"
        elif outcome.id in recorded_ids:
            reason = f"all questions of {outcome.id!r:.80} have outcomes of their own"
        raise DataError(outcomes, reason, line=line, field="id")
    if not episodes:
        raise DataError(outcomes, "has no outcomes")
    return episodes, without


def _turn(
    row: Mapping[str, Any],
    outcome: _Outcome,
    path: Path,
    line: int,
    outcome_place: tuple[Path, int],
) -> Turn:
    # 1. What was decided, and with which probabilities
    observation = from_json(
        Observation, row.get("observation"), path=path, line=line, field="observation"
    )
    decision = from_json(Decision, row["decision"], path=path, line=line, field="decision")
    if len(decision.probabilities) != len(observation.choices) or not decision.probabilities:
        raise DataError(
            path, "missing, so it cannot be weighted", line=line, field="decision.probabilities"
        )
    if not decision.prompt_ids:
        raise DataError(
            path, "missing: it was decided elsewhere", line=line, field="decision.prompt_ids"
        )
    field = "decision.probabilities"
    distribution(
        decision.probabilities,
        TOLERANCE,
        lambda fault: DataError(path, fault, line=line, field=field),
    )

    # 2. The option that was taken, by its name in the request or by its text
    action = decision.action
    if outcome.choice is not None:
        # The levels of a scale have no names in System One's form
        names = row.get("options") or list(observation.choices)
        if not isinstance(names, list) or len(names) != len(observation.choices):
            raise DataError(path, "expected a name for each option", line=line, field="options")
        options = names if outcome.choice in names else list(observation.choices)
        count = options.count(outcome.choice)
        if count != 1:
            found = "no option" if count == 0 else f"{count} options"
            raise DataError(
                outcome_place[0],
                f"the decision in line {line} of {path} has {found} {outcome.choice!r:.60}",
                line=outcome_place[1],
                field="choice",
            )
        action = options.index(outcome.choice)
    if not isinstance(action, int) or not 0 <= action < len(observation.choices):
        raise DataError(path, f"no option {action!r:.40}", line=line, field="decision.action")
    if not decision.probabilities[action] > 0:
        raise DataError(path, "the option that was taken has no probability above 0", line=line)
    logprob = math.log(decision.probabilities[action])
    return Turn(observation, replace(decision, action=action, logprobs=(logprob,)), outcome.reward)
