"""Intervals and tests of clustered tasks against numbers by hand, and their coverage."""

from __future__ import annotations

import csv
import io
import math
import random
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
import scipy.stats

from reflectkit.evals.seeds import seed_differences, seed_differences_table
from reflectkit.evals.stats import (
    adjusted,
    amount_interval,
    by_cluster,
    flips,
    mean_interval,
    mean_p,
    paired,
    pass_all,
    pass_at,
    rate_interval,
)
from reflectkit.evals.tables import (
    ablations_table,
    csv_text,
    differences,
    differences_over_seeds,
    differences_table,
    figures_of,
    figures_tables,
    pooled,
    ranges_of,
    row,
    table,
)
from research.effects import Effect


def test_equal_outcomes_are_worth_one_task_a_cluster() -> None:
    """Nothing in them speaks against correlation 1: n = (Σ sizes)² / Σ sizes².

    20 clusters of one: n = 20; of four tasks: 20 as well; sizes 1 to 4: n = 10² / 30. Student's t with C - 1 degrees of
    freedom (2.0930 for 20, 3.1824 for 4, from tables) makes it n (1.9600 / t)². Jeffreys: the 97.5 % point of Beta(1/2,
    n + 1/2).
    """
    alone, fours = rate_interval([[0.0]] * 20), rate_interval([[0.0] * 4] * 20)
    assert alone == fours
    assert alone[0] == 0.0
    assert 1 - beta_above(alone[1], 0.5, 20 * (1.95996 / 2.09302) ** 2 + 0.5) == pytest.approx(0.975, abs=1e-4)
    low, high = rate_interval([[1.0] * size for size in (1, 2, 3, 4)])
    assert high == 1.0
    assert 1 - beta_above(1 - low, 0.5, 100 / 30 * (1.95996 / 3.18245) ** 2 + 0.5) == pytest.approx(0.975, abs=1e-4)


@pytest.mark.parametrize("clusters", range(2, 40))
def test_equal_outcomes_divide_nothing_by_zero(clusters: int) -> None:
    """Of 18 clusters, the weight of the prior was minus that of the data."""
    with np.errstate(divide="raise", invalid="raise"):
        low, high = rate_interval([[0.3]] * clusters)
        found = paired({str(n): 1.0 for n in range(clusters)}, {str(n): 0.7 for n in range(clusters)}, draws=50)
    assert low < 0.3 < high
    assert found.low < found.high


def beta_above(limit: float, a: float, b: float, steps: int = 200_000) -> float:
    """The mass of Beta(a, b) above `limit`, by the midpoint rule."""
    scale = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)) * (1 - limit) / steps
    places = (limit + (1 - limit) * (step + 0.5) / steps for step in range(steps))
    return scale * math.fsum(place ** (a - 1) * (1 - place) ** (b - 1) for place in places)


def test_clusters_that_succeed_as_one_count_as_one() -> None:
    """Half of 20 clusters: the design effect is ten times that of single tasks, and known well (kurtosis 1)."""
    one_each = rate_interval([[float(n % 2)] for n in range(20)])
    ten_each = rate_interval([[float(n % 2)] * 10 for n in range(20)])
    assert ten_each == pytest.approx(one_each, abs=1e-6)
    mixed = rate_interval([[0.0, 1.0] * 5 for _ in range(20)], trials=200)
    assert mixed[1] - mixed[0] < 0.65 * (ten_each[1] - ten_each[0])


def test_one_file_of_ten_questions_is_not_ten_successes() -> None:
    """10 of 96 questions, all about one of ten files: the interval of independent questions was 6 to 18 %."""
    low, high = rate_interval([[1.0] * 10] + [[0.0] * 10] * 4 + [[0.0] * 9] * 4 + [[0.0] * 10], trials=96)
    assert low < 0.02
    assert high > 0.32


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


def test_the_p_of_a_mean_is_students() -> None:
    values = [0.3, -0.1, 0.4, 0.2]
    assert mean_p([[value] for value in values]) == pytest.approx(scipy.stats.ttest_1samp(values, 0).pvalue)
    assert [mean_p([[value]] * 3) for value in (0.0, 2.0)] == [1.0, 0.0]
    assert mean_p([[2.0]]) == 1.0


