"""Intervals and tests for clustered outcomes, as pure functions.

Tasks about the same thing (a file, a game) succeed or fail together, so the unit is the cluster, not the task.
Intervals use the effective number of independent tasks, n / design effect (Kish 1965, Survey Sampling). The design
effect is estimated from the clusters, and shrunk towards its value at intraclass correlation 1 while few clusters are
informative. With this number, a rate has Jeffreys' interval, further scaled by Student's t as in Korn and Graubard
(1998, Survey Methodology 24:193), and a paired difference has Tango's score interval. Any other mean has a t interval
of its clusters, or, if it cannot be negative, of its logarithm. `python -m research.coverage` measures how often these
contain the true value. Shapes: C clusters, D sign patterns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

Z95 = 1.959963984540054  # the 97.5 % point of the standard normal
EXACT = 12  # up to this many differing clusters, all sign patterns are tried
PRIOR_DF = (1.0, 6.0)
"""Weight of the assumption of correlation 1 in degrees of freedom: at p = 1/2, and how much more at p = 0 or 1."""
DRAWS = 4000  # sign patterns, where not all are tried
HALVINGS = 50  # bisection steps in the search for an endpoint

Array = Any  # numpy is imported where it is used, so that `reflectkit --help` does not wait for it
Clusters = Sequence[Sequence[float]]
"""The tasks' mean outcomes, one sequence per cluster."""
Interval = tuple[float, float]
"""The ends of a 95 % interval."""


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
        key = task in cluster_of, cluster_of.get(task, task)
        clusters.setdefault(key, []).append(value)
    return list(clusters.values())


def rate_interval(clusters: Clusters, trials: int | None = None) -> Interval:
    """95 % interval of the mean over tasks of outcomes in [0, 1]; (0, 1) for fewer than two clusters.

    trials: how many single 0 or 1 outcomes (episodes) the values are means of, an upper bound of the effective number.
    Repeats narrow the interval as far as they make the tasks' means differ less. None: the values are not means of 0 or
    1 outcomes.
    """
    if any(not 0 <= value <= 1 for cluster in clusters for value in cluster):
        raise ValueError("outcomes must lie in [0, 1]")
    if len(clusters) < 2:
        return 0.0, 1.0
    return rate_ends(*_sums(clusters), math.inf if trials is None else trials)


def rate_ends(
    totals_C: Array,
    squares: float,
    sizes_C: Array,
    trials: float = math.inf,
) -> Interval:
    """`rate_interval` from the clusters' sums of outcomes, the sum of all squares and the clusters' sizes."""
    from scipy.special import betaincinv

    mean = float(totals_C.sum() / sizes_C.sum())
    mean = min(max(mean, 0.0), 1.0)
    effective = effective_tasks(
        totals_C,
        squares,
        sizes_C,
        mean * (1 - mean),
        4.0,
        trials,
    )
    effective *= (Z95 / _t95(len(sizes_C))) ** 2  # Korn and Graubard 1998
    right = mean * effective + 0.5
    wrong = (1 - mean) * effective + 0.5

    # Jeffreys' interval (Brown, Cai and DasGupta 2001, Statistical Science 16:101); an end is exactly 0 or 1 if all
    # outcomes are
    low, high = 0.0, 1.0
    if mean > 0:
        low = min(float(betaincinv(right, wrong, 0.025)), mean)
    if mean < 1:
        high = max(float(betaincinv(right, wrong, 0.975)), mean)
    return low, high


def effective_tasks(
    totals_C: Array,
    squares: float,
    sizes_C: Array,
    greatest: float,
    scale: float,
    trials: float = math.inf,
) -> float:
    """The effective number of independent all-or-nothing tasks, from the variance between clusters.

    greatest: the variance of one task if it were all or nothing; times `scale` it lies in [0, 1]. The clusters' design
    effect is weighted by its degrees of freedom, and the one at intraclass correlation 1 by `PRIOR_DF`. If all outcomes
    are equal, nothing contradicts the latter.
    """
    # 1. The variance of the tasks
    tasks = float(sizes_C.sum())
    count = len(sizes_C)
    largest_effect = float((sizes_C**2).sum()) / tasks  # at intraclass correlation 1
    mean = float(totals_C.sum()) / tasks
    variance = squares / tasks - mean**2
    if variance <= 1e-12:
        return tasks / largest_effect

    # 2. That of the clusters, and how far it is known
    residuals_C = totals_C - sizes_C * mean
    second = float((residuals_C**2).sum())
    fourth = float((residuals_C**4).sum())
    freedom = count - 1.0
    if second > 1e-12 * tasks:
        kurtosis = count * fourth / second**2
        freedom = 2 * count / max(kurtosis - 1, 1e-9)  # of a variance: 2 / its squared CV
    prior = PRIOR_DF[0] + PRIOR_DF[1] * (1 - scale * greatest)

    def shrunk(estimate: float, assumption: float) -> float:
        return (freedom * estimate + prior * assumption) / (freedom + prior)

    # 3. The design effect: the clusters' variance, relative to that of independent tasks
    effect = max(second * count / (count - 1) / tasks / greatest, tasks / trials)
    share = shrunk(variance / greatest, 1.0)  # 1 for all-or-nothing outcomes
    return tasks / shrunk(effect, max(effect, share * largest_effect))


