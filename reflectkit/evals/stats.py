"""Intervals and tests for clustered outcomes, as pure functions.

Tasks about the same thing (a file, a game) succeed or fail together, so the unit is the cluster, not the task.
Intervals use the effective number of independent tasks, n / design effect (Kish 1965, Survey Sampling). The design
effect is estimated from the clusters, and shrunk towards its value at intraclass correlation 1 while few clusters are
informative. With this number, a rate has Jeffreys' interval, further scaled by Student's t as in Korn and Graubard
(1998, Survey Methodology 24:193), and a paired difference has Tango's score interval. Any other mean has a t interval
of its clusters, or, if it cannot be negative, of its logarithm. `python -m research.coverage` measures how often these
contain the true value. Shapes: N data sets, C clusters, D sign patterns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

Z95 = 1.959963984540054  # the 97.5 % point of the standard normal
EXACT = 12  # up to this many differing clusters, all sign patterns are tried
PRIOR_DF = (1.0, 6.0)
"""Weight of the assumption of correlation 1 in degrees of freedom: at p = 1/2, and how much more at p = 0 or 1."""
AT_ONCE = 2**22  # signs multiplied at once
HALVINGS = 50  # bisection steps in the search for an endpoint

Array = Any  # numpy is imported where it is used, so that `reflectkit --help` does not wait for it
Clusters = Sequence[Sequence[float]]
"""The tasks' mean outcomes, one sequence per cluster."""


def by_task(outcomes: Iterable[tuple[str, float]]) -> Mapping[str, float]:
    """Mean outcome of each distinct task, from (task id, outcome) pairs."""
    sums: dict[str, tuple[float, int]] = {}
    for task, outcome in outcomes:
        total, count = sums.get(task, (0.0, 0))
        sums[task] = (total + outcome, count + 1)
    return {task: total / count for task, (total, count) in sums.items()}


def by_cluster(values: Mapping[str, float], cluster_of: Mapping[str, str]) -> list[list[float]]:
    """The tasks' `values`, one list per cluster; a task without a cluster is its own cluster."""
    clusters: dict[tuple[bool, str], list[float]] = {}
    for task, value in values.items():
        clusters.setdefault((task in cluster_of, cluster_of.get(task, task)), []).append(value)
    return list(clusters.values())


def rate_interval(clusters: Clusters, trials: int | None = None) -> tuple[float, float]:
    """95 % interval of the mean over tasks of outcomes in [0, 1]; (0, 1) for fewer than two clusters.

    trials: how many single 0 or 1 outcomes (episodes) the values are means of, an upper bound of the effective number.
    Repeats narrow the interval as far as they make the tasks' means differ less. None: the values are not means of 0 or
    1 outcomes.
    """
    import numpy as np

    if any(not 0 <= value <= 1 for cluster in clusters for value in cluster):
        raise ValueError("outcomes must lie in [0, 1]")
    if len(clusters) < 2:
        return 0.0, 1.0
    totals_NC, squares_N, sizes_C = _sums(clusters)
    low_N, high_N = rate_intervals(totals_NC, squares_N, sizes_C, np.inf if trials is None else trials)
    return float(low_N[0]), float(high_N[0])


def rate_intervals(totals_NC: Array, squares_N: Array, sizes_C: Array, trials: float = math.inf) -> tuple[Array, Array]:
    """`rate_interval` of N data sets, from the clusters' sums of outcomes, the sums of squares and the sizes."""
    import numpy as np
    from scipy.special import betaincinv

    tasks = sizes_C.sum()
    mean_N = np.clip(totals_NC.sum(axis=1) / tasks, 0, 1)
    effective_N = effective_tasks(totals_NC, squares_N, sizes_C, mean_N * (1 - mean_N), 4.0, trials)
    effective_N = effective_N * (Z95 / _t95(len(sizes_C))) ** 2  # Korn and Graubard 1998
    right_N, wrong_N = mean_N * effective_N, (1 - mean_N) * effective_N
    # Jeffreys' interval (Brown, Cai and DasGupta 2001, Statistical Science 16:101); an end is exactly 0 or 1 if all
    # outcomes are
    low_N = np.where(mean_N <= 0, 0.0, np.minimum(betaincinv(right_N + 0.5, wrong_N + 0.5, 0.025), mean_N))
    high_N = np.where(mean_N >= 1, 1.0, np.maximum(betaincinv(right_N + 0.5, wrong_N + 0.5, 0.975), mean_N))
    return low_N, high_N


