"""Rows and differences of eval.json, and their tables, against figures derived by hand."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from typing import Any

import pytest
import scipy.stats

from reflectkit.evals.aggregate import differences, differences_over_seeds, player_row, player_rows
from reflectkit.evals.rows import EpisodeRow, PlayerRow
from reflectkit.evals.stats import rate_interval
from reflectkit.evals.tables import (
    csv_text,
    differences_table,
    measure_of,
    players_table,
    result_sentence,
    summary_table,
    tables_of,
    tries_table,
)


def episode(
    name: str, task: str, success: bool | None, figures: dict[str, float] | None = None, **more: Any
) -> EpisodeRow:
    facts = {"name": name, "level": "full", "task": task, "cluster": task, "status": "completed", "success": success}
    return EpisodeRow.read(facts | {"return": 1.0, "figures": figures or {}} | more)


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
    means = [player_row([played]).figures["accuracy"].mean for played in (first, second)]
    by_figure = {gap.figure: gap for gap in differences(first + second)}
    assert means == [pytest.approx(0.9), pytest.approx(0.45)]
    assert (by_figure["accuracy"].difference, by_figure["accuracy"].tasks) == (pytest.approx(0.45), 2)
    assert by_figure["success"].difference == 0.5


def question(name: str, number: int, file: str, success: bool) -> EpisodeRow:
    return episode(name, str(number), success, {"accuracy": float(success), "tokens": 40.0 + number}, cluster=file)


def test_rows_and_differences_count_clusters() -> None:
    played = [question("a", number, f"{number // 5}.py", number < 5) for number in range(20)]
    row = player_row([played])
    assert (row.tasks, row.clusters, row.figures["tokens"].mean) == (20, 4, pytest.approx(49.5))
    assert row.success is not None
    assert (row.success.low, row.success.high) == rate_interval([[1.0] * 5] + [[0.0] * 5] * 3, trials=20)
    assert players_table("t", [row]).rows[0][4:7] == ("20", "4", "20")
    won = [question(name, number, f"{number // 5}.py", name == "a") for name in "ab" for number in range(20)]
    (gap,) = [gap for gap in differences(won) if gap.figure == "success"]
    assert (gap.tasks, gap.clusters, gap.p) == (20, 4, 2 / 16)
    assert differences_table([gap], "success").rows[0][-2:] == ("20", "4")


def test_pass_at_has_an_interval_by_cluster() -> None:
    """Four tasks of two files, twice each: pass@1 is the rate; pass@2 of the tasks is 1, 1, 0 and 0."""
    played = [
        question("a", number, f"{number // 2}.py", number < 2 and time == 0) for number in range(4) for time in (0, 1)
    ]
    row = player_row([played])
    assert {k: chance.mean for k, chance in row.pass_at.items()} == {1: 0.25, 2: 0.5}
    assert row.pass_at[2].low == pytest.approx(rate_interval([[1.0, 1.0], [0.0, 0.0]])[0])
    (cells,) = csv.DictReader(io.StringIO(csv_text([row.to_csv()])))
    assert float(cells["pass_at_2_high"]) == row.pass_at[2].high


def test_a_row_survives_a_file() -> None:
    """With all that a row may have: tries, seeds, forecasts and those that gave an answer."""
    forecasts = {"action": [[0.5, 1.0, 0.25, 0.7]]}
    played = [
        episode("a", str(task), task < 3, {"named": float(task % 2), "tokens": 4.0}, forecasts=forecasts)
        for task in range(5)
        for _ in range(2)
    ]
    (row,) = player_rows([played, played])
    assert row.named_episodes
    assert row.calibration
    assert row.by_seed
    assert row.pass_all
    assert PlayerRow.from_json(json.loads(json.dumps(row.to_json()))) == row


def test_seeds_share_the_clusters_of_their_tasks() -> None:
    """Seed 1 played half of seed 0's tasks again, and others about the same files."""
    seeds = [
        [question("a", number, f"{number // 5}.py", number % 2 == 0) for number in numbers]
        for numbers in (range(10), range(5, 15))
    ]
    (row,) = player_rows(seeds)
    assert (row.tasks, row.clusters, row.episodes) == (15, 3, 20)
    assert row.by_seed == (0.5, 0.5)
    assert not row.pass_at


