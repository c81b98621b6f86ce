"""The critic's values, and whose weights its errors move."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from reflectkit.models.load import LoadedModel
from reflectkit.train.critic import Critic
from reflectkit.train.learner import Learner, Settings
from tests.train.training import play, rows_of


def test_replayed_values_are_the_critics_of_today(policy: LoadedModel) -> None:
    critic = Critic(policy)
    learner = Learner(policy, Settings(learning_rate=1e-3), critic)
    played = play(policy, critic=critic)
    prompts = [turn.decision.prompt_ids for one in played for turn in one.turns]
    assert learner.values(prompts) == pytest.approx([0.0] * len(prompts))
    with torch.no_grad():
        critic.head.weight.normal_(generator=torch.Generator().manual_seed(0))
    again = play(policy, critic=critic)
    recorded = [turn.decision.value for one in again for turn in one.turns]
    assert learner.values([turn.decision.prompt_ids for one in again for turn in one.turns]) == pytest.approx(
        recorded, abs=1e-4
    )
    assert len(set(recorded)) > 3


@pytest.mark.parametrize(("trunk", "moves"), [("detached", False), ("shared", True), ("separate", False)])
def test_whose_weights_the_critics_errors_move(policy: LoadedModel, trunk: str, moves: bool) -> None:
    critic = Critic(policy, "mlp", trunk)
    with torch.no_grad():
        critic.head[-1].weight.normal_(generator=torch.Generator().manual_seed(0))
    played = play(policy, critic=critic)
    values = [[turn.decision.value or 0.0 for turn in one.turns] for one in played]
    samples = [replace(sample, advantages=(0.0,) * len(sample.tokens)) for sample in rows_of(policy, played, values)]
    learner = Learner(policy, Settings(learning_rate=0.0, entropy=0.0, max_grad_norm=1e9), critic)
    learner.update(samples, random.Random(0))
    norm = sum(float(weight.grad.abs().sum()) for weight in policy.model.parameters() if weight.grad is not None)
    assert (norm > 0) == moves
    assert all(weight.grad is not None for weight in critic.head.parameters())
    if trunk == "separate":
        assert any(
            float(weight.grad.abs().sum()) > 0 for weight in critic.own_trunk.parameters() if weight.grad is not None
        )
