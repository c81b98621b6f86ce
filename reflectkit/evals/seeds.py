"""Differences between players over several training seeds: in the success of evaluations, and in learning curves."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean, median
from typing import Any

from reflectkit.console import Table
from reflectkit.data.episodes import SUCCESS, has, measured
from reflectkit.evals.figures import Curve
from reflectkit.evals.stats import area, by_cluster, by_task, first_reaching, interval_over_seeds, mean_interval, paired
from reflectkit.evals.tables import Json, clusters_of, p_columns


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
    levels = {one["level"] for parts in by_step.values() for part in parts for one in part if has(one, measure)}
    steps_of = Counter(name for parts in by_step.values() for name in {one["name"] for part in parts for one in part})
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
    headings, p_cells = p_columns([one["p"] for one in compared])
    cells = tuple(
        (
            f"{one['first']} − {one['second']}",
            one["level"],
            f"{100 * one['difference']:+.1f}",
            f"{100 * one['low']:+.1f} to {100 * one['high']:+.1f}",
            *shown,
            str(one["seeds"]),
            str(one["tasks"]),
        )
        for one, shown in zip(compared, p_cells, strict=True)
    )
    return Table(title, ("first − second", "level", "difference", "95 % interval", *headings, "seeds", "tasks"), cells)


def curve_figures(
    curves: Mapping[str, Sequence[Curve]], wanted: float, *, same_seeds: bool = True
) -> dict[str, dict[str, Any]]:
    """By run: `area` and `reached` (where it first reaches `wanted`, or None), one per seed; `low` and `high` of the
    mean area minus that of the first run, paired by seed (t interval), if there are two seeds or more of both.

    same_seeds: whether all runs have the same seeds, in the same order; otherwise they are not paired.
    """
    figures: dict[str, dict[str, Any]] = {}
    for name, seeds in curves.items():
        figures[name] = {
            "area": [area(*curve) for curve in seeds],
            "reached": [first_reaching(*curve, wanted) for curve in seeds],
        }
    first, *others = figures
    for name in others:
        pairs = zip(figures[name]["area"], figures[first]["area"], strict=False)
        gaps = [mine - its for mine, its in pairs]
        if same_seeds and len(gaps) > 1 and len(curves[name]) == len(curves[first]):
            low, high = mean_interval([[gap] for gap in gaps])
            figures[name] |= {"difference": fmean(gaps), "low": low, "high": high}
    return figures


def curve_table(figures: Mapping[str, Mapping[str, Any]], figure: str, wanted: float, against: str) -> Table:
    """`curve_figures` as a table."""
    columns = ("run", "seeds", "mean height", f"minus {next(iter(figures))}", f"{against} to {wanted:g}, median")
    rows = []
    for name, one in figures.items():
        gap = f"{one['difference']:+.3f} ({one['low']:+.3f} to {one['high']:+.3f})" if "low" in one else ""
        middle = median(math.inf if place is None else place for place in one["reached"])
        reached = f"{middle:g}" if math.isfinite(middle) else "not reached"
        rows.append((name, str(len(one["area"])), f"{fmean(one['area']):.3f}", gap, reached))
    return Table(f"Area below the curve of {figure}, and when it reaches {wanted:g}", columns, tuple(rows))