def test_differences_over_seeds_reach_to_the_t_interval_of_seeds() -> None:
    """The same 40 tasks on three seeds, of which a wins 30, 20 and 10 and b none: 0.5, t 4.30265 · 0.25 / √3."""
    seeds = [
        [episode(name, str(task), name == "a" and task < wins, {"tokens": 5.0}) for name in names for task in range(40)]
        for names, wins in (("ab", 30), ("ba", 20), ("ab", 10))
    ]
    gap = next(gap for gap in differences_over_seeds(seeds) if gap.figure == "success")
    assert (gap.low, gap.high) == (pytest.approx(0.5 - 0.621034, abs=1e-4), 1.0)
    assert gap.p == pytest.approx(scipy.stats.ttest_1samp([0.25, 0.5, 0.75], 0).pvalue)
    narrow = differences([episode for seed in seeds for episode in seed])[0]
    assert narrow.low is not None
    assert narrow.low > 0.2
    assert differences_over_seeds(seeds[:1]) == differences(seeds[0])
    apart = [[episode for episode in seeds[0] if episode.name == name] for name in "ab"]  # not seeds, but players
    assert differences_over_seeds(apart) == differences(seeds[0])


def test_a_players_intervals_reach_to_the_t_interval_of_seeds() -> None:
    """Of the same 40 tasks, the seeds win 30, 20 and 10: 0.5, t 4.30265 · 0.25 / √3; returns are four times as much."""
    seeds = [
        [episode("a", str(task), task < wins, {"share": 0.5}, **{"return": 4.0 * (task < wins)}) for task in range(40)]
        for wins in (30, 20, 10)
    ]
    every = [episode for seed in seeds for episode in seed]
    (row,), alone = player_rows(seeds), player_row([every])
    assert row.success is not None
    assert alone.success is not None
    assert alone.success.low is not None
    assert alone.success.low > 0.3
    assert (row.success.low, row.success.high) == (0.0, 1.0)
    assert (row.total_return.low, row.total_return.high) == pytest.approx((2 - 2.484138, 2 + 2.484138))
    assert row.figures["share"] == alone.figures["share"]
    assert [table.title for table in tables_of("t", [row], every)] == ["t", "return", "share"]
    (one,) = player_rows(seeds[:1])
    assert one.total_return.low == pytest.approx(3 - 4 * 0.140257, abs=1e-4)  # t 2.02269 · √(0.1923 / 40)


def test_returns_are_compared_in_their_own_unit() -> None:
    played = [
        episode(name, str(task), True, **{"return": 10.0 * (name == "a") + task}) for name in "ab" for task in range(8)
    ]
    (gap,) = [gap for gap in differences(played) if gap.figure == "return"]
    assert (gap.difference, gap.low, gap.high, gap.p) == (10.0, 10.0, 10.0, 2 / 2**8)
    assert differences_table([gap], "return").rows[0][2:4] == ("+10", "+10 to +10")


def test_the_return_takes_the_place_of_success_where_an_episode_does_not_report_it() -> None:
    played = [
        episode(name, str(task), task % 2 == 0, **{"return": 3.0 * (name == "a") + task})
        for name in "ab"
        for task in range(8)
    ]
    assert measure_of(player_rows([played])) == "success"
    cut_off = [replace(row, status="truncated", success=None) if row.task == "1" else row for row in played]
    assert [row.success and row.success.mean for row in player_rows([cut_off])] == [0.5, 0.5], "it failed"
    profits = [replace(row, success=None) if row.task == "1" else row for row in played]
    rows, compared = player_rows([profits, profits]), differences(profits)
    assert [row.success for row in rows] == [None, None]
    assert measure_of(rows) == "return"
    assert {gap.figure for gap in compared} == {"return"}
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
    row = player_row([played])
    means_at, means_all = ({k: chance.mean for k, chance in by_k.items()} for by_k in (row.pass_at, row.pass_all))
    assert means_at == pytest.approx({1: 3 / 4, 2: (5 / 6 + 1) / 2, 4: 1.0})
    assert means_all == pytest.approx({1: 3 / 4, 2: (1 / 6 + 1) / 2, 4: 1 / 2})
    (table,) = tries_table([row])
    assert table.columns == ("policy", "level", "pass@1", "pass@2", "pass^2", "pass@4", "pass^4")
    assert [cell.split(" ")[0] for cell in table.rows[0][2:]] == ["75", "92", "58", "100", "50"]
