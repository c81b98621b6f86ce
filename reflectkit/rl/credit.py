"""How much better than expected each decision went: the algorithms' difference, before a tensor is touched.

All of it is computed on the whole batch, on every process alike, so that baselines and deviations do not depend on how many
processes played.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from reflectkit.core.types import Status, Trajectory
from reflectkit.rl.returns import deviation, generalised_advantages, group_relative, less_the_others, returns_to_go

ALGORITHMS = ("reinforce", "ppo", "grpo")
BASELINES = ("none", "batch", "leave-one-out")
GROUPINGS = ("episode", "step", "own")


@dataclass(frozen=True)
class Rule:
    """How decisions are judged.

    algorithm: one of ALGORITHMS. gamma: discount, 0 … 1. baseline: reinforce's, one of BASELINES. lam: ppo's GAE, 0 … 1.
    advantages: grpo's, one number an "episode" or a "step", or
    "own": a step's own reward and what all steps of its episode share (`shared_reward` of the last), as in Mem-alpha.
    state_weight: grpo's weight of the groups of steps that stand in the same state; 0 makes none. scale: in standard
    deviations (of the batch, or for grpo of the group).
    """

    algorithm: str
    gamma: float = 1.0
    baseline: str = "batch"
    lam: float = 1.0
    advantages: str = "episode"
    state_weight: float = 0.0
    scale: bool = True


@dataclass(frozen=True)
class Judgement:
    """advantages, returns: a number a decision, by episode. flat: the groups without spread, whose episodes are to be
    dropped.
    """

    advantages: list[list[float]]
    returns: list[list[float]]
    flat: frozenset[Hashable] = frozenset()


def judge(
    fresh: Sequence[Trajectory], replayed: Sequence[Trajectory], values: Sequence[Sequence[float]], rule: Rule
) -> Judgement:
    """The advantage and the return of each decision of `fresh` and then of `replayed`.

    Replayed episodes are measured against baselines and deviations of the fresh ones: they were picked for their success, and
    would shift both. values: the critic's, of every decision of every episode, for ppo alone. ABORTED episodes must be gone.
    """
    assert all(trajectory.status is not Status.ABORTED for trajectory in (*fresh, *replayed))
    played = [*fresh, *replayed]
    rewards = [[turn.reward for turn in trajectory.turns] for trajectory in played]
    returns = [returns_to_go(row, rule.gamma) for row in rewards]
    if rule.algorithm == "grpo":
        assert not replayed
        return _grouped(fresh, returns, rule)
    if rule.algorithm == "ppo":
        advantages = [
            generalised_advantages(row, expected, rule.gamma, rule.lam) for row, expected in zip(rewards, values, strict=True)
        ]
        targets = [
            [gain + value for gain, value in zip(gains, expected, strict=True)]
            for gains, expected in zip(advantages, values, strict=True)
        ]
        return Judgement(_scaled(advantages, len(fresh), rule.scale), targets)
    return Judgement(_scaled(_against_baseline(fresh, returns, rule), len(fresh), rule.scale), returns)


def _against_baseline(fresh: Sequence[Trajectory], returns: list[list[float]], rule: Rule) -> list[list[float]]:
    if rule.baseline == "none":
        return [list(row) for row in returns]
    if rule.baseline == "batch":
        flat = [value for row in returns[: len(fresh)] for value in row]
        mean = math.fsum(flat) / max(1, len(flat))
        return [[value - mean for value in row] for row in returns]
    return less_the_others(returns, [trajectory.group for trajectory in fresh])


def _grouped(fresh: Sequence[Trajectory], returns: list[list[float]], rule: Rule) -> Judgement:
    groups = [trajectory.group for trajectory in fresh]
    if rule.advantages == "episode":
        gains, flat = group_relative([row[0] if row else 0.0 for row in returns], groups, rule.scale)
        advantages = [[gain] * len(trajectory.turns) for gain, trajectory in zip(gains, fresh, strict=True)]
    else:  # a group is all steps of all its episodes
        worth = [_own(trajectory) for trajectory in fresh] if rule.advantages == "own" else returns
        flat_returns = [value for row in worth for value in row]
        owners = [group for group, row in zip(groups, returns, strict=True) for _ in row]
        gains, flat = group_relative(flat_returns, owners, rule.scale)
        advantages = _cut(gains, returns)
    if rule.state_weight > 0:
        standing = [
            (group, turn.observation.text, tuple(sorted(turn.observation.choices)))  # their order may be shuffled
            for group, trajectory in zip(groups, fresh, strict=True)
            for turn in trajectory.turns
        ]
        local, _ = group_relative([value for row in returns for value in row], standing, rule.scale)
        advantages = [  # GiGPO, arXiv 2505.10978, eq. 8
            [gain + rule.state_weight * here for gain, here in zip(gains, heres, strict=True)]
            for gains, heres in zip(advantages, _cut(local, returns), strict=True)
        ]
        flat -= {group for group, row in zip(groups, advantages, strict=True) if any(row)}
    return Judgement(advantages, returns, flat)


def _own(trajectory: Trajectory) -> list[float]:
    """Each step's own reward, and what the episode's steps share; the last step's reward holds that already."""
    shared = trajectory.turns[-1].info.get("shared_reward", 0.0) if trajectory.turns else 0.0
    last = len(trajectory.turns) - 1
    return [turn.reward + (0.0 if number == last else shared) for number, turn in enumerate(trajectory.turns)]


def _cut(values: Sequence[float], like: Sequence[Sequence[float]]) -> list[list[float]]:
    """`values` cut into rows as long as those of `like`."""
    rows, start = [], 0
    for row in like:
        rows.append(list(values[start : start + len(row)]))
        start += len(row)
    return rows


def _scaled(advantages: list[list[float]], fresh: int, scale: bool) -> list[list[float]]:
    if not scale:
        return advantages
    spread = deviation([value for row in advantages[:fresh] for value in row])
    return [[value / spread for value in row] for row in advantages]
