"""Advantages: how much better each decision did than its baseline.

`group_relative` compares the episodes of a group (GRPO) and `leave_one_out` each with the others
(RLOO); `generalised_advantages` uses a critic (PPO). `within_groups`, `with_baseline` and
`with_critic` apply them to the episodes of an update; `train/algorithms.py` says which algorithm
uses which. They are plain numbers, which every process computes over the whole batch, so baselines
and deviations do not depend on the number of processes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

from reflectkit.types import Trajectory

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


def generalised_advantages(
    rewards: Sequence[float],
    values: Sequence[float],
    gamma: float,
    lam: float,
) -> list[float]:
    """A_t = delta_t + gamma * lam * A_{t+1}, with delta_t = r_t + gamma * V_{t+1} - V_t (GAE, arXiv
    1506.02438, eq. 16).

    values: the critic's value at each step of one episode. lam: 1 uses full returns, 0 one-step TD
    errors.

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


def leave_one_out(
    returns: Sequence[Sequence[float]], groups: Sequence[Hashable]
) -> list[list[float]]:
    """Each return-to-go minus the mean of the group's *other* episodes at the same step; episodes
    that have ended count 0.

    At the first step that is RLOO (arXiv 2402.14740, eq. 6). An episode alone in its group, e.g.
    because its siblings were aborted, has nothing to be compared with: its values are 0, see
    `lone`.

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
        # Sums over the whole group; an episode's part is subtracted below
        sums = [
            math.fsum(other[step] for other in rows if step < len(other))
            for step in range(len(row))
        ]
        result.append(
            [value - (total - value) / others for value, total in zip(row, sums, strict=True)]
        )
    return result


def lone(groups: Sequence[Hashable]) -> frozenset[Hashable]:
    """The groups of one member, given each member's group.

    >>> lone(["a", "b", "a"])
    frozenset({'b'})
    """
    return frozenset(group for group, indices in _members(groups).items() if len(indices) == 1)


def group_relative(
    scores: Sequence[float],
    groups: Sequence[Hashable],
    scale: bool,
) -> tuple[list[float], frozenset[Hashable]]:
    """Each score minus its group's mean, divided by the group's standard deviation with `scale`
    (GRPO, arXiv 2402.03300, section 4.1).

    Without `scale` it is Dr. GRPO's (arXiv 2503.20783). Uses the sample standard deviation (n - 1).
    Returns the advantages, all 0 in a group without spread, and the set of those groups; groups of
    one are among them.

    >>> group_relative([1.0, 3.0, 5.0, 5.0], ["a", "a", "b", "b"], scale=False)
    ([-1.0, 1.0, 0.0, 0.0], frozenset({'b'}))
    """
    result = [0.0] * len(scores)
    flat = set()  # groups whose scores are all equal: nothing to learn
    for group, indices in _members(groups).items():
        values = [scores[index] for index in indices]
        if max(values) - min(values) <= SPREAD:
            flat.add(group)
            continue
        mean = math.fsum(values) / len(values)
        spread = math.sqrt(math.fsum((score - mean) ** 2 for score in values) / (len(values) - 1))
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


Numbers = list[list[float]]
"""One number per decision, by episode."""


@dataclass(frozen=True)
class Rollouts:
    """The episodes of one update. `Numbers` about them are in the order of `fresh` and then
    `replayed`.
    """

    fresh: Sequence[Trajectory]
    """Episodes that the current policy played."""
    replayed: Sequence[Trajectory] = ()
    """Episodes from the replay buffer. They were selected for success, so baselines and deviations
    leave them out.
    """
    values: Sequence[Sequence[float]] = ()
    """The critic's value of each decision, by episode; empty without a critic."""
    gamma: float = 1.0
    """Discount factor, 0 … 1."""
    normalize: bool = True
    """Whether advantages are divided by a standard deviation: within groups by the group's,
    otherwise by that of all fresh episodes.
    """

    @cached_property
    def rewards(self) -> Numbers:
        """The reward of each decision."""
        return [
            [turn.reward for turn in trajectory.turns]
            for trajectory in (*self.fresh, *self.replayed)
        ]

    @cached_property
    def returns(self) -> Numbers:
        """The discounted return-to-go of each decision."""
        return [returns_to_go(row, self.gamma) for row in self.rewards]

    @property
    def groups(self) -> list[str]:
        """The group of each fresh episode. Episodes of one group started from the same state."""
        return [trajectory.group for trajectory in self.fresh]

    def scaled(self, advantages: Numbers, excluded: Collection[Hashable] = ()) -> Numbers:
        """`advantages` divided by the standard deviation over the fresh episodes that are trained
        on; unchanged without `normalize`.
        """
        if not self.normalize:
            return advantages
        rows = zip(self.groups, advantages, strict=False)  # the fresh ones are the first
        spread = deviation([value for group, row in rows if group not in excluded for value in row])
        return [[value / spread for value in row] for row in advantages]


