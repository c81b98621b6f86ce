"""Played episodes, stored for viewing and comparing: one line of `episodes.jsonl` each.

A line is `{name, env, level, task, group, cluster, seed, status, success, return, reason, figures,
forecasts, data, unfit, illegal, unreadable, price_usd, turns, ending}`. A turn is `{seen,
reflection, choices, probabilities, answers, action, said, reward, value, advantage, tokens,
thoughts, cut, illegal, unreadable, info}`. Unknown values are left out. first_value: the critic's,
of the first state. forecasts: what was foretold, by kind, each with the numbers of
`evals.calibration.Forecast`. answers: to other questions about the state, the probability of each
option. cluster: what the task is about, as defined by its env; tasks of one cluster are not
independent. unfit: the episode ended because no answer was a legal action. illegal, unreadable: how
many answers, in the turn or at that end, were not a legal action or not in the requested format.

In a conversation, a turn has `{messages, anew, calls}` instead of `seen`: the messages since the
turn before, each `{role, content, name}`, and the agent's calls, each `{name, arguments}`. The
agent's own message is left out where the turn before says the same. anew: these are all messages,
because the env changed what it showed before. ending: the messages after the last turn.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationInfo,
    field_validator,
)

from reflectkit.errors import DataError
from reflectkit.jsonl import lines, read_jsonl
from reflectkit.tools import tools_text
from reflectkit.types import (
    LARGEST,
    Decision,
    Observation,
    Status,
    ToolUse,
    Trajectory,
    Turn,
    from_json,
)


def episode_to_json(
    name: str, trajectory: Trajectory, advantages: Sequence[float] | None = None, cluster: str = ""
) -> dict[str, Any]:
    """The episode as JSON values. name: the player's. advantages: one per turn, if known. cluster:
    the task's.
    """
    # 1. The turns, each with what is new since the one before it
    earlier = (None, *trajectory.turns[:-1])
    turns = [_turn(turn, before) for turn, before in zip(trajectory.turns, earlier, strict=False)]

    # 2. The answers after the last turn, which were not carried out
    last = trajectory.unexecuted_decision or Decision(0)
    illegal, unreadable = last.illegal, last.unreadable
    for turn, advantage in zip(turns, advantages or (), strict=False):
        turn["advantage"] = advantage

    # 3. Figures and messages of the whole episode
    lengths = [
        turn.decision.comment_tokens
        for turn in trajectory.turns
        if turn.decision.comment_tokens is not None
    ]
    comments = {"comment_tokens": fmean(lengths)} if lengths else {}
    ending: list[Any] = []
    if trajectory.final is not None and trajectory.final.replies:
        ending = _new_messages(
            trajectory.final, trajectory.turns[-1] if trajectory.turns else None
        )["messages"]

    # 4. The line, without what is empty
    row = {
        "name": name,
        "env": trajectory.task.env,
        "level": trajectory.task.level,
        "task": trajectory.task.id,
        "group": trajectory.task.group,
        "cluster": cluster,
        "seed": trajectory.seed,
        "status": trajectory.status.value,
        "success": "" if trajectory.reported_success is None else trajectory.success,
        "return": trajectory.total_return,
        "reason": trajectory.reason,
        "figures": comments | trajectory.figures,
        "inapplicable": list(trajectory.inapplicable) or "",
        "data": trajectory.task.data,
        "unfit": bool(illegal or unreadable) or "",
        "illegal": illegal or "",
        "unreadable": unreadable or "",
        "price_usd": trajectory.price_usd,
        "turns": turns,
        "ending": ending or "",
    }
    return {key: value for key, value in row.items() if value not in ("", {})}


def _turn(turn: Turn, before: Turn | None) -> dict[str, Any]:
    # 1. What was seen
    decision = turn.decision
    tokens = len(decision.token_ids) + (len(decision.thought.token_ids) if decision.thought else 0)
    observation_fields: dict[str, Any] = {"seen": turn.observation.text}
    if turn.observation.replies:
        calls = decision.action.calls if isinstance(decision.action, ToolUse) else ()
        observation_fields = _new_messages(turn.observation, before)
        tools = turn.observation.tools
        if tools and (before is None or tools != before.observation.tools):
            observation_fields["tools"] = tools_text(tools)
        observation_fields["calls"] = [
            {"name": call.name, "arguments": call.arguments} for call in calls
        ] or None

    # 2. What was decided, and what came of it
    row = observation_fields | {
        "reflection": decision.reflection,
        "choices": list(turn.observation.choices) or None,
        "probabilities": [round(share, 5) for share in decision.probabilities] or None,
        "answers": {
            name: [round(share, 5) for share in shares] for name, shares in decision.answers.items()
        }
        or None,
        "action": decision.action if isinstance(decision.action, int) else None,
        "said": turn.action_text,
        "reward": turn.reward,
        "value": decision.value,
        "tokens": tokens or decision.tokens,
        "thoughts": decision.thoughts or None,
        "cut": decision.cut or None,
        "illegal": decision.illegal or None,
        "unreadable": decision.unreadable or None,
        "info": turn.info or None,
    }
    return {key: value for key, value in row.items() if value is not None}


def _new_messages(observation: Observation, before: Turn | None) -> dict[str, Any]:
    """The messages of `observation` since the turn `before`, so that a line grows with the
    conversation and not with its square.
    """
    # 1. The messages that the turn before did not have
    messages, anew = observation.messages, False
    if before is not None:
        earlier = before.observation.messages
        anew = messages[: len(earlier)] != earlier
        messages = messages if anew else messages[len(earlier) :]
        if (
            not anew
            and messages
            and (messages[0].role, messages[0].content) == ("assistant", before.action_text)
        ):
            messages = messages[1:]

    # 2. As JSON values
    rows = [
        {"role": each.role, "content": each.content} | ({"name": each.name} if each.name else {})
        for each in messages
    ]
    return {"messages": rows, "anew": anew or None}


SUCCESS = "success"
"""What players are compared by, unless an env's figure is named."""
SAFE_DIGITS = 15  # digits of an integer that JavaScript represents exactly


