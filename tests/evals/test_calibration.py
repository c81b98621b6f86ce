"""Scores of forecasts, by numbers derived by hand, and what a line of episodes.jsonl keeps of them."""

from __future__ import annotations

import math

import pytest

from reflectkit.evals.calibration import (
    COLDEST,
    Forecast,
    calibration_error,
    calibration_row,
    calibration_rows,
    choice_forecast,
    critic_forecasts,
    event_forecast,
    fit_temperature,
    log_scores,
)
from reflectkit.evals.rows import EpisodeRow
from tests.evals.test_tables import episode


def test_an_event_and_a_choice_are_scored() -> None:
    """(1 - 0.8)² = 0.04. Of a choice, 0.5² + 0.3² for what is wrong, and (1 - 0.2)² for what is right: 0.98."""
    event = event_forecast(0.8, True)
    assert (event.hit, event.brier, event.log_score) == (True, pytest.approx(0.04), pytest.approx(-math.log(0.8)))
    assert event_forecast(1.0, False).log_score == pytest.approx(708.4, abs=0.1)  # is not infinite
    choice = choice_forecast((0.5, 0.3, 0.2), [2])
    assert (choice.confidence, choice.hit, choice.brier) == (0.5, False, pytest.approx(0.98))


def test_equally_good_actions_count_as_one() -> None:
    """0.5 + 0.3 are on the two best: (1 - 0.8)² + 0.2² = 0.08, and the log score is -ln 0.8."""
    forecast = choice_forecast((0.5, 0.3, 0.2), [1, 0])
    assert (forecast.hit, forecast.brier) == (True, pytest.approx(0.08))
    assert forecast.log_score == pytest.approx(-math.log(0.8))


def test_the_calibration_error_by_hand() -> None:
    """Three of 0.9, of which one came true: a gap of |1 - 2.7| = 1.7. One of 0.1, false: 0.1. (1.7 + 0.1) / 4 = 0.45.

    Without cluster a, one of 0.9 that came true and one of 0.1: (0.1 + 0.1) / 2 = 0.1; without cluster b, 0.9. The
    jackknife's error is (1/2 · 2 · 0.4²)^½ = 0.4, and t of one degree of freedom is 12.7, so the ends are 0 and 1.
    """
    a = [event_forecast(0.9, False), event_forecast(0.9, False)]
    b = [event_forecast(0.9, True), event_forecast(0.1, False)]
    assert calibration_error([a, b]) == (pytest.approx(0.45), 0.0, 1.0)
    assert calibration_error([[*a, *b]])[1:] == (-math.inf, math.inf)  # one cluster says nothing of others


def test_the_interval_of_many_clusters_is_the_jackknife_s() -> None:
    """Of 0.5 in each of 100 clusters, 80 came true: 0.3. The mean of 100 values with variance 0.16 · 100 / 99 has the
    standard error 0.0402, times t = 1.984.
    """
    error, low, high = calibration_error([[event_forecast(0.5, number < 80)] for number in range(100)])
    assert error == pytest.approx(0.3)
    assert (high - low) / 2 == pytest.approx(1.984 * 0.0402, rel=0.01)


def test_scores_count_clusters_and_bins() -> None:
    row = calibration_row([[event_forecast(0.25, False), event_forecast(0.25, True)], [event_forecast(1.0, True)]])
    assert (row.forecasts, row.clusters, row.hits) == (3, 2, pytest.approx(2 / 3))
    assert row.brier.mean == pytest.approx((0.0625 + 0.5625 + 0) / 3)
    assert [(each.confidence, each.hits, each.forecasts) for each in row.bins] == [(0.25, 0.5, 2), (1, 1, 1)]


def test_tasks_of_one_cluster_are_pooled_and_aborted_episodes_left_out() -> None:
    def row(task: str, status: str = "completed") -> EpisodeRow:
        return episode("a", task, True, status=status, forecasts={"action": [event_forecast(0.5, True).numbers]})

    rows = [row("one"), row("two"), row("three"), row("four", "aborted")]
    action = calibration_rows(rows, {"one": "file", "two": "file", "three": "other"})["action"]
    assert (action.forecasts, action.clusters) == (3, 2)
    assert calibration_rows([episode("a", "one", True)], {}) == {}


def test_a_critic_s_value_is_read_between_the_returns_of_failures_and_successes() -> None:
    """Failures return -1 in the mean, and successes 1: a value of 0.5 is 0.75, one of 0 is 0.5, and one of 3 is cut."""

    def row(task: str, value: float, success: bool, total: float) -> EpisodeRow:
        return episode("a", task, success, first_value=value, **{"return": total})

    rows = [row("a", 0.5, True, 1.0), row("b", 0.0, False, -1.5), row("c", 3.0, False, -0.5)]
    forecasts = critic_forecasts(rows)
    assert [forecasts[task][0].confidence for task in "abc"] == pytest.approx([0.75, 0.5, 0.99])
    assert critic_forecasts(rows[1:]) == {}  # nothing succeeded
    assert calibration_rows(rows, {})["success, by the critic"].forecasts == 3


def test_numbers_of_a_forecast_survive_a_file() -> None:
    forecast = event_forecast(0.25, True)
    assert Forecast.read(forecast.numbers) == Forecast(0.25, True, 0.5625, pytest.approx(1.386294))


def test_the_temperature_makes_probabilities_fit() -> None:
    """Of 0.9, three in four come true: ln 9 / T = ln 3, so T = 2. What always comes true has no hottest best."""
    rows = [((0.9, 0.1), [0])] * 3 + [((0.9, 0.1), [1])]
    assert fit_temperature(rows) == pytest.approx(2.0, abs=1e-3)
    assert sum(log_scores(rows, 2.0)) == pytest.approx(-3 * math.log(0.75) - math.log(0.25))
    assert fit_temperature(rows[:3]) == pytest.approx(COLDEST)