def mean_interval(clusters: Clusters) -> Interval:
    """95 % t interval of the mean over tasks, for unbounded outcomes; (-inf, inf) for fewer than two clusters.

    The clusters' variance of a ratio estimate, C - 1 degrees of freedom: Cochran 1977, Sampling Techniques, section
    6.3.
    """
    if len(clusters) < 2:
        return -math.inf, math.inf
    mean, error = _mean_and_error(clusters)
    half = _t95(len(clusters)) * error
    return mean - half, mean + half


def amount_interval(clusters: Clusters) -> Interval:
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
    count = len(clusters)
    tasks = sum(map(len, clusters))
    mean = math.fsum(value for cluster in clusters for value in cluster) / tasks
    residuals = [math.fsum(cluster) - len(cluster) * mean for cluster in clusters]
    correction = math.sqrt(count / (count - 1))
    return mean, math.hypot(*residuals) * correction / tasks


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
) -> Paired:
    """`first` minus `second`, outcomes by task, over their common tasks: score interval and two-sided sign-flip test by
    cluster.

    cluster_of: the tasks' clusters; a task that is not in it is its own cluster. shares: the outcomes lie in [0, 1];
    otherwise the interval is a t interval. trials: as for `rate_interval`, for the player with fewer. The test is exact
    up to 12 clusters that differ (Fisher 1935), and uses seeded sampling beyond; p is never 0. Without common tasks
    everything but the counts is nan.
    """
    # 1. The gaps of the tasks in common
    by_common = {task: first[task] - second[task] for task in first if task in second}
    clusters = by_cluster(by_common, cluster_of or {})
    if not clusters:
        return Paired(
            math.nan,
            math.nan,
            math.nan,
            math.nan,
            0,
            0,
        )
    totals_C, squares, sizes_C = _sums(clusters)
    gaps = [gap for cluster in clusters for gap in cluster]

    # 2. The interval
    low, high = mean_interval(clusters)
    if shares and len(clusters) < 2:
        low = -1.0
        high = 1.0
    elif shares:
        gains = [[max(gap, 0.0) for gap in cluster] for cluster in clusters]
        gain = float(_sums(gains)[0].sum())
        most_trials = math.inf if trials is None else trials
        low, high = difference_ends(totals_C, gain, squares, sizes_C, most_trials)

    # 3. The test, with which it agrees
    signs_DC, is_exact = flips(totals_C, DRAWS)
    p = sign_flip_p(totals_C, signs_DC, is_exact)
    low, high = agree_with_test(
        low,
        high,
        p,
        totals_C,
        sizes_C,
        signs_DC,
        is_exact,
    )
    return Paired(
        math.fsum(gaps) / len(gaps),
        low,
        high,
        p,
        len(gaps),
        len(clusters),
    )


def difference_ends(
    totals_C: Array,
    gain: float,
    squares: float,
    sizes_C: Array,
    trials: float = math.inf,
) -> Interval:
    """Tango's 95 % score interval of the mean gap over tasks, of gaps in [-1, 1].

    totals_C, squares, sizes_C, trials: as for `rate_ends`. gain: the sum of the positive gaps. Tango 1998, Statistics
    in Medicine 17:891, with `effective_tasks` and the share of discordant pairs in closed form (Yang, Sun and Hardin
    2013).
    """
    # 1. Gains and losses in effective tasks
    tasks = float(sizes_C.sum())
    total = float(totals_C.sum())
    mean = total / tasks
    loss = max(gain - total, 0.0)
    variance = (gain + loss) / tasks - mean**2
    effective = effective_tasks(
        totals_C,
        squares,
        sizes_C,
        variance,
        1.0,
        trials,
    )
    gain, loss = gain / tasks * effective, loss / tasks * effective

    def score(gap: float) -> float:
        """The score statistic for a mean gap of `gap`; it decreases in `gap`."""
        linear = (2 * effective - gain + loss) * gap - gain - loss
        constant = -loss * gap * (1 - gap)
        # maximum-likelihood share of pairs that only the second player won
        root = math.sqrt(max(linear**2 - 8 * effective * constant, 0.0))
        share = (root - linear) / (4 * effective)
        variance = effective * (2 * share + gap * (1 - gap))
        return (gain - loss - effective * gap) / math.sqrt(max(variance, 1e-300))

    # 2. The gaps that the statistic does not reject
    low = _bisected(lambda gap: score(gap) > Z95, -1.0, mean)
    high = _bisected(lambda gap: score(gap) > -Z95, mean, 1.0)
    return sum(low) / 2, sum(high) / 2


