"""Intervals and tests against numbers by hand, and a coin's coverage."""

from __future__ import annotations

import csv
import io
import math
import random
from typing import Any

import pytest

from reflectkit.core.stats import bootstrap, paired, pass_all, pass_at, wilson
from reflectkit.stages.comparing import csv_text, differences, row


def test_a_fair_players_interval_covers_the_truth_as_often_as_it_says() -> None:
    chance = random.Random(0)
    truth, tasks, covered = 0.37, 100, 0
    for _ in range(2000):
        low, high = wilson(sum(chance.random() < truth for _ in range(tasks)), tasks)
        covered += low <= truth <= high
    assert 0.93 <= covered / 2000 <= 0.97


def test_the_bootstrap_over_tasks_covers_a_mean() -> None:
    chance = random.Random(1)
    covered = 0
    for _ in range(300):
        values = [chance.betavariate(2, 3) for _ in range(60)]
        low, high = bootstrap(values, draws=400)
        covered += low <= 0.4 <= high
    assert 0.91 <= covered / 300 <= 0.98
    assert bootstrap([1.0, 1.0]) == (1.0, 1.0)
    assert all(map(math.isnan, bootstrap([])))


def test_paired_by_hand() -> None:
    # gaps 1, 1, 1 and 0: of the eight sign patterns two have a sum of at least 3
    found = paired({"a": 1, "b": 1, "c": 1, "d": 0, "e": 1}, {"a": 0, "b": 0, "c": 0, "d": 0, "f": 1})
    assert (found.difference, found.p, found.tasks) == (0.75, 0.25, 4)
    assert paired({"a": 1.0}, {"a": 1.0}).p == 1.0
    assert paired({"a": 1.0}, {"b": 1.0}).tasks == 0


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
