"""Weights of 16 bits: small steps add up, and a resumed optimizer goes on with the same float32 copies."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from torch import nn

from reflectkit.models.load import LoadedModel, load_player, save_player
from reflectkit.train.learner import LearnerSettings
from reflectkit.train.local_learner import LocalLearner
from reflectkit.train.optimizers import new_optimizer
from reflectkit.train.plan import optimizer_size
from tests.train.training import play, rows_of

RATE = 1e-5


def steps(weight: nn.Parameter, optimizer: torch.optim.Optimizer, gradients: torch.Tensor) -> None:
    for gradient in gradients:
        weight.grad = gradient.to(weight.dtype)
        optimizer.step()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_small_steps_add_up_as_in_float32(dtype: torch.dtype, decay: float) -> None:
    """100 steps of 1e-5 move weights of 0.06 by 1e-3. Each is less than a 512th of a weight, and would be lost."""
    chance = torch.Generator().manual_seed(0)
    start = (0.06 * torch.randn(64, 64, generator=chance)).to(dtype)
    gradients = torch.randn(100, 64, 64, generator=chance).to(dtype) + 1
    whole, rounded = nn.Parameter(start.float()), nn.Parameter(start.clone())
    steps(whole, new_optimizer([whole], RATE, decay), gradients)
    steps(rounded, new_optimizer([rounded], RATE, decay), gradients)
    assert float((whole.detach() - start).abs().mean()) > 5e-4
    assert torch.equal(rounded, whole.to(dtype))


def test_a_loaded_optimizer_goes_on_as_if_it_had_not_stopped() -> None:
    chance = torch.Generator().manual_seed(0)
    start = (0.06 * torch.randn(8, 8, generator=chance)).bfloat16()
    gradients = torch.randn(6, 8, 8, generator=chance)
    weight = nn.Parameter(start.clone())
    steps(weight, new_optimizer([weight], RATE, 0.0), gradients)

    first = nn.Parameter(start.clone())
    optimizer = new_optimizer([first], RATE, 0.0)
    steps(first, optimizer, gradients[:3])
    second = nn.Parameter(first.detach().clone())
    resumed = new_optimizer([second], RATE, 0.0)
    resumed.load_state_dict(optimizer.state_dict())
    steps(second, resumed, gradients[3:])
    assert torch.equal(second, weight)


def test_both_types_of_weights_in_one_optimizer() -> None:
    """An adapter in float32 on a base whose norms are trained in bfloat16, say; weights without a gradient stay."""
    chance = torch.Generator().manual_seed(0)
    values = torch.randn(3, 4, 4, generator=chance)
    single, half, idle = (nn.Parameter(value) for value in (values[0], values[1].bfloat16(), values[2].bfloat16()))
    alone = nn.Parameter(values[0].clone())
    optimizer = new_optimizer([single, half, idle], 1e-3, 0.0)
    reference = torch.optim.AdamW([alone], lr=1e-3, weight_decay=0.0)
    for _ in range(3):
        single.grad = alone.grad = torch.ones(4, 4)
        half.grad = torch.ones(4, 4).bfloat16()
        optimizer.step()
        reference.step()
    assert torch.equal(single, alone)
    assert not torch.equal(half, values[1].bfloat16())
    assert torch.equal(idle, values[2].bfloat16())
    assert optimizer_size([single, half]) == 16 * (8 + 12)


def test_an_update_in_bfloat16_goes_on_where_it_was_saved(policy: LoadedModel, tmp_path: Path) -> None:
    """Also with weights whose saved values hide the small steps: at a rate of 1e-5, most do."""
    save_player(tmp_path / "start", policy)

    def learner_of(folder: Path) -> LocalLearner:
        player = load_player(folder, "policy", device="cpu", dtype="bfloat16")
        return LocalLearner(player, LearnerSettings(learning_rate=RATE, minibatch=10_000))

    whole = learner_of(tmp_path / "start")
    rows = rows_of(whole.player, play(whole.player))
    halves = learner_of(tmp_path / "start")
    halves.update(rows, random.Random(0))
    halves.save(tmp_path / "half", {})
    resumed = learner_of(tmp_path / "half")
    resumed.load(halves.state())
    for learner, updates in ((whole, 2), (resumed, 1)):
        for _ in range(updates):
            learner.update(rows, random.Random(0))
    expected, tensors = whole.state().tensors, resumed.state().tensors
    assert expected.keys() == tensors.keys()
    assert all(torch.equal(tensors[name], value) for name, value in expected.items())
    copies = [name for name in expected if name.endswith(".float32")]
    assert len(copies) == len(whole.optimizer.names)