def effective_tasks(
    totals_NC: Array, squares_N: Array, sizes_C: Array, greatest_N: Array, scale: float, trials: float = math.inf
) -> Array:
    """The effective number of independent all-or-nothing tasks in each data set, from the variance between clusters.

    greatest_N: the variance of one task if it were all or nothing; times `scale` it lies in [0, 1]. The clusters'
    design effect is weighted by its degrees of freedom, and the one at intraclass correlation 1 by `PRIOR_DF`. If all
    outcomes are equal, nothing contradicts the latter.
    """
    import numpy as np

    tasks, count = sizes_C.sum(), len(sizes_C)
    mean_N = totals_NC.sum(axis=1) / tasks
    residuals_NC = totals_NC - sizes_C * mean_N[:, None]
    second_N, fourth_N = (residuals_NC**2).sum(axis=1), (residuals_NC**4).sum(axis=1)
    spread_N = squares_N / tasks - mean_N**2  # of the tasks
    varied_N, apart_N = spread_N > 1e-12, second_N > 1e-12 * tasks
    greatest_N = np.where(varied_N, greatest_N, 1 / scale)  # any in range: not used for equal outcomes
    kurtosis_N = count * fourth_N / np.where(apart_N, second_N, 1.0) ** 2
    freedom_N = np.where(
        apart_N, 2 * count / np.maximum(kurtosis_N - 1, 1e-9), count - 1
    )  # of a variance: 2 / its squared CV
    prior_N = PRIOR_DF[0] + PRIOR_DF[1] * (1 - scale * greatest_N)

    def shrunk(estimate_N: Array, assumed_N: Array) -> Array:
        return (freedom_N * estimate_N + prior_N * assumed_N) / (freedom_N + prior_N)

    # the clusters' variance, relative to that of independent tasks
    effect_N = second_N * count / (count - 1) / tasks / greatest_N
    effect_N = np.maximum(effect_N, tasks / trials)
    share_N = shrunk(spread_N / greatest_N, 1.0)  # 1 for all-or-nothing outcomes
    alike = (sizes_C**2).sum() / tasks  # at intraclass correlation 1
    return tasks / np.where(varied_N, shrunk(effect_N, np.maximum(effect_N, share_N * alike)), alike)


def mean_interval(clusters: Clusters) -> tuple[float, float]:
    """95 % t interval of the mean over tasks, for unbounded outcomes; (-inf, inf) for fewer than two clusters.

    The clusters' variance of a ratio estimate, C - 1 degrees of freedom: Cochran 1977, Sampling Techniques, section
    6.3.
    """
    if len(clusters) < 2:
        return -math.inf, math.inf
    mean, error = _mean_and_error(clusters)
    half = _t95(len(clusters)) * error
    return mean - half, mean + half


def amount_interval(clusters: Clusters) -> tuple[float, float]:
    """95 % interval of the mean over tasks of what cannot be negative, e.g. a count; (-inf, inf) for fewer than
    two clusters.

    The t interval of the logarithm of the mean, by the delta method: it lies above 0, and reaches further up, where the
    mean of skewed values is missed by `mean_interval`. If all values are 0, so are both ends.
    """
    if len(clusters) < 2:
        return -math.inf, math.inf
    mean, error = _mean_and_error(clusters)
    factor = math.exp(_t95(len(clusters)) * error / mean) if mean else 1.0
    return mean / factor, mean * factor


def mean_p(clusters: Clusters) -> float:
    """Two-sided p of the hypothesis that the mean over tasks is 0; less than 0.05 where `mean_interval` excludes 0."""
    from scipy.special import stdtr

    if len(clusters) < 2:
        return 1.0
    mean, error = _mean_and_error(clusters)
    if not error:
        return float(mean == 0)
    return 2 * float(stdtr(len(clusters) - 1, -abs(mean) / error))


def _mean_and_error(clusters: Clusters) -> tuple[float, float]:
    """The mean over tasks, and its standard error by clusters."""
    count, tasks = len(clusters), sum(map(len, clusters))
    mean = math.fsum(value for cluster in clusters for value in cluster) / tasks
    distance = math.hypot(*(math.fsum(cluster) - len(cluster) * mean for cluster in clusters))
    return mean, distance * math.sqrt(count / (count - 1)) / tasks


