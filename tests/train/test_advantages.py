"""Returns, advantages and losses against numbers derived by hand, and gradients against finite differences."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from reflectkit.models.scoring import entropy
from reflectkit.train.advantages import (
    deviation,
    generalised_advantages,
    group_relative,
    leave_one_out,
    returns_to_go,
    shrunk_values,
)
from reflectkit.train.losses import TrainedTokens, clipped_loss, kl_estimate, mismatch, value_loss, weighted_loss
from reflectkit.types import Decision, Message, Observation, Status, Task, Trajectory, Turn
from tests.train.training import objective, tokens_of


def test_returns_by_hand() -> None:
    # 0.9: 1 + 0.9 (0 + 0.9 * 10) = 9.1;  0 + 0.9 * 10 = 9;  10
    assert returns_to_go([1, 0, 10], 0.9) == pytest.approx([9.1, 9.0, 10.0])
    assert returns_to_go([1, 0, 10], 1.0) == [11, 10, 10]
    assert returns_to_go([1, 0, 10], 0.0) == [1, 0, 10]
    assert returns_to_go([], 1.0) == []


def test_generalised_advantages_by_hand() -> None:
    # gamma 0.5, values 2, 1, 4: deltas 1 + 0.5 - 2 = -0.5;  0 + 2 - 1 = 1;  10 - 4 = 6
    # lambda 0.5, so gamma * lambda = 0.25: 6;  1 + 0.25 * 6 = 2.5;  -0.5 + 0.25 * 2.5 = 0.125
    assert generalised_advantages([1, 0, 10], [2, 1, 4], 0.5, 0.5) == pytest.approx([0.125, 2.5, 6])
    # lambda 1 is the return less the value: G = 1 + 0.5 * 5 = 3.5;  5;  10
    assert generalised_advantages([1, 0, 10], [2, 1, 4], 0.5, 1.0) == pytest.approx([1.5, 4, 6])


def test_leave_one_out_by_hand() -> None:
    # first steps 1, 2, 6: others' means 4, 3.5, 1.5; second steps 1, (ended: 0), 5: others' means 2.5 and 0.5
    assert leave_one_out([[1, 1], [2], [6, 5]], "aaa") == [[-3, -1.5], [-1.5], [4.5, 4.5]]
    assert leave_one_out([[3.0, 1.0]], ["alone"]) == [[0.0, 0.0]]


def test_group_relative_by_hand() -> None:
    # a: 1, 3 have mean 2 and sample deviation sqrt(2); b has no spread; c is alone
    advantages, flat = group_relative([1, 5, 3, 5, 7], ["a", "b", "a", "b", "c"], scale=True)
    assert advantages == pytest.approx([-1 / math.sqrt(2), 0, 1 / math.sqrt(2), 0, 0])
    assert flat == {"b", "c"}
    assert group_relative([1, 5, 3, 5], ["a", "b", "a", "b"], scale=False)[0] == [-1, 0, 1, 0]


def test_equal_scores_have_no_spread_at_any_size() -> None:
    """The mean of several equal numbers may be rounded to their neighbour."""
    value = 0.824844977148233
    for count in range(2, 60):
        assert group_relative([value] * count, "g" * count, scale=True) == ([0.0] * count, {"g"})
        assert deviation([value] * count) == 1.0


def episode(rewards: list[float], group: str = "g", texts: str = "") -> Trajectory:
    """An episode of these rewards; `texts` has a letter a step, what was seen."""
    seen = texts or "abcdefgh"[: len(rewards)]
    turns = [
        Turn(Observation((Message("user", text),), ("x", "y")), Decision(0, None, (1, 2), (3,), (-0.5,)), reward)
        for text, reward in zip(seen, rewards, strict=True)
    ]
    return Trajectory(Task("t", "e", "l", "g", {}), 0, tuple(turns), Status.COMPLETED, rewards[-1] > 0, "", group)


def test_reinforce_advantages_by_hand() -> None:
    played = [episode([0.0, 1.0]), episode([3.0])]  # returns 1, 1 and 3
    none = objective("reinforce", baseline="none", normalize=False)
    assert none.estimate(played).advantages == [[1, 1], [3]]
    batch = objective("reinforce", baseline="batch", normalize=False)  # less the mean 5/3
    assert batch.estimate(played).advantages[1] == pytest.approx([4 / 3])
    # deviations: sqrt((2 * (2/3)^2 + (4/3)^2) / 3) = sqrt(8/9)
    assert objective("reinforce").estimate(played).advantages[1] == pytest.approx([4 / 3 / math.sqrt(8 / 9)])
    assert objective("reinforce").estimate([episode([5.0]), episode([5.0])]).advantages == [[0], [0]]


def test_replayed_successes_do_not_move_the_baseline() -> None:
    fresh, old = [episode([0.0]), episode([2.0])], [episode([7.0])]  # mean 1, deviation 1
    assert objective("reinforce").estimate(fresh, old, []).advantages == [[-1], [1], [6]]


def test_ppo_advantages_and_targets_by_hand() -> None:
    ppo = objective("ppo", gamma=0.5, gae_lambda=0.5, normalize=False)
    found = ppo.estimate([episode([1, 0, 10])], [], [[2, 1, 4]])
    assert found.advantages[0] == pytest.approx([0.125, 2.5, 6])
    assert found.returns[0] == pytest.approx([2.125, 3.5, 10])  # what the critic is to expect: advantage and value
    # With mean 2.875, squares of -2.75, -0.375 and 3.125 sum to 17.46875; the critic's targets are not scaled
    scaled = objective("ppo", gamma=0.5, gae_lambda=0.5).estimate([episode([1, 0, 10])], [], [[2, 1, 4]])
    assert scaled.advantages[0][2] == pytest.approx(6 / math.sqrt(17.46875 / 3))
    assert scaled.returns == found.returns


def test_values_differ_as_far_as_they_predict_the_returns_of_other_episodes() -> None:
    played = [episode([0.0, 3.0]), episode([1.0, 0.0]), episode([2.0])]
    returns = [[3.0, 3.0], [1.0, 0.0], [2.0]]
    values = [[8.0, 9.0], [1.0, 0.0], [6.0]]
    mean = 24 / 5
    ppo = objective("ppo", normalize=False)  # λ is 1, so advantages are returns less values
    for number, shrunk in enumerate(shrunk_values(values, returns, len(played))):
        others = [other for other in range(3) if other != number]
        line = statistics.linear_regression(
            [value for other in others for value in values[other]],
            [value for other in others for value in returns[other]],
        )
        assert 0 < line.slope < 1 / 2
        assert shrunk == pytest.approx([mean + 2 * line.slope * (value - mean) for value in values[number]])
        advantages = ppo.estimate(played, [], values).advantages[number]
        assert advantages == pytest.approx(np.subtract(returns[number], shrunk))
    # Otherwise the values are taken as they are
    plain = objective("ppo", normalize=False, shrink_values=False)
    assert plain.estimate(played, [], values).advantages == [[-5, -6], [0, 0], [-4]]


def test_values_are_never_turned_round_nor_spread() -> None:
    against = [[0.0, 2.0], [4.0]]  # larger values, smaller returns
    assert shrunk_values(against, [[4.0, 0.0], [7.0]], 2)[1] == pytest.approx([2.0])
    for largest in (8.0, 0.6):  # which is the slope; from 1/2 on, returns less values vary less than returns
        assert shrunk_values([[0.0, 1.0], [5.0]], [[0.0, largest], [7.0]], 2)[1] == pytest.approx([5.0])


def test_differences_between_values_teach_nothing_where_all_returns_are_alike() -> None:
    chance = random.Random(0)
    played = [episode([0.0, 0.0, 1.0]) for _ in range(8)]
    values = [[chance.gauss(0, 3) for _ in range(3)] for _ in played]
    mean = sum(map(sum, values)) / 24
    found = objective("ppo", normalize=False).estimate(played, [], values)
    assert found.advantages == [pytest.approx([1 - mean] * 3)] * 8
    assert found.returns == [pytest.approx([1, 1, 1])] * 8


def test_replayed_episodes_have_the_slope_of_the_fresh_ones() -> None:
    values, returns = [[0.0], [2.0], [4.0], [8.0]], [[1.0], [1.5], [2.0], [50.0]]
    assert shrunk_values(values, returns, 3)[3] == pytest.approx([2 + 6 / 2])


def test_grpo_an_episode_a_step_and_a_state() -> None:
    played = [episode([1.0, 1.0], "g"), episode([0.0], "g"), episode([4.0], "flat"), episode([4.0], "flat")]
    whole = objective("grpo", normalize=False).estimate(played)
    assert whole.advantages == [[1, 1], [-1], [0], [0]]  # 2 and 0 have mean 1
    assert whole.groups_to_skip == {"flat"}
    steps = objective("grpo", advantages="step", normalize=False).estimate(played)
    assert steps.advantages == [[1, 0], [-1], [0], [0]]  # returns 2, 1, 0 of all the group's steps have mean 1
    # seen "ab" and "a": the steps that saw "a" have returns 2 and 0; the one that saw "b" stands alone
    state = objective("grpo", step_groups=0.5, normalize=False).estimate(played)
    assert state.advantages == [[1.5, 1], [-1.5], [0], [0]]


@pytest.mark.parametrize("settings", [{"baseline": "leave-one-out"}, {"advantages": "own"}, {"step_groups": 1.0}])
def test_the_only_episode_left_of_a_group_is_dropped(settings: dict[str, Any]) -> None:
    """Its siblings were aborted; it moves neither the others' advantages nor their deviation."""
    algorithm = objective("reinforce" if "baseline" in settings else "grpo", **settings)
    pair = [episode([0.0, 1.0], "g"), episode([0.0, 0.0], "g")]
    found = algorithm.estimate([*pair, episode([1.0, 5.0], "alone", "aa")])
    assert found.groups_to_skip == {"alone"}
    assert found.advantages == [*algorithm.estimate(pair).advantages, [0.0, 0.0]]


