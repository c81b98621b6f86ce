"""From episodes to results: players' rows with intervals, and paired differences between players."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TypeVar

from reflectkit.data.episodes import SUCCESS
from reflectkit.evals.calibration import calibration_rows
from reflectkit.evals.rows import RETURN, Difference, EpisodeRow, Estimate, PlayerRow, TurnCounts
from reflectkit.evals.stats import (
    amount_interval,
    by_cluster,
    by_task,
    mean_interval,
    mean_p,
    paired,
    pass_all,
    pass_at,
    rate_interval,
)
from reflectkit.rollouts.wrappers import OUR_FIGURES
from reflectkit.types import reports_success

NAMED = "named"
"""The figure of an env whose episodes may end without an answer: 1 in those that give one."""
NOT_OF_ENV = OUR_FIGURES - {SUCCESS}
"""Figures that are ours, and not every player has; every episode has those of its env."""
LADDER = (1, 2, 4, 8, 16, 32)
"""The k of pass@k."""
Range = tuple[float, float]
"""The least and the greatest value of a figure, whoever played."""

Comparison = tuple[str, str, str, str]
"""A figure, a level, and two players."""

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """The items by `key`, in the order of the first of each group."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


# -------------------------------------------------------------------------------- what all players have in common


def completed(episodes: Sequence[EpisodeRow]) -> list[EpisodeRow]:
    """`episodes`, each with every figure that the env reported for any player on its level: 0 where an episode was cut
    off before that. Aborted ones stay as they are.
    """
    reported = reported_figures(episodes)
    rows = []
    for episode in episodes:
        if reported[episode.level] and not episode.is_aborted:
            episode = replace(episode, figures={**reported[episode.level], **episode.figures})
        rows.append(episode)
    return rows


def reported_figures(episodes: Iterable[EpisodeRow]) -> dict[str, dict[str, float]]:
    """By level, the figures that the env reported, in the order of their first episode, with 0.0."""
    reported: dict[str, dict[str, float]] = {}
    for episode in episodes:
        names = [name for name in episode.figures if name not in NOT_OF_ENV]
        reported.setdefault(episode.level, {}).update(dict.fromkeys(names, 0.0))
    return reported


def figure_ranges(episodes: Iterable[EpisodeRow]) -> dict[str, Range]:
    """The range of each figure. From 0 to 1 it is a share, and from 0 up what cannot be negative."""
    ranges: dict[str, Range] = {}
    for episode in episodes:
        for name, value in episode.figures.items():
            least, greatest = ranges.get(name, (value, value))
            ranges[name] = min(least, value), max(greatest, value)
    return ranges


def is_share(values: Range) -> bool:
    """Whether a figure with this range is a share."""
    return values[0] >= 0 and values[1] <= 1


def silent_levels(episodes: Iterable[EpisodeRow]) -> set[str]:
    """The levels at which the env does not report success: the return is what players are compared by."""
    by_level = grouped(episodes, lambda episode: episode.level)
    return {
        level
        for level, group in by_level.items()
        if not reports_success((episode.status, episode.success) for episode in group)
    }


def return_says_more(episodes: Iterable[EpisodeRow]) -> bool:
    """Whether the return says more than success."""
    return any(
        episode.total_return != episode.success for episode in episodes if not episode.is_aborted
    )


def task_clusters(episodes: Iterable[EpisodeRow]) -> dict[str, str]:
    """The cluster of each task."""
    return {episode.task: episode.cluster for episode in episodes}


# ---------------------------------------------------------------------------------------------------------- players


def player_rows(parts: Sequence[Sequence[EpisodeRow]]) -> list[PlayerRow]:
    """Rows over one or several evaluations (seeds). parts: the episodes of each.

    Success, where it is reported, is the mean over distinct tasks of each task's mean over seeds. The interval is by
    clusters of tasks; a task is in the same cluster in every seed. It is extended to the t interval over the seeds' own
    means, as are those of the return, of figures and of pass@k. A task's pass@k and pass^k are the means of its models;
    plays of different models are not several tries of one.
    """
    every = completed([episode for part in parts for episode in part])
    ranges = figure_ranges(every)
    silent = silent_levels(every)
    seed_numbers = [number for number, part in enumerate(parts) for _ in part]
    numbered = list(zip(seed_numbers, every, strict=True))
    players = grouped(numbered, key=lambda pair: (pair[1].name, pair[1].level))

    rows = []
    for (_, level), pairs in players.items():
        by_seed = grouped(pairs, lambda pair: pair[0]).values()
        seeds = [[episode for _, episode in seed] for seed in by_seed]
        row = player_row(seeds, ranges, silent=level in silent)
        if len(parts) > 1:
            seed_rows = [player_row([seed], ranges, silent=level in silent) for seed in seeds]
            if len(seeds) > 1:
                row = _over_seeds(row, seed_rows, ranges)
            if level not in silent:
                successes = (each.success for each in seed_rows)
                row = replace(row, by_seed=tuple(each.mean for each in successes if each))
        rows.append(row)
    return rows


