"""Rows read as a tree: what they begin with is read once, and hidden states and gradients are those of plain rows."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from reflectkit.models.architecture import trunk_of
from reflectkit.models.load import LoadedModel
from reflectkit.models.rows import Chunk, GrowingLayer, plan_tree, read, right_pad
from reflectkit.train.learner import LearnerSettings
from reflectkit.train.local_learner import LocalLearner
from tests.models.test_scoring import gpt2, llama
from tests.train.training import gradients_after, play, rows_of


def transcripts() -> list[list[int]]:
    """Five episodes with one head, whose prompts grow and end alike; one that begins another, one alone, two equal."""
    draw = random.Random(0)
    head = [draw.randrange(50) for _ in range(20)]
    rows = [head[:12], [5, 6], [5, 6]]
    for _ in range(5):
        row = list(head)
        for _ in range(5):
            row += [draw.randrange(50) for _ in range(draw.randrange(3, 12))]
            rows.append([*row, 51, 52])
    draw.shuffle(rows)
    return rows


def test_a_tree_by_hand() -> None:
    """The longest row is read in whole (12 tokens); the next from its tenth token on (2), the last is begun by both."""
    trunk = list(range(12))
    plan = plan_tree([trunk[:9], trunk, [*trunk[:10], 50, 51]])
    assert plan.chunks == {0: Chunk(0, 9, 1), 1: Chunk(1), 2: Chunk(2, 10, 1)}
    assert plan.levels == [[[Chunk(1)]], [[Chunk(2, 10, 1)]]]


@pytest.mark.parametrize("make", [gpt2, llama])
def test_hidden_states_and_gradients_are_those_of_plain_rows(make: Any) -> None:
    """In float32, against a plain forward over the padded rows."""
    model, rows = make(), transcripts()
    places = [(row, place) for row, tokens in enumerate(rows) for place in {0, len(tokens) // 2, len(tokens) - 1}]
    plain_BTD = trunk_of(model)(input_ids=right_pad(rows, 0, torch.device("cpu")), use_cache=False).last_hidden_state
    plain_ND = torch.stack([plain_BTD[row, place] for row, place in places])
    shared_ND = read(trunk_of(model), plan_tree(rows), 0).hidden_at(places)
    torch.testing.assert_close(shared_ND, plain_ND, atol=1e-5, rtol=1e-5)
    weights_ND = torch.randn(plain_ND.shape, generator=torch.Generator().manual_seed(1)) / len(places)
    gradients = []
    for hidden_ND in (plain_ND, shared_ND):
        model.zero_grad()
        (hidden_ND * weights_ND).sum().backward()
        gradients.append([weight.grad.clone() for weight in model.parameters() if weight.grad is not None])
    assert max(float(one.abs().max()) for one in gradients[0]) > 0.1
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0.0)


@pytest.mark.parametrize("make", [gpt2, llama])
@torch.no_grad()
def test_rows_that_leave_one_prefix_are_read_side_by_side(make: Any) -> None:
    """Four rows go on after the same twenty tokens, and one of them is begun by a fifth; in two passes."""
    model, prefix, passes = make(), list(range(20)), []
    tails = [[30, 31, 32, 33, 34, 35, 36, 37, 38], [40, 41], [42, 43, 44], [45], [42, 43, 44, 46]]
    rows = [[*prefix, *tail] for tail in tails]
    places = [(row, place) for row, tokens in enumerate(rows) for place in (10, len(tokens) - 1)]
    trunk = trunk_of(model)
    plain_BTD = trunk(input_ids=right_pad(rows, 0, torch.device("cpu")), use_cache=False).last_hidden_state
    plain_ND = torch.stack([plain_BTD[row, place] for row, place in places])
    trunk.register_forward_pre_hook(lambda _, __, named: passes.append(named["input_ids"].shape), with_kwargs=True)
    torch.testing.assert_close(read(trunk, plan_tree(rows), 0).hidden_at(places), plain_ND, atol=1e-5, rtol=1e-5)
    assert passes == [(1, 29), (1, 2 + 1 + 4)]


def test_an_adapter_has_the_same_gradients(policy: LoadedModel) -> None:
    """LoRA on attention, where keys and values are shared, and on the layers behind it."""
    from peft import LoraConfig, get_peft_model

    layers = LoraConfig(r=4, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True, task_type="CAUSAL_LM")
    adapted = LoadedModel(get_peft_model(policy.model, layers), policy.tokenizer, "policy")
    with torch.no_grad():
        for name, weight in adapted.model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.5, generator=torch.Generator().manual_seed(0))
    samples = rows_of(adapted, play(adapted, count=6))
    sharing = LocalLearner(adapted, LearnerSettings(learning_rate=0.0, max_grad_norm=1e9, share_prefixes=True))
    sharing.update(samples, random.Random(0))
    assert sharing.as_trees
    plain, shared = (gradients_after(adapted, samples, share_prefixes=share) for share in (False, True))
    assert plain.keys() == shared.keys()
    assert all("lora" in name for name in plain)
    assert max(float(gradient.abs().max()) for gradient in plain.values()) > 1e-3
    for name, gradient in shared.items():
        torch.testing.assert_close(gradient, plain[name], atol=1e-5, rtol=0.0)


def test_a_layer_with_room_grows_like_a_plain_one() -> None:
    """Through several reallocations, and after a row has left."""
    torch.manual_seed(0)
    keys, values = torch.randn(2, 4, 4, 8), torch.randn(2, 4, 4, 8)
    layers = [GrowingLayer(keys, values), GrowingLayer(keys, values, room=8)]
    for step in range(2 * 8 + 3):
        if step == 5:
            for layer in layers:
                layer.select_rows(torch.tensor([0]), 0)
        new = torch.randn(2 if step < 5 else 1, 4, 1, 8)
        plain, roomy = (layer.update(new, 2 * new) for layer in layers)
        assert torch.equal(plain[0], roomy[0])
        assert torch.equal(plain[1], roomy[1])
