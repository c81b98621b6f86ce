"""The same values with fewer calls, for models that are so small that calls cost more than arithmetic.

`in_place_gelu` and `NextTokens` make the very operations of the transformers library in the same order, so what is
computed is equal to the bit. `Roomy` keeps a cache in memory that has room for the next tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import GPT2LMHeadModel
from transformers.activations import NewGELUActivation
from transformers.cache_utils import DynamicLayer
from transformers.pytorch_utils import Conv1D
from typing_extensions import override

ROOM = 64  # columns that a cache is allocated ahead
SLOPE = math.sqrt(2.0 / math.pi)


class InPlaceGelu(NewGELUActivation):
    """GPT-2's GELU, without a new tensor for each of its eight operations where no gradient is wanted."""

    @override
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            return super().forward(input)
        inner = torch.pow(input, 3.0).mul_(0.044715).add_(input).mul_(SLOPE).tanh_().add_(1.0)
        return inner.mul_(0.5 * input)


def in_place_gelu(model: nn.Module) -> None:
    """Replace each of GPT-2's activations in `model`; they have no weights."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is NewGELUActivation:
                setattr(module, name, InPlaceGelu())


class Roomy(DynamicLayer):
    """A cache layer whose next tokens are written behind the others instead of copying all to a longer tensor."""

    keys: torch.Tensor
    values: torch.Tensor
    _room: list[torch.Tensor]

    @classmethod
    def of(cls, layer: DynamicLayer) -> Roomy:
        """`layer` with room, holding the same tensors."""
        roomy = cls()
        roomy.__dict__.update(layer.__dict__)
        return roomy

    @override
    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        columns = self.keys.shape[2]
        end = columns + key_states.shape[2]
        if self.__dict__.get("_filled") is not self.keys or end > self._room[0].shape[2]:
            self._room = [_widened(states, end + ROOM) for states in (self.keys, self.values)]
        keys, values = self._room
        keys[:, :, columns:end] = key_states
        values[:, :, columns:end] = value_states
        self.keys = self._filled = keys[:, :, :end]
        self.values = values[:, :, :end]
        return self.keys, self.values


def _widened(states_BHTD: torch.Tensor, columns: int) -> torch.Tensor:
    batch, heads, used, width = states_BHTD.shape
    wide = states_BHTD.new_empty(batch, heads, columns, width)
    wide[:, :, :used] = states_BHTD
    return wide


class NextTokens:
    """Reads a few more tokens of each row of a GPT-2, without what its `forward` does around its operations."""

    def __init__(self, model: GPT2LMHeadModel) -> None:
        trunk = model.transformer
        self.embeddings, self.head = (trunk.wte.weight, trunk.wpe.weight), model.lm_head.weight
        self.norm = _norm(trunk.ln_f)
        self.blocks = [
            (
                _norm(block.ln_1),
                _linear(block.attn.c_attn),
                _linear(block.attn.c_proj),
                block.attn.scaling,
                _norm(block.ln_2),
                _linear(block.mlp.c_fc),
                block.mlp.act,
                _linear(block.mlp.c_proj),
            )
            for block in trunk.h
        ]
        self.heads = model.config.n_head

    @staticmethod
    def serves(model: Any) -> bool:
        """Whether `model` is a plain GPT-2 (no adapter, no quantisation) whose modules nobody watches by hooks."""
        if type(model) is not GPT2LMHeadModel or model.training or model.config.add_cross_attention:
            return False
        trunk, head = model.transformer, model.lm_head
        tables = {type(trunk.wte), type(trunk.wpe)} == {nn.Embedding} and type(head) is nn.Linear and head.bias is None
        if not tables or model.config._attn_implementation != "sdpa":
            return False
        parts = [part for block in trunk.h for part in (block.attn, block.mlp)]
        plain = all(type(layer) is Conv1D for part in parts for layer in part.children() if hasattr(layer, "weight"))
        return plain and not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())

    def __call__(
        self, tokens_BS: torch.Tensor, positions_BS: torch.Tensor, layers: Sequence[Roomy], seen: torch.Tensor
    ) -> torch.Tensor:
        """logits_BSV after the tokens, which are added to the cache `layers`. seen: True where a token may look, of
        shape (B, 1, S, T + S), or with 1 for S.
        """
        rows, new = tokens_BS.shape
        words, places = self.embeddings
        hidden_ND = functional.embedding(tokens_BS, words) + functional.embedding(positions_BS, places)
        hidden_ND = hidden_ND.flatten(0, 1)
        for layer, (norm, into, out, scaling, norm_2, widen, act, narrow) in zip(layers, self.blocks, strict=True):
            mixed_ND = torch.addmm(into[1], functional.layer_norm(hidden_ND, *norm), into[0])
            query, key, value = mixed_ND.view(rows, new, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind()
            keys, values = layer.update(key, value)
            seen_BHSD = functional.scaled_dot_product_attention(query, keys, values, attn_mask=seen, scale=scaling)
            hidden_ND = torch.addmm(out[1], seen_BHSD.transpose(1, 2).reshape(rows * new, -1), out[0]) + hidden_ND
            wide = act(torch.addmm(widen[1], functional.layer_norm(hidden_ND, *norm_2), widen[0]))
            hidden_ND = hidden_ND + torch.addmm(narrow[1], wide, narrow[0])
        logits_NV = functional.linear(functional.layer_norm(hidden_ND, *self.norm), self.head)
        return logits_NV.view(rows, new, -1)


def _norm(module: nn.LayerNorm) -> tuple[Any, ...]:
    """The arguments of `layer_norm` behind its input."""
    return module.normalized_shape, module.weight, module.bias, module.eps


def _linear(module: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return module.weight, module.bias
