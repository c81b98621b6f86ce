"""Exploration by counting."""

from __future__ import annotations

import math
from statistics import fmean, pstdev

import pytest

from reflectkit.train.advantages import Estimates
from reflectkit.train.novelty import Novelty, state_key
from reflectkit.types import Decision, Message, Observation, Status, Task, Trajectory, Turn


def observation(text: str, choices: tuple[str, ...] = ("left", "right")) -> Observation:
    return Observation((Message("user", text),), choices)


def episode(*states: str) -> Trajectory:
    """An episode that makes a decision in each of `states`."""
    turns = tuple(Turn(observation(state), Decision(0), 0.0) for state in states)
    return Trajectory(Task("t", "e", "l", "g", {}), 1, turns, Status.COMPLETED, True)


def test_a_step_is_worth_what_its_successors_are_new() -> None:
    novelty = Novelty(0.5)
    rows = novelty.advantages([episode("hall", "cellar", "hall"), episode("hall", "cellar")])

    # cellar and hall are reached for the first time, then the cellar for the second
    sums = [[2.0, 1.0, 0.0], [1 / math.sqrt(2), 0.0]]
    every = [value for row in sums for value in row]
    expected = [[(value - fmean(every)) / pstdev(every) for value in row] for row in sums]
    assert rows == [pytest.approx(row) for row in expected]


def test_bonuses_shrink_less_than_visits_grow() -> None:
    """The divisor is the geometric mean of the first deviation and the present one."""
    novelty = Novelty(1.0)
    episodes = [episode("hall", "cellar"), episode("hall")]
    novelty.advantages(episodes)
    novelty.visits[state_key(observation("cellar"))] = 99
    new, *_ = novelty.advantages(episodes)[0]

    first, present = pstdev([1.0, 0.0, 0.0]), pstdev([0.1, 0.0, 0.0])
    assert new == pytest.approx((0.1 - 0.1 / 3) / math.sqrt(first * present))


def test_visits_count_over_updates() -> None:
    novelty = Novelty(1.0)
    for _ in range(3):
        novelty.advantages([episode("hall", "cellar")])
    novelty.advantages([episode("hall", "attic", "cellar")])
    assert novelty.visits == {state_key(observation("cellar")): 4, state_key(observation("attic")): 1}


def test_other_choices_are_another_state_and_their_order_is_none() -> None:
    assert state_key(observation("hall", ("up", "down"))) == state_key(observation("hall", ("down", "up")))
    assert state_key(observation("hall", ("up", "down"))) != state_key(observation("hall", ("up",)))


def test_episodes_of_one_step_have_no_novelty() -> None:
    assert Novelty(1.0).advantages([episode("hall"), episode("cellar")]) == [[0.0], [0.0]]


def test_it_is_added_to_fresh_episodes_alone() -> None:
    fresh = [episode("hall", "cellar"), episode("hall")]
    estimates = Estimates([[0.25, 0.5], [0.75], [1.0]], [[1.0, 1.0], [1.0], [1.0]])
    added = Novelty(1.0).added_to(estimates, fresh, 0.5)

    mean, spread = 1 / 3, pstdev([1.0, 0.0, 0.0])
    new, old = (1 - mean) / spread, -mean / spread
    assert added.advantages == [
        pytest.approx([0.25 + 0.5 * new, 0.5 + 0.5 * old]),
        pytest.approx([0.75 + 0.5 * old]),
        [1.0],
    ]
    assert added.returns == estimates.returns


def test_without_weight_nothing_is_counted() -> None:
    novelty = Novelty(0.5)
    estimates = Estimates([[0.25, 0.5]], [[1.0, 1.0]])
    assert novelty.added_to(estimates, [episode("hall", "cellar")], novelty.weight_at(30, 60)) is estimates
    assert not novelty.visits
