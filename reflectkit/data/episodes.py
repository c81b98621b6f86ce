"""Played episodes as they are kept for looking at and comparing: a line of `episodes.jsonl` each.

`{name, env, level, task, group, seed, status, success, return, reason, figures, data, turns}`, and a turn is `{seen,
reflection, choices, probabilities, action, said, reward, value, advantage, tokens, info}`; what is unknown is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reflectkit.core.types import Trajectory, Turn


def episode_to_json(name: str, trajectory: Trajectory, advantages: Sequence[float] | None = None) -> dict[str, Any]:
    """The episode as JSON values. name: of who played. advantages: one a turn, where they are known."""
    turns = [_turn(turn) for turn in trajectory.turns]
    for turn, advantage in zip(turns, advantages or (), strict=False):
        turn["advantage"] = advantage
    row = {
        "name": name,
        "env": trajectory.task.env,
        "level": trajectory.task.level,
        "task": trajectory.task.id,
        "group": trajectory.task.group,
        "seed": trajectory.seed,
        "status": trajectory.status.value,
        "success": trajectory.success,
        "return": trajectory.total_return,
        "reason": trajectory.reason,
        "figures": trajectory.figures,
        "data": trajectory.task.data,
        "turns": turns,
    }
    return {key: value for key, value in row.items() if value not in ("", {})}


def _turn(turn: Turn) -> dict[str, Any]:
    decision = turn.decision
    row = {
        "seen": turn.observation.text,
        "reflection": decision.reflection,
        "choices": list(turn.observation.choices) or None,
        "probabilities": [round(share, 5) for share in decision.probabilities] or None,
        "action": decision.action if isinstance(decision.action, int) else None,
        "said": turn.said,
        "reward": turn.reward,
        "value": decision.value,
        "tokens": len(decision.token_ids) or None,
        "info": turn.info or None,
    }
    return {key: value for key, value in row.items() if value is not None}