def player_row(
    seeds: Sequence[Sequence[EpisodeRow]],
    ranges: Mapping[str, Range] | None = None,
    *,
    silent: bool = False,
) -> PlayerRow:
    """The row of a player at a level.

    seeds: its `completed` episodes, of each model that played by its name. ranges: see `figure_ranges`; by default
    those of these episodes alone. silent: whether the env does not report success.
    """
    episodes = [episode for seed in seeds for episode in seed]
    complete = [episode for episode in episodes if not episode.is_aborted]
    clusters = task_clusters(complete)
    count = max(1, len(complete))

    # 1. Outcomes
    successes = _successes(complete)
    returns = _returns(complete)
    success = None if silent else _rate(successes, clusters, len(complete))
    ends = mean_interval(by_cluster(returns, clusters))
    mean_return = sum(returns.values()) / max(1, len(returns))
    total_return = Estimate(mean_return, None, None)
    if ends[0] < ends[1]:
        total_return = Estimate.of(mean_return, ends)

    # 2. Turns, and the answers after them that were no action
    turns = TurnCounts.total(episode.counts for episode in complete)
    unfit = [episode for episode in complete if episode.unfit]
    answers = max(1, turns.turns + len(unfit))
    illegal = turns.illegal + sum(episode.illegal_at_end for episode in unfit)
    unreadable = turns.unreadable + sum(episode.unreadable_at_end for episode in unfit)

    # 3. Success of those that gave an answer
    named_episodes = right_of_named = None
    if not silent and any(NAMED in episode.figures for episode in complete):
        with_answer = [episode for episode in complete if episode.figures.get(NAMED)]
        named_episodes = len(with_answer)
        right_of_named = _rate(_successes(with_answer), clusters, len(with_answer))

    return PlayerRow(
        name=episodes[0].name,
        env=episodes[0].env,
        level=episodes[0].level,
        success=success,
        tasks=len(successes),
        clusters=len(by_cluster(successes, clusters)),
        episodes=len(complete),
        aborted=len(episodes) - len(complete),
        total_return=total_return,
        steps=turns.turns / count,
        illegal_share=illegal / answers,
        unreadable_share=unreadable / answers,
        price_usd=_total_price(episodes),
        reflection_words=turns.words / turns.comments if turns.comments else None,
        tokens=turns.tokens / count,
        thoughts=turns.thoughts / count,
        figures=_figures(complete, clusters, figure_ranges(complete) if ranges is None else ranges),
        named_episodes=named_episodes,
        right_of_named=right_of_named,
        calibration=calibration_rows(complete, clusters),
        pass_at={} if silent else _passes(seeds, clusters, pass_at),
        pass_all={} if silent else _passes(seeds, clusters, pass_all),
    )


def _total_price(episodes: Iterable[EpisodeRow]) -> float | None:
    """The cost of all requests in US dollars; None if one is unknown."""
    total = 0.0
    for episode in episodes:
        if episode.price_usd is None:
            return None
        total += episode.price_usd
    return total


def _successes(episodes: Iterable[EpisodeRow]) -> Mapping[str, float]:
    """The success rate of each task."""
    return by_task((episode.task, float(bool(episode.success))) for episode in episodes)


def _returns(episodes: Iterable[EpisodeRow]) -> Mapping[str, float]:
    """The mean return of each task."""
    return by_task((episode.task, float(episode.total_return)) for episode in episodes)


def _rate(
    rates: Mapping[str, float],
    clusters: Mapping[str, str],
    trials: int,
) -> Estimate:
    """The mean of rates by task. trials: see `rate_interval`."""
    mean = sum(rates.values()) / max(1, len(rates))
    return Estimate.of(mean, rate_interval(by_cluster(rates, clusters), trials))


