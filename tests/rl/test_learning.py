"""Returns and losses against numbers derived by hand, gradients against finite differences, and a learner that learns."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from reflectkit.agents.two_player import Reflector, TwoPlayerAgent
from reflectkit.core.errors import CheckpointError
from reflectkit.core.prompts import label, policy_prompt
from reflectkit.core.rollout import Episode, rollout
from reflectkit.core.types import Sample, Status, Task
from reflectkit.envs import make
from reflectkit.envs.corridor import Corridor
from reflectkit.envs.taxi import Taxi
from reflectkit.models.load import Player, load_player
from reflectkit.models.tiny import build_model, build_tokenizer
from reflectkit.models.tokens import label_ids
from reflectkit.rl import batch, checkpoint
from reflectkit.rl.curriculum import draw, level_at
from reflectkit.rl.learner import DivergedError, Learner, Settings
from reflectkit.rl.loop import Plan, train_step
from reflectkit.rl.losses import entropy, policy_gradient_loss, value_loss
from reflectkit.rl.returns import advantages, returns_to_go


def test_returns_by_hand() -> None:
    # 0.9: 1 + 0.9 (0 + 0.9 * 10) = 9.1;  0 + 0.9 * 10 = 9;  10
    assert returns_to_go([1, 0, 10], 0.9) == pytest.approx([9.1, 9.0, 10.0])
    assert returns_to_go([1, 0, 10], 1.0) == [11, 10, 10]
    assert returns_to_go([1, 0, 10], 0.0) == [1, 0, 10]
    assert returns_to_go([], 1.0) == []


def test_advantages_by_hand() -> None:
    assert advantages([1, 2, 6], None, "none", scale=False) == [1, 2, 6]
    assert advantages([1, 2, 6], None, "batch", scale=False) == [-2, -1, 3]
    assert advantages([1, 2, 6], [1, 1, 7], "critic", scale=False) == [0, 1, -1]
    # -2, -1, 3 have mean 0 and mean square 14/3
    assert advantages([1, 2, 6], None, "batch", scale=True) == pytest.approx(
        [value / math.sqrt(14 / 3) for value in (-2, -1, 3)]
    )
    assert advantages([5, 5], None, "batch", scale=True) == [0, 0]
    assert advantages([], None, "batch", scale=True) == []


def test_policy_loss_by_hand() -> None:
    # ratios 1, 1.5, 0.5 with advantages 2, 1, -1 and clip 0.2: min(2, 2), min(1.5, 1.2), min(-0.5, -0.8) → -(2 + 1.2 - 0.8) / 3
    new = torch.log(torch.tensor([0.5, 0.3, 0.2]))
    old = torch.log(torch.tensor([0.5, 0.2, 0.4]))
    loss = policy_gradient_loss(new, old, torch.tensor([2.0, 1.0, -1.0]), clip=0.2)
    assert loss.item() == pytest.approx(-0.8, abs=1e-6)


def test_first_gradient_is_reinforce() -> None:
    logits = torch.tensor([[0.3, -0.2, 1.0]], dtype=torch.float64, requires_grad=True)
    logprob = torch.log_softmax(logits, -1)[:, 1]
    policy_gradient_loss(logprob, logprob.detach(), torch.tensor([1.7], dtype=torch.float64), clip=0.2).backward()
    # d(-A log π_1)/d logits = -A (one-hot_1 - π)
    expected = -1.7 * (torch.tensor([[0.0, 1.0, 0.0]], dtype=torch.float64) - torch.softmax(logits, -1))
    torch.testing.assert_close(logits.grad, expected.detach())


def test_entropy_and_value_loss_by_hand() -> None:
    logprobs = torch.tensor([[math.log(0.5), math.log(0.5), -math.inf], [math.log(0.25), math.log(0.25), math.log(0.5)]])
    assert entropy(logprobs).tolist() == pytest.approx([math.log(2), 1.5 * math.log(2)])
    assert value_loss(torch.tensor([1.0, 3.0]), torch.tensor([0.0, 1.0])).item() == pytest.approx(0.5 * (1 + 4) / 2)


def test_policy_gradient_agrees_with_finite_differences_on_a_three_state_chain() -> None:
    """Expected return of a 3-state chain with a softmax policy a state: its gradient is the expected REINFORCE gradient."""
    rewards, gamma = (-0.1, 1.0), 0.9  # a step, and reaching state 2 from state 1; "left" in 0 ends the episode with nothing

    def expected_return(theta: torch.Tensor) -> torch.Tensor:
        right = torch.softmax(theta, -1)[:, 1]
        return right[0] * (rewards[0] + gamma * right[1] * rewards[1])

    theta = torch.tensor([[0.2, -0.1], [0.4, 0.3]], dtype=torch.float64)
    numeric = torch.zeros_like(theta)
    for index in range(4):
        step = torch.zeros(4, dtype=torch.float64)
        step[index] = 1e-6
        numeric.view(-1)[index] = (expected_return(theta + step.view(2, 2)) - expected_return(theta - step.view(2, 2))) / 2e-6

    analytic = torch.zeros_like(theta)
    for path in ([0], [1, 0], [1, 1]):  # every episode: left; right, left; right, right
        weights = theta.clone().requires_grad_()
        logprobs = torch.stack([torch.log_softmax(weights, -1)[state, action] for state, action in enumerate(path)])
        gained = [rewards[0] if path[0] else 0.0, rewards[1] if path == [1, 1] else 0.0][: len(path)]
        # undiscounted weight of step t in the gradient is gamma^t G_t (Sutton and Barto, eq. 13.8)
        weight = torch.tensor([gamma**t * value for t, value in enumerate(returns_to_go(gained, gamma))], dtype=torch.float64)
        loss = policy_gradient_loss(logprobs, logprobs.detach(), weight, clip=0.2) * len(path)
        loss.backward()
        analytic -= weights.grad * torch.exp(logprobs.detach().sum())
    torch.testing.assert_close(analytic, numeric, atol=1e-9, rtol=1e-6)


def played(policy: Player, reflector: Player | None, count: int = 12):
    tasks = Taxi.tasks("full")[:: 300 // count]
    agent = TwoPlayerAgent(policy, Reflector(reflector, max_new_tokens=5) if reflector else None)
    return rollout([Episode(task, index) for index, task in enumerate(tasks)], lambda: make("taxi", 10), agent), agent


@pytest.mark.parametrize("with_reflector", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_ratio_starts_at_exactly_one(
    policy: Player, reflector_player: Player, with_reflector: bool, temperature: float
) -> None:
    tasks = [Episode(task, 3) for task in Taxi.tasks("full")[::20]]
    reflector = Reflector(reflector_player, max_new_tokens=5) if with_reflector else None
    agent = TwoPlayerAgent(policy, reflector, temperature=temperature, reflect_prob=0.5)
    samples = batch.rows(rollout(tasks, lambda: make("taxi", 10), agent), {6: label_ids(policy.tokenizer, 6)}, 1.0)
    learner = Learner(policy, Settings(learning_rate=1e-3, minibatch=10_000, baseline="batch", temperature=temperature))
    figures = learner.update(samples, random.Random(0))
    assert figures["ratio_deviation"] < 1e-5
    assert figures["gradient_norm"] > 0
    again = learner.update(samples, random.Random(0))
    assert again["ratio_deviation"] > 1e-4  # the weights have moved


def test_rows_hold_what_was_sampled(policy: Player) -> None:
    trajectories, _ = played(policy, None)
    labels = label_ids(policy.tokenizer, 6)
    samples = batch.rows(trajectories, {6: labels}, 1.0)
    assert len(samples) == sum(len(trajectory.turns) for trajectory in trajectories)
    first, turn = samples[0], trajectories[0].turns[0]
    assert first.tokens == (*policy.tokenizer(policy_prompt(turn.observation))["input_ids"], labels[int(turn.decision.action)])
    assert first.loss_mask == (0,) * (len(first.tokens) - 1) + (1,)
    assert first.logprobs[-1] == turn.decision.logprobs[0]
    assert first.return_to_go == pytest.approx(trajectories[0].total_return)


def test_aborted_episodes_are_never_trained_on(policy: Player) -> None:
    trajectories, _ = played(policy, None)
    spoiled = [replace(trajectory, status=Status.ABORTED) for trajectory in trajectories[:-1]]
    samples = batch.rows([*spoiled, trajectories[-1]], {6: label_ids(policy.tokenizer, 6)}, 1.0)
    assert {sample.group_id for sample in samples} == {trajectories[-1].task.id}


def test_sharing_a_prompts_forward_changes_nothing(policy: Player) -> None:
    """Ten copies of the rows give the gradient of one copy."""
    trajectories, _ = played(policy, None, 6)
    samples = batch.rows(trajectories, {6: label_ids(policy.tokenizer, 6)}, 1.0)
    settings = Settings(learning_rate=0.0, minibatch=10_000, baseline="batch", max_grad_norm=1e9)
    once = Learner(policy, settings).update(samples, random.Random(0))
    tenfold = Learner(policy, settings).update(samples * 10, random.Random(0))
    assert tenfold["gradient_norm"] == pytest.approx(once["gradient_norm"], rel=1e-4)
    assert tenfold["entropy"] == pytest.approx(once["entropy"], rel=1e-5)


def corridor_player(seed: int) -> Player:
    seen = [make("corridor").reset(task, 0) for task in Corridor.tasks("long")]
    tokenizer = build_tokenizer([policy_prompt(observation) for observation in seen], [label(index) for index in range(2)])
    return Player(build_model(tokenizer, 64, seed), tokenizer, "plain")


@pytest.mark.parametrize("baseline", ["none", "batch", "critic"])
def test_learns_corridor_from_scratch(baseline: str) -> None:
    player = corridor_player(seed=0)
    learner = Learner(player, Settings(learning_rate=1e-3, baseline=baseline, entropy=0.003, max_grad_norm=1.0))
    agent = TwoPlayerAgent(player, critic=learner.critic)
    tasks = {"long": Corridor.tasks("long")}
    plan = Plan(tasks, {"long": lambda: make("corridor", 16)}, ("long",), steps=30, episodes=12, gamma=1.0, seed=0, width=12)
    first = train_step(0, plan, agent, learner)
    for step in range(1, 30):
        last = train_step(step, plan, agent, learner)
    # the optimum over the six starts: 1 - 0.1 * mean(6 … 1) + 0 = 0.65
    assert last["return"] > max(0.55, float(str(first["return"])) + 0.2)


def test_a_loss_that_is_not_finite_stops_before_the_step(policy: Player) -> None:
    trajectories, _ = played(policy, None)
    samples = [
        replace(sample, return_to_go=math.nan) for sample in batch.rows(trajectories, {6: label_ids(policy.tokenizer, 6)}, 1.0)
    ]
    before = [weight.detach().clone() for weight in policy.model.parameters()]
    with pytest.raises(DivergedError, match="lower --learning-rate"):
        Learner(policy, Settings(learning_rate=1e-3, baseline="none", scale=False)).update(samples, random.Random(0))
    assert all(torch.equal(old, new) for old, new in zip(before, policy.model.parameters(), strict=True))


def test_no_rows_no_step(policy: Player) -> None:
    empty: list[Sample] = []
    assert Learner(policy, Settings(learning_rate=1e-3)).update(empty, random.Random(0)) == {}


def test_resuming_from_a_checkpoint_gives_the_same_weights(tmp_path: Path) -> None:
    tasks = {"long": Corridor.tasks("long")}
    plan = Plan(tasks, {"long": lambda: make("corridor", 16)}, ("long",), steps=4, episodes=6, gamma=1.0, seed=0, width=6)

    def train(player: Player, learner: Learner, steps: range) -> None:
        agent = TwoPlayerAgent(player, critic=learner.critic)
        for step in steps:
            train_step(step, plan, agent, learner)

    settings = Settings(learning_rate=1e-3)
    straight = corridor_player(seed=0)
    train(straight, Learner(straight, settings), range(4))

    begun = corridor_player(seed=0)
    learner = Learner(begun, settings)
    train(begun, learner, range(2))
    saved = checkpoint.save(tmp_path, 2, learner, {})
    assert checkpoint.latest(tmp_path) == saved
    resumed = load_player(saved, "policy", device="cpu")
    again = Learner(resumed, settings)
    assert checkpoint.restore(saved, again) == 2
    train(resumed, again, range(2, 4))
    for one, other in zip(straight.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", ["training_state.json", "training_state.safetensors"])
def test_damaged_training_state_is_a_clear_error(tmp_path: Path, name: str) -> None:
    player = corridor_player(seed=0)
    learner = Learner(player, Settings(learning_rate=1e-3))
    saved = checkpoint.save(tmp_path, 1, learner, {})
    (saved / name).write_bytes((saved / name).read_bytes()[:7])
    with pytest.raises(CheckpointError, match="damaged"):
        checkpoint.restore(saved, learner)


def test_curriculum_gives_equal_steps_and_every_task_its_turn() -> None:
    assert [level_at(step, 7, ("a", "b", "c")) for step in range(7)] == ["a", "a", "a", "b", "b", "c", "c"]
    tasks = [Task(str(number), "e", "l", "g", {}) for number in range(10)]
    drawn = [task.id for step in range(5) for task in draw(tasks, step, 4, seed=0)]
    assert sorted(drawn[:10]) == sorted(drawn[10:]) == sorted(task.id for task in tasks)
    assert len(draw(tasks, 0, 35, seed=0)) == 35
