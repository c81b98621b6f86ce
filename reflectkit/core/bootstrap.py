"""Hierarchical bootstrap: intervals for a mean over training seeds and, within each, over problems.

A training run is a draw, and so are the problems that it is tested on. Each replicate draws the seeds with
replacement, and for each drawn seed its clusters of problems (Davison and Hinkley 1997, Bootstrap Methods and their
Application, section 3.8). The interval is the percentile interval. With few seeds it is too narrow: the variance
between S seeds is underestimated by the factor (S - 1) / S. Shapes: B replicates, S seeds, C clusters of a seed, D
draws of a seed.
"""

from __future__ import annotations

from collections.abc import Sequence

from reflectkit.core.stats import Clusters

REPLICATES = 10_000


def hierarchical_interval(
    by_seed: Sequence[Clusters], seed: int = 0, replicates: int = REPLICATES
) -> tuple[float, float]:
    """95 % percentile interval of the mean over seeds of the mean over tasks; (-inf, inf) for fewer than two seeds.

    by_seed: for each seed, the tasks' outcomes (or differences), one sequence per cluster. seed: of the replicates.

    >>> hierarchical_interval([[[1.0], [1.0]], [[1.0], [1.0]]])
    (1.0, 1.0)
    """
    import numpy as np

    if len(by_seed) < 2:
        return -np.inf, np.inf
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
    low, high = np.quantile(sums_B / len(by_seed), (0.025, 0.975))
    return float(low), float(high)
