"""Advantages: how much better each decision did than its baseline.

`group_relative` compares the episodes of a group (GRPO) and `leave_one_out` each with the others
(RLOO); `generalised_advantages` uses a critic (PPO). `within_groups`, `with_baseline` and
`with_critic` apply them to the episodes of an update; `train/algorithms.py` says which algorithm
uses which. They are plain numbers, which every process computes over the whole batch, so baselines
and deviations do not depend on the number of processes.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

from reflectkit.types import Trajectory

SPREAD = 1e-8
"""Values that lie this close together count as equal."""


def returns_to_go(rewards: Sequence[float], gamma: float) -> list[float]:
    """G_t = r_t + gamma * G_{t+1} for each step of one episode (Sutton and Barto, eq. 3.9).

    >>> returns_to_go([1.0, 2.0, 4.0], 0.5)
    [3.0, 4.0, 4.0]
    """
    returns = [0.0] * len(rewards)
    next_return = 0.0
    for index in reversed(range(len(rewards))):
        returns[index] = rewards[index] + gamma * next_return
        next_return = returns[index]
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
    next_advantage = 0.0
    next_value = 0.0
    for index in reversed(range(len(rewards))):
        delta = rewards[index] + gamma * next_value - values[index]
        advantages[index] = delta + gamma * lam * next_advantage
        next_advantage = advantages[index]
        next_value = values[index]
    return advantages


def leave_one_out(
    returns: Sequence[Sequence[float]], groups: Sequence[Hashable]
) -> list[list[float]]:
    """Each return-to-go minus the mean of the group's *other* episodes at the same step.

    Episodes that have ended count 0. At the first step that is RLOO (arXiv 2402.14740, eq. 6). An
    episode alone in its group, e.g. because its siblings were aborted, has nothing to be compared
    with: its values are 0, see `lone`.

    returns, groups: of each episode.

    >>> leave_one_out([[1.0, 1.0], [2.0], [6.0, 5.0]], ["a", "a", "a"])
    [[-3.0, -1.5], [-1.5], [4.5, 4.5]]
    """
    members = _members(groups)
    result = []
    for row, group in zip(returns, groups, strict=True):
        # 1. The episodes of the group
        group_rows = [returns[index] for index in members[group]]
        other_count = len(group_rows) - 1
        if other_count == 0:
            result.append([0.0] * len(row))
            continue

        # 2. Each step less the mean of the others
        advantages = []
        for step, value in enumerate(row):
            values = [other[step] for other in group_rows if step < len(other)]
            other_total = math.fsum(values) - value
            advantages.append(value - other_total / other_count)
        result.append(advantages)
    return result


def lone(groups: Sequence[Hashable]) -> frozenset[Hashable]:
    """The groups of one member, given each member's group.

    >>> lone(["a", "b", "a"])
    frozenset({'b'})
    """
    sizes = Counter(groups)
    single = [group for group, size in sizes.items() if size == 1]
    return frozenset(single)


def group_relative(
    scores: Sequence[float],
    groups: Sequence[Hashable],
    scale: bool,
) -> tuple[list[float], frozenset[Hashable]]:
    """Each score minus its group's mean (GRPO, arXiv 2402.03300, section 4.1).

    scale: whether it is divided by the group's sample standard deviation (n - 1). Without that it
    is Dr. GRPO's (arXiv 2503.20783).

    Returns the advantages, all 0 in a group without spread, and the set of those groups; groups of
    one are among them.

    >>> group_relative([1.0, 3.0, 5.0, 5.0], ["a", "a", "b", "b"], scale=False)
    ([-1.0, 1.0, 0.0, 0.0], frozenset({'b'}))
    """
    advantages = [0.0] * len(scores)
    flat = set()
    for group, indices in _members(groups).items():
        # 1. If all scores are equal, there is nothing to learn
        values = [scores[index] for index in indices]
        if max(values) - min(values) <= SPREAD:
            flat.add(group)
            continue

        # 2. The group's mean and standard deviation
        mean = math.fsum(values) / len(values)
        divisor = 1.0
        if scale:
            variance = _squares(values, mean) / (len(values) - 1)
            divisor = math.sqrt(variance)
        for index in indices:
            advantages[index] = (scores[index] - mean) / divisor
    return advantages, frozenset(flat)


def deviation(values: Sequence[float]) -> float:
    """The population standard deviation of `values` (n); 1 if they are all equal or there are none."""
    if not values or max(values) - min(values) <= SPREAD:
        return 1.0
    mean = math.fsum(values) / len(values)
    return math.sqrt(_squares(values, mean) / len(values))


def _squares(values: Sequence[float], mean: float) -> float:
    """The sum of the squares of the distances from `mean`."""
    return math.fsum((value - mean) ** 2 for value in values)


def _members(groups: Sequence[Hashable]) -> dict[Hashable, list[int]]:
    """The indices of each group's members."""
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
        trajectories = [*self.fresh, *self.replayed]
        return [[turn.reward for turn in trajectory.turns] for trajectory in trajectories]

    @cached_property
    def returns(self) -> Numbers:
        """The discounted return-to-go of each decision."""
        return [returns_to_go(row, self.gamma) for row in self.rewards]

    @property
    def groups(self) -> list[str]:
        """The group of each fresh episode. Episodes of one group started from the same state."""
        return [trajectory.group for trajectory in self.fresh]

    def scaled(self, advantages: Numbers, groups_to_skip: Collection[Hashable] = ()) -> Numbers:
        """`advantages` divided by the standard deviation over the fresh episodes that are trained
        on; unchanged without `normalize`.

        groups_to_skip: those that are not trained on.
        """
        if not self.normalize:
            return advantages
        values = []
        for group, row in zip(self.groups, advantages, strict=False):  # the fresh ones are first
            if group not in groups_to_skip:
                values += row
        divisor = deviation(values)
        return [[value / divisor for value in row] for row in advantages]


