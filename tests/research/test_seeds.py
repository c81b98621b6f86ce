"""Differences over training seeds: by hand, and against all replicates of the bootstrap."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import pytest
import scipy.stats

from reflectkit.evals.stats import mean_interval
from research.seeds import hierarchical_interval, interval_over_seeds, seed_differences
from tests.evals.test_tables import episode


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


@pytest.mark.parametrize("by_seed", [[[[1, 0], [0], [-1]], [[1], [1, 1]]], [[[0], [1]], [[1], [-1, 0]], [[1], [1]]]])
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


def test_over_seeds_the_wider_interval_counts() -> None:
    apart = [[[float(value)]] * 20 for value in (0.1, 0.5, 0.6)]  # of seeds that differ: the t interval
    low, high, p = interval_over_seeds(apart)
    assert (low, high) == mean_interval([[0.1], [0.5], [0.6]])
    assert p == pytest.approx(scipy.stats.ttest_1samp([0.1, 0.5, 0.6], 0).pvalue)
    alike = [[[1.0], [0.0], [-1.0], [0.4]] for _ in range(3)]  # of seeds that are alike: the bootstrap
    low, high, p = interval_over_seeds(alike)
    assert (low, high) == hierarchical_interval(alike)
    assert low < 0 < high
    assert p > 0.05
    assert interval_over_seeds(alike[:1]) == (-math.inf, math.inf, 1.0)


def test_differences_weigh_each_seed_alike() -> None:
    many = [episode(name, str(task), name == "ours") for task in range(9) for name in ("ours", "plain")]
    few = [episode("ours", "1", False), episode("plain", "1", True), episode("plain", "2", True, status="aborted")]
    (one,) = seed_differences({"evaluation": [many, few]})
    assert (one.difference, one.seeds, one.tasks) == (0.0, 2, 10)
    assert (one.low, one.high) == (-1.0, 1.0)
    assert seed_differences({"evaluation": [many]}) == []


def test_seeds_without_any_spread_do_not_show_equivalence() -> None:
    """Nobody ever wins: over 30 tasks without a discordant pair, Tango's interval ends at z² / (n + z²) = 0.1135."""
    seeds = [[episode(name, f"{seed}-{n}", False) for n in range(15) for name in ("ours", "plain")] for seed in (0, 1)]
    (one,) = seed_differences({"evaluation": seeds})
    assert (one.low, one.high) == pytest.approx((-0.1135, 0.1135), abs=1e-4)
    single = [[episode("ours", "1", True), episode("plain", "1", False)]] * 2
    (one,) = seed_differences({"evaluation": single})
    assert (one.low, one.high) == (-1.0, 1.0)
