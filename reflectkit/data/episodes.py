"""Played episodes, stored for viewing and comparing: one line of `episodes.jsonl` each.

A line is `{name, env, level, task, group, cluster, seed, status, success, return, reason, figures, data, unfit,
illegal, unreadable, price_usd, turns, ending}`. A turn is `{seen, reflection, choices, probabilities, action, said,
reward, value, advantage, tokens, thoughts, illegal, unreadable, info}`. Unknown values are left out. cluster: what the
task is about, as defined by its env; tasks of one cluster are not independent. unfit: the episode ended because no
answer was a legal action. illegal, unreadable: how many answers, in the turn or at that end, were not a legal action or
not in the requested format.

In a conversation, a turn has `{messages, anew, calls}` instead of `seen`: the messages since the turn before (see
`data.conversations`) and the agent's calls, each `{name, arguments}`. ending: the messages after the last turn.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any

from reflectkit.data.conversations import PlayedCall, PlayedMessage, calls_of, heard, played_calls, played_messages
from reflectkit.data.fields import Fields, parse
from reflectkit.errors import DataError
from reflectkit.jsonl import dumps, lines, read_jsonl, replacing
from reflectkit.text import pluralize
from reflectkit.types import LARGEST, Decision, Trajectory, Turn


def episode_to_json(
    name: str, trajectory: Trajectory, advantages: Sequence[float] | None = None, cluster: str = ""
) -> dict[str, Any]:
    """The episode as JSON values. name: the player's. advantages: one per turn, if known. cluster: the task's."""
    earlier = (None, *trajectory.turns[:-1])
    turns = [_turn(turn, before) for turn, before in zip(trajectory.turns, earlier, strict=False)]
    last = trajectory.unexecuted_decision or Decision(0)
    illegal, unreadable = last.illegal, last.unreadable
    for turn, advantage in zip(turns, advantages or (), strict=False):
        turn["advantage"] = advantage
    row = {
        "name": name,
        "env": trajectory.task.env,
        "level": trajectory.task.level,
        "task": trajectory.task.id,
        "group": trajectory.task.group,
        "cluster": cluster,
        "seed": trajectory.seed,
        "status": trajectory.status.value,
        "success": trajectory.success,
        "return": trajectory.total_return,
        "reason": trajectory.reason,
        "figures": _comment_length(trajectory) | trajectory.figures,
        "data": trajectory.task.data,
        "unfit": bool(illegal or unreadable) or "",
        "illegal": illegal or "",
        "unreadable": unreadable or "",
        "price_usd": trajectory.price_usd,
        "turns": turns,
        "ending": _ending(trajectory) or "",
    }
    return {key: value for key, value in row.items() if value not in ("", {})}


def _comment_length(trajectory: Trajectory) -> dict[str, float]:
    """The mean length of the comments that the policy read, in its tokens, as the figure `comment_tokens`."""
    lengths = [turn.decision.comment_tokens for turn in trajectory.turns if turn.decision.comment_tokens is not None]
    return {"comment_tokens": fmean(lengths)} if lengths else {}


def episode_line(row: Mapping[str, Any]) -> str:
    """A line of episodes.jsonl. A lone surrogate, which envs and models may produce, is written as a JSON escape."""
    return dumps(row).encode("utf-8", "backslashreplace").decode() + "\n"


def write_episodes(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Replace `path` by `rows`, one line each, in one step."""
    with replacing(path) as file:
        for row in rows:
            file.write(episode_line(row).encode("utf-8"))


def _ending(trajectory: Trajectory) -> list[Any]:
    """The messages after the last turn of a conversation."""
    if trajectory.final is None or not trajectory.final.replies:
        return []
    messages: list[Any] = heard(trajectory.final, trajectory.turns[-1] if trajectory.turns else None)["messages"]
    return messages