def _passes(
    seeds: Sequence[Sequence[EpisodeRow]],
    clusters: Mapping[str, str],
    chance: Callable[[int, int, int], float],
) -> dict[int, Estimate]:
    """The `chance` pass@k or pass^k by k, if every problem was tried several times by one model. A problem's chance is
    its mean over the models. One counts at k if k of its tries were not aborted.
    """
    # 1. The outcomes of each model's tries of each problem
    fewest_tries = math.inf
    outcomes: list[tuple[str, list[bool]]] = []
    for seed in seeds:
        counts = Counter(episode.task for episode in seed)
        fewest_tries = min([fewest_tries, *counts.values()])
        complete = [episode for episode in seed if not episode.is_aborted]
        for task, group in grouped(complete, lambda episode: episode.task).items():
            outcomes.append((task, [bool(episode.success) for episode in group]))
    if fewest_tries < 2:
        return {}

    # 2. Their chances
    passes = {}
    for k in LADDER:
        chances, trials = [], 0
        for task, tries in outcomes:
            if len(tries) >= k:
                chances.append((task, chance(k, sum(tries), len(tries))))
                trials += len(tries)
        if k <= fewest_tries and chances:
            passes[k] = _rate(by_task(chances), clusters, trials)
    return passes


def _figures(
    episodes: Sequence[EpisodeRow],
    clusters: Mapping[str, str],
    ranges: Mapping[str, Range],
) -> dict[str, Estimate]:
    """The mean of each figure with its 95 % interval by clusters of tasks: a rate's for a share, an amount's for what
    is never negative, and a t interval for any other.
    """
    figures = {}
    for name, values in _figure_means(episodes).items():
        groups = by_cluster(values, clusters)
        if is_share(ranges[name]):
            interval = rate_interval(groups)
        elif ranges[name][0] >= 0:
            interval = amount_interval(groups)
        else:
            interval = mean_interval(groups)
        figures[name] = Estimate.of(sum(values.values()) / len(values), interval)
    return figures


def _figure_means(episodes: Sequence[EpisodeRow]) -> dict[str, Mapping[str, float]]:
    """The mean by task of each figure; an episode without it counts 0."""
    names = dict.fromkeys(name for episode in episodes for name in episode.figures)
    return {
        name: by_task((episode.task, episode.figures.get(name, 0.0)) for episode in episodes)
        for name in names
    }


def _over_seeds(
    row: PlayerRow,
    seeds: Sequence[PlayerRow],
    ranges: Mapping[str, Range],
) -> PlayerRow:
    """`row` with its intervals extended to those over the seeds' own rows."""
    # 1. Success and the return
    if row.success is not None:
        means = [each.success.mean for each in seeds if each.success is not None]
        row = replace(row, success=_extended(row.success, means, 0.0, 1.0))
    returns = [each.total_return.mean for each in seeds]
    row = replace(row, total_return=_extended(row.total_return, returns))

    # 2. Figures
    figures = {}
    for name, figure in row.figures.items():
        means = [each.figures[name].mean for each in seeds if name in each.figures]
        if is_share(ranges[name]):
            figures[name] = _extended(figure, means, 0.0, 1.0)
        else:
            figures[name] = _extended(figure, means)

    # 3. Calibration
    calibration = {}
    for kind, scores in row.calibration.items():
        of_seeds = [each.calibration[kind] for each in seeds if kind in each.calibration]
        briers = [each.brier.mean for each in of_seeds]
        log_scores = [each.log_score.mean for each in of_seeds]
        errors = [each.calibration_error.mean for each in of_seeds]
        calibration[kind] = replace(
            scores,
            brier=_extended(scores.brier, briers, least=0.0),
            log_score=_extended(scores.log_score, log_scores, least=0.0),
            calibration_error=_extended(scores.calibration_error, errors, least=0.0),
        )

    # 4. Tries
    pass_at = _passes_over_seeds(row.pass_at, [each.pass_at for each in seeds])
    pass_all = _passes_over_seeds(row.pass_all, [each.pass_all for each in seeds])
    return replace(
        row, figures=figures, calibration=calibration, pass_at=pass_at, pass_all=pass_all
    )


def _passes_over_seeds(
    chances: Mapping[int, Estimate], seeds: Sequence[Mapping[int, Estimate]]
) -> dict[int, Estimate]:
    """`chances` by k with their intervals extended to those over the seeds' own."""
    extended = {}
    for k, chance in chances.items():
        means = [each[k].mean for each in seeds if k in each]
        extended[k] = _extended(chance, means, 0.0, 1.0)
    return extended


def _extended(
    estimate: Estimate,
    means: Sequence[float],
    least: float = -math.inf,
    greatest: float = math.inf,
) -> Estimate:
    """`estimate`, over tasks, with its interval extended to the t interval of the seeds' own `means`, which are from
    `least` to `greatest`.
    """
    if estimate.low is None or estimate.high is None or len(means) < 2:
        return estimate
    low, high = mean_interval([[mean] for mean in means])
    low = min(estimate.low, low)
    high = max(estimate.high, high)
    return replace(estimate, low=max(least, low), high=min(greatest, high))


