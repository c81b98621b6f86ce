"""Tests of the rating formula."""

from lib.ratings.elo import change, expected, updated


def test_equal_players_share():
    assert expected(1500, 1500) == 0.5


def test_win_and_loss_mirror():
    assert change(1500, 1500, 1.0) == -change(1500, 1500, 0.0)


def test_floor_holds():
    assert updated(601, 600, 0.0) == 600
