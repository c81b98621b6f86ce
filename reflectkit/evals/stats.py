"""Intervals and tests for clustered outcomes, as pure functions.

Tasks about the same thing (a file, a game) succeed or fail together. So the unit is the cluster,
not the task. Intervals use the effective number of independent tasks, n / design effect (Kish 1965,
Survey Sampling). The design effect is estimated from the clusters. While few clusters are
informative, it is shrunk towards its value at intraclass correlation 1.

- A rate has Jeffreys' interval of this number, scaled by Student's t (Korn and Graubard 1998,
  Survey Methodology 24:193).
- A paired difference between rates has Tango's score interval.
- An amount, which is never negative, has a t interval of its logarithm.
- Any other mean has a t interval of its clusters.

`python -m research.coverage` measures how often these contain the true value. Shapes: C clusters,
D sign patterns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

Z95 = 1.959963984540054
"""The 97.5 % point of the standard normal distribution."""
EXACT = 12
"""With up to this many differing clusters, the sign-flip test tries all sign patterns."""
DRAWS = 4000
"""How many sign patterns are drawn if not all are tried."""
PRIOR_DF = (1.0, 6.0)
"""Weight of the assumption of intraclass correlation 1, in degrees of freedom. The first is the
weight at p = 1/2; the second is added at p = 0 or 1.
"""
HALVINGS = 50
"""Bisection steps in the search for an end of an interval."""

Array = Any  # numpy is imported in the functions that use it: `reflectkit --help` stays fast
Clusters = Sequence[Sequence[float]]
"""The mean outcomes of tasks, one sequence per cluster."""
Interval = tuple[float, float]
"""The ends of a 95 % interval."""


def by_task(outcomes: Iterable[tuple[str, float]]) -> Mapping[str, float]:
    """The mean outcome of each task. outcomes: pairs of a task's id and one of its outcomes."""
    sums: dict[str, tuple[float, int]] = {}
    for task, outcome in outcomes:
        total, count = sums.get(task, (0.0, 0))
        sums[task] = (total + outcome, count + 1)
    return {task: total / count for task, (total, count) in sums.items()}


def by_cluster(values: Mapping[str, float], cluster_of: Mapping[str, str]) -> list[list[float]]:
    """The `values` of tasks, one list per cluster. A task without a cluster is its own cluster."""
    clusters: dict[tuple[bool, str], list[float]] = {}
    for task, value in values.items():
        # A task may have the name of a cluster
        has_cluster = task in cluster_of
        name = cluster_of.get(task, task)
        clusters.setdefault((has_cluster, name), []).append(value)
    return list(clusters.values())


def rate_interval(clusters: Clusters, trials: int | None = None) -> Interval:
    """95 % interval of the mean over tasks of outcomes in [0, 1]. It is (0, 1) for fewer than two
    clusters.

    trials: the number of episodes, with outcomes of 0 or 1, that the values are means of; None if
    they are no such means. It bounds the effective number of tasks. So repeats narrow the interval
    only as far as they make the tasks' means differ less. Raises ValueError for other outcomes.
    """
    if any(not 0 <= value <= 1 for cluster in clusters for value in cluster):
        raise ValueError("outcomes must lie in [0, 1]")
    if len(clusters) < 2:
        return 0.0, 1.0
    totals_C, squares, sizes_C = _sums(clusters)
    most_trials = math.inf if trials is None else trials
    return rate_ends(totals_C, squares, sizes_C, most_trials)