def test_a_state_is_the_same_in_whatever_order_its_actions_stand() -> None:
    first, second = episode([0.0, 1.0], texts="ab"), episode([0.0, 0.0], texts="cb")
    swapped = replace(second.turns[1], observation=replace(second.turns[1].observation, choices=("y", "x")))
    second = replace(second, turns=(second.turns[0], swapped))
    found = objective("grpo", step_groups=1.0, normalize=False).estimate([first, second])
    assert found.advantages == [[0.5, 1.0], [-0.5, -1.0]]  # the last steps meet in state "b"


def test_own_rewards_and_what_is_shared_by_hand() -> None:
    def chunks(rewards: list[float], shared: float) -> Trajectory:
        one = episode(rewards)
        last = replace(one.turns[-1], reward=rewards[-1] + shared, info={"shared_reward": shared})
        return replace(one, turns=(*one.turns[:-1], last))

    # worth: 1 + 2, 0 + 2 and 1 + 1, 1 + 1: mean 2.25
    found = objective("grpo", advantages="own", normalize=False).estimate(
        [chunks([1.0, 0.0], 2.0), chunks([1.0, 1.0], 1.0)]
    )
    assert found.advantages == [[0.75, -0.25], [-0.25, -0.25]]


def test_losses_by_hand() -> None:
    # ratios 1, 1.5, 0.5 with advantages 2, 1, -1 and clip 0.2: -min(2, 2), -min(1.5, 1.2), -min(-0.5, -0.8)
    new, old = torch.log(torch.tensor([0.5, 0.3, 0.2])), torch.log(torch.tensor([0.5, 0.2, 0.4]))
    gains = torch.tensor([2.0, 1.0, -1.0])
    assert clipped_loss(tokens_of(new, old, gains)).tolist() == pytest.approx([-2, -1.2, 0.8])
    # replayed, a ratio is at most 1.2 for a negative advantage too, where eq. 7 has no bound: -min(-1.5, -1.2) and 1.2
    likelier, gain = torch.log(torch.tensor([0.3, 0.3])), torch.tensor([-1.0, -1.0])
    before, replayed = torch.log(torch.tensor([0.2, 0.2])), torch.tensor([False, True])
    found = clipped_loss(tokens_of(likelier, before, gain, replayed=replayed))
    assert found.tolist() == pytest.approx([1.5, 1.2])
    # weights 1, min(1.5, 1.2), 0.5
    assert weighted_loss(tokens_of(new, old, gains)).tolist() == pytest.approx(
        [-2 * math.log(0.5), -1.2 * math.log(0.3), 0.5 * math.log(0.2)]
    )
    # w = 0.5 / 0.4, r = 0.25 / 0.5: 1.25 (0.5 - log 0.5 - 1)
    now, then, start = (torch.log(torch.tensor([share])) for share in (0.5, 0.4, 0.25))
    assert kl_estimate(now, then, start).item() == pytest.approx(1.25 * (0.5 + math.log(2) - 1))
    # capped at 1.1
    assert kl_estimate(now, then, start, 1.1).item() == pytest.approx(1.1 * (0.5 + math.log(2) - 1))
    logprobs = torch.tensor(
        [[math.log(0.5), math.log(0.5), -math.inf], [math.log(0.25), math.log(0.25), math.log(0.5)]]
    )
    assert entropy(logprobs).tolist() == pytest.approx([math.log(2), 1.5 * math.log(2)])
    value, target, before = torch.tensor([1.0, 3.0]), torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0])
    assert value_loss(value, target, before, 0.0).tolist() == [0.5, 2.0]
    # within 0.5 of 1 and 0: 1 and 0.5, errors 1 and 0.25; the larger of 4 and 0.25
    assert value_loss(value, target, before, 0.5).tolist() == [0.5, 2.0]
    assert value_loss(torch.tensor([1.0]), torch.tensor([1.0]), torch.tensor([3.0]), 0.5).item() == pytest.approx(
        0.5 * 1.5**2
    )


