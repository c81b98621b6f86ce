"""Exploration by counting."""

from __future__ import annotations

import math
from statistics import fmean, pstdev

import pytest

from reflectkit.train.advantages import Estimates
from reflectkit.train.novelty import Novelty, key
from reflectkit.types import Decision, Message, Observation, Status, Task, Trajectory, Turn


def observation(text: str, choices: tuple[str, ...] = ("left", "right")) -> Observation:
    return Observation((Message("user", text),), choices)


def episode(*decisions: tuple[str, str]) -> Trajectory:
    """An episode that makes a choice in each state: the text of a state, and the choice."""
    turns = []
    for state, choice in decisions:
        seen = observation(state)
        turns.append(Turn(seen, Decision(seen.choices.index(choice)), 0.0))
    return Trajectory(Task("t", "e", "l", "g", {}), 1, tuple(turns), Status.COMPLETED, True)


HALL, BACK, CELLAR = ("hall", "left"), ("hall", "right"), ("cellar", "left")


def test_a_decision_is_worth_how_rarely_it_and_what_follows_were_made() -> None:
    rows = Novelty(0.5).advantages([episode(HALL, CELLAR, HALL), episode(BACK, CELLAR)])

    # "left" in the hall for the first and the second time, "right" there for the first, and so on
    seldom = 1 / math.sqrt(2)
    sums = [[2 + seldom, 1 + seldom, seldom], [1 + seldom, seldom]]
    every = [value for row in sums for value in row]
    expected = [[(value - fmean(every)) / pstdev(every) for value in row] for row in sums]
    assert rows == [pytest.approx(row) for row in expected]


def test_episodes_of_one_step_have_novelty() -> None:
    """With penalties, a policy of such a game settled on the choice that cost nothing."""
    (seen,), (seen_again,), (new,) = Novelty(1.0).advantages([episode(HALL), episode(HALL), episode(BACK)])
    assert seen == pytest.approx(new)
    assert seen_again < 0 < new


def test_bonuses_shrink_less_than_visits_grow() -> None:
    """The divisor is the geometric mean of the first deviation and the present one."""
    novelty = Novelty(1.0)
    novelty.visits[key(observation("hall"), "left")] = 3
    novelty.advantages([episode(HALL), episode(CELLAR)])
    novelty.visits[key(observation("cellar"), "left")] = 99
    novelty.visits[key(observation("hall"), "left")] = 24
    (old,), (new,) = novelty.advantages([episode(HALL), episode(CELLAR)])

    # Bonuses of 1/√4 and 1, and then of 1/√25 and 1/√100
    first, present = pstdev([0.5, 1.0]), pstdev([0.2, 0.1])
    assert (old, new) == pytest.approx((0.05 / math.sqrt(first * present), -0.05 / math.sqrt(first * present)))


def test_decisions_count_over_updates() -> None:
    novelty = Novelty(1.0)
    for _ in range(3):
        novelty.advantages([episode(HALL, CELLAR)])
    novelty.advantages([episode(BACK, CELLAR)])
    counts = {
        (state, choice): novelty.visits[key(observation(state), choice)] for state, choice in (HALL, BACK, CELLAR)
    }
    assert counts == {HALL: 3, BACK: 1, CELLAR: 4}


def test_other_choices_are_another_state_and_their_order_is_none() -> None:
    up_down, down_up, up = ("up", "down"), ("down", "up"), ("up",)
    assert key(observation("hall", up_down), "up") == key(observation("hall", down_up), "up")
    assert key(observation("hall", up_down), "up") != key(observation("hall", up), "up")
    # A choice is not taken for one more that the state offers
    assert key(observation("hall", up_down), "") != key(observation("hall", up), "down")


def test_it_is_added_to_fresh_episodes_alone() -> None:
    fresh = [episode(HALL, CELLAR), episode(BACK)]
    estimates = Estimates([[0.25, 0.5], [0.75], [1.0]], [[1.0, 1.0], [1.0], [1.0]])
    added = Novelty(1.0).added_to(estimates, fresh, 0.5)

    mean, spread = 4 / 3, pstdev([2.0, 1.0, 1.0])
    new, old = (2 - mean) / spread, (1 - mean) / spread
    assert added.advantages == [
        pytest.approx([0.25 + 0.5 * new, 0.5 + 0.5 * old]),
        pytest.approx([0.75 + 0.5 * old]),
        [1.0],
    ]
    assert added.returns == estimates.returns


def test_without_weight_nothing_is_counted() -> None:
    novelty = Novelty(0.5)
    estimates = Estimates([[0.25, 0.5]], [[1.0, 1.0]])
    assert novelty.added_to(estimates, [episode(HALL, CELLAR)], novelty.weight_at(30, 60)) is estimates
    assert not novelty.visits