def test_adjusted_p_values_are_scipys() -> None:
    chance = random.Random(0)
    for count in (1, 2, 11, 40):
        p_values = [round(chance.random() ** 3, 2) for _ in range(count)]  # with ties
        assert adjusted(p_values) == pytest.approx(scipy.stats.false_discovery_control(p_values))
    assert adjusted([]) == []


@pytest.mark.parametrize(("players", "has_them"), [(5, False), (6, True)])
def test_tables_of_more_than_ten_comparisons_adjust_their_p(players: int, has_them: bool) -> None:
    """Five players are ten pairs, six are fifteen."""
    names = [f"p{number}" for number in range(players)]
    played = [episode(name, str(task), task < 4 * n, {}) for n, name in enumerate(names) for task in range(20)]
    for shown in (
        differences_table(differences(played), "success"),
        seed_differences_table(seed_differences({"": [played] * 3})),
    ):
        headings = [name for name in shown.columns if name.startswith("p, adjusted")]
        assert bool(headings) == has_them
        if has_them:
            p, after = (
                [float(cells[shown.columns.index(name)]) for cells in shown.rows] for name in ("p", headings[0])
            )
            assert after == pytest.approx(list(scipy.stats.false_discovery_control(p)), rel=0.02)


@pytest.mark.parametrize("unit", [1e-20, 1.0, 1e90])
def test_p_does_not_depend_on_the_unit(unit: float) -> None:
    """Eight clusters that all gain: 2 of the 256 sign patterns are as extreme."""
    first = {f"t{i}": (3 + i / 10) * unit for i in range(8)}
    result = paired(first, dict.fromkeys(first, unit), shares=False)
    assert result.p == 2 / 256
    assert result.low > 0


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


def test_coverage_of_few_clusters_near_1() -> None:
    """The cell of the percentile bootstrap that was seen to fail: 20 tasks, p = .05 and 1.00 against .95."""
    chance, covered, apart = random.Random(3), 0, 0
    for _ in range(150):
        wins = [float(chance.random() < 0.95) for _ in range(20)]
        low, high = rate_interval([[one] for one in wins], trials=20)
        covered += low <= 0.95 <= high
        found = paired({str(n): 1.0 for n in range(20)}, {str(n): one for n, one in enumerate(wins)})
        apart += found.low <= 0.05 <= found.high
        assert found.high - found.low > 0.1
    assert covered / 150 >= 0.93
    assert apart / 150 >= 0.93


def test_by_cluster_takes_a_task_without_one_for_its_own() -> None:
    assert by_cluster({"a": 1.0, "b": 0.0, "c": 0.5}, {"a": "x", "c": "x"}) == [[1.0, 0.5], [0.0]]
    assert by_cluster({"a": 1.0, "b": 0.0}, {"a": "b"}) == [[1.0], [0.0]], "a cluster that is named as a task"


def test_paired_by_hand() -> None:
    # gaps 1, 1, 1 and 0: of the eight sign patterns two have a sum of at least 3
    found = paired({"a": 1, "b": 1, "c": 1, "d": 0, "e": 1}, {"a": 0, "b": 0, "c": 0, "d": 0, "f": 1})
    assert (found.difference, found.p, found.tasks) == (0.75, 0.25, 4)
    assert paired({"a": 1.0}, {"a": 1.0}).p == 1.0
    assert paired({"a": 1.0}, {"b": 1.0}).tasks == 0


def test_single_tasks_have_scipys_test_and_interval() -> None:
    """scipy has no test or interval for clusters; where every cluster is one task, its figures are ours."""
    gaps = [2.5, -1.0, 4.0, 0.5, 3.0, -0.25, 1.75, 2.0]
    played = paired({str(n): gap for n, gap in enumerate(gaps)}, dict.fromkeys(map(str, range(8)), 0.0), shares=False)
    flipped = scipy.stats.permutation_test((gaps,), np.mean, permutation_type="samples")
    assert played.p == pytest.approx(flipped.pvalue, abs=1e-12)
    interval = scipy.stats.ttest_1samp(gaps, 0).confidence_interval()
    assert mean_interval([[gap] for gap in gaps]) == pytest.approx((interval.low, interval.high), abs=1e-12)