def test_the_kl_estimate_and_its_gradient_are_unbiased() -> None:
    """Over the choices of any sampler, the estimate is the KL, and its gradient the KL's."""
    sampler, reference = torch.tensor([0.3, 0.3, 0.4]), torch.tensor([0.4, 0.4, 0.2])
    found, exact = (torch.tensor([0.5, -0.2, 0.1], requires_grad=True) for _ in range(2))
    estimate = (sampler * kl_estimate(torch.log_softmax(found, -1), sampler.log(), reference.log())).sum()
    logprobs = torch.log_softmax(exact, -1)
    divergence = (logprobs.exp() * (logprobs - reference.log())).sum()
    estimate.backward()
    divergence.backward()
    assert estimate.item() == pytest.approx(divergence.item(), abs=1e-6)
    torch.testing.assert_close(found.grad, exact.grad)


def test_a_capped_weight_of_the_kl_estimate_keeps_its_gradient() -> None:
    """w = 0.5 / 0.4, at most 1.1, and r = 0.25 / 0.5: the gradient is -w log r = 1.1 log 2."""
    now = torch.tensor([math.log(0.5)], requires_grad=True)
    then, start = torch.log(torch.tensor([0.4])), torch.log(torch.tensor([0.25]))
    kl_estimate(now, then, start, 1.1).sum().backward()
    assert now.grad.item() == pytest.approx(1.1 * math.log(2))


