"""Comparisons of players over several training seeds, by the widest interval of seeds and problems."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean
from typing import Any

import numpy as np

from reflectkit.console import Table
from reflectkit.data.episodes import SUCCESS
from reflectkit.evals.stats import Array, Clusters, by_cluster, by_task, mean_interval, mean_p, paired
from reflectkit.evals.tables import Json, clusters_of, paired_table

REPLICATES = 10_000
ROUNDING = 1e-12
"""A replicate that is no further from 0 is 0: it is a sum of rounded numbers."""


def seed_differences(by_step: Mapping[str, Sequence[Sequence[Json]]], measure: str = SUCCESS) -> list[dict[str, Any]]:
    """Differences in success between any two players on the same level, from the lines of episodes.jsonl of each
    evaluation, by its step, and each seed. A player that several evaluations have is told apart by the step. measure:
    one of the env's figures that is a share, instead of success; an episode without it counts 0.

    Each is `{level, first, second, difference, low, high, p, seeds, tasks, by_seed}`: first minus second, the mean over
    seeds of the mean over the tasks that both finished. low, high: the widest of three intervals, within -1 to 1: those
    of `interval_over_seeds`, and the paired one over tasks, since seeds that play the same tasks are not independent.
    p: the largest of the three. Of two players, the one that is met first is the first one, in whatever order other
    seeds have them.
    """
    gaps: dict[tuple[str, str, str], list[dict[str, float]]] = {}
    clusters: dict[tuple[str, str, str], list[list[list[float]]]] = {}
    cluster_of: dict[str, str] = {}
    places: dict[str, int] = {}
    every = {step: [episode for part in parts for episode in part] for step, parts in by_step.items()}
    levels = {episode["level"] for played in every.values() for episode in played if has(episode, measure)}
    steps_of = Counter(name for played in every.values() for name in {episode["name"] for episode in played})
    for seed in zip(*by_step.values(), strict=True):
        cluster: dict[str, str] = {}
        outcomes: dict[str, dict[str, list[tuple[str, float]]]] = {}
        for step, part in zip(by_step, seed, strict=True):
            counted = [episode for episode in part if episode["status"] != "aborted"]
            cluster |= clusters_of(counted)
            cluster_of |= cluster
            for episode in counted:
                if episode["level"] not in levels:
                    continue  # its env does not report the measure there
                name = f"{episode['name']} ({step})" if steps_of[episode["name"]] > 1 else episode["name"]
                places.setdefault(name, len(places))
                played = outcomes.setdefault(episode["level"], {}).setdefault(name, [])
                played.append((episode["task"], measured(episode, measure)))
        for level, players in outcomes.items():
            means = {name: by_task(played) for name, played in players.items()}
            for first, second in combinations(sorted(means, key=places.__getitem__), 2):
                both = {
                    task: value - means[second][task] for task, value in means[first].items() if task in means[second]
                }
                if both:
                    gaps.setdefault((level, first, second), []).append(both)
                    clusters.setdefault((level, first, second), []).append(by_cluster(both, cluster))
    compared = []
    for (level, first, second), by_seed in gaps.items():
        low, high, p = interval_over_seeds(clusters[level, first, second])
        if not math.isfinite(low):
            continue
        means_of_tasks = by_task(pair for both in by_seed for pair in both.items())
        over_tasks = paired(means_of_tasks, dict.fromkeys(means_of_tasks, 0.0), cluster_of)
        means_of_seeds = [fmean(both.values()) for both in by_seed]
        compared.append(
            {
                "level": level,
                "first": first,
                "second": second,
                "difference": fmean(means_of_seeds),
                "low": max(-1.0, min(low, over_tasks.low)),
                "high": min(1.0, max(high, over_tasks.high)),
                "p": max(p, over_tasks.p),
                "seeds": len(by_seed),
                "tasks": sum(map(len, by_seed)),
                "by_seed": means_of_seeds,
            }
        )
    return compared


def seed_differences_table(compared: Sequence[Json], measure: str = SUCCESS) -> Table:
    """`seed_differences` as a table, in percentage points."""
    title = f"Differences in {measure.replace('_', ' ')}, in points (the widest interval of seeds and problems)"
    return paired_table(title, "first − second", compared, ("seeds", "tasks"))


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


def measured(episode: Mapping[str, Any], measure: str) -> float:
    """An episode's success, 0 or 1, or the value of one of the env's figures, 0 if it has none."""
    return float(episode.get("success", False) if measure == SUCCESS else episode.get("figures", {}).get(measure, 0.0))


def has(episode: Mapping[str, Any], measure: str) -> bool:
    """Whether the episode has this measure."""
    return measure == SUCCESS or measure in episode.get("figures", {})


def no_share(episodes: Sequence[Mapping[str, Any]], measure: str) -> str:
    """What these have or lack so that `measure` cannot be compared in percentage points; "" if it can."""
    if measure == SUCCESS or not episodes:
        return ""
    values = [episode["figures"][measure] for episode in episodes if measure in episode.get("figures", {})]
    if not values:
        names = sorted({name for episode in episodes for name in episode.get("figures", {})})
        return f"has no figure {measure!r:.60}; there are {', '.join(names) or 'none'}"
    return "" if all(0 <= value <= 1 for value in values) else f"has values beyond 0 to 1: {measure!r:.60} is no share"