@dataclass(frozen=True)
class Estimates:
    """What an algorithm computes from `Rollouts`."""

    advantages: Numbers
    returns: Numbers
    """The critic's targets; recorded but unused without a critic."""
    groups_to_skip: frozenset[Hashable] | None = None
    """Groups that are not trained on, since their episodes are all alike or only one is left; None
    if the algorithm never drops any.
    """


def with_baseline(rollouts: Rollouts, baseline: str) -> Estimates:
    """Returns minus a baseline.

    baseline: "leave-one-out", by which the only episode left of a group is not trained on; "batch",
    the mean of all fresh returns; or "none".
    """
    # 1. The mean of the other episodes of the group
    returns = rollouts.returns
    if baseline == "leave-one-out":
        single = lone(rollouts.groups)
        advantages = leave_one_out(returns, rollouts.groups)
        return Estimates(rollouts.scaled(advantages, single), returns, single)

    # 2. One number for all
    mean = 0.0
    if baseline == "batch":
        fresh_rows = returns[: len(rollouts.fresh)]
        values = [value for row in fresh_rows for value in row]
        mean = math.fsum(values) / max(1, len(values))
    advantages = [[value - mean for value in row] for row in returns]
    return Estimates(rollouts.scaled(advantages), returns)


def with_critic(rollouts: Rollouts, lam: float, shrink: bool) -> Estimates:
    """Generalised advantages. The critic's targets are the unscaled advantages plus its values.

    shrink: whether the values first move towards their mean, see `shrunk_values`.
    """
    every_value = rollouts.values
    if shrink:
        every_value = shrunk_values(rollouts.values, rollouts.returns, len(rollouts.fresh))
    advantages = []
    targets = []
    for rewards, values in zip(rollouts.rewards, every_value, strict=True):
        row = generalised_advantages(rewards, values, rollouts.gamma, lam)
        advantages.append(row)
        targets.append(_sums(row, values))
    return Estimates(rollouts.scaled(advantages), targets)


def shrunk_values(
    values: Sequence[Sequence[float]],
    returns: Sequence[Sequence[float]],
    fresh_count: int,
) -> Numbers:
    """mean + b * (value - mean) for each of `values`, where b is twice the slope of the least-squares
    line of returns over values in the *other* fresh episodes, held within 0 … 1.

    A critic takes a few steps an update, on hidden states that the policy's own steps move. So its
    values may come to differ between states in ways that have nothing to do with returns, and the
    policy would learn from these errors, even where all returns are alike. Returns less values vary
    less than returns do if the slope is above 1/2; such values stay as they are. An episode has no
    part in its own slope, so the slope does not bias the gradient.

    values, returns: of each decision, by episode; the first `fresh_count` episodes are fresh, and
    the others are replayed. A fresh episode without others keeps its values.

    >>> shrunk_values([[0.0, 8.0], [0.0, 4.0]], [[1.0, 1.0], [0.0, 1.0]], 2)
    [[1.5, 5.5], [3.0, 3.0]]
    """
    # 1. Moments of each fresh episode, of values and returns less their means
    fresh_values = [value for row in values[:fresh_count] for value in row]
    fresh_returns = [value for row in returns[:fresh_count] for value in row]
    if not fresh_values:
        return [list(row) for row in values]
    mean_value = math.fsum(fresh_values) / len(fresh_values)
    mean_return = math.fsum(fresh_returns) / len(fresh_returns)
    parts = []
    for value_row, return_row in zip(values[:fresh_count], returns[:fresh_count], strict=True):
        xs = [value - mean_value for value in value_row]
        ys = [value - mean_return for value in return_row]
        parts.append(_moments(xs, ys))
    total = [sum(column) for column in zip(*parts, strict=True)]

    # 2. The slope of the other episodes
    shrunk = []
    for number, row in enumerate(values):
        others = total
        if number < fresh_count:
            others = [whole - part for whole, part in zip(total, parts[number], strict=True)]
        factor = 1.0
        if others[0]:
            factor = min(1.0, max(0.0, 2 * _slope(*others)))
        shrunk.append([mean_value + factor * (value - mean_value) for value in row])
    return shrunk