def test_importance_weights_are_capped() -> None:
    """A token that is e³ ≈ 20 times as likely now: its weight is the cap, with either sign of the advantage."""

    def tokens(advantage: float, cap: float) -> TrainedTokens:
        old, zero = torch.tensor([-2.0]), torch.tensor([0])
        return TrainedTokens(old + 3.0, old, torch.tensor([advantage]), zero, 1, torch.tensor([False]), 0.2, cap)

    for advantage in (1.0, -1.0):
        assert float(weighted_loss(tokens(advantage, 2.0))) == pytest.approx(-2 * advantage * 1.0)  # log π is +1
    assert float(weighted_loss(tokens(1.0, 0.0))) == pytest.approx(-1.2)
    assert float(clipped_loss(tokens(-1.0, 2.0))) == pytest.approx(2.0)
    assert float(clipped_loss(tokens(-1.0, 0.0))) == pytest.approx(math.exp(3), rel=1e-4)


def test_mismatch_by_hand() -> None:
    """Weights 1, 1 and 4: (1 + 1 + 4)² / (3 · (1 + 1 + 16)) = 36 / 54."""
    found = mismatch(torch.tensor([0.0, 0.0, math.log(4)]))
    assert found["effective_sample_size"] == pytest.approx(36 / 54)
    assert found["logprob_difference_max"] == pytest.approx(math.log(4))
    assert found["logprob_difference_mean"] == pytest.approx(math.log(4) / 3)


