"""Intervals for success rates, as pure functions."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence

Z95 = 1.959963984540054  # the 97.5 % point of the standard normal


def wilson(successes: float, trials: float, z: float = Z95) -> tuple[float, float]:
    """Wilson's score interval for a proportion, both ends in [0, 1]; (0, 1) without trials.

    `successes` may be fractional: with repeated episodes a task, pass the sum of the tasks' success rates and the
    number of distinct tasks, which never makes the interval too narrow. Wilson 1927, JASA 22:209.
    """
    if trials <= 0:
        return 0.0, 1.0
    if not 0 <= successes <= trials:
        raise ValueError(f"successes must lie in [0, trials], got {successes} of {trials}")
    rate = successes / trials
    centre = (rate + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials)) / (1 + z * z / trials)
    low = 0.0 if successes == 0 else max(0.0, centre - half)  # rounding must not leave 1e-17 where the end is exact
    return low, 1.0 if successes == trials else min(1.0, centre + half)


def bootstrap(values: Sequence[float], draws: int = 2000) -> tuple[float, float]:
    """95 % percentile interval of the mean of independent `values`, from seeded resamples; (nan, nan) without values.

    Efron 1979. The same values give the same interval.
    """
    if not values:
        return math.nan, math.nan
    chance = random.Random(0)
    means = sorted(math.fsum(chance.choices(values, k=len(values))) / len(values) for _ in range(draws))
    return means[round(0.025 * (draws - 1))], means[round(0.975 * (draws - 1))]


def by_task(outcomes: Iterable[tuple[str, float]]) -> Mapping[str, float]:
    """Mean outcome of each distinct task, from (task id, outcome) pairs."""
    sums: dict[str, tuple[float, int]] = {}
    for task, outcome in outcomes:
        total, count = sums.get(task, (0.0, 0))
        sums[task] = (total + outcome, count + 1)
    return {task: total / count for task, (total, count) in sums.items()}


def smooth(values: list[float], window: int) -> list[float]:
    """Trailing mean over up to `window` values; the first ones average what there is. Same length as `values`."""
    if window < 1:
        raise ValueError(f"window must be at least 1, got {window}")
    smoothed, total = [], 0.0
    for index, value in enumerate(values):
        total += value
        if index >= window:
            total -= values[index - window]
        smoothed.append(total / min(index + 1, window))
    return smoothed
