"""Exploration by counting: early in training, choices that were rarely made in their state have a
larger advantage.

Where success is rare, or mistakes cost, returns say little at first, and a policy settles on what
costs least, such as giving up. A bonus of 1/√n for the n-th time that a choice is made in a state
(MBIE-EB, Strehl and Littman 2008) leads it elsewhere, also to states that it has not seen. The bonus
has advantages of its own, so its weight does not depend on the size of the rewards, and neither the
returns that are reported nor the critic see it.

Bonuses shrink as visits grow. Divided by their present deviation they would not: in a game of few
states, each other step would count as new for half of the training, and a policy may forget how the
game ends. Divided by their first deviation, they would be gone after a few updates. So the divisor
is the geometric mean of both.

Where a game can be left at a small gain, what a policy does in the first updates decides whether it
ever sees more than that. So the bonus outweighs the rewards at first, and soon does not. A short
run has no time for this, and its weight is smaller.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from reflectkit.train.advantages import Estimates, Numbers, deviation, returns_to_go
from reflectkit.types import Observation, Trajectory

FADES_OVER = 0.5
"""The share of a run's updates over which the weight falls to 0."""
ENOUGH_UPDATES = 60
"""From this length of a run on, exploration begins with its whole weight."""


class Novelty:
    """Counts how often each choice was made in each state, and makes advantages of that.

    weight: of these advantages at the start of a run that is long enough, where those of the rewards
    have 1 with `--normalize`; 0: nothing is counted.
    """

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.visits: Counter[str] = Counter()
        """By the `key` of a decision."""
        self.first_deviation = 0.0
        """Of the sums of bonuses in the first update in which they differ; 0 before it."""

    def weight_at(self, step: int, steps: int) -> float:
        """The weight in update `step` (0 is the first) of `steps`.

        It begins smaller in a run of fewer than `ENOUGH_UPDATES`, in proportion, and falls to 0 as
        the square of the time that is left for exploration.

        >>> Novelty(3.0).weight_at(0, 60), Novelty(3.0).weight_at(15, 60), Novelty(3.0).weight_at(30, 60)
        (3.0, 0.75, 0.0)
        >>> Novelty(3.0).weight_at(0, 20)
        1.0
        """
        first = self.weight * min(1.0, steps / ENOUGH_UPDATES)
        return first * exploration_left(step, steps)

    def added_to(
        self,
        estimates: Estimates,
        fresh: Sequence[Trajectory],
        weight: float,
    ) -> Estimates:
        """`estimates` with the advantages of the novelty of `fresh`, which they begin with, times
        `weight`.

        The decisions of `fresh` are counted. Replayed episodes, which follow, stay as they are.
        """
        if not weight or not fresh:
            return estimates
        novelty = self.advantages(fresh)
        # The fresh episodes come first; the replayed ones that follow stay as they are
        advantages = [
            [advantage + weight * new for advantage, new in zip(row, new_row, strict=True)]
            for row, new_row in zip(estimates.advantages, novelty, strict=False)
        ]
        return replace(estimates, advantages=advantages + estimates.advantages[len(fresh) :])

    def advantages(self, fresh: Sequence[Trajectory]) -> Numbers:
        """The sum of the bonuses from each decision on, minus the mean over all decisions. The
        divisor is the geometric mean of their standard deviation and of that in the first update.
        """
        # 1. The sum from each decision on, against the mean over all of them
        sums = [returns_to_go(self._bonuses(trajectory), 1.0) for trajectory in fresh]
        every = [value for row in sums for value in row]
        mean, present = fmean(every), deviation(every)
        if not self.first_deviation and max(every) > min(every):
            self.first_deviation = present
        divisor = math.sqrt(present * (self.first_deviation or 1.0))
        return [[(value - mean) / divisor for value in row] for row in sums]

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds, as JSON values."""
        return {"first_deviation": self.first_deviation, "visits": self.visits}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned. Raises KeyError, TypeError or ValueError for something
        else.
        """
        self.first_deviation = float(state["first_deviation"])
        self.visits = Counter({str(seen): int(count) for seen, count in state["visits"].items()})

    def _bonuses(self, trajectory: Trajectory) -> list[float]:
        """The bonus of each decision."""
        bonuses = []
        for turn in trajectory.turns:
            decision = key(turn.observation, turn.action_text)
            self.visits[decision] += 1
            bonuses.append(1 / math.sqrt(self.visits[decision]))
        return bonuses


def exploration_left(step: int, steps: int) -> float:
    """The share of a bonus that is left in update `step` (0 is the first) of `steps`: the square of
    the time that is left for exploration.

    >>> exploration_left(0, 60), exploration_left(15, 60), exploration_left(45, 60)
    (1.0, 0.25, 0.0)
    """
    return max(0.0, 1 - step / (FADES_OVER * steps)) ** 2


def key(observation: Observation, action: str | None = None) -> str:
    """A digest of what the policy sees of a state, and of what it does there if that is given, in
    16 hexadecimal digits. The order of the choices does not count.
    """
    counts = [observation.text, *sorted(observation.choices)]
    if action is not None:
        counts += ["", action]
    return hashlib.sha256("\0".join(counts).encode("utf-8", "replace")).hexdigest()[:16]