def test_a_sampled_test_is_near_the_exact_one() -> None:
    # 16 tasks, 13 won and 3 lost: two-sided sign test 2 (1 + 16 + 120 + 560) / 65536
    first = {str(n): float(n < 13) for n in range(16)}
    second = {str(n): float(n >= 13) for n in range(16)}
    assert paired(first, second, draws=20_000).p == pytest.approx(2 * 697 / 65536, abs=0.003)


def test_pass_at_and_pass_all_by_hand() -> None:
    assert pass_at(2, 1, 4) == pytest.approx(1 - 3 / 6)
    assert pass_all(2, 3, 4) == pytest.approx(3 / 6)
    assert (pass_at(1, 3, 4), pass_all(1, 3, 4)) == (0.75, 0.75)
    assert (pass_at(4, 0, 4), pass_all(4, 4, 4)) == (0.0, 1.0)
    for k in (0, 5):
        with pytest.raises(ValueError, match="k must lie"):
            pass_at(k, 1, 4)


def episode(name: str, task: str, success: bool, figures: dict[str, float]) -> dict[str, Any]:
    facts = {"name": name, "level": "full", "task": task, "status": "completed", "success": success, "return": 1.0}
    return facts | {"figures": figures}


def test_paired_differences_are_those_of_the_rows() -> None:
    """What was cut off before it told its accuracy counts 0 in both: 0.9 and 0.9, less 0.9 and 0."""
    first = [episode("a", "1", True, {"accuracy": 0.9}), episode("a", "2", True, {"accuracy": 0.9})]
    second = [episode("b", "1", True, {"accuracy": 0.9}), episode("b", "2", False, {})]
    means = [row("x", "env", "full", played)["figures"]["accuracy"]["mean"] for played in (first, second)]
    found = {one["figure"]: one for one in differences(first + second)}
    assert means == [pytest.approx(0.9), pytest.approx(0.45)]
    assert (found["accuracy"]["difference"], found["accuracy"]["tasks"]) == (pytest.approx(0.45), 2)
    assert found["success"]["difference"] == 0.5


def test_an_envs_own_figures_take_no_place_of_ours() -> None:
    own = {"success": 7.0, "return": 3.0}
    played = [episode("a", "1", True, own), episode("b", "1", False, own)]
    (found,) = [one for one in differences(played) if one["figure"] == "success"]
    assert found["difference"] == 1.0
    (cells,) = csv.DictReader(io.StringIO(csv_text([row("a", "env", "full", played[:1])])))
    assert [cells[name] for name in ("success", "return", "env_success", "env_return")] == ["1.0", "1.0", "7.0", "3.0"]


def test_players_without_a_task_in_common_are_not_compared() -> None:
    aborted = {"status": "aborted"}
    played = [episode("a", "1", True, {}), episode("a", "2", True, {}) | aborted]
    played += [episode("b", "1", True, {}) | aborted, episode("b", "2", True, {})]
    assert differences(played) == []
    assert [one["tasks"] for one in differences([*played, episode("b", "1", True, {})])] == [1]


def question(name: str, number: int, file: str, success: bool) -> dict[str, Any]:
    """A line as earlier versions wrote it, without a cluster."""
    facts = {"env": "auto_explore", "data": {"root": "shop", "filename": file}, "group": "shop"}
    return episode(name, str(number), success, {"accuracy": float(success), "tokens": 40.0 + number}) | facts


def test_a_row_counts_clusters_also_of_episodes_that_name_none() -> None:
    old = [question("a", number, f"{number // 5}.py", number < 5) for number in range(20)]
    new = [one | {"cluster": f"shop/{one['data']['filename']}"} for one in old]
    found = row("a", "auto_explore", "full", old)
    assert found == row("a", "auto_explore", "full", new)
    assert (found["tasks"], found["clusters"]) == (20, 4)
    assert (found["low"], found["high"]) == rate_interval([[1.0] * 5] + [[0.0] * 5] * 3, trials=20)
    own = [one | {"env": "mine"} for one in old]
    assert row("a", "mine", "full", own)["clusters"] == 20, "an env that is not ours: each task by itself"
    figures = found["figures"]
    assert (figures["accuracy"]["low"], figures["accuracy"]["high"]) == pytest.approx((found["low"], found["high"]))
    assert figures["tokens"]["mean"] == pytest.approx(49.5)
    assert 4 in [int(cell) for cell in table("t", [found]).rows[0] if cell.isdigit()]
    assert {one.columns[-1] for one in figures_tables([found])} == {"clusters"}


