"""A table of what choices led to, and a policy that is drawn towards it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import pstdev

import pytest
import torch

from reflectkit.errors import ConfigError
from reflectkit.train import state_table
from reflectkit.train.learner import _target_distances
from reflectkit.train.microbatch import Scored
from reflectkit.train.novelty import key
from reflectkit.train.rl_config import RLConfig
from reflectkit.train.state_table import StateTable
from reflectkit.types import (
    ChoiceTarget,
    Decision,
    Message,
    Observation,
    Sample,
    Status,
    Task,
    Trajectory,
    Turn,
)

CHOICES = ("left", "right")


def observation(text: str, choices: tuple[str, ...] = CHOICES) -> Observation:
    return Observation((Message("user", text),), choices)


def episode(*steps: tuple[str, str, float], value: float | None = 0.0) -> Trajectory:
    """An episode of steps (text of the state, choice, reward). value: the critic's, of each state."""
    turns = []
    for text, choice, reward in steps:
        decision = Decision(CHOICES.index(choice), value=value)
        turns.append(Turn(observation(text), decision, reward))
    return Trajectory(Task("t", "e", "l", "g", {}), 1, tuple(turns), Status.COMPLETED, True)


def learned(*updates: Sequence[Trajectory], explores: float = 0.0) -> StateTable:
    table = StateTable(1.0)
    for fresh in updates:
        table.learn(fresh, explores)
    return table


def target(table: StateTable, text: str, step: int = 0) -> ChoiceTarget:
    """The table's policy for the state `text` at `step`."""
    before = [("elsewhere", "left", 0.0)] * step
    found = table.targets(episode(*before, (text, "left", 0.0)))[-1]
    assert found is not None
    return found


def log_odds(found: ChoiceTarget) -> float:
    """Of left to right."""
    left, right = found.probabilities
    return math.log(left / right)


def test_a_choice_is_worth_what_it_led_to_and_the_best_that_followed() -> None:
    """By hand: the hall's right leads to the cellar, where left pays 1 and right nothing."""
    fresh = [
        episode(("hall", "left", 0.25)),
        episode(("hall", "right", -0.125), ("cellar", "left", 1.0)),
        episode(("hall", "right", -0.125), ("cellar", "right", 0.0)),
    ]
    found = target(learned(fresh), "hall")

    # 1. The cellar: each choice was made once, and the prior, 0, counts as a visit
    cellar = 1.0 / 2
    # At its step, the prior counts as five visits
    cellar_then = (1.0 + 5 * cellar) / 6

    # 2. The hall: one visit of left, two of right
    left, right = 0.25 / 2, 2 * (0.99 * cellar - 0.125) / 3
    left_then = (0.25 + 5 * left) / 6
    right_then = (2 * (0.99 * cellar_then - 0.125) + 5 * right) / 7
    returns = [0.25, 0.99 - 0.125, 1.0, -0.125, 0.0]
    temperature = 0.05 * math.sqrt(50 / 53) * pstdev(returns)  # three visits of two choices
    assert log_odds(found) == pytest.approx((left_then - right_then) / temperature)

    # 3. The weight
    assert found.weight == pytest.approx(3 / (3 + 8 * 2))


def test_a_rare_success_outlasts_many_failures_before_it_is_forgotten() -> None:
    """What a policy gradient lacks: later updates do not make the choice again."""
    bad = [episode(("hall", "left", -0.5))] * 20
    table = learned([*bad, episode(("hall", "right", 1.0))], *[bad] * 20)
    assert log_odds(target(table, "hall")) < -3
    assert target(table, "hall").weight > 0.9


def test_what_was_not_tried_is_tried_while_it_explores() -> None:
    fresh = [episode(("hall", "left", 0.5), value=0.5), episode(("hall", "left", 0.0), value=0.5)]
    unit = pstdev([0.5, 0.0])
    # Left has the mean of 0.25 twice and of the prior; right has the prior, and the whole bonus
    mean = (2 * 0.25 + 0.5) / 3
    left = (2 * 0.25 + 5 * mean) / 7
    for explores in (0.0, 0.5, 1.0):
        bonus = explores * unit
        difference = left + bonus / math.sqrt(3) - (0.5 + bonus)
        found = target(learned(fresh, explores=explores), "hall")
        temperature = 0.05 * math.sqrt(50 / 52) * unit
        assert log_odds(found) == pytest.approx(difference / temperature)


