"""Effects of published experiments, from their packs: differences in final success and in the area below the learning
curve, with intervals and a word for each; as a table and as rows of a forest plot.

Success is compared by problem: where one training seed has both players by the paired interval over clusters of
problems, with more by the widest interval of seeds and problems, see `seed_differences`. Areas are compared by seed,
with a t interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from reflectkit.console import Table
from reflectkit.data.episodes import SUCCESS
from reflectkit.evals.aggregate import differences, player_rows, with_all_figures
from reflectkit.evals.plot import Curve
from reflectkit.evals.rows import EpisodeRow, Estimate, PlayerRow
from reflectkit.evals.stats import mean_interval, mean_p
from reflectkit.evals.tables import p_columns
from research.forest import Interval
from research.packs import Pack
from research.seeds import SeedDifference, seed_differences

EQUIVALENT = 3.0
"""Points of success within which two players are called equivalent."""
AREA = "area"
FEWEST_AREAS = 3  # seeds
UNCLEAR = "unclear: mostly too few seeds or problems to tell, which does not mean no effect"
ROUNDING = 1e-9
"""Points by which an end of an interval may be off, as the sum of rounded numbers."""
LEGEND = "● success, or what is named; ■ area below the curve × 100; hollow: one seed; grey: ±3 points"


@dataclass(frozen=True, slots=True)
class Effect:
    """First minus second, in points (percentage points of success, or 100 times the area)."""

    experiment: str
    """Title of its pack."""
    first: str
    """A player."""
    second: str
    """The player that it is compared with."""
    measure: str
    """"success", one of the env's figures, or "area"."""
    level: str
    """Of the problems; "" for an area."""
    difference: float
    """The estimate."""
    low: float
    """Lower end of the 95 % interval; -inf if unknown."""
    high: float
    """Upper end; inf if unknown."""
    seeds: int
    """Training seeds."""
    problems: int
    """Problems over all seeds; 0 for an area."""
    p: float = 1.0
    """Two-sided, of no difference."""

    @property
    def is_area(self) -> bool:
        """Whether this is of the area below a curve, and not of problems with a figure that is called so."""
        return self.measure == AREA and not self.level

    @property
    def word(self) -> str:
        """helps, harms, equivalent or unclear, by the interval. Two seeds are always unclear, as they may be alike by
        chance and then have a t interval without width. One seed says nothing of another: it is only above or below 0,
        or near it.
        """
        if self.seeds == 2:
            return "unclear"
        if self.seeds == 1:
            return self._word_of_one_seed
        within = _is_within(self.low, self.high)
        if self.low > ROUNDING:
            return "helps, by less than 3 points" if within else "helps"
        if self.high < -ROUNDING:
            return "harms, by less than 3 points" if within else "harms"
        return "equivalent" if within else "unclear"

    @property
    def _word_of_one_seed(self) -> str:
        if self.low > ROUNDING:
            return "above 0, one seed"
        if self.high < -ROUNDING:
            return "below 0, one seed"
        return "near 0, one seed" if _is_within(self.low, self.high) else "unclear"


def _is_within(low: float, high: float) -> bool:
    """Whether the interval lies within ±EQUIVALENT."""
    return low >= -EQUIVALENT - ROUNDING and high <= EQUIVALENT + ROUNDING


def effects(pack: Pack) -> list[Effect]:
    """The effects of the pack's comparisons, in their order; of success at each level, then of the area."""
    if not pack.comparisons:
        return []
    found = [*_successes(pack), *_areas(pack)]
    order = {pair: place for place, pair in enumerate(pack.comparisons)}
    return sorted(found, key=lambda one: order[one.first, one.second])