def _bounded(value: Any) -> Any:
    # A bool is an int, but no number here
    if type(value) not in (int, float) or not abs(value) <= LARGEST:
        raise ValueError(f"must be a number of at most {LARGEST:g} in magnitude")
    return value


Number = Annotated[Any, PlainValidator(_bounded)]
JsonObject = dict[str, Any]


class EpisodePart(BaseModel):
    """A JSON object in episodes.jsonl. Unknown values are None; unknown names are ignored."""

    model_config = ConfigDict(strict=True, frozen=True)


class PlayedMessage(EpisodePart):
    """A message of a conversation. name: in a "tool" message, the tool that returned the content."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    name: str = ""


class PlayedCall(EpisodePart):
    """A call of a tool."""

    name: str = ""
    arguments: JsonObject = {}


class PlayedTurn(EpisodePart):
    """One turn of an episode. reward, value and advantage are in the env's unit; choices and
    probabilities have one item for each legal action (K).
    """

    seen: str | None = None
    reflection: str | None = None
    choices: list[str] | None = None
    probabilities: list[Number] | None = None
    action: int | None = None
    said: str | None = None
    reward: Number | None = None
    value: Number | None = None
    advantage: Number | None = None
    tokens: int | None = None
    info: JsonObject | None = None
    messages: list[PlayedMessage] | None = None
    tools: str | None = None
    anew: bool = False
    calls: list[PlayedCall] | None = None

    @field_validator("probabilities")
    @classmethod
    def _one_each(
        cls, probabilities: list[float] | None, info: ValidationInfo
    ) -> list[float] | None:
        choices = info.data.get("choices")
        if choices and probabilities and len(choices) != len(probabilities):
            raise ValueError(f"there are {len(probabilities)} for {len(choices)} choices")
        return probabilities


class Played(EpisodePart):
    """An episode. seed is text, because it may exceed JavaScript's integers."""

    name: str = ""
    env: str = ""
    level: str = ""
    task: str = ""
    group: str = ""
    cluster: str = ""
    seed: Annotated[str, BeforeValidator(str)] = ""
    status: str = ""
    success: bool | None = None
    total_return: Number | None = Field(None, alias="return")
    price_usd: Number | None = None
    reason: str = ""
    figures: dict[str, Number] | None = None
    aspects: JsonObject | None = None
    data: JsonObject | None = None
    turns: list[PlayedTurn]
    ending: list[PlayedMessage] = []