def _turn(turn: Turn, before: Turn | None) -> dict[str, Any]:
    decision = turn.decision
    if turn.observation.replies:
        shown = heard(turn.observation, before) | {"calls": calls_of(decision.action)}
    else:
        shown = {"seen": turn.observation.text}
    row = shown | {
        "reflection": decision.reflection,
        "choices": list(turn.observation.choices) or None,
        "probabilities": [round(share, 5) for share in decision.probabilities] or None,
        "action": decision.action if isinstance(decision.action, int) else None,
        "said": turn.action_text,
        "reward": turn.reward,
        "value": decision.value,
        "tokens": len(decision.token_ids) or decision.tokens,
        "thoughts": decision.thoughts or None,
        "illegal": decision.illegal or None,
        "unreadable": decision.unreadable or None,
        "info": turn.info or None,
    }
    return {key: value for key, value in row.items() if value is not None}


SUCCESS = "success"
"""What players are compared by, unless an env's figure is named."""
LONGEST_LINE = 64 * 2**20  # bytes of one episode
TURN_LISTS = ("actions", "reflections")
"""The lists that earlier versions stored for an episode's turns: actions and comments."""


@dataclass(frozen=True, slots=True)
class PlayedTurn:
    """One turn of a line of episodes.jsonl. Unknown values are None."""

    seen: str | None
    """Text of the observation."""
    reflection: str | None
    """Text of the comment."""
    choices: tuple[str, ...] | None
    """The legal actions (K)."""
    probabilities: tuple[float, ...] | None
    """Probability of each choice (K)."""
    action: int | None
    """Index of the choice."""
    said: str | None
    """The action as text."""
    reward: float | None
    """In the env's unit."""
    value: float | None
    """The critic's value, in the unit of the reward."""
    advantage: float | None
    """In the unit of the reward."""
    tokens: int | None
    """Number of tokens that the policy wrote."""
    info: str | None
    """JSON text of the step's info."""
    messages: tuple[PlayedMessage, ...] | None = None
    """In a conversation: the messages since the turn before."""
    anew: bool = False
    """Whether they are all messages, because the env changed earlier ones."""
    calls: tuple[PlayedCall, ...] | None = None
    """The agent's calls in a conversation."""


@dataclass(frozen=True, slots=True)
class Played:
    """A line of episodes.jsonl. Fields without a description are as in `Trajectory`."""

    name: str
    """The player's name."""
    env: str
    level: str
    task: str
    """The task's id."""
    group: str
    """The task's group."""
    seed: str
    """As text, because it may exceed JavaScript's integers."""
    status: str
    success: bool | None
    total_return: float | None
    reason: str
    figures: str | None
    """JSON text of the env's figures."""
    data: str | None
    """JSON text of the task's data."""
    turns: tuple[PlayedTurn, ...]
    ending: tuple[PlayedMessage, ...] = ()
    """The messages after the last turn of a conversation."""


def read_episodes(path: Path, on_line: Callable[[int], None] = lambda size: None) -> Iterator[Played]:
    """The episodes in `path`, one in memory at a time; also from earlier versions. on_line: gets each line's size.

    Raises
    ------
    DataError: a line is not an episode; the error names it.
    """
    for number, text in lines(path, LONGEST_LINE):
        try:
            row = parse(text)
            if not isinstance(row, dict) or not isinstance(row.get("turns", row.get("actions")), list):
                raise DataError(
                    path,
                    "is not an episode; `view` shows the episodes.jsonl that `evaluate` writes, or its folder",
                    line=number,
                )
            yield _played(Fields(row, path, number))
        except json.JSONDecodeError as error:
            cut = " (the line looks cut off)" if error.pos >= len(text.rstrip()) - 1 else ""
            raise DataError(path, f"not JSON: {error.msg}{cut}; fix or delete the line", line=number) from None
        except (RecursionError, ValueError) as error:
            raise DataError(path, f"unreadable JSON: {error}; fix or delete the line", line=number) from None
        on_line(len(text))