REWARD = (-0.1, 1.0)
"""The three-state chain: right in 0 costs 0.1 and leads to 1, right in 1 brings 1 and ends it in 2; left ends it at 0.
"""
PATHS = ((0,), (1, 0), (1, 1))


def rewards(path: tuple[int, ...]) -> list[float]:
    return [REWARD[0] if path[0] else 0.0, REWARD[1] if path == (1, 1) else 0.0][: len(path)]


def chances(theta: torch.Tensor) -> torch.Tensor:
    """Probability of each path under a softmax policy a state."""
    logprobs = torch.log_softmax(theta, -1)
    return torch.stack([torch.exp(sum(logprobs[state, action] for state, action in enumerate(path))) for path in PATHS])


def numeric(function: Callable[[torch.Tensor], torch.Tensor], theta: torch.Tensor) -> torch.Tensor:
    """Central differences."""
    result = torch.zeros_like(theta)
    for index in range(theta.numel()):
        step = torch.zeros_like(theta)
        step.view(-1)[index] = 1e-6
        result.view(-1)[index] = (function(theta + step) - function(theta - step)) / 2e-6
    return result


THETA = torch.tensor([[0.2, -0.1], [0.4, 0.3]], dtype=torch.float64)


def expected_return(theta: torch.Tensor) -> torch.Tensor:
    totals = torch.tensor([sum(rewards(path)) for path in PATHS], dtype=torch.float64)
    return (chances(theta) * totals).sum()


@pytest.mark.parametrize("algorithm", ["reinforce", "ppo"])
def test_expected_gradients_are_those_of_the_return(algorithm: str) -> None:
    """Undiscounted, with any baseline that knows only the state, the expected gradient is that of the
    expected return.
    """
    values = [0.3, 0.6]  # the critic's, of states 0 and 1; what they are must not matter
    analytic = torch.zeros_like(THETA)
    for path in PATHS:
        theta = THETA.clone().requires_grad_()
        logprob = torch.stack([torch.log_softmax(theta, -1)[state, action] for state, action in enumerate(path)])
        if algorithm == "reinforce":
            gain = torch.tensor(returns_to_go(rewards(path), 1.0), dtype=torch.float64)
            loss = weighted_loss(tokens_of(logprob, logprob.detach(), gain))
        else:
            found = generalised_advantages(rewards(path), values[: len(path)], 1.0, 1.0)
            gain = torch.tensor(found, dtype=torch.float64)
            loss = clipped_loss(tokens_of(logprob, logprob.detach(), gain))
        loss.sum().backward()
        analytic -= theta.grad * torch.exp(logprob.detach().sum())
    torch.testing.assert_close(analytic, numeric(expected_return, THETA), atol=1e-9, rtol=1e-6)


@pytest.mark.parametrize("clip", [0.2, 10.0])
def test_gradients_of_the_whole_objective_against_finite_differences(clip: float) -> None:
    """PPO's and GRPO's: clipped ratio, entropy bonus and KL penalty, away from the sampling policy, over all paths."""
    old, start = THETA + torch.tensor([[0.3, -0.2], [0.0, 0.1]]), THETA * 0.5
    gains, _ = group_relative([sum(rewards(path)) for path in PATHS], "ggg", scale=True)

    def objective(theta: torch.Tensor) -> torch.Tensor:
        now, then, before = (torch.log_softmax(values, -1) for values in (theta, old, start))
        total = torch.zeros((), dtype=torch.float64)
        for path, gain in zip(PATHS, gains, strict=True):
            states = torch.arange(len(path))
            taken = torch.tensor(path)
            logprob, sampled, reference = (table[states, taken] for table in (now, then, before))
            every = torch.full((len(path),), gain, dtype=torch.float64)
            surrogate = clipped_loss(tokens_of(logprob, sampled, every, clip))
            total = (
                total + (surrogate + 0.3 * kl_estimate(logprob, sampled, reference) - 0.1 * entropy(now[states])).sum()
            )
        return total

    theta = THETA.clone().requires_grad_()
    objective(theta).backward()
    torch.testing.assert_close(theta.grad, numeric(objective, THETA), atol=1e-8, rtol=1e-6)
