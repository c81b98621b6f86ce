"""Intervals for success rates, as pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

Z95 = 1.959963984540054  # the 97.5 % point of the standard normal
EXACT = 12  # differing tasks up to which all signs are tried


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
    import numpy as np

    if not values:
        return math.nan, math.nan
    known_T = np.asarray(values, dtype=np.float64)
    picked_DT = np.random.default_rng(0).integers(len(values), size=(draws, len(values)))
    low, high = np.quantile(known_T[picked_DT].mean(axis=1), (0.025, 0.975))
    return float(low), float(high)


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


@dataclass(frozen=True, slots=True)
class Paired:
    """A mean difference over tasks that both saw. low, high: its 95 % interval. p: of the hypothesis that signs are chance."""

    difference: float
    low: float
    high: float
    p: float
    tasks: int


def paired(first: Mapping[str, float], second: Mapping[str, float], draws: int = 4000) -> Paired:
    """`first` less `second`, outcomes by task, over the tasks of both: bootstrap interval, two-sided sign-flip test.

    The test is exact up to 12 tasks that differ (Fisher 1935), and seeded sampling beyond; p is never 0. Without common tasks
    all but `tasks` are nan.
    """
    gaps = [first[task] - second[task] for task in first if task in second]
    if not gaps:
        return Paired(math.nan, math.nan, math.nan, math.nan, 0)
    low, high = bootstrap(gaps)
    told = [abs(gap) for gap in gaps if gap]
    seen = abs(math.fsum(gaps)) - 1e-12
    if len(told) <= EXACT:
        sums = [math.fsum(s * gap for s, gap in zip(signs, told, strict=True)) for signs in product((-1, 1), repeat=len(told))]
        p = sum(abs(total) >= seen for total in sums) / len(sums)
    else:
        import numpy as np

        signs_DT = np.random.default_rng(0).integers(2, size=(draws, len(told))) * 2 - 1
        p = (int((np.abs(signs_DT @ np.asarray(told)) >= seen).sum()) + 1) / (draws + 1)
    return Paired(math.fsum(gaps) / len(gaps), low, high, p, len(gaps))


def pass_at(k: int, right: int, tries: int) -> float:
    """Chance that at least one of `k` of a task's `tries` is right, drawn without replacement (Chen et al. 2021, eq. 1)."""
    if not 1 <= k <= tries:
        raise ValueError(f"k must lie in 1 … {tries}, got {k}")
    return 1 - math.comb(tries - right, k) / math.comb(tries, k)


def pass_all(k: int, right: int, tries: int) -> float:
    """Chance that all `k` of them are right: pass^k (Yao et al. 2024, tau-bench)."""
    if not 1 <= k <= tries:
        raise ValueError(f"k must lie in 1 … {tries}, got {k}")
    return math.comb(right, k) / math.comb(tries, k)
