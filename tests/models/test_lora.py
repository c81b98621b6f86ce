"""LoRA on a base in bfloat16: the products as one function, and eager attention for short rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import Linear as PeftLinear
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from reflectkit.models.lora import BFloat16Linear, join_products
from reflectkit.models.scoring import token_logprobs
from reflectkit.train.optimizers import new_optimizer

ROUNDING = 2**-8
"""Relative, of bfloat16."""


def adapted(dtype: torch.dtype, dropout: float = 0.0, bias: bool = False, **settings: Any) -> Any:
    """A small Llama whose layers all have an adapter that has learned."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=50, num_key_value_heads=2, attention_bias=bias, **sizes)
    base = LlamaForCausalLM(config).to(dtype)
    lora = LoraConfig(r=4, lora_alpha=8, lora_dropout=dropout, target_modules="all-linear", **settings)
    model = get_peft_model(base, lora)
    for name, weight in model.named_parameters():
        if "lora_B" in name or "bias" in name:
            nn.init.normal_(weight, std=0.1)
    return model


def joined(model: Any) -> list[BFloat16Linear]:
    join_products(model)
    return [layer for layer in model.modules() if isinstance(layer, BFloat16Linear)]


def gradients(model: Any, rows: list[list[int]]) -> dict[str, torch.Tensor]:
    """Of the mean log-probability of all tokens."""
    masks = [[0] + [1] * (len(row) - 1) for row in rows]
    token_logprobs(model, rows, masks, pad_id=0)[0].mean().backward()
    found = {name: weight.grad.float() for name, weight in model.named_parameters() if weight.grad is not None}
    model.zero_grad()
    return found