def read_compared(path: Path) -> list[dict[str, Any]]:
    """The unchanged lines of the episodes.jsonl that `path` is or contains, for recomputing tables.

    Raises
    ------
    DataError: a line is not an episode, or lacks a value that the tables need; the error names it.
    """
    path = path / "episodes.jsonl" if path.is_dir() else path
    rows = [(number, dict(row)) for number, row in read_jsonl(path)]
    for (number, row), episode in zip(rows, read_episodes(path), strict=True):
        fields = Fields(row, path, number)
        for name in ("name", "level", "task", "status"):
            if not fields.text(name):
                raise fields.error(name, "missing")
        for name in ("env", "group", "cluster"):
            fields.text(name)
        if episode.success is None or episode.total_return is None:
            raise fields.error("success" if episode.success is None else "return", "missing")
        for name in ("return", "price_usd"):
            if (value := fields.number(name)) is not None and not -LARGEST <= value <= LARGEST:
                raise fields.error(name, f"expected a number of at most {LARGEST:g} in magnitude, found {value!r:.60}")
        fields.one("data", dict)
        fields.one("aspects", dict)
        figures = fields.one("figures", dict) or {}
        if not all(type(value) in (int, float) and -LARGEST <= value <= LARGEST for value in figures.values()):
            raise fields.error(
                "figures", f"expected names with numbers of at most {LARGEST:g} in magnitude, found {figures!r:.60}"
            )
        if not isinstance(row.get("turns", []), list) or not all(
            isinstance(turn.get("info", {}), dict) for turn in row.get("turns", ())
        ):
            raise fields.error("turns", "expected a list of turns whose info is an object")
    return [row for _, row in rows]


def measured(episode: Mapping[str, Any], measure: str) -> float:
    """An episode's success, 0 or 1, or the value of one of the env's figures, 0 if it has none."""
    return float(episode["success"] if measure == SUCCESS else episode.get("figures", {}).get(measure, 0.0))


def has(episode: Mapping[str, Any], measure: str) -> bool:
    """Whether the episode has this measure."""
    return measure == SUCCESS or measure in episode.get("figures", {})


def no_share(episodes: Sequence[Mapping[str, Any]], measure: str) -> str:
    """What these have or lack so that `measure` cannot be compared in percentage points; "" if it can."""
    if measure == SUCCESS or not episodes:
        return ""
    values = [one["figures"][measure] for one in episodes if measure in one.get("figures", {})]
    if not values:
        names = sorted({name for one in episodes for name in one.get("figures", {})})
        return f"has no figure {measure!r:.60}; there are {', '.join(names) or 'none'}"
    return "" if all(0 <= value <= 1 for value in values) else f"has values beyond 0 to 1: {measure!r:.60} is no share"


def _played(row: Fields) -> Played:
    turns = row.values.get("turns")
    if turns is None:
        actions, comments = (row.values.get(name) or [] for name in TURN_LISTS)
        pairs = zip_longest(actions, comments if isinstance(comments, list) else [])
        turns = [{"said": action, "reflection": comment} for action, comment in pairs]
    return Played(
        name=row.text("name") or "",
        env=row.text("env") or "",
        level=row.text("level") or "",
        task=row.text("task") or "",
        group=row.text("group") or "",
        seed=row.name("seed"),
        status=row.text("status") or "",
        success=row.one("success", bool),
        total_return=row.number("return"),
        reason=row.text("reason") or "",
        figures=row.json("figures"),
        data=row.json("data"),
        turns=tuple(_played_turn(row.inner(f"turns[{index}]", turn)) for index, turn in enumerate(turns)),
        ending=played_messages(row, "ending") or (),
    )


def _played_turn(row: Fields) -> PlayedTurn:
    choices, shares = row.all("choices", str), row.all("probabilities", float)
    if choices and shares and len(shares) != len(choices):
        raise row.error(
            "probabilities",
            f"{pluralize(len(shares), 'probability', 'probabilities')} for {pluralize(len(choices), 'choice')}",
        )
    return PlayedTurn(
        seen=row.text("seen"),
        reflection=row.text("reflection"),
        choices=choices,
        probabilities=shares,
        action=row.one("action", int),
        said=row.text("said"),
        reward=row.number("reward"),
        value=row.number("value"),
        advantage=row.number("advantage"),
        tokens=row.one("tokens", int),
        info=row.json("info"),
        messages=played_messages(row, "messages"),
        anew=row.one("anew", bool) or False,
        calls=played_calls(row),
    )
