"""The rows of a key-value cache: which are kept, and which join them; and the name of the argument that takes one."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, LinearAttentionLayer
from transformers.modeling_outputs import BaseModelOutputWithPast

from reflectkit.models.lean import Roomy

# A model's argument and its output's field: `cache` since transformers 5.24, `past_key_values` before.
CACHE = "cache" if "cache" in {field.name for field in fields(BaseModelOutputWithPast)} else "past_key_values"


def is_movable(cache: Any) -> bool:
    """Whether every layer caches either keys and values of all columns, or states without columns (convolutional,
    recurrent).
    """
    return isinstance(cache, DynamicCache) and all(
        type(layer) is LinearAttentionLayer or (type(layer) in (DynamicLayer, Roomy) and layer.is_initialized)
        for layer in cache.layers
    )


def select(cache: Any, rows_B: torch.Tensor, prefix: int, dead: int) -> None:
    """Keep rows_B of the cache, without the `dead` columns after the first `prefix`."""
    for layer in cache.layers:
        if isinstance(layer, LinearAttentionLayer):
            for states in (layer.conv_states, layer.recurrent_states):
                states.update({name: state[rows_B] for name, state in states.items() if state is not None})
        else:
            layer.keys = _without(layer.keys, rows_B, prefix, dead)
            layer.values = _without(layer.values, rows_B, prefix, dead)


def join(cache: Any, other: Any, prefix: int) -> None:
    """Append the rows of `other` to `cache`; the one with fewer columns is padded after the first `prefix`."""
    for layer, new in zip(cache.layers, other.layers, strict=True):
        if isinstance(layer, LinearAttentionLayer):
            for states, more in ((layer.conv_states, new.conv_states), (layer.recurrent_states, new.recurrent_states)):
                states.update(
                    {name: torch.cat([state, more[name]]) for name, state in states.items() if state is not None}
                )
        else:
            columns = max(layer.keys.shape[2], new.keys.shape[2])
            for name in ("keys", "values"):
                parts = [getattr(one, name) for one in (layer, new)]
                parts = [widened(part, prefix, columns - part.shape[2], dim=2) for part in parts]
                setattr(layer, name, torch.cat(parts))


def _without(states_BHTD: torch.Tensor, rows_B: torch.Tensor, prefix: int, dead: int) -> torch.Tensor:
    if dead == 0:
        return states_BHTD[rows_B]
    return torch.cat([states_BHTD[rows_B, :, :prefix], states_BHTD[rows_B, :, prefix + dead :]], dim=2)


def widened(tensor: torch.Tensor, prefix: int, more: int, dim: int) -> torch.Tensor:
    """`tensor` with `more` columns of zeros after the first `prefix` along `dim`."""
    if more == 0:
        return tensor
    shape = list(tensor.shape)
    shape[dim] = more
    head, tail = tensor.split([prefix, tensor.shape[dim] - prefix], dim=dim)
    return torch.cat([head, tensor.new_zeros(shape), tail], dim=dim)