@dataclass(frozen=True)
class Estimates:
    """What an algorithm computes from `Rollouts`."""

    advantages: Numbers
    returns: Numbers
    """The critic's targets; recorded but unused without a critic."""
    dropped: frozenset[Hashable] | None = None
    """Groups that are not trained on, since their episodes are all alike or only one is left; None
    if the algorithm never drops any.
    """


def with_baseline(rollouts: Rollouts, baseline: str) -> Estimates:
    """Returns minus a baseline. With leave-one-out, the only episode left of a group is dropped."""
    if baseline == "leave-one-out":
        left_out = lone(rollouts.groups)
        return Estimates(
            rollouts.scaled(leave_one_out(rollouts.returns, rollouts.groups), left_out),
            rollouts.returns,
            left_out,
        )
    fresh = [value for row in rollouts.returns[: len(rollouts.fresh)] for value in row]
    mean = math.fsum(fresh) / max(1, len(fresh)) if baseline == "batch" else 0.0
    return Estimates(
        rollouts.scaled([[value - mean for value in row] for row in rollouts.returns]),
        rollouts.returns,
    )


def with_critic(rollouts: Rollouts, lam: float) -> Estimates:
    """Generalised advantages. The critic's targets are the unscaled advantages plus its values."""
    # 1. Advantages, episode by episode
    pairs = list(zip(rollouts.rewards, rollouts.values, strict=True))
    advantages = [
        generalised_advantages(rewards, values, rollouts.gamma, lam) for rewards, values in pairs
    ]
    # 2. What the critic is to predict
    targets = [
        [advantage + value for advantage, value in zip(row, values, strict=True)]
        for row, (_, values) in zip(advantages, pairs, strict=True)
    ]
    return Estimates(rollouts.scaled(advantages), targets)


def within_groups(
    rollouts: Rollouts,
    compared: str,
    state_weight: float,
) -> Estimates:
    """Group-relative advantages, for rollouts without replayed episodes. The only episode left of a
    group is dropped, also where its steps differ.

    compared: the episodes' returns ("episode"), the steps' returns-to-go ("step") or the steps' own
    rewards ("own", Mem-α). state_weight: weight of a second comparison, among the group's steps
    from the same state; 0: none.
    """
    returns, groups = rollouts.returns, rollouts.groups
    # 1. What is compared within a group: returns of episodes, or numbers of steps. `flat` has the
    #    groups in which these are all alike, so that nothing is learned from them
    if compared == "episode":
        first = [row[0] if row else 0.0 for row in returns]
        relative, flat = group_relative(first, groups, rollouts.normalize)
        advantages = [[value] * len(row) for value, row in zip(relative, returns, strict=True)]
    else:
        scores = returns
        if compared == "own":
            scores = [_own_rewards(trajectory) for trajectory in rollouts.fresh]
        owners: list[Hashable] = [
            group for group, row in zip(groups, returns, strict=True) for _ in row
        ]
        advantages, flat = _steps_relative(scores, owners, rollouts.normalize)

    # 2. A second comparison, of the steps of a group from one state (GiGPO, arXiv 2505.10978, eq. 8)
    if state_weight > 0:
        states: list[Hashable] = []
        for group, trajectory in zip(groups, rollouts.fresh, strict=True):
            for turn in trajectory.turns:
                choices = tuple(sorted(turn.observation.choices))  # their order may be shuffled
                states.append((group, turn.observation.text, choices))
        locally, _ = _steps_relative(returns, states, rollouts.normalize)
        advantages = [
            [
                advantage + state_weight * local
                for advantage, local in zip(row, local_row, strict=True)
            ]
            for row, local_row in zip(advantages, locally, strict=True)
        ]
        # A group of which this comparison teaches something is not flat
        flat -= {group for group, row in zip(groups, advantages, strict=True) if any(row)}

    # 3. An episode that is left alone in its group has nothing to be compared with
    single = lone(groups)
    advantages = [
        [0.0] * len(row) if group in single else row
        for group, row in zip(groups, advantages, strict=True)
    ]
    return Estimates(advantages, returns, flat | single)


def _steps_relative(
    scores: Numbers,
    groups: Sequence[Hashable],
    scale: bool,
) -> tuple[Numbers, frozenset[Hashable]]:
    """Each step's score relative to those of all steps in its group, given each step's group; and
    groups without spread.
    """
    relative, flat = group_relative([value for row in scores for value in row], groups, scale)
    values = iter(relative)
    return [[next(values) for _ in row] for row in scores], flat


def _own_rewards(trajectory: Trajectory) -> list[float]:
    """Each step's own reward plus the reward that all steps share, which an environment names at
    the end (`info["shared_reward"]`, see `envs/memory/env.py`). The last step's reward includes it
    already.
    """
    shared_reward = trajectory.turns[-1].info.get("shared_reward", 0.0) if trajectory.turns else 0.0
    last = len(trajectory.turns) - 1
    return [
        turn.reward + (0.0 if number == last else shared_reward)
        for number, turn in enumerate(trajectory.turns)
    ]