def rate_ends(
    totals_C: Array,
    squares: float,
    sizes_C: Array,
    trials: float = math.inf,
) -> Interval:
    """`rate_interval` from sums.

    totals_C: the sum of the outcomes in each cluster. squares: the sum of all squared outcomes.
    sizes_C: the number of tasks in each cluster. trials: see `rate_interval`; inf if there is none.
    """
    from scipy.special import betaincinv

    # 1. The effective number of tasks, scaled by Student's t (Korn and Graubard 1998)
    mean = float(totals_C.sum() / sizes_C.sum())
    mean = min(max(mean, 0.0), 1.0)
    effective = effective_tasks(
        totals_C,
        squares,
        sizes_C,
        greatest=mean * (1 - mean),
        scale=4.0,
        trials=trials,
    )
    effective *= (Z95 / _t95(len(sizes_C))) ** 2

    # 2. Jeffreys' interval (Brown, Cai and DasGupta 2001, Statistical Science 16:101). An end is
    # exactly 0 or 1 if all outcomes are
    successes = mean * effective + 0.5
    failures = (1 - mean) * effective + 0.5
    low, high = 0.0, 1.0
    if mean > 0:
        low = min(float(betaincinv(successes, failures, 0.025)), mean)
    if mean < 1:
        high = max(float(betaincinv(successes, failures, 0.975)), mean)
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

    totals_C, squares, sizes_C, trials: see `rate_ends`. greatest: the variance of one task if it
    were all or nothing. scale: a factor that brings `greatest` into [0, 1].

    The design effect is a mean of two. The estimate from the clusters has its degrees of freedom as
    its weight, and the largest effect, at intraclass correlation 1, has `PRIOR_DF`. If all outcomes
    are equal, the clusters say nothing, and it is the largest.
    """
    # 1. The variance of the tasks
    tasks = float(sizes_C.sum())
    count = len(sizes_C)
    largest_effect = float((sizes_C**2).sum()) / tasks  # at intraclass correlation 1
    mean = float(totals_C.sum()) / tasks
    variance = squares / tasks - mean**2
    if variance <= 1e-12:
        return tasks / largest_effect

    # 2. The sum of squares of the clusters. The degrees of freedom of a variance are 2 / CV², where
    # CV is its coefficient of variation
    residuals_C = totals_C - sizes_C * mean
    second_moment = float((residuals_C**2).sum())
    fourth_moment = float((residuals_C**4).sum())
    freedom = count - 1.0
    if second_moment > 1e-12 * tasks:
        kurtosis = count * fourth_moment / second_moment**2
        freedom = 2 * count / max(kurtosis - 1, 1e-9)
    prior = PRIOR_DF[0] + PRIOR_DF[1] * (1 - scale * greatest)

    def shrink(estimate: float, assumption: float) -> float:
        return (freedom * estimate + prior * assumption) / (freedom + prior)

    # 3. The design effect: the variance of the clusters, relative to that of independent tasks
    effect = second_moment * count / (count - 1) / tasks / greatest
    effect = max(effect, tasks / trials)
    all_or_nothing = shrink(variance / greatest, 1.0)  # 1 if all outcomes are 0 or 1
    assumed_effect = max(effect, all_or_nothing * largest_effect)
    return tasks / shrink(effect, assumed_effect)


def mean_interval(clusters: Clusters) -> Interval:
    """95 % t interval of the mean over tasks, for unbounded outcomes. It is (-inf, inf) for fewer
    than two clusters.

    It has the variance of a ratio estimate by clusters, with C - 1 degrees of freedom (Cochran
    1977, Sampling Techniques, section 6.3).
    """
    if len(clusters) < 2:
        return -math.inf, math.inf
    mean, error = _mean_and_error(clusters)
    half = _t95(len(clusters)) * error
    return mean - half, mean + half


def amount_interval(clusters: Clusters) -> Interval:
    """95 % interval of the mean over tasks of an amount that is never negative, e.g. a count. It is
    (-inf, inf) for fewer than two clusters.

    It is the t interval of the logarithm of the mean, by the delta method. It lies above 0. It
    reaches further up than `mean_interval`, which often misses the mean of skewed values. If all
    values are 0, both ends are 0.
    """
    if len(clusters) < 2:
        return -math.inf, math.inf
    mean, error = _mean_and_error(clusters)
    factor = math.exp(_t95(len(clusters)) * error / mean) if mean else 1.0
    return mean / factor, mean * factor


def mean_p(clusters: Clusters) -> float:
    """Two-sided p of the hypothesis that the mean over tasks is 0. It is below 0.05 exactly if
    `mean_interval` excludes 0.
    """
    from scipy.special import stdtr

    if len(clusters) < 2:
        return 1.0
    mean, error = _mean_and_error(clusters)
    if not error:
        return float(mean == 0)
    return 2 * float(stdtr(len(clusters) - 1, -abs(mean) / error))


def _mean_and_error(clusters: Clusters) -> tuple[float, float]:
    """(mean over tasks, its standard error by clusters). There must be at least two clusters."""
    count = len(clusters)
    tasks = sum(map(len, clusters))
    mean = math.fsum(value for cluster in clusters for value in cluster) / tasks
    residuals = [math.fsum(cluster) - len(cluster) * mean for cluster in clusters]
    correction = math.sqrt(count / (count - 1))
    return mean, math.hypot(*residuals) * correction / tasks


@dataclass(frozen=True, slots=True)
class Paired:
    """A mean difference over the tasks that both played. Its interval excludes 0 exactly if
    p < 0.05.
    """

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
    """The mean of `first` minus `second` over their common tasks, with a 95 % interval and a test.

    first, second: outcomes by task. cluster_of: the cluster of each task; a task that is not in it
    is its own cluster. shares: whether the outcomes lie in [0, 1]; then it is a score interval, and
    otherwise a t interval. trials: as for `rate_interval`, of the player with fewer.

    The test flips the signs of clusters, and is two-sided. It is exact with up to EXACT clusters
    that differ (Fisher 1935), and samples with a fixed seed beyond. p is never 0. Without common
    tasks, all but the counts is nan.
    """
    # 1. The gaps of the common tasks, by cluster
    gap_of = {task: first[task] - second[task] for task in first if task in second}
    clusters = by_cluster(gap_of, cluster_of or {})
    if not clusters:
        nan = math.nan
        return Paired(nan, nan, nan, nan, tasks=0, clusters=0)
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

    # 3. The test, with which the interval must agree
    signs_DC, is_exact = sign_patterns(totals_C, DRAWS)
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
    difference = math.fsum(gaps) / len(gaps)
    return Paired(difference, low, high, p, tasks=len(gaps), clusters=len(clusters))


def difference_ends(
    totals_C: Array,
    gain: float,
    squares: float,
    sizes_C: Array,
    trials: float = math.inf,
) -> Interval:
    """Tango's 95 % score interval of the mean gap over tasks, of gaps in [-1, 1].

    totals_C, squares, sizes_C, trials: as for `rate_ends`, of the gaps. gain: the sum of the
    positive gaps.

    Tango 1998, Statistics in Medicine 17:891, with `effective_tasks`, and with the share of
    discordant pairs in closed form (Yang, Sun and Hardin 2013).
    """
    # 1. Gains and losses, in effective tasks
    tasks = float(sizes_C.sum())
    total = float(totals_C.sum())
    mean = total / tasks
    loss = max(gain - total, 0.0)
    variance = (gain + loss) / tasks - mean**2
    effective = effective_tasks(
        totals_C,
        squares,
        sizes_C,
        greatest=variance,
        scale=1.0,
        trials=trials,
    )
    gain = gain / tasks * effective
    loss = loss / tasks * effective

    def score(gap: float) -> float:
        """The score statistic for a mean gap of `gap`; it decreases in `gap`."""
        # The maximum-likelihood share of pairs that only the second player won: a root of
        # 2 n x² + linear x + constant, where n is the effective number of tasks
        linear = (2 * effective - gain + loss) * gap - gain - loss
        constant = -loss * gap * (1 - gap)
        root = math.sqrt(max(linear**2 - 8 * effective * constant, 0.0))
        share = (root - linear) / (4 * effective)
        variance = effective * (2 * share + gap * (1 - gap))
        return (gain - loss - effective * gap) / math.sqrt(max(variance, 1e-300))

    # 2. The gaps that the statistic does not reject
    low = _bisect(lambda gap: score(gap) > Z95, -1.0, mean)
    high = _bisect(lambda gap: score(gap) > -Z95, mean, 1.0)
    return sum(low) / 2, sum(high) / 2


def _bisect(
    holds: Callable[[float], bool],
    yes: float,
    no: float,
) -> tuple[float, float]:
    """The boundary between values for which `holds` is true and those for which it is false.

    yes, no: a value of each kind. Returns one of each kind that are next to the boundary.
    """
    for _ in range(HALVINGS):
        middle = (yes + no) / 2
        if holds(middle):
            yes = middle
        else:
            no = middle
    return yes, no


def sign_patterns(totals_C: Array, draws: int) -> tuple[Array, bool]:
    """(sign patterns (D, C), whether the test with them is exact).

    Up to EXACT clusters have all sign patterns. Of more clusters, those whose total is 0 have
    random signs: they matter once a difference other than 0 is tested. The others have all
    patterns, each equally often, or, if they are more than EXACT, a random sample of `draws`
    patterns, and the test is not exact. The sample has a fixed seed.
    """
    import numpy as np

    # 1. The number of patterns
    count = len(totals_C)
    differing = np.arange(count) if count <= EXACT else np.flatnonzero(totals_C)
    is_exact = len(differing) <= EXACT
    patterns = 2 ** len(differing) if is_exact else draws
    repeats = 1
    if len(differing) < count:
        repeats = max(1, draws // patterns)

    # 2. Random signs, then all patterns of the clusters that differ
    chance = np.random.default_rng(0)
    bits_DC = chance.integers(2, size=(patterns * repeats, count), dtype=np.int8)
    signs_DC = bits_DC * np.int8(2) - np.int8(1)  # -1 and 1
    if is_exact:
        all_patterns = list(product((-1, 1), repeat=len(differing)))
        signs = np.array(all_patterns, dtype=np.int8)
        signs_DC[:, differing] = np.tile(signs, (repeats, 1))
    return signs_DC, is_exact


def sign_flip_p(
    totals_C: Array,
    signs_DC: Array,
    is_exact: bool,
) -> float:
    """Two-sided p of the hypothesis that the sign of each cluster's total is random.

    signs_DC, is_exact: see `sign_patterns`. To a sample of patterns, the observed one is added.
    """
    rounding = 1e-12 * abs(totals_C).sum()
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
    """The interval (low, high), changed to contain 0 exactly if the sign-flip test does not reject
    0.

    An end on the wrong side moves to 0. If the test rejects 0, it moves to the nearest difference
    that the test does not reject. p: of the test; the other arguments are those of `sign_flip_p`,
    and the sizes of the clusters.
    """
    if p >= 0.05:
        return min(low, 0.0), max(high, 0.0)
    if low > 0 or high < 0:
        return low, high

    # The test rejects 0, but the interval contains it
    def rejects(gap: float) -> bool:
        return sign_flip_p(totals_C - gap * sizes_C, signs_DC, is_exact) < 0.05

    difference = float(totals_C.sum() / sizes_C.sum())
    _, end = _bisect(rejects, 0.0, difference)
    if difference > 0:
        return end, max(high, end)
    return min(low, end), end


def _sums(clusters: Clusters) -> tuple[Array, float, Array]:
    """(the sums of the clusters (C), the sum of all squares, the sizes of the clusters (C))."""
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
    """pass@k: the probability that at least one of `k` tries is right (Chen et al. 2021, eq. 1).

    The k tries are drawn without replacement from a task's `tries`, of which `right` are right.
    """
    return 1 - math.comb(tries - right, k) / math.comb(tries, k)


def pass_all(
    k: int,
    right: int,
    tries: int,
) -> float:
    """pass^k: the probability that all `k` tries are right (Yao et al. 2024, tau-bench).

    The k tries are drawn as in `pass_at`.
    """
    return math.comb(right, k) / math.comb(tries, k)
