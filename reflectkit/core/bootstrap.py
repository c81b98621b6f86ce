"""Hierarchical bootstrap: intervals for a mean over training seeds and, within each, over problems.

A training run is a draw, and so are the problems that it is tested on. Each replicate draws the seeds with
replacement, and for each drawn seed its clusters of problems (Davison and Hinkley 1997, Bootstrap Methods and their
Application, section 3.8). Its percentile interval is too narrow with few seeds: the variance between S seeds is
underestimated by the factor (S - 1) / S, and the quantiles are not Student's. The t interval over the seeds' own means
takes problems that all seeds share for part of what is measured, and has no width if the seeds are alike by chance.
Reported is what both include. Shapes: B replicates, S seeds, C clusters of a seed, D draws of a seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from reflectkit.core.stats import Clusters, mean_interval, mean_p

REPLICATES = 10_000
ROUNDING = 1e-12
"""A replicate that is no further from 0 is 0: it is a sum of rounded numbers."""



def interval_over_seeds(by_seed: Sequence[Clusters], seed: int = 0) -> tuple[float, float, float]:
    """(low, high, p) of the mean over seeds of the mean over tasks: from the lower to the upper end of
    `hierarchical_interval` and the t interval over the seeds' means, and the larger p of both.

    (-inf, inf, 1) for fewer than two seeds. by_seed, seed: as there.
    """
    if len(by_seed) < 2:
        return -math.inf, math.inf, 1.0
    means_B = _replicates(by_seed, seed, REPLICATES)
    below, above = float((means_B <= ROUNDING).mean()), float((means_B >= -ROUNDING).mean())
    means = [[fmean(value for one in clusters for value in one)] for clusters in by_seed]
    ends = _percentiles(means_B), mean_interval(means)
    p = max(min(1.0, 2 * min(below, above)), mean_p(means))
    return min(low for low, _ in ends), max(high for _, high in ends), p


def hierarchical_interval(
    by_seed: Sequence[Clusters], seed: int = 0, replicates: int = REPLICATES
) -> tuple[float, float]:
    """95 % percentile interval of the mean over seeds of the mean over tasks; (-inf, inf) for fewer than two seeds.

    by_seed: for each seed, the tasks' outcomes (or differences), one sequence per cluster. seed: of the replicates.

    >>> hierarchical_interval([[[1.0], [1.0]], [[1.0], [1.0]]])
    (1.0, 1.0)
    """
    if len(by_seed) < 2:
        return -math.inf, math.inf
    return _percentiles(_replicates(by_seed, seed, replicates))


def _percentiles(means_B: Array) -> tuple[float, float]:
    import numpy as np

    low, high = np.quantile(means_B, (0.025, 0.975))
    return float(low), float(high)


def _replicates(by_seed: Sequence[Clusters], seed: int, replicates: int) -> Array:
    import numpy as np

    chance = np.random.default_rng(seed)
    sums_B = np.zeros(replicates)
    drawn_BS = chance.integers(len(by_seed), size=(replicates, len(by_seed)))
    for number, clusters in enumerate(by_seed):
        totals_C = np.array([sum(one) for one in clusters])
        sizes_C = np.array([len(one) for one in clusters])
        replicate_of_draw, _ = np.nonzero(drawn_BS == number)  # a seed may be drawn several times
        counts_DC = chance.multinomial(
            len(clusters), np.full(len(clusters), 1 / len(clusters)), size=len(replicate_of_draw)
        )
        np.add.at(sums_B, replicate_of_draw, (counts_DC @ totals_C) / (counts_DC @ sizes_C))
    return sums_B / len(by_seed)
