"""Returns, baselines and advantages as pure functions of plain numbers.

Departs from the Reflect-RL code: groups without spread, from which nothing can be learnt, are dropped and counted
instead of divided by zero; nothing is bootstrapped at the end of an episode, even at the horizon, since the horizon is
part of the task.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence

SPREAD = 1e-8  # values that lie this close together count as equal


def returns_to_go(rewards: Sequence[float], gamma: float) -> list[float]:
    """G_t = r_t + gamma * G_{t+1} for each step of one episode (Sutton and Barto, eq. 3.9).

    >>> returns_to_go([1.0, 2.0, 4.0], 0.5)
    [3.0, 4.0, 4.0]
    """
    returns = [0.0] * len(rewards)
    following = 0.0
    for index in range(len(rewards) - 1, -1, -1):
        following = rewards[index] + gamma * following
        returns[index] = following
    return returns


def generalised_advantages(rewards: Sequence[float], values: Sequence[float], gamma: float, lam: float) -> list[float]:
    """A_t = delta_t + gamma * lam * A_{t+1}, with delta_t = r_t + gamma * V_{t+1} - V_t (GAE, arXiv 1506.02438, eq.
    16).

    values: the critic's value at each step of one episode. lam: 1 uses full returns, 0 one-step TD errors.

    >>> generalised_advantages([1.0, 2.0], [0.5, 1.0], 1.0, 0.0)
    [1.5, 1.0]
    """
    advantages = [0.0] * len(rewards)
    following = next_value = 0.0
    for index in range(len(rewards) - 1, -1, -1):
        delta = rewards[index] + gamma * next_value - values[index]
        following = delta + gamma * lam * following
        advantages[index], next_value = following, values[index]
    return advantages


def leave_one_out(returns: Sequence[Sequence[float]], groups: Sequence[Hashable]) -> list[list[float]]:
    """Each return-to-go minus the mean of the group's *other* episodes at the same step; episodes that have ended count
    0.

    At the first step that is RLOO (arXiv 2402.14740, eq. 6). An episode alone in its group, e.g. because its siblings
    were aborted, has nothing to be compared with: its values are 0, see `lone`.

    >>> leave_one_out([[1.0, 1.0], [2.0], [6.0, 5.0]], ["a", "a", "a"])
    [[-3.0, -1.5], [-1.5], [4.5, 4.5]]
    """
    members = _members(groups)
    result = []
    for row, group in zip(returns, groups, strict=True):
        rows = [returns[index] for index in members[group]]
        if len(rows) == 1:
            result.append([0.0] * len(row))
            continue
        others = len(rows) - 1
        sums = [math.fsum(other[step] for other in rows if step < len(other)) for step in range(len(row))]
        result.append([value - (total - value) / others for value, total in zip(row, sums, strict=True)])
    return result


def lone(groups: Sequence[Hashable]) -> frozenset[Hashable]:
    """The groups of one member, given each member's group.

    >>> lone(["a", "b", "a"])
    frozenset({'b'})
    """
    return frozenset(group for group, indices in _members(groups).items() if len(indices) == 1)


def group_relative(
    scores: Sequence[float], groups: Sequence[Hashable], scale: bool
) -> tuple[list[float], frozenset[Hashable]]:
    """Each score minus its group's mean, divided by the group's standard deviation with `scale` (GRPO, arXiv
    2402.03300, section 4.1).

    Without `scale` it is Dr. GRPO's (arXiv 2503.20783). Uses the sample standard deviation (n - 1). Returns the
    advantages, all 0 in a group without spread, and the set of those groups; groups of one are among them.

    >>> group_relative([1.0, 3.0, 5.0, 5.0], ["a", "a", "b", "b"], scale=False)
    ([-1.0, 1.0, 0.0, 0.0], frozenset({'b'}))
    """
    result = [0.0] * len(scores)
    flat = set()
    for group, indices in _members(groups).items():
        own = [scores[index] for index in indices]
        if max(own) - min(own) <= SPREAD:
            flat.add(group)
            continue
        mean = math.fsum(own) / len(own)
        spread = math.sqrt(math.fsum((score - mean) ** 2 for score in own) / (len(own) - 1))
        for index in indices:
            result[index] = (scores[index] - mean) / (spread if scale else 1.0)
    return result, frozenset(flat)


def deviation(values: Sequence[float]) -> float:
    """The population standard deviation of `values` (n); 1 if they are all equal or there are none."""
    if not values or max(values) - min(values) <= SPREAD:
        return 1.0
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))


def _members(groups: Sequence[Hashable]) -> dict[Hashable, list[int]]:
    members: dict[Hashable, list[int]] = defaultdict(list)
    for index, group in enumerate(groups):
        members[group].append(index)
    return members