def test_differences_count_clusters() -> None:
    played = [question(name, number, f"{number // 5}.py", name == "a") for name in "ab" for number in range(20)]
    (found,) = [one for one in differences(played) if one["figure"] == "success"]
    assert (found["tasks"], found["clusters"], found["p"]) == (20, 4, 2 / 16)
    assert found["low"] <= 0
    shown = differences_table([found], "success")
    assert shown.columns[-1] == "clusters"
    assert shown.rows[0][-2:] == ("20", "4")


def test_one_cluster_leaves_no_infinity_in_json() -> None:
    played = [question(name, number, "one.py", True) for name in "ab" for number in range(3)]
    assert row("a", "auto_explore", "full", played[:3])["figures"]["tokens"]["low"] is None
    assert {one["low"] for one in differences(played) if one["figure"] == "tokens"} == {None}
    assert "unknown" in str(figures_tables([row("a", "auto_explore", "full", played[:3])])[1].rows)


def test_pass_at_has_an_interval_by_cluster() -> None:
    """Four tasks of two files, twice each: pass@1 is the rate; pass@2 of the tasks is 1, 1, 0 and 0."""
    played = [
        question("a", number, f"{number // 2}.py", number < 2 and time == 0) for number in range(4) for time in (0, 1)
    ]
    found = row("a", "auto_explore", "full", played)
    assert found["pass_at"] == {"1": 0.25, "2": 0.5}
    assert found["pass_at_low"]["2"] == pytest.approx(rate_interval([[1.0, 1.0], [0.0, 0.0]])[0])
    (cells,) = csv.DictReader(io.StringIO(csv_text([found])))
    assert float(cells["pass_at_2_high"]) == found["pass_at_high"]["2"]


def test_seeds_share_the_clusters_of_their_tasks() -> None:
    """Seed 1 played half of seed 0's tasks again, and others about the same files."""
    seeds = [
        [question("a", number, f"{number // 5}.py", number % 2 == 0) for number in numbers]
        for numbers in (range(10), range(5, 15))
    ]
    (found,) = pooled(seeds)
    assert (found["tasks"], found["clusters"], found["episodes"]) == (15, 3, 20)
    assert found["by_seed"] == [0.5, 0.5]
    assert "pass_at" not in found


def test_differences_over_seeds_reach_to_the_t_interval_of_seeds() -> None:
    """The same 40 tasks on three seeds, of which a wins 30, 20 and 10 and b none: 0.5, t 4.30265 · 0.25 / √3."""
    seeds = [
        [episode(name, str(task), name == "a" and task < wins, {"tokens": 5.0}) for name in names for task in range(40)]
        for names, wins in (("ab", 30), ("ba", 20), ("ab", 10))
    ]
    one = next(one for one in differences_over_seeds(seeds) if one["figure"] == "success")
    assert (one["low"], one["high"]) == (pytest.approx(0.5 - 0.621034, abs=1e-4), 1.0)
    assert one["p"] == pytest.approx(scipy.stats.ttest_1samp([0.25, 0.5, 0.75], 0).pvalue)
    narrow = next(one for one in differences([episode for seed in seeds for episode in seed]))
    assert narrow["low"] > 0.2
    assert differences_over_seeds(seeds[:1]) == differences(seeds[0])
    apart = [[one for one in seeds[0] if one["name"] == name] for name in "ab"]  # not seeds, but players
    assert differences_over_seeds(apart) == differences(seeds[0])