@dataclass(frozen=True, slots=True)
class Paired:
    """A mean difference over the tasks that both played. The interval excludes 0 exactly if p < 0.05."""

    difference: float
    """First minus second."""
    low: float
    """Lower end of the 95 % interval."""
    high: float
    """Upper end of the 95 % interval."""
    p: float
    """Two-sided p of the cluster sign-flip test."""
    tasks: int
    """Number of tasks in common."""
    clusters: int
    """Number of clusters that these tasks come from."""


def paired(
    first: Mapping[str, float],
    second: Mapping[str, float],
    cluster_of: Mapping[str, str] | None = None,
    *,
    shares: bool = True,
    trials: int | None = None,
    draws: int = 4000,
) -> Paired:
    """`first` minus `second`, outcomes by task, over their common tasks: score interval and two-sided sign-flip test by
    cluster.

    cluster_of: the tasks' clusters; a task that is not in it is its own cluster. shares: the outcomes lie in [0, 1];
    otherwise the interval is a t interval. trials: as for `rate_interval`, for the player with fewer. The test is exact
    up to 12 clusters that differ (Fisher 1935), and uses seeded sampling beyond; p is never 0. Without common tasks
    everything but the counts is nan.
    """
    gaps = by_cluster({task: first[task] - second[task] for task in first if task in second}, cluster_of or {})
    if not gaps:
        return Paired(math.nan, math.nan, math.nan, math.nan, 0, 0)
    totals_NC, squares_N, sizes_C = _sums(gaps)
    difference = math.fsum(gap for cluster in gaps for gap in cluster) / sum(map(len, gaps))
    signs_DC, every = flips(totals_NC[0], draws)
    p = float(sign_flip_p(totals_NC, signs_DC, every)[0])
    if len(gaps) < 2:
        low, high = (-1.0, 1.0) if shares else (-math.inf, math.inf)
    elif shares:
        gained_NC, _, _ = _sums([[max(gap, 0.0) for gap in cluster] for cluster in gaps])
        limit = math.inf if trials is None else trials
        low, high = (
            float(end_N[0])
            for end_N in difference_intervals(totals_NC, gained_NC.sum(axis=1), squares_N, sizes_C, limit)
        )
    else:
        low, high = mean_interval(gaps)
    low, high = agree_with_test(low, high, p, totals_NC[0], sizes_C, signs_DC, every)
    return Paired(difference, low, high, p, sum(map(len, gaps)), len(gaps))


def difference_intervals(
    totals_NC: Array, gained_N: Array, squares_N: Array, sizes_C: Array, trials: float = math.inf
) -> tuple[Array, Array]:
    """Tango's 95 % score interval of the mean gap over tasks, for N data sets of gaps in [-1, 1].

    totals_NC, squares_N, sizes_C, trials: as for `rate_intervals`. gained_N: the sum of the positive gaps. Tango 1998,
    Statistics in Medicine 17:891, with `effective_tasks` and the share of discordant pairs in closed form (Yang, Sun
    and Hardin 2013).
    """
    import numpy as np

    tasks = sizes_C.sum()
    gap_N = totals_NC.sum(axis=1) / tasks
    lost_N = np.maximum(gained_N - totals_NC.sum(axis=1), 0.0)
    greatest_N = (gained_N + lost_N) / tasks - gap_N**2
    effective_N = effective_tasks(totals_NC, squares_N, sizes_C, greatest_N, 1.0, trials)
    gained_N, lost_N = gained_N / tasks * effective_N, lost_N / tasks * effective_N

    def score(gap_N: Array) -> Array:
        """The score statistic for a mean gap of `gap_N`; it decreases in `gap_N`."""
        linear_N = (2 * effective_N - gained_N + lost_N) * gap_N - gained_N - lost_N
        constant_N = -lost_N * gap_N * (1 - gap_N)
        root_N = np.sqrt(np.maximum(linear_N**2 - 8 * effective_N * constant_N, 0.0))
        # maximum-likelihood share of pairs that only the second player won
        share_N = (root_N - linear_N) / (4 * effective_N)
        variance_N = effective_N * (2 * share_N + gap_N * (1 - gap_N))
        return (gained_N - lost_N - effective_N * gap_N) / np.sqrt(np.maximum(variance_N, 1e-300))

    def endpoint(low_N: Array, high_N: Array, target: float) -> Array:
        for _ in range(HALVINGS):
            middle_N = (low_N + high_N) / 2
            above_N = score(middle_N) > target
            low_N, high_N = np.where(above_N, middle_N, low_N), np.where(above_N, high_N, middle_N)
        return (low_N + high_N) / 2

    return endpoint(np.full_like(gap_N, -1.0), gap_N, Z95), endpoint(gap_N, np.full_like(gap_N, 1.0), -Z95)


