"""Tests of the weather rules."""

from scheduler.constraints.weather import may_open, must_close


def test_rain_wins():
    assert must_close(0, 10, True, 30) == "rain"


def test_no_history_keeps_shut():
    assert not may_open([])
