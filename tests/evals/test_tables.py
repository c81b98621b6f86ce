"""Rows and differences of eval.json, and their tables, against figures derived by hand."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest
import scipy.stats

from reflectkit.evals.stats import rate_interval
from reflectkit.evals.tables import (
    ablations_table,
    csv_text,
    differences,
    differences_over_seeds,
    differences_table,
    figures_of,
    passes_table,
    pooled,
    ranges_of,
    result_sentence,
    row,
    summary_table,
    table,
)


def episode(
    name: str, task: str, success: bool, figures: dict[str, float] | None = None, **more: Any
) -> dict[str, Any]:
    facts = {"name": name, "level": "full", "task": task, "cluster": task, "status": "completed", "success": success}
    return facts | {"return": 1.0, "figures": figures or {}} | more


@pytest.mark.parametrize(("players", "has_them"), [(5, False), (6, True)])
def test_tables_of_more_than_ten_comparisons_adjust_their_p(players: int, has_them: bool) -> None:
    """Five players are ten pairs, six are fifteen."""
    names = [f"p{number}" for number in range(players)]
    played = [episode(name, str(task), task < 4 * n, {}) for n, name in enumerate(names) for task in range(20)]
    shown = differences_table(differences(played), "success")
    headings = [name for name in shown.columns if name.startswith("p, adjusted")]
    assert bool(headings) == has_them
    if has_them:
        p, after = ([float(cells[shown.columns.index(name)]) for cells in shown.rows] for name in ("p", headings[0]))
        assert after == pytest.approx(list(scipy.stats.false_discovery_control(p)), rel=0.02)


def test_paired_differences_are_those_of_the_rows() -> None:
    """What was cut off before it told its accuracy counts 0 in both: 0.9 and 0.9, less 0.9 and 0."""
    first = [episode("a", "1", True, {"accuracy": 0.9}), episode("a", "2", True, {"accuracy": 0.9})]
    second = [episode("b", "1", True, {"accuracy": 0.9}), episode("b", "2", False, {})]
    means = [row("x", "env", "full", played)["figures"]["accuracy"]["mean"] for played in (first, second)]
    found = {one["figure"]: one for one in differences(first + second)}
    assert means == [pytest.approx(0.9), pytest.approx(0.45)]
    assert (found["accuracy"]["difference"], found["accuracy"]["tasks"]) == (pytest.approx(0.45), 2)
    assert found["success"]["difference"] == 0.5


def test_players_without_a_task_in_common_are_not_compared() -> None:
    aborted = {"status": "aborted"}
    played = [episode("a", "1", True, {}), episode("a", "2", True, {}) | aborted]
    played += [episode("b", "1", True, {}) | aborted, episode("b", "2", True, {})]
    assert differences(played) == []
    assert [one["tasks"] for one in differences([*played, episode("b", "1", True, {})])] == [1]


def question(name: str, number: int, file: str, success: bool) -> dict[str, Any]:
    return episode(name, str(number), success, {"accuracy": float(success), "tokens": 40.0 + number}, cluster=file)


def test_rows_and_differences_count_clusters() -> None:
    played = [question("a", number, f"{number // 5}.py", number < 5) for number in range(20)]
    found = row("a", "auto_explore", "full", played)
    assert (found["tasks"], found["clusters"], found["figures"]["tokens"]["mean"]) == (20, 4, pytest.approx(49.5))
    assert (found["low"], found["high"]) == rate_interval([[1.0] * 5] + [[0.0] * 5] * 3, trials=20)
    assert table("t", [found]).rows[0][4:7] == ("20", "4", "20")
    won = [question(name, number, f"{number // 5}.py", name == "a") for name in "ab" for number in range(20)]
    (gap,) = [one for one in differences(won) if one["figure"] == "success"]
    assert (gap["tasks"], gap["clusters"], gap["p"]) == (20, 4, 2 / 16)
    assert differences_table([gap], "success").rows[0][-2:] == ("20", "4")


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


def test_a_figure_is_a_share_if_each_episode_has_one() -> None:
    """Two tries of each task, 0 and 2 tokens: the means are 1, the values no shares."""
    played = [{"task": str(task), "figures": {"tokens": float(tokens)}} for task in range(6) for tokens in (0, 2)]
    assert figures_of(played, {}, ranges_of(played))["tokens"] == {"mean": 1.0, "low": 1.0, "high": 1.0}
    shares = [one | {"figures": {"share": 1.0}} for one in played]
    assert figures_of(shares, {}, ranges_of(shares))["share"]["low"] < 0.8


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


def test_tries_by_hand() -> None:
    """Task x: 2 of 4, task y: 4 of 4. pass@2 of x is 1 - (2 over 2) / (4 over 2) = 5/6, pass^2 is 1/6."""
    played = [episode("a", "x", number < 2) for number in range(4)] + [episode("a", "y", True) for _ in range(4)]
    figures = row("a", "", "one", played)
    assert figures["pass_at"] == pytest.approx({"1": 3 / 4, "2": (5 / 6 + 1) / 2, "4": 1.0})
    assert figures["pass_all"] == pytest.approx({"1": 3 / 4, "2": (1 / 6 + 1) / 2, "4": 1 / 2})
    (table,) = passes_table([figures])
    assert table.columns == ("policy", "level", "pass@1", "pass@2", "pass^2", "pass@4", "pass^4")
    assert [cell.split(" ")[0] for cell in table.rows[0][2:]] == ["75", "92", "58", "100", "50"]


def test_an_aborted_try_costs_its_problem_only_the_k_that_it_lacks() -> None:
    """Task x: 1 of 3 and an abort, task y: 4 of 4. pass@2 of x is 1 - (2 over 2) / (3 over 2) = 2/3, pass^2 is 0."""
    played = [episode("a", "x", number < 1) for number in range(3)] + [episode("a", "y", True) for _ in range(4)]
    figures = row("a", "", "one", [*played, episode("a", "x", False, status="aborted")])
    assert figures["pass_at"] == pytest.approx({"1": (1 / 3 + 1) / 2, "2": (2 / 3 + 1) / 2, "4": 1.0})
    assert figures["pass_all"] == pytest.approx({"1": (1 / 3 + 1) / 2, "2": (0 + 1) / 2, "4": 1.0})


def test_tries_of_two_seeds_are_not_one_models() -> None:
    """A task that one seed's model always solves and the other's never: pass@2 is 1/2, as is pass^2."""
    parts = [
        [episode("a", "x", success) for _ in range(2)] + [episode("a", "y", True)] * 2 for success in (True, False)
    ]
    (figures,) = pooled(parts)
    assert figures["pass_at"]["2"] == figures["pass_all"]["2"] == pytest.approx((1 / 2 + 1) / 2)
    assert figures["by_seed"] == [1.0, 0.5]


def test_the_ending_of_a_recipe_says_what_the_figures_show() -> None:
    """And of neighbours in its sentence whether they may differ by chance: an interval that includes 0."""
    shares = {"random": 0.0, "SFT": 0.354, "RL": 0.74, "both": 0.885}
    common = {"level": "all", "low": 0.1, "high": 0.9, "tasks": 12, "episodes": 96, "figures": {}}
    rows = [common | {"name": name, "success": share} for name, share in shares.items()]
    compared = [
        {"level": "all", "figure": "success", "first": first, "second": second, "low": low, "high": high}
        for first, second, low, high in (("SFT", "RL", -0.6, -0.2), ("RL", "both", -0.4, 0.2))
    ]
    told = result_sentence("From {SFT} to {RL} %; then {both} %.", rows, compared, "success")
    assert told == "From 35 to 74 %; then 88 %. The difference between RL and both may be chance."
    told = result_sentence("From {SFT} to {other} %.", rows, compared, "success")
    assert told == "The best of 4 players: both, with 88 %."
    many = [common | {"name": str(number), "success": 0.5} for number in range(7)]
    shown = summary_table("Held out", [*rows, *many], "success", "eval.md")
    assert [cells[0] for cells in shown.rows] == ["2", "3", "4", "5", "6"]
    assert "all 11 rows are in eval.md" in shown.title
    assert shown.rows[0][1:] == ("50 %", "10 to 90 %")