@pytest.mark.parametrize(("times", "share"), [(75, 0.5), (5000, 0.1)])
def test_a_state_that_is_met_more_often_has_a_sharper_policy(times: int, share: float) -> None:
    """Rewards of 0.51 and 0.5, and a large one elsewhere that sets the scale; share: of the first temperature."""
    fresh = [episode(("hall", "left", 0.51), value=0.5), episode(("hall", "right", 0.5), value=0.5)] * times
    fresh += [episode(("yard", "left", 1.0)), episode(("yard", "left", 0.0))] * times
    table = learned(fresh)
    unit = pstdev([0.51, 0.5, 1.0, 0.0])
    assert table.scale == pytest.approx(unit)
    # Left has the prior of 0.5 once, then what it is worth at any step five times
    left = (times * 0.51 + 0.5) / (times + 1)
    left_then = (times * 0.51 + 5 * left) / (times + 5)
    assert log_odds(target(table, "hall")) == pytest.approx((left_then - 0.5) / (share * 0.05 * unit), rel=1e-4)


def test_one_text_has_other_values_at_other_steps() -> None:
    """Left pays at once, and costs later; the text does not tell when it is."""
    fresh = []
    for _ in range(50):
        fresh.append(episode(("hall", "left", 1.0)))
        fresh.append(episode(("hall", "right", 0.0)))
        fresh.append(episode(("yard", "left", 0.0), ("hall", "left", -1.0)))
        fresh.append(episode(("yard", "left", 0.0), ("hall", "right", 0.0)))
    table = learned(fresh)
    assert log_odds(target(table, "hall", 0)) > 3
    assert log_odds(target(table, "hall", 1)) < -3


def test_a_better_end_that_is_found_late_is_known_at_the_start() -> None:
    """Three states in a row, each reached before its end was known."""
    start, middle, end = ("start", "right", 0.0), ("middle", "right", 0.0), ("end", "right", 1.0)
    give_up = [episode((name, "left", 0.1)) for name in ("start", "middle", "end")]
    table = learned([*give_up, episode(start, middle), episode(start)], [episode(start, middle, end)] * 3)
    for step, name in enumerate(("start", "middle", "end")):
        assert log_odds(target(table, name, step)) < -3


def test_probabilities_are_in_the_order_of_the_choices() -> None:
    table = learned([episode(("hall", "left", 1.0)), episode(("hall", "right", 0.0))])
    turned = Turn(observation("hall", ("right", "left")), Decision(0), 0.0)
    (found,) = table.targets(replace(episode(("hall", "left", 0.0)), turns=(turned,)))
    assert found is not None
    assert found.probabilities == target(table, "hall").probabilities[::-1]


def test_rewards_of_any_size_have_the_same_policy() -> None:
    def fresh(size: float) -> list[Trajectory]:
        good, bad = episode(("hall", "left", size)), episode(("hall", "right", -size))
        return [good, bad, bad]

    small, large = learned(fresh(1.0)), learned(fresh(300.0))
    assert target(small, "hall").probabilities == pytest.approx(target(large, "hall").probabilities)


def test_equal_returns_leave_the_scale() -> None:
    one, other = episode(("hall", "left", 1.0)), episode(("hall", "right", 0.0))
    assert learned([one, other]).scale == 0.5
    assert learned([one, other], [one, one]).scale == 0.5
    assert learned([one, one]).scale == 0.0


def test_without_a_critic_values_begin_at_returns() -> None:
    fresh = [episode(("hall", "left", 1.0), value=None)]
    assert target(learned(fresh), "hall").probabilities == (0.5, 0.5)


def test_a_discount_counts_what_follows_less() -> None:
    fresh = [
        episode(("hall", "left", 0.75)),
        episode(("hall", "right", 0.0), ("cellar", "left", 1.0)),
    ] * 20
    for gamma, prefers_left in ((1.0, False), (0.5, True)):
        table = StateTable(1.0, gamma)
        table.learn(fresh, 0.0)
        assert (log_odds(target(table, "hall")) > 0) == prefers_left


