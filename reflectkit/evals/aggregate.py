"""From episodes to results: rows of players with intervals, and paired differences between players.

In this module a *part* is the episodes of one evaluation. Evaluations with different seeds are
pooled: a seed is one of them.
"""

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
    Paired,
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

HAS_ANSWER = "named"
"""The figure of an env whose episodes may end without an answer: 1 in episodes with one."""
NOT_OF_ENV = OUR_FIGURES - {SUCCESS}
"""Names of our own figures, which only some players have. All players have those of the env."""
TRY_COUNTS = (1, 2, 4, 8, 16, 32)
"""The values of k for which pass@k and pass^k are reported."""

Range = tuple[float, float]
"""The least and the greatest value of a figure in the episodes of all players."""
Comparison = tuple[str, str, str, str]
"""A figure, a level, a first and a second player."""

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """The items by their `key`. Groups are in the order of their first items."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        group = groups.setdefault(key(item), [])
        group.append(item)
    return groups


def by_level(episodes: Iterable[EpisodeRow]) -> dict[str, list[EpisodeRow]]:
    """The episodes of each level."""
    return grouped(episodes, key=lambda episode: episode.level)


# -------------------------------------------------------------------------------------- all players


def with_all_figures(episodes: Sequence[EpisodeRow]) -> list[EpisodeRow]:
    """`episodes`, each with every figure that the env reported for any player at its level.

    A figure that an episode lacks becomes 0: the episode ended before the env reported it. One that
    does not apply to it stays away, and aborted episodes stay as they are.
    """
    reported = reported_figures(episodes)
    rows = []
    for episode in episodes:
        defaults = reported[episode.level]
        if defaults and not episode.is_aborted:
            missing = {
                name: zero for name, zero in defaults.items() if name not in episode.inapplicable
            }
            episode = replace(episode, figures={**missing, **episode.figures})
        rows.append(episode)
    return rows


def reported_figures(episodes: Iterable[EpisodeRow]) -> dict[str, dict[str, float]]:
    """By level, 0.0 for each figure that the env reported, in the order of their first episodes."""
    reported: dict[str, dict[str, float]] = {}
    for episode in episodes:
        figures = reported.setdefault(episode.level, {})
        for name in episode.figures:
            if name not in NOT_OF_ENV:
                figures[name] = 0.0
    return reported


def figure_ranges(episodes: Iterable[EpisodeRow]) -> dict[str, Range]:
    """The least and the greatest value of each figure."""
    ranges: dict[str, Range] = {}
    for episode in episodes:
        for name, value in episode.figures.items():
            least, greatest = ranges.get(name, (value, value))
            ranges[name] = min(least, value), max(greatest, value)
    return ranges


def is_share(values: Range) -> bool:
    """Whether a figure with this range is taken for a share: all its values are from 0 to 1."""
    least, greatest = values
    return least >= 0 and greatest <= 1


def levels_without_success(episodes: Iterable[EpisodeRow]) -> set[str]:
    """The levels at which the env does not report success: players are compared by return."""
    levels = set()
    for level, group in by_level(episodes).items():
        outcomes = [(episode.status, episode.success) for episode in group]
        if not reports_success(outcomes):
            levels.add(level)
    return levels


def return_differs_from_success(episodes: Iterable[EpisodeRow]) -> bool:
    """Whether an episode has a return that is not just 1 for success and 0 for failure."""
    complete = [episode for episode in episodes if not episode.is_aborted]
    return any(episode.total_return != episode.success for episode in complete)


def task_clusters(episodes: Iterable[EpisodeRow]) -> dict[str, str]:
    """The cluster of each task, by its id."""
    return {episode.task: episode.cluster for episode in episodes}


# ------------------------------------------------------------------------------------------ players


def player_rows(parts: Sequence[Sequence[EpisodeRow]]) -> list[PlayerRow]:
    """A row for each player at each level, over one or several evaluations (seeds).

    parts: the episodes of each evaluation.

    Success is the mean over distinct tasks of each task's mean over seeds. Its interval is by
    clusters of tasks; a task is in the same cluster in every seed. With several seeds, each
    interval is extended to contain the t interval over the means of the seeds. A task's pass@k and
    pass^k are means over the seeds, since plays of different models are not several tries of one
    model.
    """
    # 1. All episodes, and what is common to all players
    episodes = with_all_figures([episode for part in parts for episode in part])
    ranges = figure_ranges(episodes)
    no_success = levels_without_success(episodes)

    # 2. The episodes of each player at each level, by evaluation
    part_numbers = [number for number, part in enumerate(parts) for _ in part]
    seeds_by_player: dict[tuple[str, str], dict[int, list[EpisodeRow]]] = {}
    for number, episode in zip(part_numbers, episodes, strict=True):
        by_seed = seeds_by_player.setdefault((episode.name, episode.level), {})
        by_seed.setdefault(number, []).append(episode)

    # 3. The row of each player at each level; several evaluations extend its intervals
    rows = []
    for (_, level), by_seed in seeds_by_player.items():
        seeds = list(by_seed.values())
        has_success = level not in no_success
        row = player_row(seeds, ranges, has_success=has_success)
        if len(parts) > 1:
            seed_rows = [player_row([seed], ranges, has_success=has_success) for seed in seeds]
            if len(seeds) > 1:
                row = _extended_over_seeds(row, seed_rows, ranges)
            if has_success:
                successes = [seed_row.success for seed_row in seed_rows]
                row = replace(row, by_seed=tuple(_means(successes)))
        rows.append(row)
    return rows


def player_row(
    seeds: Sequence[Sequence[EpisodeRow]],
    ranges: Mapping[str, Range] | None = None,
    *,
    has_success: bool = True,
) -> PlayerRow:
    """The row of one player at one level.

    seeds: its episodes in each evaluation, see `with_all_figures`. ranges: the range of each
    figure; by default in these episodes alone. has_success: whether the env reports success.
    """
    episodes = [episode for seed in seeds for episode in seed]
    complete = [episode for episode in episodes if not episode.is_aborted]
    clusters = task_clusters(complete)
    count = max(1, len(complete))

    # 1. Success
    successes = _successes(complete)
    success = None
    if has_success:
        success = _rate(successes, clusters, len(complete))

    # 2. Shares of the answers: one in each turn, and one more at an end without an action
    turns = TurnCounts.total(episode.counts for episode in complete)
    unfit = [episode for episode in complete if episode.unfit]
    answers = max(1, turns.turns + len(unfit))
    illegal = turns.illegal + sum(episode.illegal_at_end for episode in unfit)
    unreadable = turns.unreadable + sum(episode.unreadable_at_end for episode in unfit)

    # 3. Success of the episodes that gave an answer
    named_episodes = right_of_named = None
    if has_success and any(HAS_ANSWER in episode.figures for episode in complete):
        with_answer = [episode for episode in complete if episode.figures.get(HAS_ANSWER)]
        named_episodes = len(with_answer)
        right_of_named = _rate(_successes(with_answer), clusters, named_episodes)

    # 4. The row
    if ranges is None:
        ranges = figure_ranges(complete)
    return PlayerRow(
        name=episodes[0].name,
        env=episodes[0].env,
        level=episodes[0].level,
        success=success,
        tasks=len(successes),
        clusters=len(by_cluster(successes, clusters)),
        episodes=len(complete),
        aborted=len(episodes) - len(complete),
        total_return=_total_return(complete, clusters),
        steps=turns.turns / count,
        illegal_share=illegal / answers,
        unreadable_share=unreadable / answers,
        price_usd=_total_price(episodes),
        reflection_words=turns.words / turns.comments if turns.comments else None,
        tokens=turns.tokens / count,
        thoughts=turns.thoughts / count,
        figures=_figures(complete, clusters, ranges),
        named_episodes=named_episodes,
        right_of_named=right_of_named,
        calibration=calibration_rows(complete, clusters),
        pass_at=_passes(seeds, clusters, pass_at) if has_success else {},
        pass_all=_passes(seeds, clusters, pass_all) if has_success else {},
    )


def _total_return(
    episodes: Sequence[EpisodeRow],
    clusters: Mapping[str, str],
) -> Estimate:
    """The mean return of the tasks; its interval is unknown if all returns are equal."""
    returns = _returns(episodes)
    mean = sum(returns.values()) / max(1, len(returns))
    low, high = mean_interval(by_cluster(returns, clusters))
    if low < high:
        return Estimate.of(mean, (low, high))
    return Estimate(mean, None, None)


def _total_price(episodes: Iterable[EpisodeRow]) -> float | None:
    """The cost of all requests in US dollars; None if a price is unknown."""
    total = 0.0
    for episode in episodes:
        if episode.price_usd is None:
            return None
        total += episode.price_usd
    return total


def _successes(episodes: Iterable[EpisodeRow]) -> Mapping[str, float]:
    """The success rate of each task."""
    outcomes = []
    for episode in episodes:
        success = 1.0 if episode.success else 0.0
        outcomes.append((episode.task, success))
    return by_task(outcomes)


def _returns(episodes: Iterable[EpisodeRow]) -> Mapping[str, float]:
    """The mean return of each task."""
    outcomes = [(episode.task, float(episode.total_return)) for episode in episodes]
    return by_task(outcomes)


def _rate(
    rates: Mapping[str, float],
    clusters: Mapping[str, str],
    trials: int,
) -> Estimate:
    """The mean over tasks of their rates.

    rates, clusters: of each task, by its id. trials: see `rate_interval`.
    """
    mean = sum(rates.values()) / max(1, len(rates))
    interval = rate_interval(by_cluster(rates, clusters), trials)
    return Estimate.of(mean, interval)


def _passes(
    seeds: Sequence[Sequence[EpisodeRow]],
    clusters: Mapping[str, str],
    chance: Callable[[int, int, int], float],
) -> dict[int, Estimate]:
    """By k, the mean over tasks of pass@k or pass^k. Empty if a seed played a task only once.

    chance: `pass_at` or `pass_all`. A task's value is the mean over the seeds that have at least k
    tries of it, aborted tries left out.
    """
    # 1. The tries of each task in each seed
    fewest_tries = math.inf
    all_tries: list[tuple[str, list[bool]]] = []
    for seed in seeds:
        counts = Counter(episode.task for episode in seed)
        fewest_tries = min([fewest_tries, *counts.values()])
        complete = [episode for episode in seed if not episode.is_aborted]
        for task, group in grouped(complete, key=lambda episode: episode.task).items():
            tries = [bool(episode.success) for episode in group]
            all_tries.append((task, tries))
    if fewest_tries < 2:
        return {}

    # 2. The chance of each, and their mean by k
    passes = {}
    for k in TRY_COUNTS:
        if k > fewest_tries:
            break
        chances = []
        trials = 0
        for task, tries in all_tries:
            count = len(tries)
            if count >= k:
                chances.append((task, chance(k, sum(tries), count)))
                trials += count
        if chances:
            passes[k] = _rate(by_task(chances), clusters, trials)
    return passes


def _figures(
    episodes: Sequence[EpisodeRow],
    clusters: Mapping[str, str],
    ranges: Mapping[str, Range],
) -> dict[str, Estimate]:
    """The mean of each figure, with a 95 % interval by clusters of tasks.

    The interval depends on the range of the figure: a rate's from 0 to 1, an amount's if it is
    never negative, and otherwise a t interval.
    """
    figures = {}
    for name, values in _figure_means(episodes).items():
        groups = by_cluster(values, clusters)
        least, _ = ranges[name]
        if is_share(ranges[name]):
            interval = rate_interval(groups)
        elif least >= 0:
            interval = amount_interval(groups)
        else:
            interval = mean_interval(groups)
        mean = sum(values.values()) / len(values)
        figures[name] = Estimate.of(mean, interval)
    return figures


def _figure_means(episodes: Sequence[EpisodeRow]) -> dict[str, Mapping[str, float]]:
    """For each figure, its mean by task. An episode without the figure counts as 0, unless it does
    not apply to it.
    """
    names = dict.fromkeys(name for episode in episodes for name in episode.figures)
    means = {}
    for name in names:
        values = []
        for episode in episodes:
            if name not in episode.inapplicable:
                values.append((episode.task, episode.figures.get(name, 0.0)))
        means[name] = by_task(values)
    return means


def _extended_over_seeds(
    row: PlayerRow,
    seed_rows: Sequence[PlayerRow],
    ranges: Mapping[str, Range],
) -> PlayerRow:
    """`row`, with each interval extended by the t interval over the rows of the seeds."""
    # 1. Success and the return
    success = row.success
    if success is not None:
        means = _means([seed_row.success for seed_row in seed_rows])
        success = _extended(success, means, 0.0, 1.0)
    returns = _means([seed_row.total_return for seed_row in seed_rows])
    total_return = _extended(row.total_return, returns)

    # 2. Figures
    figures = {}
    for name, figure in row.figures.items():
        means = _means([seed_row.figures.get(name) for seed_row in seed_rows])
        if is_share(ranges[name]):
            figures[name] = _extended(figure, means, 0.0, 1.0)
        else:
            figures[name] = _extended(figure, means)

    # 3. Calibration
    calibration = {}
    for kind, scores in row.calibration.items():
        rows_of_kind = [each.calibration[kind] for each in seed_rows if kind in each.calibration]
        briers = _means([each.brier for each in rows_of_kind])
        log_scores = _means([each.log_score for each in rows_of_kind])
        errors = _means([each.calibration_error for each in rows_of_kind])
        calibration[kind] = replace(
            scores,
            brier=_extended(scores.brier, briers, least=0.0),
            log_score=_extended(scores.log_score, log_scores, least=0.0),
            calibration_error=_extended(scores.calibration_error, errors, least=0.0),
        )

    # 4. pass@k and pass^k
    return replace(
        row,
        success=success,
        total_return=total_return,
        figures=figures,
        calibration=calibration,
        pass_at=_passes_over_seeds(row.pass_at, [each.pass_at for each in seed_rows]),
        pass_all=_passes_over_seeds(row.pass_all, [each.pass_all for each in seed_rows]),
    )


def _means(estimates: Iterable[Estimate | None]) -> list[float]:
    """The means of the estimates that there are."""
    return [estimate.mean for estimate in estimates if estimate is not None]


def _passes_over_seeds(
    passes: Mapping[int, Estimate],
    seed_passes: Sequence[Mapping[int, Estimate]],
) -> dict[int, Estimate]:
    """`passes` by k, with each interval extended by the t interval over those of the seeds."""
    extended = {}
    for k, estimate in passes.items():
        means = _means([by_k.get(k) for by_k in seed_passes])
        extended[k] = _extended(estimate, means, 0.0, 1.0)
    return extended


def _extended(
    estimate: Estimate,
    means: Sequence[float],
    least: float = -math.inf,
    greatest: float = math.inf,
) -> Estimate:
    """`estimate`, with its interval extended to contain the t interval of the seeds' `means`.

    The interval stays within `least` and `greatest`.
    """
    if estimate.low is None or estimate.high is None:
        return estimate
    if len(means) < 2:
        return estimate
    low, high = mean_interval([[mean] for mean in means])
    low = max(least, min(estimate.low, low))
    high = min(greatest, max(estimate.high, high))
    return replace(estimate, low=low, high=high)


@dataclass(frozen=True, slots=True)
class AspectRow:
    """A player's success on the tasks with one value of an aspect."""

    name: str
    """The player's name."""
    level: str
    value: str
    """The value of the aspect."""
    success: Estimate
    tasks: int
    """The number of tasks with this value."""


