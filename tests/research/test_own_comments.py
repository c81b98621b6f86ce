"""Which of a model's own comments are kept, and a round's figures, worked out by hand."""

from __future__ import annotations

import json

import pytest

from research.own_comments import FIELDS, Judged, chosen, elsewhere, judged_from_json, judged_to_json, round_figures

FIRST = Judged(0, -2.0, ("a b", "c"), (-1.0, -3.0), (False, True, False), (0,), -1.5)
SECOND = Judged(1, -1.0, ("c",), (-2.0,), (True, False), (), -1.25)


def test_the_best_comments_are_kept_if_they_gain_enough() -> None:
    assert chosen(-2.0, [-1.0, -0.5, -1.9], 0.1, 2) == (1, 0)
    assert chosen(-2.0, [-1.0, -0.5, -1.9], 1.5, 3) == (1,)
    assert chosen(-2.0, [-1.0, -0.5], 1.51, 3) == ()
    assert chosen(-2.0, [-1.0, -1.0], 0.0, 1) == (0,)


def test_a_comment_goes_to_another_state_than_its_own() -> None:
    assert elsewhere([None, "a", None, "b", "c"]) == ["a", "b", "b", "c", "a"]
    assert elsewhere(["a"]) == [None]


def test_figures_by_hand() -> None:
    figures = round_figures([FIRST, SECOND])
    assert figures["states"] == 2
    assert figures["kept_share"] == 0.5
    assert figures["gain_sampled"] == pytest.approx((1 - 1 - 1) / 3)
    assert figures["gain"] == 1.0  # of the kept one: -1 minus -2
    assert figures["gain_swapped"] == 0.5  # -1.5 minus -2; the other state kept none and does not count
    assert (figures["distinct"], figures["words"]) == (1.0, 2.0)
    assert (figures["likeliest_without"], figures["likeliest"]) == (0.5, 1.0)


def test_nothing_kept_has_no_gain() -> None:
    figures = round_figures([SECOND])
    assert figures["kept_share"] == 0
    assert [figures[name] for name in ("gain", "gain_swapped", "distinct", "words")] == [None] * 4


def test_a_line_is_read_as_it_was_written() -> None:
    assert [judged_from_json(json.loads(json.dumps(judged_to_json(one)))) for one in (FIRST, SECOND)] == [FIRST, SECOND]


@pytest.mark.parametrize("change", [{"kept": [2]}, {"logprobs": ["x", 1]}])
def test_a_line_whose_parts_do_not_fit_is_none(change: dict[str, object]) -> None:
    row = judged_to_json(FIRST) | change
    assert set(FIELDS) <= set(row)
    assert judged_from_json(row) is None