def _moments(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, ...]:
    """The number of pairs, and their sums of x, y, x² and x * y."""
    products = [x * y for x, y in zip(xs, ys, strict=True)]
    squares = [x * x for x in xs]
    return len(xs), math.fsum(xs), math.fsum(ys), math.fsum(squares), math.fsum(products)


def _slope(count: float, x: float, y: float, xx: float, xy: float) -> float:
    """The slope of the least-squares line of y over x, from `_moments`; 0 if all x are equal."""
    mean_x, mean_y = x / count, y / count
    variance = xx / count - mean_x**2
    if variance <= SPREAD**2:
        return 0.0
    return (xy / count - mean_x * mean_y) / variance


def _sums(row: Sequence[float], other: Sequence[float], weight: float = 1.0) -> list[float]:
    """`row` plus `weight` times `other`, step by step."""
    return [value + weight * more for value, more in zip(row, other, strict=True)]


def within_groups(
    rollouts: Rollouts,
    compared: str,
    state_weight: float,
) -> Estimates:
    """Group-relative advantages, for rollouts without replayed episodes.

    The only episode left of a group is not trained on, also where its steps differ.

    compared: the episodes' returns ("episode"), the steps' returns-to-go ("step") or the steps' own
    rewards ("own", Mem-α). state_weight: weight of a second comparison, among the group's steps
    from the same state; 0: none.
    """
    returns = rollouts.returns
    groups = rollouts.groups

    # 1. The comparison within a group, of episodes or of steps. In `flat` groups these are all
    #    alike, so nothing is learned from them
    if compared == "episode":
        episode_returns = [row[0] if row else 0.0 for row in returns]
        relative, flat = group_relative(episode_returns, groups, rollouts.normalize)
        advantages = []
        for value, row in zip(relative, returns, strict=True):
            advantages.append([value] * len(row))
    else:
        scores = returns
        if compared == "own":
            scores = [_own_rewards(trajectory) for trajectory in rollouts.fresh]
        step_groups: list[Hashable] = []
        for group, row in zip(groups, returns, strict=True):
            step_groups += [group] * len(row)
        advantages, flat = _steps_relative(scores, step_groups, rollouts.normalize)

    # 2. A second one, of the steps of a group from one state (GiGPO, arXiv 2505.10978, eq. 8)
    if state_weight > 0:
        states: list[Hashable] = []
        for group, trajectory in zip(groups, rollouts.fresh, strict=True):
            for turn in trajectory.turns:
                choices = tuple(sorted(turn.observation.choices))  # their order may be shuffled
                states.append((group, turn.observation.text, choices))
        by_state, _ = _steps_relative(returns, states, rollouts.normalize)
        for number, row in enumerate(by_state):
            advantages[number] = _sums(advantages[number], row, state_weight)

        # A group of which this comparison teaches something is not flat
        useful = {group for group, row in zip(groups, advantages, strict=True) if any(row)}
        flat -= useful

    # 3. An episode that is left alone in its group has nothing to be compared with
    single = lone(groups)
    for number, group in enumerate(groups):
        if group in single:
            advantages[number] = [0.0] * len(advantages[number])
    return Estimates(advantages, returns, flat | single)


def _steps_relative(
    scores: Numbers,
    groups: Sequence[Hashable],
    scale: bool,
) -> tuple[Numbers, frozenset[Hashable]]:
    """Each step's score relative to those of all steps in its group; and groups without spread.

    scores: by episode. groups: of each step of all episodes, in order.
    """
    flat_scores = [value for row in scores for value in row]
    relative, flat_groups = group_relative(flat_scores, groups, scale)
    values = iter(relative)
    by_episode = [[next(values) for _ in row] for row in scores]
    return by_episode, flat_groups


def _own_rewards(trajectory: Trajectory) -> list[float]:
    """Each step's own reward plus the reward that all steps share.

    The environment names that reward at the end (`info["shared_reward"]`, see
    `envs/memory/env.py`). The last step's reward includes it already.
    """
    rewards = [turn.reward for turn in trajectory.turns]
    if not rewards:
        return []
    shared_reward = trajectory.turns[-1].info.get("shared_reward", 0.0)
    earlier = [reward + shared_reward for reward in rewards[:-1]]
    return [*earlier, rewards[-1]]