def success_by_aspect(episodes: Sequence[EpisodeRow]) -> dict[str, list[AspectRow]]:
    """By aspect, each player's success on the tasks with each of its values.

    Intervals are by clusters of tasks. Aspects with only one value are left out, and so are levels
    at which success is not reported.
    """
    # 1. The aspects
    no_success = levels_without_success(episodes)
    with_success = [episode for episode in episodes if episode.level not in no_success]
    aspects = dict.fromkeys(name for episode in with_success for name in episode.aspects)

    # 2. Each player's success by the values of each
    by_aspect = {}
    for aspect in aspects:
        with_aspect = [episode for episode in with_success if aspect in episode.aspects]
        values = {str(episode.aspects[aspect]) for episode in with_aspect}
        if len(values) > 1:
            by_aspect[aspect] = _aspect_rows(with_aspect, aspect)
    return by_aspect


def _aspect_rows(episodes: Sequence[EpisodeRow], aspect: str) -> list[AspectRow]:
    """Each player's success by the values of one aspect, which all `episodes` have."""
    rows = []
    players = grouped(episodes, key=lambda episode: (episode.name, episode.level))
    for (name, level), group in players.items():
        by_value = grouped(group, key=lambda episode: str(episode.aspects[aspect]))
        for value in sorted(by_value):
            row = player_row([by_value[value]])
            if row.episodes and row.success is not None:
                rows.append(AspectRow(name, level, value, row.success, row.tasks))
    return rows