def _successes(pack: Pack) -> list[Effect]:
    found = []
    seeds = [with_all_figures([EpisodeRow.read(line) for line in seed.episodes]) for seed in pack.seeds.values()]
    for first, second in dict.fromkeys(pack.comparisons):
        parts = [[episode for episode in episodes if episode.name in (first, second)] for episodes in seeds]
        of_several = seed_differences({"": [part for part in parts if part]}, pack.measure)
        levels = {gap.level for gap in of_several}
        rest = [[episode for episode in part if episode.level not in levels] for part in parts]
        of_one = [gap for part in rest for gap in differences(part) if gap.figure == pack.measure]
        for gap in [*of_several, *of_one]:
            sign = 1 if gap.first == first else -1
            low, high = (-math.inf if gap.low is None else gap.low), (math.inf if gap.high is None else gap.high)
            least, most = sorted((sign * 100 * low, sign * 100 * high))
            seed_count = gap.seeds if isinstance(gap, SeedDifference) else 1
            points = sign * 100 * gap.difference + 0.0
            effect = Effect(
                pack.title, first, second, pack.measure, gap.level, points, least, most, seed_count, gap.tasks, gap.p
            )
            found.append(effect)
    return found


def _areas(pack: Pack) -> list[Effect]:
    found = []
    areas = [{curve.name: area(curve.episodes, curve.values) for curve in seed.curves} for seed in pack.seeds.values()]
    shares = all(0 <= value <= 1 for seed in pack.seeds.values() for curve in seed.curves for value in curve.values)
    limit = 100.0 if shares else math.inf
    for first, second in pack.comparisons:
        gaps = [100 * (one[first] - one[second]) for one in areas if first in one and second in one]
        if gaps:
            alone = [[gap] for gap in gaps]
            low, high = mean_interval(alone)
            ends = (max(low, -limit), min(high, limit)) if len(gaps) > 1 else (low, high)
            found.append(Effect(pack.title, first, second, AREA, "", fmean(gaps), *ends, len(gaps), 0, mean_p(alone)))
    return found


def curves(pack: Pack, figure: str) -> dict[str, list[Curve]]:
    """The curves of `figure` by name, one for each seed."""
    by_name: dict[str, list[Curve]] = {}
    for seed in pack.seeds.values():
        for curve in seed.curves:
            if curve.figure == figure:
                by_name.setdefault(curve.name, []).append((curve.episodes, curve.values))
    return by_name


def same_seeds(pack: Pack, figure: str) -> bool:
    """Whether all curves of `figure` are of the same seeds."""
    names = [{curve.name for curve in seed.curves if curve.figure == figure} for seed in pack.seeds.values()]
    return len(set(map(frozenset, filter(None, names)))) <= 1


def success_rows(pack: Pack) -> list[PlayerRow]:
    """The rows of all players, over all seeds. Where each player is an arm with a curve, or an arm at
    another stage ("ARM, SFT"), they are in the order of stages, and in each stage in that of the curves.
    """
    parts = [[EpisodeRow.read(line) for line in seed.episodes] for seed in pack.seeds.values()]
    rows = player_rows([part for part in parts if part])
    arms = list(dict.fromkeys(curve.name for seed in pack.seeds.values() for curve in seed.curves))
    names = {row.name: row.name.partition(", ") for row in rows}
    if any(arm not in arms for arm, _, _ in names.values()):
        return rows
    stages = sorted(dict.fromkeys(stage for _, _, stage in names.values()), key=bool)  # the final one first
    return sorted(rows, key=lambda row: (stages.index(names[row.name][2]), arms.index(names[row.name][0])))


def success_groups(packs: Sequence[Pack]) -> dict[str, list[Interval]]:
    """The players' success in percent, or what their pack measures instead, as rows of a figure, by its title."""
    groups: dict[str, list[Interval]] = {}
    for pack in packs:
        rows = success_rows(pack)
        several = len({row.level for row in rows}) > 1
        title = pack.title if pack.measure == SUCCESS else f"{pack.title}: {pack.measure}"
        for row in rows:
            label = f"{row.name}, {row.level}" if several else row.name
            mean, low, high = estimate(row, pack.measure)
            one = Interval(label, 100 * mean, 100 * low, 100 * high, len(pack.seeds) == 1)
            groups.setdefault(title, []).append(one)
    return groups


def estimate(row: PlayerRow, measure: str) -> tuple[float, float, float]:
    """(mean, low, high) of a row of `success_rows`; 0 without the measure, and infinite ends where they are unknown."""
    figure = row.estimate(measure) or Estimate(0.0, 0.0, 0.0)
    low = -math.inf if figure.low is None else figure.low
    return figure.mean, low, math.inf if figure.high is None else figure.high


