"""Rows and differences of eval.json, and their tables, against figures derived by hand."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest
import scipy.stats

from reflectkit.evals.stats import rate_interval
from reflectkit.evals.tables import (
    csv_text,
    differences,
    differences_over_seeds,
    differences_table,
    measure_of,
    passes_table,
    pooled,
    result_sentence,
    row,
    summary_table,
    table,
    tables_of,
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


def test_a_players_intervals_reach_to_the_t_interval_of_seeds() -> None:
    """Of the same 40 tasks, the seeds win 30, 20 and 10: 0.5, t 4.30265 · 0.25 / √3; returns are four times as much."""
    seeds = [
        [episode("a", str(task), task < wins, {"share": 0.5}, **{"return": 4.0 * (task < wins)}) for task in range(40)]
        for wins in (30, 20, 10)
    ]
    (found,), alone = pooled(seeds), row("a", "", "full", [episode for seed in seeds for episode in seed])
    assert alone["low"] > 0.3
    assert (found["low"], found["high"]) == (0.0, 1.0)
    assert (found["return_low"], found["return_high"]) == pytest.approx((2 - 2.484138, 2 + 2.484138))
    assert found["figures"]["share"] == alone["figures"]["share"]
    tables = tables_of("t", [found], [episode for seed in seeds for episode in seed])
    assert [table.title for table in tables] == ["t", "return", "share"]
    assert pooled(seeds[:1])[0]["return_low"] == pytest.approx(3 - 4 * 0.140257, abs=1e-4)  # t 2.02269 · √(0.1923 / 40)


def test_returns_are_compared_in_their_own_unit() -> None:
    played = [
        episode(name, str(task), True, **{"return": 10.0 * (name == "a") + task}) for name in "ab" for task in range(8)
    ]
    (gap,) = [one for one in differences(played) if one["figure"] == "return"]
    assert (gap["difference"], gap["low"], gap["high"], gap["p"]) == (10.0, 10.0, 10.0, 2 / 2**8)
    assert differences_table([gap], "return").rows[0][2:4] == ("+10", "+10 to +10")


def test_the_return_takes_the_place_of_success_where_an_episode_does_not_report_it() -> None:
    played = [
        episode(name, str(task), task % 2 == 0, **{"return": 3.0 * (name == "a") + task})
        for name in "ab"
        for task in range(8)
    ]
    assert measure_of(pooled([played])) == "success"
    cut_off = [line | {"status": "truncated", "success": None} if line["task"] == "1" else line for line in played]
    assert [row["success"] for row in pooled([cut_off])] == [0.5, 0.5], "it failed"
    profits = [line | {"success": None} if line["task"] == "1" else line for line in played]
    rows, compared = pooled([profits, profits]), differences(profits)
    assert [row["success"] for row in rows] == [None, None]
    assert measure_of(rows) == "return"
    assert {gap["figure"] for gap in compared} == {"return"}
    first = tables_of("T", rows, profits)[0]
    assert first.columns[:4] == ("policy", "level", "return", "95 % interval")
    assert first.rows[0][2] == "6.50"
    assert "success" not in first.columns
    summed = summary_table("T", rows, "return", "eval.md")
    assert [row[:2] for row in summed.rows] == [("a", "6.5"), ("b", "3.5")]
    assert result_sentence("{a} and {b} %", rows, compared, "return").endswith(": a, with a return of 6.5.")


def test_tries_by_hand() -> None:
    """Task x: 2 of 4, task y: 4 of 4. pass@2 of x is 1 - (2 over 2) / (4 over 2) = 5/6, pass^2 is 1/6."""
    played = [episode("a", "x", number < 2) for number in range(4)] + [episode("a", "y", True) for _ in range(4)]
    figures = row("a", "", "one", played)
    assert figures["pass_at"] == pytest.approx({"1": 3 / 4, "2": (5 / 6 + 1) / 2, "4": 1.0})
    assert figures["pass_all"] == pytest.approx({"1": 3 / 4, "2": (1 / 6 + 1) / 2, "4": 1 / 2})
    (table,) = passes_table([figures])
    assert table.columns == ("policy", "level", "pass@1", "pass@2", "pass^2", "pass@4", "pass^4")
    assert [cell.split(" ")[0] for cell in table.rows[0][2:]] == ["75", "92", "58", "100", "50"]