# -------------------------------------------------------------------------------------- differences


def differences(episodes: Sequence[EpisodeRow]) -> list[Difference]:
    """Paired differences, task by task, between any two players at the same level.

    There is one in success, if the env reports it, one in the return, and one in each figure of the
    env. Players are compared only if both finished at least one common task.
    """
    # 1. What is common to all players
    complete = [episode for episode in with_all_figures(episodes) if not episode.is_aborted]
    clusters = task_clusters(complete)
    no_success = levels_without_success(complete)
    ranges = {
        RETURN: (-math.inf, math.inf),
        **figure_ranges(complete),
        SUCCESS: (0.0, 1.0),
    }
    compared = []
    for level, level_episodes in by_level(complete).items():
        # 2. Each player's means by task, for each figure
        players = grouped(level_episodes, key=lambda episode: episode.name)
        means = {}
        for name, group in players.items():
            means[name] = _all_means(group, has_success=level not in no_success)

        # 3. The differences between two players, figure by figure
        figures = dict.fromkeys(figure for by_figure in means.values() for figure in by_figure)
        for figure in figures:
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
                    compared.append(_difference(figure, level, first, second, pair))
    return compared


def _all_means(
    episodes: Sequence[EpisodeRow],
    *,
    has_success: bool,
) -> dict[str, Mapping[str, float]]:
    """The means by task of a player's success, if the env reports it, return, and figures."""
    means: dict[str, Mapping[str, float]] = {}
    if has_success:
        means[SUCCESS] = _successes(episodes)
    means[RETURN] = _returns(episodes)
    figures = _figure_means(episodes)
    return means | figures


