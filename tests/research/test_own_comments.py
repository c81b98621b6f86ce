"""Which of a model's own comments are kept, and a round's figures, worked out by hand."""

from __future__ import annotations

import pytest

from research.own_comments import Judged, chosen, round_figures

FIRST = Judged(0, -2.0, ("a b", "c"), (-1.0, -3.0), (False, True, False), (0,), -1.5)
SECOND = Judged(1, -1.0, ("c",), (-2.0,), (True, False), (), -1.25)


def test_the_best_comments_are_kept_if_they_gain_enough() -> None:
    assert chosen(-2.0, [-1.0, -0.5, -1.9], 0.1, 2) == (1, 0)
    assert chosen(-2.0, [-1.0, -0.5, -1.9], 1.5, 3) == (1,)
    assert chosen(-2.0, [-1.0, -0.5], 1.51, 3) == ()
    assert chosen(-2.0, [-1.0, -1.0], 0.0, 1) == (0,)


def test_figures_by_hand() -> None:
    figures = round_figures([FIRST, SECOND])
    assert figures["states"] == 2
    assert figures["kept_share"] == 0.5
    assert figures["gain_sampled"] == pytest.approx((1 - 1 - 1) / 3)
    assert figures["gain"] == 1.0  # of the kept one: -1 minus -2
    assert figures["gain_swapped"] == 0.5  # -1.5 minus -2; the other state kept none and does not count
    assert (figures["distinct"], figures["words"]) == (1.0, 2.0)
    assert (figures["likeliest_without"], figures["likeliest"]) == (0.5, 1.0)