def forest_groups(found: Sequence[Effect]) -> dict[str, list[Interval]]:
    """The effects as rows of a figure, by experiment. One beyond ±100 points is cut. A level is named where an
    experiment has several. Areas of fewer than three seeds, whose intervals say nothing, are left out.
    """
    found = [one for one in found if not (one.is_area and one.seeds < FEWEST_AREAS)]
    groups: dict[str, list[Interval]] = {}
    levels: dict[str, set[str]] = {}
    for one in found:
        levels.setdefault(one.experiment, set()).update({one.level} - {""})
    for one in found:
        parts = [f"{one.first} − {one.second}"]
        parts += [one.measure] if one.measure != SUCCESS else []
        parts += [one.level] if one.level and len(levels[one.experiment]) > 1 else []
        bounded = math.isfinite(one.low + one.high)
        ends = (max(one.low, -100.0), min(one.high, 100.0)) if bounded else (one.difference, one.difference)
        row = Interval(", ".join(parts), one.difference, *ends, one.seeds == 1, one.is_area)
        groups.setdefault(one.experiment, []).append(row)
    return groups


def effects_table(found: Sequence[Effect]) -> Table:
    """The effects as a table. Those without an interval are not counted as tests."""
    headings, p_cells = p_columns([one.p if math.isfinite(one.low + one.high) else None for one in found])
    columns = (
        "experiment",
        "first − second",
        "of",
        "difference, points",
        "95 % interval",
        *headings,
        "seeds",
        "problems",
        "verdict",
    )
    cells = tuple(
        (
            one.experiment,
            f"{one.first} − {one.second}",
            one.measure if one.is_area else f"{one.measure}, {one.level}",
            _points(one.difference),
            f"{_points(one.low)} to {_points(one.high)}" if math.isfinite(one.low + one.high) else "unknown: one seed",
            *shown,
            str(one.seeds),
            str(one.problems or ""),
            one.word if math.isfinite(one.low + one.high) else "",
        )
        for one, shown in zip(found, p_cells, strict=True)
    )
    return Table(f"Effects, with 95 % intervals ({UNCLEAR})", columns, cells)


def _points(value: float) -> str:
    return f"{round(value, 1) + 0.0:+.1f}"  # no -0.0


def area(places: Sequence[float], values: Sequence[float]) -> float:
    """The mean height of the curve between its first and last place, by the trapezoidal rule.

    >>> area([0, 10, 20], [0.0, 1.0, 1.0])
    0.75
    """
    points = list(zip(places, values, strict=True))
    if len(points) == 1:
        return values[0]
    parts = ((right - left) * (low + high) / 2 for (left, low), (right, high) in pairwise(points))
    return sum(parts) / (places[-1] - places[0])


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
            "reached": [_first_reaching(curve, wanted) for curve in seeds],
        }
    first, *others = figures
    for name in others:
        pairs = zip(figures[name]["area"], figures[first]["area"], strict=False)
        gaps = [mine - its for mine, its in pairs]
        if same_seeds and len(gaps) > 1 and len(curves[name]) == len(curves[first]):
            low, high = mean_interval([[gap] for gap in gaps])
            figures[name] |= {"difference": fmean(gaps), "low": low, "high": high}
    return figures


def _first_reaching(curve: Curve, wanted: float) -> float | None:
    return next((place for place, value in zip(*curve, strict=True) if value >= wanted), None)


def curve_table(figures: Mapping[str, Mapping[str, Any]], figure: str, wanted: float, against: str) -> Table:
    """`curve_figures` as a table."""
    columns = ("run", "seeds", "mean height", f"minus {next(iter(figures))}", f"{against} to {wanted:g}, median")
    rows = []
    for name, summary in figures.items():
        gap = (
            f"{summary['difference']:+.3f} ({summary['low']:+.3f} to {summary['high']:+.3f})"
            if "low" in summary
            else ""
        )
        middle = median(math.inf if place is None else place for place in summary["reached"])
        reached = f"{middle:g}" if math.isfinite(middle) else "not reached"
        rows.append((name, str(len(summary["area"])), f"{fmean(summary['area']):.3f}", gap, reached))
    return Table(f"Area below the curve of {figure}, and when it reaches {wanted:g}", columns, tuple(rows))
