"""Orders of options, means over them, and the numbers of an answer."""

from __future__ import annotations

import pytest

from reflectkit.decisions.questions import Answer, Question
from reflectkit.prompts import LABELS, policy_prompt

COLOURS = Question("choice", "Which colour?", ("red", "green", "blue"))


def test_a_question_stands_after_the_state_and_a_comment() -> None:
    seen = COLOURS.observation("A leaf.", "It is\nsummer.", (2, 0, 1))
    expected = "A leaf.\nReflection: It is summer.\nWhich colour?\nActions:\n 0 blue\n 1 red\n 2 green\nAction:"
    assert policy_prompt(seen) == expected


@pytest.mark.parametrize(
    ("kind", "size", "count", "orders"),
    [
        ("choice", 3, 1, [(0, 1, 2)]),
        ("choice", 3, 64, [(0, 1, 2), (2, 1, 0), (1, 2, 0), (0, 2, 1), (2, 0, 1), (1, 0, 2)]),
        ("predicate", 2, 5, [(0, 1), (1, 0)]),
        ("score", 3, 5, [(0, 1, 2), (2, 1, 0)]),
    ],
)
def test_orders_are_different_and_a_scale_has_two(kind: str, size: int, count: int, orders: list[object]) -> None:
    question = Question(kind, "", tuple(map(str, range(size))))  # type: ignore[arg-type]
    assert sorted(question.orders(count)) == sorted(orders)  # type: ignore[type-var]
    assert question.orders(count)[:1] == orders[:1]


def test_each_of_many_options_comes_to_different_places() -> None:
    question = Question("choice", "", tuple(map(str, range(255))))
    orders = question.orders(8)
    assert [sorted(order) for order in orders] == [list(range(255))] * 8
    assert len({order.index(0) for order in orders}) == 8


def test_confidence_is_0_where_nothing_is_known_and_1_where_all_is() -> None:
    even, sure = Answer((0.25,) * 4), Answer((0.0, 0.0, 1.0, 0.0))
    assert (even.choice_confidence, sure.choice_confidence) == (0.0, 1.0)
    assert (even.score_confidence, sure.score_confidence) == (0.0, 1.0)
    assert (even.mean_level, sure.mean_level) == (1.5, 2.0)
    assert Answer((0.5, 0.3, 0.2)).choice_confidence == pytest.approx((0.5 - 1 / 3) / (2 / 3))
    # mode 0, distance 0.3 + 0.4; even shares are (1 + 0 + 1) / 3 from the middle
    assert Answer((0.5, 0.3, 0.2)).score_confidence == 0.0
    assert Answer((0.8, 0.1, 0.1)).score_confidence == pytest.approx(1 - 0.3 / (2 / 3))


def test_new_labels_are_behind_those_that_policies_have_learned() -> None:
    assert len(set(LABELS)) == len(LABELS) == 255
    assert LABELS[:252] == (*map(str, range(200)), *"abcdefghijklmnopqrstuvwxyz", *"ABCDEFGHIJKLMNOPQRSTUVWXYZ")
