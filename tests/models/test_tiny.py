"""Teaching a fresh tiny model to copy: seeded, and its loss falls."""

from __future__ import annotations

import pytest
import torch

from reflectkit.models.tiny import build_model, build_tokenizer, teach_copying


@pytest.mark.slow
def test_teaching_is_a_function_of_its_seed_and_teaches() -> None:
    torch.set_num_threads(1)
    tokenizer = build_tokenizer(["a b"], [], 300)
    weights, told = [], []
    for seed in (3, 3, 4):
        model, losses = build_model(tokenizer, 64, seed=1), []
        teach_copying(model, 12, seed, losses.append)
        weights.append(next(model.parameters()).detach().clone())
        told.append(losses)
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert told[0] == told[1]
    assert len(told[0]) == 12
    assert told[0][-1] < told[0][0]