def _difference(
    figure: str,
    level: str,
    first: str,
    second: str,
    pair: Paired,
) -> Difference:
    """The difference of a `pair` of players, an infinite end of whose interval is unknown."""
    estimate = Estimate.of(pair.difference, (pair.low, pair.high))
    return Difference(
        figure=figure,
        level=level,
        first=first,
        second=second,
        difference=pair.difference,
        low=estimate.low,
        high=estimate.high,
        p=pair.p,
        tasks=pair.tasks,
        clusters=pair.clusters,
    )


def differences_over_seeds(parts: Sequence[Sequence[EpisodeRow]]) -> list[Difference]:
    """`differences` over the episodes of one or several evaluations (seeds).

    parts: the episodes of each evaluation. Where at least two of them have both players, the
    interval is extended to contain the t interval over the differences of the seeds. p is then the
    larger of the two tests.
    """
    # 1. The differences over all seeds
    episodes = [episode for part in parts for episode in part]
    compared = differences(episodes)
    if len(parts) < 2:
        return compared

    # 2. Those of each seed, in which two players may be in the other order
    seed_gaps: dict[Comparison, list[float]] = {}
    for part in parts:
        for gap in differences(part):
            gaps = seed_gaps.setdefault(_comparison(gap), [])
            gaps.append(gap.difference)
            mirrored_gaps = seed_gaps.setdefault(_comparison(gap, mirrored=True), [])
            mirrored_gaps.append(-gap.difference)

    # 3. Each interval, extended by them
    ranges = {**figure_ranges(episodes), SUCCESS: (0.0, 1.0)}
    extended = []
    for gap in compared:
        gaps = seed_gaps.get(_comparison(gap), [])
        if len(gaps) > 1:
            limit = math.inf
            if gap.figure in ranges and is_share(ranges[gap.figure]):
                limit = 1.0
            estimate = Estimate(gap.difference, gap.low, gap.high)
            estimate = _extended(estimate, gaps, -limit, limit)
            p = mean_p([[value] for value in gaps])
            gap = replace(gap, low=estimate.low, high=estimate.high, p=max(gap.p, p))
        extended.append(gap)
    return extended


def _comparison(gap: Difference, *, mirrored: bool = False) -> Comparison:
    """What is compared. mirrored: with the players in the other order."""
    if mirrored:
        return gap.figure, gap.level, gap.second, gap.first
    return gap.figure, gap.level, gap.first, gap.second