def difference(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    """The norm of the difference, relative to that of `theirs`."""
    assert ours.keys() == theirs.keys()
    between = sum(float((ours[name] - theirs[name]).square().sum()) for name in theirs)
    return float((between / sum(float(each.square().sum()) for each in theirs.values())) ** 0.5)


@pytest.mark.parametrize("bias", [False, True])
def test_one_product_is_exact_up_to_rounding(bias: bool) -> None:
    """A layer's outputs, and the gradients of all that learns, against the same weights in float64."""
    layers = {}
    for name in ("exact", "peft", "ours"):
        layer = adapted(torch.bfloat16, bias=bias).base_model.model.model.layers[0].self_attn.v_proj
        layers[name] = layer.double() if name == "exact" else layer
    (layers["ours"],) = joined(layers["ours"])
    inputs = torch.randn(3, 5, 32).bfloat16()
    slopes = torch.randn(3, 5, 16).bfloat16()
    found: dict[str, list[torch.Tensor]] = {}
    for name, layer in layers.items():
        given = inputs.to(layer.weight.dtype, copy=True).requires_grad_()
        outputs = layer(given)
        outputs.backward(slopes.to(outputs.dtype))
        assert layer.weight.grad is None
        learned = (layer.lora_A["default"].weight.grad, layer.lora_B["default"].weight.grad)
        found[name] = [outputs.detach(), given.grad, *learned]
    for ours, theirs, exact in zip(found["ours"], found["peft"], found["exact"], strict=True):
        assert ours.dtype == theirs.dtype
        for each in (ours, theirs):
            assert float((each - exact).norm() / exact.norm()) < ROUNDING


def test_without_gradients_a_layer_follows_its_adapter() -> None:
    """It computes the same as with them, also after a step, after weights are loaded, and for another adapter."""
    model = adapted(torch.bfloat16)
    (layer, *_) = joined(model)
    inputs = torch.randn(3, 32).bfloat16()
    down, up = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    states = {name: weight.detach().clone() for name, weight in layer.named_parameters()}

    def now() -> torch.Tensor:
        with torch.no_grad():
            outputs: torch.Tensor = layer(inputs)
            assert torch.equal(layer(inputs), outputs)
        assert torch.equal(layer(inputs), outputs)
        return outputs

    start = now()
    down.grad, up.grad = torch.ones_like(down), torch.ones_like(up)
    new_optimizer([down, up], 0.1, 0.0).step()
    stepped = now()
    layer.load_state_dict(states, strict=False)
    loaded = now()
    up.data = torch.zeros_like(up)
    bare = now()
    model.add_adapter("other", LoraConfig(r=2, lora_alpha=8, target_modules="all-linear"))
    model.set_adapter("other")
    other = now()
    assert torch.equal(loaded, start)
    assert torch.equal(other, bare)
    assert not torch.equal(stepped, start)
    assert not torch.equal(bare, start)


def test_what_is_not_plain_is_left_to_peft() -> None:
    inputs = torch.randn(2, 32).bfloat16()

    def first(model: Any) -> Any:
        return joined(model)[0]

    def same_as_peft(layer: Any) -> bool:
        torch.manual_seed(1)
        ours = layer(inputs)
        torch.manual_seed(1)
        return torch.equal(ours, PeftLinear.forward(layer, inputs))

    assert not joined(adapted(torch.float32))
    assert not joined(adapted(torch.float16))
    plain = first(adapted(torch.bfloat16))
    assert plain._plain_adapter() == "default"
    dropping = first(adapted(torch.bfloat16, dropout=0.5).train())
    assert not dropping._plain_adapter()
    assert same_as_peft(dropping)
    assert dropping.eval()._plain_adapter() == "default"
    weighted = first(adapted(torch.bfloat16, use_dora=True))
    assert not weighted._plain_adapter()
    assert same_as_peft(weighted)

    cast = first(adapted(torch.bfloat16)).float()
    assert torch.equal(cast(inputs.float()), PeftLinear.forward(cast, inputs.float()))
    merged = first(adapted(torch.bfloat16))
    merged.merge()
    assert same_as_peft(merged)
    assert torch.equal(merged(inputs), merged.base_layer(inputs))  # whose weights have the adapter's part

    model = adapted(torch.bfloat16)
    layer = first(model)
    with model.disable_adapter():
        assert torch.equal(layer(inputs), layer.base_layer(inputs))
    model.add_adapter("other", model.peft_config["default"])
    model.set_adapter("other")
    assert layer._plain_adapter() == "other"
    assert torch.equal(layer(inputs), layer.base_layer(inputs))  # a new adapter changes nothing
    model.base_model.set_adapter(["default", "other"])
    assert not layer._plain_adapter()
    assert same_as_peft(layer)


def test_an_adapter_is_saved_and_merged_as_pefts(tmp_path: Path) -> None:
    model = adapted(torch.bfloat16)
    model.save_pretrained(str(tmp_path / "peft"))
    assert joined(model)
    model.save_pretrained(str(tmp_path / "ours"))
    name = "adapter_model.safetensors"
    assert (tmp_path / "ours" / name).read_bytes() == (tmp_path / "peft" / name).read_bytes()
    again = PeftModel.from_pretrained(adapted(torch.bfloat16).unload(), str(tmp_path / "ours"))
    assert joined(again)
    ids = torch.tensor([[1, 2, 3]])
    merged = adapted(torch.bfloat16)
    joined(merged)
    merged = merged.merge_and_unload()
    with torch.no_grad():
        assert torch.equal(again(ids).logits, model(ids).logits)
        assert float((merged(ids).logits - model(ids).logits).abs().max()) < 0.05


@pytest.mark.parametrize("share", [False, True])
def test_gradients_of_short_rows_are_those_of_float32(share: bool) -> None:
    """With eager attention and one product for each adapter, as exactly as without."""
    rows = [[*range(1, 20), last, last + 1] for last in (30, 35, 40)]
    model, theirs = adapted(torch.bfloat16), adapted(torch.bfloat16)
    assert joined(model)
    exact = adapted(torch.bfloat16).float()
    expected = gradients(exact, rows)
    ours = difference(gradients(model, rows), expected)
    assert ours < 0.02
    assert ours < 1.5 * difference(gradients(theirs, rows), expected)
