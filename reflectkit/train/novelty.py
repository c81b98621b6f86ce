"""Exploration by counting: early in training, steps that lead to states which were rarely seen have a larger advantage.

Where success is rare, returns say little at first, and a policy settles on what costs least, such as giving up. A bonus
of 1/√n for the n-th visit of a state (count-based exploration, arXiv 1606.01868, eq. 5) leads it elsewhere. The bonus
has advantages of its own, so its weight does not depend on the size of the rewards, and neither the returns that are
reported nor the critic see it.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from reflectkit.train.algorithms import Estimates, Numbers, deviation, returns_to_go
from reflectkit.types import Observation, Trajectory

FADES_OVER = 0.5
"""The share of a run's updates over which the weight falls to 0."""


class Novelty:
    """Counts the visits of states, and makes advantages of them.

    weight: of these advantages at the start, where those of the rewards have 1 with `--normalize`; 0: nothing is
    counted.
    """

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.visits: Counter[str] = Counter()

    def weight_at(self, step: int, steps: int) -> float:
        """The weight in update `step` (0 is the first) of `steps`: it falls linearly to 0.

        >>> Novelty(0.5).weight_at(0, 60), Novelty(0.5).weight_at(15, 60), Novelty(0.5).weight_at(30, 60)
        (0.5, 0.25, 0.0)
        """
        return self.weight * max(0.0, 1 - step / (FADES_OVER * steps))

    def added_to(self, estimates: Estimates, fresh: Sequence[Trajectory], weight: float) -> Estimates:
        """`estimates` with the advantages of the novelty of `fresh`, which they begin with, times `weight`.

        The visits of `fresh` are counted. Replayed episodes, which follow, stay as they are.
        """
        if not weight or not fresh:
            return estimates
        novelty = self.advantages(fresh)
        advantages = [
            [advantage + weight * new for advantage, new in zip(row, new_row, strict=True)]
            for row, new_row in zip(estimates.advantages, novelty, strict=False)
        ]
        return replace(estimates, advantages=advantages + estimates.advantages[len(fresh) :])

    def advantages(self, fresh: Sequence[Trajectory]) -> Numbers:
        """The bonuses that follow each decision, minus their mean over all and divided by their standard deviation."""
        bonuses = [self._bonuses(trajectory) for trajectory in fresh]
        sums = [returns_to_go(row, 1.0) for row in bonuses]
        every = [value for row in sums for value in row]
        mean, spread = fmean(every), deviation(every)
        return [[(value - mean) / spread for value in row] for row in sums]

    def _bonuses(self, trajectory: Trajectory) -> list[float]:
        """The bonus of the state to which each decision led; 0 for the last one's, after which nothing is decided."""
        bonuses = []
        for turn in trajectory.turns[1:]:
            state = state_key(turn.observation)
            self.visits[state] += 1
            bonuses.append(1 / math.sqrt(self.visits[state]))
        return [*bonuses, 0.0]


def state_key(observation: Observation) -> str:
    """A digest of what the policy sees of a state, in 16 hexadecimal digits."""
    seen = "\0".join([observation.text, *sorted(observation.choices)])
    return hashlib.sha256(seen.encode("utf-8", "replace")).hexdigest()[:16]
