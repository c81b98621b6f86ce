"""Comparisons of players over several training seeds, by the widest interval of seeds and problems."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean
from typing import Any

import numpy as np

from reflectkit.data.episodes import SUCCESS
from reflectkit.evals.aggregate import task_clusters
from reflectkit.evals.rows import Difference, EpisodeRow
from reflectkit.evals.stats import Array, Clusters, by_cluster, by_task, mean_interval, mean_p, paired

REPLICATES = 10_000
ROUNDING = 1e-12
"""A replicate that is no further from 0 is 0: it is a sum of rounded numbers."""


@dataclass(frozen=True)
class SeedDifference(Difference):
    """A difference between two players over several training seeds: the mean over seeds of the mean over the tasks that
    both finished. tasks: of all seeds.
    """

    seeds: int
    by_seed: tuple[float, ...]
    """The difference on each."""


Pair = tuple[str, str, str]
"""A level, and two players there."""


def seed_differences(
    by_step: Mapping[str, Sequence[Sequence[EpisodeRow]]], measure: str = SUCCESS
) -> list[SeedDifference]:
    """Differences in success between any two players on the same level, from the episodes of each evaluation, by its
    step, and each seed. A player that several evaluations have gets the step into its name. measure: one of the env's
    figures that is a share, instead of success; an episode without it counts 0.

    The interval is the widest of three, within -1 to 1: those of `interval_over_seeds`, and the paired one over tasks,
    since seeds that play the same tasks are not independent. p is the largest of the three. Of two players, the one
    that is met first is the first one, in whatever order other seeds have them.
    """
    every = {step: [episode for part in parts for episode in part] for step, parts in by_step.items()}
    levels = {episode.level for episodes in every.values() for episode in episodes if has(episode, measure)}
    steps_of = Counter(name for episodes in every.values() for name in {episode.name for episode in episodes})

    # 1. The gaps of each seed, by task
    gaps: dict[Pair, list[dict[str, float]]] = {}
    clusters: dict[Pair, list[list[list[float]]]] = {}
    cluster_of: dict[str, str] = {}
    places: dict[str, int] = {}
    for seed in zip(*by_step.values(), strict=True):
        seed_clusters: dict[str, str] = {}
        outcomes: dict[str, dict[str, list[tuple[str, float]]]] = {}
        for step, part in zip(by_step, seed, strict=True):
            counted = [episode for episode in part if not episode.is_aborted]
            seed_clusters |= task_clusters(counted)
            cluster_of |= seed_clusters
            for episode in counted:
                if episode.level not in levels:
                    continue  # its env does not report the measure there
                name = f"{episode.name} ({step})" if steps_of[episode.name] > 1 else episode.name
                places.setdefault(name, len(places))
                of_player = outcomes.setdefault(episode.level, {}).setdefault(name, [])
                of_player.append((episode.task, value_of(episode, measure)))
        for level, players in outcomes.items():
            means = {name: by_task(values) for name, values in players.items()}
            for first, second in combinations(sorted(means, key=places.__getitem__), 2):
                common = [task for task in means[first] if task in means[second]]
                by_common = {task: means[first][task] - means[second][task] for task in common}
                if by_common:
                    gaps.setdefault((level, first, second), []).append(by_common)
                    clusters.setdefault((level, first, second), []).append(by_cluster(by_common, seed_clusters))

    # 2. Their means over the seeds
    compared = []
    for (level, first, second), by_seed in gaps.items():
        low, high, p = interval_over_seeds(clusters[level, first, second])
        if not math.isfinite(low):
            continue
        task_means = by_task(pair for of_seed in by_seed for pair in of_seed.items())
        over_tasks = paired(task_means, dict.fromkeys(task_means, 0.0), cluster_of)
        seed_means = tuple(fmean(of_seed.values()) for of_seed in by_seed)
        compared.append(
            SeedDifference(
                figure=measure,
                level=level,
                first=first,
                second=second,
                difference=fmean(seed_means),
                low=max(-1.0, min(low, over_tasks.low)),
                high=min(1.0, max(high, over_tasks.high)),
                p=max(p, over_tasks.p),
                tasks=sum(map(len, by_seed)),
                clusters=over_tasks.clusters,
                seeds=len(by_seed),
                by_seed=seed_means,
            )
        )
    return compared


def interval_over_seeds(by_seed: Sequence[Clusters], seed: int = 0) -> tuple[float, float, float]:
    """(low, high, p) of the mean over seeds of the mean over tasks: from the lower to the upper end of
    `hierarchical_interval` and the t interval over the seeds' means, and the larger p of both.

    (-inf, inf, 1) for fewer than two seeds. by_seed, seed: as there.
    """
    if len(by_seed) < 2:
        return -math.inf, math.inf, 1.0
    means_B = _replicates(by_seed, seed, REPLICATES)
    below, above = float((means_B <= ROUNDING).mean()), float((means_B >= -ROUNDING).mean())
    means = [[fmean(value for cluster in clusters for value in cluster)] for clusters in by_seed]
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
    low, high = np.quantile(means_B, (0.025, 0.975))
    return float(low), float(high)


def _replicates(by_seed: Sequence[Clusters], seed: int, replicates: int) -> Array:
    chance = np.random.default_rng(seed)
    sums_B = np.zeros(replicates)
    drawn_BS = chance.integers(len(by_seed), size=(replicates, len(by_seed)))
    for number, clusters in enumerate(by_seed):
        totals_C = np.array([sum(cluster) for cluster in clusters])
        sizes_C = np.array([len(cluster) for cluster in clusters])
        replicate_of_draw, _ = np.nonzero(drawn_BS == number)  # a seed may be drawn several times
        counts_DC = chance.multinomial(
            len(clusters), np.full(len(clusters), 1 / len(clusters)), size=len(replicate_of_draw)
        )
        np.add.at(sums_B, replicate_of_draw, (counts_DC @ totals_C) / (counts_DC @ sizes_C))
    return sums_B / len(by_seed)


def value_of(episode: EpisodeRow, measure: str) -> float:
    """An episode's success, 0 or 1, or the value of one of the env's figures, 0 if it has none."""
    return float(bool(episode.success)) if measure == SUCCESS else float(episode.figures.get(measure, 0.0))


def has(episode: EpisodeRow, measure: str) -> bool:
    """Whether the episode has this measure."""
    return measure == SUCCESS or measure in episode.figures


def no_share(episodes: Sequence[Mapping[str, Any]], measure: str) -> str:
    """What these have or lack so that `measure` cannot be compared in percentage points; "" if it can."""
    if measure == SUCCESS or not episodes:
        return ""
    values = [episode["figures"][measure] for episode in episodes if measure in episode.get("figures", {})]
    if not values:
        names = sorted({name for episode in episodes for name in episode.get("figures", {})})
        return f"has no figure {measure!r:.60}; there are {', '.join(names) or 'none'}"
    return "" if all(0 <= value <= 1 for value in values) else f"has values beyond 0 to 1: {measure!r:.60} is no share"