@dataclass(frozen=True, slots=True)
class AspectRow:
    """A player's success on the problems with a value of an aspect."""

    name: str
    level: str
    value: str
    success: Estimate
    tasks: int


def success_by_aspect(episodes: Sequence[EpisodeRow]) -> dict[str, list[AspectRow]]:
    """Success by the values of each aspect, with 95 % intervals by clusters of tasks. Aspects with one value are left
    out, and levels at which success is not reported.
    """
    silent = silent_levels(episodes)
    complete = [episode for episode in episodes if episode.level not in silent]
    names = dict.fromkeys(name for episode in complete for name in episode.aspects)
    by_aspect = {}
    for aspect in names:
        with_aspect = [episode for episode in complete if aspect in episode.aspects]
        values = {str(episode.aspects[aspect]) for episode in with_aspect}
        if len(values) < 2:
            continue
        rows = []
        for (name, level), group in grouped(
            with_aspect, lambda each: (each.name, each.level)
        ).items():
            for value in sorted(values):
                part = [episode for episode in group if str(episode.aspects[aspect]) == value]
                row = player_row([part]) if part else None
                if row is not None and row.episodes and row.success is not None:
                    rows.append(AspectRow(name, level, value, row.success, row.tasks))
        by_aspect[aspect] = rows
    return by_aspect


# ------------------------------------------------------------------------------------------------------- differences


def differences(episodes: Sequence[EpisodeRow]) -> list[Difference]:
    """Paired differences, task by task, in success, the return and the env's figures between any two players on the
    same level. There are none in success where the env does not report it.

    Players without a common task that both finished are not compared.
    """
    complete = [episode for episode in completed(episodes) if not episode.is_aborted]
    clusters = task_clusters(complete)
    silent = silent_levels(complete)
    ranges = {RETURN: (-math.inf, math.inf), **figure_ranges(complete), SUCCESS: (0.0, 1.0)}
    compared = []
    for level, level_episodes in grouped(complete, lambda episode: episode.level).items():
        # 1. The means by task of each player and figure
        players = grouped(level_episodes, lambda episode: episode.name)
        means: dict[str, dict[str, Mapping[str, float]]] = {}
        for name, group in players.items():
            means[name] = {RETURN: _returns(group), **_figure_means(group)}
            if level not in silent:
                means[name] = {SUCCESS: _successes(group)} | means[name]

        # 2. Their differences
        for figure in dict.fromkeys(figure for by_figure in means.values() for figure in by_figure):
            names = [name for name in means if figure in means[name]]
            for first, second in combinations(names, 2):
                trials = None
                if figure == SUCCESS:
                    trials = min(len(players[first]), len(players[second]))
                pair = paired(
                    means[first][figure],
                    means[second][figure],
                    clusters,
                    shares=is_share(ranges[figure]),
                    trials=trials,
                )
                if pair.tasks:
                    ends = Estimate.of(pair.difference, (pair.low, pair.high))
                    compared.append(
                        Difference(
                            figure,
                            level,
                            first,
                            second,
                            pair.difference,
                            ends.low,
                            ends.high,
                            pair.p,
                            pair.tasks,
                            pair.clusters,
                        )
                    )
    return compared


def differences_over_seeds(parts: Sequence[Sequence[EpisodeRow]]) -> list[Difference]:
    """`differences` of several evaluations (seeds), task by task over all of them. Where two or more have both players,
    the interval is extended to the t interval over the seeds' own differences, and p is the larger one.
    """
    episodes = [episode for part in parts for episode in part]
    compared = differences(episodes)
    if len(parts) < 2:
        return compared

    # 1. The seeds' own differences, in which two players may be in the other order
    seed_gaps: dict[Comparison, list[float]] = {}
    for part in parts:
        for gap in differences(part):
            key = (gap.figure, gap.level, gap.first, gap.second)
            mirrored = (gap.figure, gap.level, gap.second, gap.first)
            seed_gaps.setdefault(key, []).append(gap.difference)
            seed_gaps.setdefault(mirrored, []).append(-gap.difference)

    # 2. Those of all seeds
    ranges = figure_ranges(episodes)
    extended = []
    for gap in compared:
        gaps = seed_gaps.get((gap.figure, gap.level, gap.first, gap.second), [])
        if len(gaps) > 1:
            limit = math.inf
            if gap.figure == SUCCESS or (gap.figure in ranges and is_share(ranges[gap.figure])):
                limit = 1.0
            estimate = Estimate(gap.difference, gap.low, gap.high)
            ends = _extended(estimate, gaps, -limit, limit)
            p = max(gap.p, mean_p([[value] for value in gaps]))
            gap = replace(gap, low=ends.low, high=ends.high, p=p)
        extended.append(gap)
    return extended
