"""Fewer calls, the same bits: activations and single-token passes are those of transformers."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel

from reflectkit.models.cache_rows import CACHE
from reflectkit.models.lean import ROOM, NextTokens, Roomy, in_place_gelu

LAYERS, CONTEXT = 3, 160


@pytest.fixture
def model() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=97, n_positions=CONTEXT, n_embd=32, n_layer=LAYERS, n_head=4, initializer_range=0.3)
    ).eval()


def test_the_activation_in_place_has_the_same_bits_and_the_same_gradients(model: GPT2LMHeadModel) -> None:
    ids = torch.randint(97, (3, 20))
    with torch.no_grad():
        before = model(ids).logits
    model(ids).logits.square().mean().backward()
    gradients = [weight.grad.clone() for weight in model.parameters()]
    in_place_gelu(model)
    model.zero_grad()
    with torch.no_grad():
        assert torch.equal(model(ids).logits, before)
    model(ids).logits.square().mean().backward()
    assert all(torch.equal(weight.grad, old) for weight, old in zip(model.parameters(), gradients, strict=True))


@torch.no_grad()
@pytest.mark.parametrize("padded", [0, 5])
def test_one_more_token_has_the_bits_of_the_models_own_pass(model: GPT2LMHeadModel, padded: int) -> None:
    """Through several reallocations of the cache, with and without padding on the left."""
    torch.manual_seed(1)
    ids, mask = torch.randint(97, (4, 9)), torch.ones(4, 9, dtype=torch.long)
    mask[2, :padded] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    caches = [model(ids, attention_mask=mask, position_ids=positions, use_cache=True)[CACHE] for _ in range(2)]
    layers = [Roomy.of(layer) for layer in caches[1].layers]
    step = NextTokens(model)
    place = positions[:, -1:]
    for _ in range(2 * ROOM + 3):
        token, place = torch.randint(97, (4, 1)), place + 1
        mask = torch.nn.functional.pad(mask, (0, 1), value=1)
        own = model(token, attention_mask=mask, position_ids=place, use_cache=True, **{CACHE: caches[0]})
        assert torch.equal(step(token, place, layers, mask.bool()[:, None, None]), own.logits)
    for layer, roomy in zip(caches[0].layers, layers, strict=True):
        assert torch.equal(layer.keys, roomy.keys)
        assert torch.equal(layer.values, roomy.values)


@torch.no_grad()
def test_a_cache_whose_tensors_were_replaced_writes_behind_the_new_ones(model: GPT2LMHeadModel) -> None:
    cache = model(torch.randint(97, (2, 4)), use_cache=True)[CACHE]
    assert isinstance(cache, DynamicCache)
    layer = Roomy.of(cache.layers[0])
    new = torch.randn(2, 4, 1, 8)
    layer.update(new, new)
    layer.keys, layer.values = layer.keys[:1], layer.values[:1]  # a row has left
    keys, values = layer.update(new[:1], new[:1])
    assert keys.shape == values.shape == (1, 4, 6, 8)
    assert torch.equal(keys[:, :, 5:], new[:1])


def test_only_a_plain_gpt2_that_nobody_watches_is_served(model: GPT2LMHeadModel) -> None:
    assert NextTokens.serves(model)
    hook = model.transformer.h[1].register_forward_hook(lambda *_: None)
    assert not NextTokens.serves(model)
    hook.remove()
    assert not NextTokens.serves(model.train())
    adapted = get_peft_model(model.eval(), LoraConfig(r=2, target_modules=["c_attn"]))
    assert not NextTokens.serves(adapted)
    assert not NextTokens.serves(adapted.get_base_model())
