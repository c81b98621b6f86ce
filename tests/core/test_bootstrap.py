"""The hierarchical bootstrap against every possible replicate, and against scipy's; areas below curves by hand."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from scipy.stats import bootstrap, ttest_1samp

from reflectkit.evals.seeds import curve_figures, curve_table, seed_differences
from reflectkit.evals.stats import area, first_reaching, hierarchical_interval, interval_over_seeds, mean_interval


def every_replicate(by_seed: list[list[list[float]]]) -> list[tuple[float, float]]:
    """(value, probability) of each replicate, sorted, by drawing in all possible ways."""
    means: list[list[tuple[Fraction, Fraction]]] = []
    for clusters in by_seed:
        ways = list(product(clusters, repeat=len(clusters)))
        means.append(
            [
                (Fraction(sum(map(sum, drawn))) / sum(map(len, drawn)), Fraction(1, len(ways)))  # type: ignore[arg-type]
                for drawn in ways
            ]
        )
    seeds = len(by_seed)
    chances: dict[Fraction, Fraction] = {}
    for drawn in product(range(seeds), repeat=seeds):
        for parts in product(*(means[number] for number in drawn)):
            value = sum((mean for mean, _ in parts), Fraction()) / seeds
            chance = math.prod((chance for _, chance in parts), start=Fraction(1, seeds**seeds))
            chances[value] = chances.get(value, Fraction()) + chance
    return [(float(value), float(chance)) for value, chance in sorted(chances.items())]


@pytest.mark.parametrize(
    "by_seed",
    [
        [[[1, 0], [0], [-1]], [[1], [1, 1]]],
        [[[0], [1]], [[1], [-1, 0]], [[1], [1]]],
    ],
)
def test_ends_are_the_quantiles_of_all_replicates(by_seed: list[list[list[float]]]) -> None:
    replicates = every_replicate(by_seed)
    assert sum(chance for _, chance in replicates) == pytest.approx(1)

    def share_below(end: float, *, strictly: bool) -> float:
        return sum(chance for value, chance in replicates if (value < end - 1e-9 if strictly else value <= end + 1e-9))

    low, high = hierarchical_interval(by_seed, replicates=40_000)
    margin = 4 * math.sqrt(0.025 * 0.975 / 40_000)  # four standard errors of a share of 2.5 %
    assert share_below(low, strictly=True) <= 0.025 + margin
    assert share_below(low, strictly=False) >= 0.025 - margin
    assert share_below(high, strictly=True) <= 0.975 + margin
    assert share_below(high, strictly=False) >= 0.975 - margin


def test_seeds_without_spread_leave_the_problems_bootstrap() -> None:
    # both seeds are the same data, one problem a cluster: the mean of two independent bootstrap means
    values = np.random.default_rng(3).normal(size=30)
    by_seed = [[[float(value)] for value in values]] * 2
    low, high = hierarchical_interval(by_seed)
    one = bootstrap((values,), np.mean, method="percentile", n_resamples=10_000, rng=np.random.default_rng(4))
    width = one.confidence_interval.high - one.confidence_interval.low
    assert high - low == pytest.approx(width / math.sqrt(2), rel=0.05)
    assert (low + high) / 2 == pytest.approx(values.mean(), abs=0.05)


def test_problems_without_spread_leave_the_seeds_bootstrap() -> None:
    means = np.random.default_rng(5).normal(size=12)
    by_seed = [[[float(mean)], [float(mean)] * 2] for mean in means]
    low, high = hierarchical_interval(by_seed)
    one = bootstrap((means,), np.mean, method="percentile", n_resamples=10_000, rng=np.random.default_rng(6))
    assert (low, high) == pytest.approx(tuple(one.confidence_interval), abs=0.03)


def test_one_seed_says_nothing_about_others() -> None:
    assert hierarchical_interval([[[1.0], [0.0]]]) == (-math.inf, math.inf)


def test_over_seeds_the_wider_interval_counts() -> None:
    apart = [[[float(value)]] * 20 for value in (0.1, 0.5, 0.6)]  # of seeds that differ: the t interval
    low, high, p = interval_over_seeds(apart)
    assert (low, high) == mean_interval([[0.1], [0.5], [0.6]])
    assert p == pytest.approx(ttest_1samp([0.1, 0.5, 0.6], 0).pvalue)
    alike = [[[1.0], [0.0], [-1.0], [0.4]] for _ in range(3)]  # of seeds that are alike: the bootstrap
    low, high, p = interval_over_seeds(alike)
    assert (low, high) == hierarchical_interval(alike)
    assert low < 0 < high
    assert p > 0.05
    assert interval_over_seeds(alike[:1]) == (-math.inf, math.inf, 1.0)


@pytest.mark.parametrize(
    ("seeds", "of_seeds", "of_tasks"),
    [(3, 0.5, 0.0), (10, 0.0, 0.3)],
    ids=["few seeds that differ", "many seeds on the same tasks"],
)
def test_no_effect_is_seldom_one(seeds: int, of_seeds: float, of_tasks: float) -> None:
    """The bootstrap alone excludes 0 in 16 % and 12 % of these, the t interval of the second in 16 %."""
    chance, excluded = np.random.default_rng(0), 0
    for _ in range(25):
        tasks = chance.normal(0, of_tasks, 20)
        parts = []
        for seed in chance.normal(0, of_seeds, seeds):
            gaps = np.clip(seed + tasks, -1, 1)
            outcomes = chance.random((2, 20)) < np.array([0.5 + gaps / 2, 0.5 - gaps / 2])
            named = zip(("ours", "plain"), outcomes.tolist(), strict=True)
            parts.append([episode(name, str(task), won) for name, row in named for task, won in enumerate(row)])
        (one,) = seed_differences({"": parts})
        excluded += one["low"] > 0 or one["high"] < 0
        assert (one["low"] > 0 or one["high"] < 0) == (one["p"] < 0.05)
    assert excluded / 25 <= 0.1


def test_area_and_where_a_curve_reaches_a_value() -> None:
    assert area([128, 256, 512], [0.0, 0.5, 1.0]) == pytest.approx((128 * 0.25 + 256 * 0.75) / 384)
    assert area([128], [0.4]) == 0.4
    assert first_reaching([1, 2, 3], [0.2, 0.9, 0.95], 0.9) == 2
    assert first_reaching([1, 2], [0.2, 0.8], 0.9) is None


def test_differences_of_areas_are_paired_by_seed() -> None:
    flat = {"plain": (0.1, 0.5, 0.6), "ours": (0.3, 0.6, 0.8)}
    curves = {name: [([0.0, 10.0], [value, value]) for value in values] for name, values in flat.items()}
    figures = curve_figures(curves, 0.6)
    # gaps 0.2, 0.1, 0.2: mean 1/6, standard error 0.05774 / sqrt(3) = 1/30, t(0.975, 2) = 4.3027
    ours = figures["ours"]
    assert ours["difference"] == pytest.approx(1 / 6)
    assert (ours["low"], ours["high"]) == pytest.approx((1 / 6 - 4.30265 / 30, 1 / 6 + 4.30265 / 30), abs=1e-5)
    assert [ours["reached"], figures["plain"]["reached"]] == [[None, 0, 0], [None, None, 0]]
    rows = curve_table(figures, "success", 0.6, "episodes").rows
    assert [row[-1] for row in rows] == ["not reached", "0"]


def episode(name: str, task: str, success: bool, status: str = "completed") -> dict[str, object]:
    return {"name": name, "level": "full", "task": task, "cluster": task, "status": status, "success": success}


def test_differences_weigh_each_seed_alike() -> None:
    many = [episode(name, str(task), name == "ours") for task in range(9) for name in ("ours", "plain")]
    few = [episode("ours", "1", False), episode("plain", "1", True), episode("plain", "2", True, "aborted")]
    (one,) = seed_differences({"evaluation": [many, few]})
    assert (one["difference"], one["seeds"], one["tasks"]) == (0.0, 2, 10)
    assert (one["low"], one["high"]) == (-1.0, 1.0)
    assert seed_differences({"evaluation": [many]}) == []


def test_a_seed_with_the_players_in_another_order_counts() -> None:
    first = [episode("ours", "1", True), episode("plain", "1", False)]
    turned = [episode("plain", "1", False), episode("ours", "1", False)]
    (one,) = seed_differences({"evaluation": [first, turned, first]})
    assert (one["first"], one["second"], one["seeds"], one["by_seed"]) == ("ours", "plain", 3, [1.0, 0.0, 1.0])


def test_seeds_without_any_spread_do_not_show_equivalence() -> None:
    """Nobody ever wins: over 30 tasks without a discordant pair, Tango's interval ends at z² / (n + z²) = 0.1135."""
    seeds = [[episode(name, f"{seed}-{n}", False) for n in range(15) for name in ("ours", "plain")] for seed in (0, 1)]
    (one,) = seed_differences({"evaluation": seeds})
    assert (one["low"], one["high"]) == pytest.approx((-0.1135, 0.1135), abs=1e-4)
    single = [[episode("ours", "1", True), episode("plain", "1", False)]] * 2
    (one,) = seed_differences({"evaluation": single})
    assert (one["low"], one["high"]) == (-1.0, 1.0)


def test_players_of_several_evaluations_are_compared() -> None:
    first = [episode("ours", "1", True), episode("plain", "1", False)]
    again = [episode("shuffled", "1", True), episode("plain", "1", True)]
    found = seed_differences({"evaluation": [first, first], "again": [again, again]})
    gaps = {(one["first"], one["second"]): one["difference"] for one in found}
    assert gaps["ours", "plain (evaluation)"] == gaps["ours", "shuffled"] + 1 == 1.0
    assert gaps["plain (evaluation)", "plain (again)"] == -1.0