def flips(totals_C: Array, draws: int) -> tuple[Array, bool]:
    """Sign patterns (D, C), and whether these are all patterns of the clusters whose total is not 0, equally often.

    With many such clusters, a fixed random sample of patterns is used instead. Of few clusters, all patterns are tried;
    of more, the others' signs are sampled: they count once a difference other than 0 is tested.
    """
    import numpy as np

    differing = np.arange(len(totals_C)) if len(totals_C) <= EXACT else np.flatnonzero(totals_C)
    every = len(differing) <= EXACT
    patterns = 2 ** len(differing) if every else draws
    times = max(1, draws // patterns) if len(differing) < len(totals_C) else 1
    shape = patterns * times, len(totals_C)
    signs_DC = np.random.default_rng(0).integers(2, size=shape, dtype=np.int8) * np.int8(2) - np.int8(1)
    if every:
        of_differing = np.array(list(product((-1, 1), repeat=len(differing))), dtype=np.int8)
        signs_DC[:, differing] = np.tile(of_differing, (times, 1))
    return signs_DC, every


def sign_flip_p(totals_NC: Array, signs_DC: Array, every: bool) -> Array:
    """Two-sided p of the hypothesis that the sign of each cluster's total is random, for N data sets.

    every: `signs_DC` has all patterns; otherwise it is a sample, to which the observed pattern is added.
    """
    import numpy as np

    # minus a margin for rounding of the sums
    observed_N = np.abs(totals_NC.sum(axis=1)) - 1e-12 * np.abs(totals_NC).sum(axis=1)
    rows = max(1, AT_ONCE // signs_DC.shape[1])
    as_large_N = np.zeros(len(totals_NC), dtype=int)
    for start in range(0, len(signs_DC), rows):
        sums_ND = totals_NC @ signs_DC[start : start + rows].T.astype(float)
        as_large_N += (np.abs(sums_ND) >= observed_N[:, None]).sum(axis=1)
    added = 0 if every else 1
    return (as_large_N + added) / (len(signs_DC) + added)


def agree_with_test(
    low: float, high: float, p: float, totals_C: Array, sizes_C: Array, signs_DC: Array, every: bool
) -> tuple[float, float]:
    """The interval, adjusted to contain 0 exactly if the sign-flip test does not reject 0.

    An end on the wrong side moves to 0, or, if the test rejects 0, to the nearest difference that it does not reject.
    """
    difference = float(totals_C.sum() / sizes_C.sum())
    if p >= 0.05:
        return min(low, 0.0), max(high, 0.0)
    if low > 0 or high < 0:
        return low, high
    rejected, accepted = 0.0, difference
    for _ in range(HALVINGS):
        middle = (rejected + accepted) / 2
        if float(sign_flip_p((totals_C - middle * sizes_C)[None], signs_DC, every)[0]) < 0.05:
            rejected = middle
        else:
            accepted = middle
    return (accepted, max(high, accepted)) if difference > 0 else (min(low, accepted), accepted)


def _sums(clusters: Clusters) -> tuple[Array, Array, Array]:
    """For one data set: the clusters' sums (1, C), the sum of all squares (1) and the clusters' sizes (C)."""
    import numpy as np

    totals_NC = np.array([[math.fsum(cluster) for cluster in clusters]])
    squares_N = np.array([math.fsum(value * value for cluster in clusters for value in cluster)])
    return totals_NC, squares_N, np.array([len(cluster) for cluster in clusters], dtype=float)


@cache
def _t95(clusters: int) -> float:
    """The 97.5 % point of Student's t with `clusters` - 1 degrees of freedom."""
    from scipy.special import stdtrit

    return float(stdtrit(clusters - 1, 0.975))


def pass_at(k: int, right: int, tries: int) -> float:
    """pass@k: probability that at least one of `k` of a task's `tries`, drawn without replacement, is right.

    Chen et al. 2021, eq. 1.
    """
    return 1 - math.comb(tries - right, k) / math.comb(tries, k)


def pass_all(k: int, right: int, tries: int) -> float:
    """pass^k: probability that all `k` of them are right (Yao et al. 2024, tau-bench)."""
    return math.comb(right, k) / math.comb(tries, k)