def read_episodes(
    path: Path, on_line: Callable[[int], None] = lambda size: None
) -> Iterator[Played]:
    """The episodes in `path`, one in memory at a time. on_line: gets each line's size.

    Integers that JavaScript cannot represent, and infinite numbers, become text where any JSON
    value may stand.

    Raises DataError: a line is not an episode; the error names it.
    """
    # 1. JSON, whose errors say what to do with the line
    for number, text in lines(path):
        try:
            row = json.loads(text, parse_int=_integer, parse_float=_float, parse_constant=_refuse)
        except json.JSONDecodeError as error:
            cut = " (the line looks cut off)" if error.pos >= len(text.rstrip()) - 1 else ""
            raise DataError(
                path, f"not JSON: {error.msg}{cut}; fix or delete the line", line=number
            ) from None
        except (RecursionError, ValueError) as error:
            raise DataError(
                path, f"unreadable JSON: {error}; fix or delete the line", line=number
            ) from None

        # 2. An episode
        if not isinstance(row, dict) or not isinstance(row.get("turns"), list):
            raise DataError(
                path,
                (
                    "is not an episode; `view` shows the episodes.jsonl that `evaluate` writes,"
                    " or its folder"
                ),
                line=number,
            )
        yield from_json(Played, row, path=path, line=number)
        on_line(len(text))


def _integer(text: str) -> int | str:
    return int(text) if len(text) <= SAFE_DIGITS else text


def _float(text: str) -> float | str:
    value = float(text)
    return value if math.isfinite(value) else text


def _refuse(text: str) -> None:
    raise ValueError(f"{text} is not valid JSON")


def _known(value: Any) -> Any:
    """`value` without what is null in it; an unknown price counts."""
    if isinstance(value, dict):
        return {
            name: _known(part)
            for name, part in value.items()
            if part is not None or name == "price_usd"
        }
    return [*map(_known, value)] if isinstance(value, list) else value


COMPARED: dict[str, Any] = {
    "name": str,
    "level": str,
    "task": str,
    "status": str,
    "return": int | float,
}
"""What the tables need of each line; without `success`, the env did not report it."""


def read_compared(path: Path) -> list[dict[str, Any]]:
    """The lines of the episodes.jsonl that `path` is or contains, without unknown values, for
    recomputing tables.

    Raises DataError: a line is not an episode, or lacks a value that the tables need; the error
    names it.
    """
    # A folder of a run, or the file itself
    path = path / "episodes.jsonl" if path.is_dir() or not (path.suffix or path.is_file()) else path
    rows = [(number, _known(row)) for number, row in read_jsonl(path)]
    # Both readers go through the file: one checks it, the other keeps its values
    for (number, row), _ in zip(rows, read_episodes(path), strict=True):
        for name, kind in COMPARED.items():
            if row.get(name, "") == "":
                raise DataError(path, "missing", line=number, field=name)
            # A number that JavaScript cannot represent passes as text
            if not isinstance(row[name], kind):
                raise DataError(
                    path, f"expected a text, found {row[name]!r:.40}", line=number, field=name
                )
        if row["status"] not in [status.value for status in Status]:
            fault = f"is none of {', '.join(Status)}, but {row['status']!r:.40}"
            raise DataError(path, fault, line=number, field="status")
    return [row for _, row in rows]