def test_many_clusters_and_large_values() -> None:
    """A sign is a byte; 0.1 % of 5,000 tasks differ in each direction, and squares of 1e200 are not taken."""
    signs_DC, every = flips(np.ones(5000), 4000)
    assert (signs_DC.nbytes, every) == (5000 * 4000, False)
    first = {str(n): float(n < 5) for n in range(5000)}
    second = {str(n): float(5 <= n < 10) for n in range(5000)}
    assert paired(first, second).p == 1.0
    low, high = mean_interval([[1e200], [3e200]])
    assert (low, high) == pytest.approx((2e200 - 12.7062e200, 2e200 + 12.7062e200), rel=1e-5)


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


def test_a_figure_is_a_share_if_each_episode_has_one() -> None:
    """Two tries of each task, 0 and 2 tokens: the means are 1, the values no shares."""
    played = [{"task": str(task), "figures": {"tokens": float(tokens)}} for task in range(6) for tokens in (0, 2)]
    assert figures_of(played, {}, ranges_of(played))["tokens"] == {"mean": 1.0, "low": 1.0, "high": 1.0}
    shares = [one | {"figures": {"share": 1.0}} for one in played]
    assert figures_of(shares, {}, ranges_of(shares))["share"]["low"] < 0.8


def test_rounding_decides_no_verdict() -> None:
    """0.1 + 0.2 - 0.3 is not 0; an end of exactly 0 is neither above nor below it."""
    noise = 100 * (0.1 + 0.2 - 0.3)
    for low, high, word in (
        (noise, 10.0, "unclear"),
        (-10.0, -noise, "unclear"),
        (0.01, 10.0, "helps"),
        (noise, 3.0 + noise, "equivalent"),
        (1.0, 3.0 + noise, "helps, by less than 3 points"),
        (-10.0, -0.01, "harms"),
    ):
        assert Effect("T", "a", "b", "success", "full", low, low, high, 3, 9).word == word


def test_seeds_of_one_difference_have_the_interval_over_tasks() -> None:
    """Each task is won in 1 of 3 tries more: the bootstrap has no spread but the rounding of thirds."""
    files = "".join(str(size) * size for size in range(1, 8))
    seeds = [
        [
            question(name, 100 * seed + number, file, name == "a" and turn == 0)
            for name in "ab"
            for number, file in enumerate(files)
            for turn in range(3)
        ]
        for seed in range(6)
    ]
    (found,) = seed_differences({"": seeds})
    assert found["difference"] == pytest.approx(1 / 3)
    assert found["high"] - found["low"] > 0.05


def test_no_figure_takes_the_end_of_anothers_interval() -> None:
    played = [episode("a", str(task), True, {"floors": 2.0, "floors_low": 7.0}) for task in range(3)]
    (cells,) = csv.DictReader(io.StringIO(csv_text([row("a", "env", "full", played)])))
    assert (cells["env_floors"], cells["env_floors_low"], cells["floors_low"]) == ("2.0", "2.0", "7.0")


def test_a_level_without_the_measure_is_not_compared_by_it() -> None:
    lows = [[episode(name, task, False, {"lows": 0.5}) for name in "ab" for task in "12"] for _ in range(2)]
    highs = [[one | {"level": "high", "figures": {}} for one in part] for part in lows]
    parts = [low + high for low, high in zip(lows, highs, strict=True)]
    assert {one["level"] for one in seed_differences({"": parts}, "lows")} == {"full"}
    assert {one["level"] for one in seed_differences({"": parts})} == {"full", "high"}


def test_ablations_are_compared_by_what_their_recipe_measures() -> None:
    """By success an ablation of memory's rewards showed the share of problems with every answer right."""
    played = [
        episode(name, task, False, {"accuracy": value}) for name, value in (("a", 0.75), ("b", 0.25)) for task in "12"
    ]
    effects = [{"ablation": "no r3"} | one for one in differences(played)]
    table_of = ablations_table(effects, "evaluation", "accuracy")
    assert table_of.title.startswith("Ablations, evaluation: original arm minus ablation in accuracy, in points")
    assert [row[:3] for row in table_of.rows] == [("no r3", "full", "+50.0")]
    assert [row[2] for row in ablations_table(effects, "evaluation").rows] == ["+0.0"]