def test_of_two_ways_to_the_same_end_the_shorter_is_better() -> None:
    """In a game without costs, greedy play went round in circles."""
    end = ("end", "right", 1.0)
    round_about = [episode(("start", "left", 0.0), ("yard", "left", 0.0), ("start", "right", 0.0), end)] * 50
    straight = [episode(("start", "right", 0.0), end)] * 50
    nothing = [episode(("end", "left", 0.0))] * 50
    assert log_odds(target(learned([*round_about, *straight, *nothing]), "start")) < -0.5


def test_a_full_table_takes_the_critics_value_of_a_new_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_table, "MOST_STATES", 2)
    fresh = [
        episode(("hall", "left", 0.0), ("cellar", "left", 0.0), value=0.75),
        episode(("hall", "right", 0.0), value=0.75),
    ]
    table = learned(fresh)
    # The hall, and the hall at the first step
    assert len(table.states) == 2
    assert table.targets(fresh[0])[1] is None
    hall = table.states[key(observation("hall"))]
    assert [outcomes.reward for outcomes in hall.outcomes.values()] == [0.99 * 0.75, 0.0]


def test_it_goes_on_from_a_checkpoint_as_if_it_had_not_stopped() -> None:
    fresh = [
        episode(("hall", "left", 0.1)),
        episode(("hall", "right", 0.2), ("cellar", "left", 0.7)),
    ]
    table, restored = learned(fresh), StateTable(1.0)
    restored.load(json.loads(json.dumps(table.state())))
    for each in (table, restored):
        each.learn(fresh, 0.5)
    assert restored.state() == table.state()
    assert target(restored, "hall") == target(table, "hall")


def test_without_weight_nothing_is_counted() -> None:
    table = StateTable(0.0)
    table.learn([episode(("hall", "left", 1.0))], 1.0)
    assert not table.states


def test_the_gradient_is_the_policy_less_the_target() -> None:
    target_of = {0: ChoiceTarget((0.75, 0.25), 0.5), 1: None, 2: ChoiceTarget((0.0, 0.25, 0.75), 2.0)}
    samples = [
        Sample((1,), (1,), (0,), (0.0,), (0.0,), (0.0,), (), ((1,), (2,)), "g", target=each)
        for each in target_of.values()
    ]
    logits_NK = torch.tensor([[0.5, -1.0, -math.inf], [0.3, 0.1, -math.inf], [1.0, 0.0, -0.5]], requires_grad=True)
    logprobs_NK = logits_NK.log_softmax(-1)
    scored = Scored([0, 1, 2], [0, 0, 0], logprobs_NK[:, 0], logprobs_NK[:, 0], logprobs_NK, logprobs_NK)
    distance_N = _target_distances(samples, scored)
    distance_N.sum().backward()

    policy_NK = logprobs_NK.detach().exp()
    first = 0.75 * math.log(0.75 / policy_NK[0, 0]) + 0.25 * math.log(0.25 / policy_NK[0, 1])
    last = 0.25 * math.log(0.25 / policy_NK[2, 1]) + 0.75 * math.log(0.75 / policy_NK[2, 2])
    assert distance_N.tolist() == pytest.approx([0.5 * first, 0.0, 2 * last])
    target_NK = torch.tensor([[0.75, 0.25, 0.0], [0.0, 0.0, 0.0], [0.0, 0.25, 0.75]])
    expected_NK = torch.tensor([[0.5], [0.0], [2.0]]) * (policy_NK - target_NK)
    assert logits_NK.grad is not None
    torch.testing.assert_close(logits_NK.grad, expected_NK)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"env": "memory", "policy": "p"}, "--table-coef is for choices"),
        (
            {"env": "taxi", "policy": "p", "algo": "none", "reflector": "oracle", "distill_comments": 1.0},
            "--table-coef needs rewards",
        ),
    ],
)
def test_it_needs_choices_and_rewards(settings: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        RLConfig.from_flat(**settings, table_coef=1.0)
