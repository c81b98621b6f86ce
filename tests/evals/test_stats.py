"""Intervals and tests of clustered tasks against numbers by hand, scipy's, and every possible replicate."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import scipy.stats

from reflectkit.evals.stats import (
    amount_interval,
    by_cluster,
    by_task,
    mean_interval,
    paired,
    pass_all,
    pass_at,
    rate_interval,
)


def test_tasks_and_clusters_weigh_by_their_number() -> None:
    assert by_task([("a", 1), ("a", 0), ("b", 1)]) == {"a": 0.5, "b": 1.0}
    assert by_cluster({"a": 1.0, "b": 0.0, "c": 0.5}, {"a": "x", "c": "x"}) == [[1.0, 0.5], [0.0]]
    assert by_cluster({"a": 1.0, "b": 0.0}, {"a": "b"}) == [[1.0], [0.0]], "a cluster that is named as a task"


def test_equal_outcomes_are_worth_one_task_a_cluster() -> None:
    """Nothing in them speaks against correlation 1: n = (Σ sizes)² / Σ sizes².

    20 clusters of one: n = 20; of four tasks: 20 as well; sizes 1 to 4: n = 10² / 30. Student's t with C - 1 degrees of
    freedom (2.0930 for 20, 3.1824 for 4, from tables) makes it n (1.9600 / t)². Jeffreys: the 97.5 % point of Beta(1/2,
    n + 1/2).
    """
    alone, fours = rate_interval([[0.0]] * 20), rate_interval([[0.0] * 4] * 20)
    assert alone == fours
    assert alone[0] == 0.0
    assert scipy.stats.beta.cdf(alone[1], 0.5, 20 * (1.95996 / 2.09302) ** 2 + 0.5) == pytest.approx(0.975, abs=1e-4)
    low, high = rate_interval([[1.0] * size for size in (1, 2, 3, 4)])
    assert high == 1.0
    assert scipy.stats.beta.cdf(1 - low, 0.5, 100 / 30 * (1.95996 / 3.18245) ** 2 + 0.5) == pytest.approx(
        0.975, abs=1e-4
    )


def test_few_successes_are_shrunk_towards_one_task_a_cluster() -> None:
    """20 clusters of two tasks, four of which won one: the mean is 0.1, the variance of a task 0.09.

    Residuals are 0.8 four times and -0.2 16 times. Squares sum to 3.2, fourth powers to 1.664, so the kurtosis is 3.25,
    and the degrees of freedom are 40 / 2.25. The design effect of the clusters is 3.2 (20 / 19) / 40 / 0.09, and 2 at
    correlation 1, which has 1 + 6 (1 - 4 * 0.09) degrees of freedom.
    """
    freedom, prior, effect = 40 / 2.25, 4.84, 3.2 * 20 / 19 / 40 / 0.09
    tasks = 40 / ((freedom * effect + prior * 2) / (freedom + prior)) * (1.95996 / 2.09302) ** 2
    low, high = rate_interval([[1.0, 0.0]] * 4 + [[0.0, 0.0]] * 16)
    tails = [scipy.stats.beta.cdf(end, 0.1 * tasks + 0.5, 0.9 * tasks + 0.5) for end in (low, high)]
    assert tails == pytest.approx([0.025, 0.975], abs=1e-4)


def test_fewer_than_two_clusters_say_nothing() -> None:
    assert rate_interval([]) == (0.0, 1.0)
    assert rate_interval([[1.0] * 50]) == (0.0, 1.0)
    assert mean_interval([[3.0, 4.0]]) == (-math.inf, math.inf)
    alone = paired({"a": 1.0, "b": 1.0}, {"a": 0.0, "b": 0.0}, {"a": "x", "b": "x"})
    assert (alone.low, alone.high, alone.p, alone.clusters) == (-1.0, 1.0, 1.0, 1)
    with pytest.raises(ValueError, match=r"lie in \[0, 1\]"):
        rate_interval([[0.5], [1.5]])


def test_repeats_narrow_an_interval_as_far_as_they_tell_something() -> None:
    """40 tasks at one half: coins played 16 times are worth 640 plays (at most); outcomes that never change are worth
    40.
    """
    once = rate_interval([[float(n % 2)] for n in range(40)], trials=40)
    same = rate_interval([[float(n % 2)] for n in range(40)], trials=640)
    assert same == once
    chance = random.Random(0)
    coins = [sum(chance.random() < 0.5 for _ in range(16)) / 16 for _ in range(40)]
    often = rate_interval([[rate] for rate in coins], trials=640)
    assert 1 / 4.5 < (often[1] - often[0]) / (once[1] - once[0]) < 1 / 3
    flat = rate_interval([[0.5 + 0.01 * (n % 2)] for n in range(40)], trials=640)  # more alike than coins ever are
    assert flat[1] - flat[0] > 0.9 * 2 * 1.96 * math.sqrt(0.25 / 640)


def test_a_mean_without_bounds_has_a_t_interval_of_its_clusters() -> None:
    """Sums 2, 4, 9 of sizes 1, 1, 2, mean 15/4: residuals -1.75, 0.25, 1.5; their squares sum to 5.375, times 3/2 is
    8.0625.

    Its root over 4 tasks is 0.70986; times t with 2 degrees of freedom, 4.30265, is 3.0543.
    """
    low, high = mean_interval([[2.0], [4.0], [4.0, 5.0]])
    assert (low, high) == pytest.approx((3.75 - 3.0543, 3.75 + 3.0543), abs=1e-4)


def test_what_cannot_be_negative_has_an_interval_above_0() -> None:
    """The same 3.75 and 3.0543: from 3.75 / e^(3.0543 / 3.75) to 3.75 e^(3.0543 / 3.75)."""
    low, high = amount_interval([[2.0], [4.0], [4.0, 5.0]])
    assert (low, high) == pytest.approx((3.75 / 2.25795, 3.75 * 2.25795), rel=1e-4)
    assert mean_interval([[0.0], [1.0], [200.0]])[0] < 0 < amount_interval([[0.0], [1.0], [200.0]])[0]
    assert amount_interval([[0.0]] * 3) == (0.0, 0.0)
    assert amount_interval([[3.0, 4.0]]) == (-math.inf, math.inf)


def test_signs_are_flipped_by_cluster() -> None:
    """Gaps of 1 on six tasks of three clusters: two of eight sign patterns have a sum of 6 or -6; as tasks,
    two of 64.
    """
    first, second = ({str(n): float(won) for n in range(6)} for won in (True, False))
    of = {str(n): f"file {n // 2}" for n in range(6)}
    found = paired(first, second, of)
    assert (found.p, found.tasks, found.clusters) == (0.25, 6, 3)
    assert found.low <= 0 < found.high
    assert paired(first, second).p == 2 / 64
    # clusters weigh by their tasks: totals 3 and -1, whose sum reaches 2 with any signs
    uneven = paired(
        {"a": 1, "b": 1, "c": 1, "d": 0}, {"a": 0, "b": 0, "c": 0, "d": 1}, {"a": "x", "b": "x", "c": "x", "d": "y"}
    )
    assert uneven.p == 1.0


def test_score_interval_of_a_difference_against_tango() -> None:
    """Without discordant pairs the ends are ± z² / (n + z²), Tango 1998: of 20 ± 3.8415 / 23.8415."""
    same = {str(n): 1.0 for n in range(20)}
    found = paired(same, same)
    assert (found.low, found.high) == pytest.approx((-3.84146 / 23.84146, 3.84146 / 23.84146), abs=1e-5)
    assert found.p == 1.0


def test_a_sampled_test_counts_what_was_observed() -> None:
    """Of 30 clusters that all gain, no drawn sign pattern is as extreme: 1 of 4,001."""
    ones, zeros = (dict.fromkeys(map(str, range(30)), value) for value in (1.0, 0.0))
    assert paired(ones, zeros).p == 1 / 4001


@pytest.mark.parametrize("clusters", [4, 8, 30])
def test_an_interval_excludes_0_exactly_where_the_test_rejects(clusters: int) -> None:
    chance, rejected = random.Random(clusters), 0
    for _ in range(60):
        better = chance.random()
        first = {str(n): float(chance.random() < 0.3 + 0.7 * better) for n in range(2 * clusters)}
        second = {str(n): float(chance.random() < 0.3) for n in range(2 * clusters)}
        of = {str(n): str(n // 2) for n in range(2 * clusters)}
        for shares in (True, False):
            found, turned = (paired(*both, of, shares=shares) for both in ((first, second), (second, first)))
            assert (found.p < 0.05) == (found.low > 0 or found.high < 0)
            assert found.low <= found.difference <= found.high
            assert (turned.p, turned.low, turned.high) == pytest.approx((found.p, -found.high, -found.low), abs=1e-9)
            rejected += found.p < 0.05
    assert rejected > 0 or clusters == 4  # of four clusters two of sixteen patterns are as extreme: p is at least 1/8


def test_single_tasks_have_scipys_test_and_interval() -> None:
    """scipy has no test or interval for clusters; where every cluster is one task, its figures are ours."""
    gaps = [2.5, -1.0, 4.0, 0.5, 3.0, -0.25, 1.75, 2.0]
    played = paired({str(n): gap for n, gap in enumerate(gaps)}, dict.fromkeys(map(str, range(8)), 0.0), shares=False)
    flipped = scipy.stats.permutation_test((gaps,), np.mean, permutation_type="samples")
    assert played.p == pytest.approx(flipped.pvalue, abs=1e-12)
    interval = scipy.stats.ttest_1samp(gaps, 0).confidence_interval()
    assert mean_interval([[gap] for gap in gaps]) == pytest.approx((interval.low, interval.high), abs=1e-12)


def test_pass_at_and_pass_all_by_hand() -> None:
    assert pass_at(2, 1, 4) == pytest.approx(1 - 3 / 6)
    assert pass_all(2, 3, 4) == pytest.approx(3 / 6)
    assert (pass_at(1, 3, 4), pass_all(1, 3, 4)) == (0.75, 0.75)
    assert (pass_at(4, 0, 4), pass_all(4, 4, 4)) == (0.0, 1.0)


def test_a_moved_end_is_of_all_sign_patterns() -> None:
    """The score interval contains 0, the test rejects it: the end is the least gap that the exact test does not reject.

    The last cluster has no gap, so its sign counts only once a gap other than 0 is tested.
    """
    sizes, wins = (1, 2, 2, 1, 3, 2, 3), (1, 1, 1, 1, 1, 1, 0)

    def p(gap: Fraction) -> Fraction:
        totals = [size * (win - gap) for size, win in zip(sizes, wins, strict=True)]
        sums = [
            abs(sum(sign * total for sign, total in zip(signs, totals, strict=True)))
            for signs in product((-1, 1), repeat=len(sizes))
        ]
        return Fraction(sum(one >= abs(sum(totals)) for one in sums), len(sums))

    tasks = {f"{cluster}-{task}": str(cluster) for cluster, size in enumerate(sizes) for task in range(size)}
    result = paired(
        {task: float(wins[int(cluster)]) for task, cluster in tasks.items()}, dict.fromkeys(tasks, 0.0), tasks
    )
    assert result.p == p(Fraction(0)) == Fraction(2, 64)
    assert result.low == pytest.approx(0.25)
    assert p(Fraction(249, 1000)) < Fraction(1, 20) <= p(Fraction(251, 1000))
