"""Replayed episodes: what the buffer keeps, and how their rows are weighted."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from reflectkit.envs import make
from reflectkit.envs.corridor import Corridor
from reflectkit.models.load import LoadedModel
from reflectkit.train.algorithms import objective
from reflectkit.train.losses import weighted_loss
from reflectkit.train.rl import Level, ReplayBuffer
from reflectkit.types import Status, Task, Trajectory
from tests.train.training import build_trainer, corridor_player, gradients_after, play, rows_of


def test_replay_keeps_the_last_successes() -> None:
    task = Task("t", "e", "l", "g", {})
    played = [Trajectory(task, number, (), Status.COMPLETED, number % 2 == 0) for number in range(9)]
    buffer = ReplayBuffer(3)
    buffer.add(played)
    assert [trajectory.seed for trajectory in buffer] == [4, 6, 8]
    buffer.clear()
    assert list(buffer) == []
    none = ReplayBuffer(0)
    none.add(played)
    assert len(none) == 0


def test_old_rows_are_weighted_and_never_fresh(policy: LoadedModel) -> None:
    """A decision that the policy has since made ten times less likely weighs a tenth in REINFORCE."""
    sample = next(sample for sample in rows_of(policy, play(policy)) if abs(sample.advantages[-1]) > 0.5)
    settings = {"entropy": 0.0, "loss": weighted_loss}
    as_fresh = gradients_after(policy, [sample], **settings)
    older = replace(sample, logprobs=(*sample.logprobs[:-1], sample.logprobs[-1] + math.log(10)), replayed=True)
    for name, gradient in gradients_after(policy, [older], **settings).items():
        torch.testing.assert_close(gradient, as_fresh[name] / 10, atol=1e-6, rtol=1e-3)
    likelier = replace(sample, logprobs=(*sample.logprobs[:-1], sample.logprobs[-1] - math.log(10)), replayed=True)
    for name, gradient in gradients_after(policy, [likelier], **settings).items():
        torch.testing.assert_close(gradient, as_fresh[name] * 1.2, atol=1e-6, rtol=1e-3)  # 10, cut at 1 + clip


def test_the_buffer_is_cleared_on_each_level() -> None:
    levels = [
        Level(name, Corridor.taskset.tasks(name), lambda name=name: make("corridor", 16)) for name in ("short", "long")
    ]
    trainer = build_trainer(corridor_player(seed=0), objective("reinforce"), 4, levels, replay=50)
    replayed = [trainer.train_step()["replayed_episodes"] for _ in range(4)]
    assert replayed[0] == replayed[2] == 0
    assert min(replayed[1], replayed[3]) > 0
    assert {trajectory.task.level for trajectory in trainer.replay} == {"long"}