def _bisected(
    holds: Callable[[float], bool],
    yes: float,
    no: float,
) -> tuple[float, float]:
    """The last value where it still `holds`, and the first where it does not, between one where it does and one where
    it does not.
    """
    for _ in range(HALVINGS):
        middle = (yes + no) / 2
        yes, no = (middle, no) if holds(middle) else (yes, middle)
    return yes, no


def flips(totals_C: Array, draws: int) -> tuple[Array, bool]:
    """Sign patterns (D, C), and whether these are all patterns of the clusters whose total is not 0, equally often.

    With many such clusters, a fixed random sample of patterns is used instead. Of few clusters, all patterns are tried;
    of more, the others' signs are sampled: they count once a difference other than 0 is tested.
    """
    import numpy as np

    # 1. How many patterns
    count = len(totals_C)
    differing = np.arange(count) if count <= EXACT else np.flatnonzero(totals_C)
    is_exact = len(differing) <= EXACT
    patterns = 2 ** len(differing) if is_exact else draws
    repeats = max(1, draws // patterns) if len(differing) < count else 1

    # 2. Random signs, and in place of those of the clusters that differ all patterns
    chance = np.random.default_rng(0)
    bits_DC = chance.integers(2, size=(patterns * repeats, count), dtype=np.int8)
    signs_DC = bits_DC * np.int8(2) - np.int8(1)  # -1 and 1
    if is_exact:
        every = list(product((-1, 1), repeat=len(differing)))
        signs_DC[:, differing] = np.tile(np.array(every, dtype=np.int8), (repeats, 1))
    return signs_DC, is_exact


def sign_flip_p(
    totals_C: Array,
    signs_DC: Array,
    is_exact: bool,
) -> float:
    """Two-sided p of the hypothesis that the sign of each cluster's total is random.

    is_exact: `signs_DC` has all patterns; otherwise it is a sample, to which the observed pattern is added.
    """
    rounding = 1e-12 * abs(totals_C).sum()  # of the sums
    threshold = abs(totals_C.sum()) - rounding
    as_large = int((abs(signs_DC @ totals_C) >= threshold).sum())
    observed = 0 if is_exact else 1
    return (as_large + observed) / (len(signs_DC) + observed)


def agree_with_test(
    low: float,
    high: float,
    p: float,
    totals_C: Array,
    sizes_C: Array,
    signs_DC: Array,
    is_exact: bool,
) -> Interval:
    """The interval, adjusted to contain 0 exactly if the sign-flip test does not reject 0.

    An end on the wrong side moves to 0, or, if the test rejects 0, to the nearest difference that it does not reject.
    """
    if p >= 0.05:
        return min(low, 0.0), max(high, 0.0)
    if low > 0 or high < 0:
        return low, high

    # The test rejects 0, and the interval contains it
    def rejects(gap: float) -> bool:
        return sign_flip_p(totals_C - gap * sizes_C, signs_DC, is_exact) < 0.05

    difference = float(totals_C.sum() / sizes_C.sum())
    _, end = _bisected(rejects, 0.0, difference)
    if difference > 0:
        return end, max(high, end)
    return min(low, end), end


def _sums(clusters: Clusters) -> tuple[Array, float, Array]:
    """The clusters' sums (C), the sum of all squares and the clusters' sizes (C)."""
    import numpy as np

    totals_C = np.array([math.fsum(cluster) for cluster in clusters])
    sizes_C = np.array([len(cluster) for cluster in clusters], dtype=float)
    squares = math.fsum(value * value for cluster in clusters for value in cluster)
    return totals_C, squares, sizes_C


@cache
def _t95(clusters: int) -> float:
    """The 97.5 % point of Student's t with `clusters` - 1 degrees of freedom."""
    from scipy.special import stdtrit

    return float(stdtrit(clusters - 1, 0.975))


def pass_at(
    k: int,
    right: int,
    tries: int,
) -> float:
    """pass@k: probability that at least one of `k` of a task's `tries`, drawn without replacement, is right.

    Chen et al. 2021, eq. 1.
    """
    return 1 - math.comb(tries - right, k) / math.comb(tries, k)


def pass_all(
    k: int,
    right: int,
    tries: int,
) -> float:
    """pass^k: probability that all `k` of them are right (Yao et al. 2024, tau-bench)."""
    return math.comb(right, k) / math.comb(tries, k)
