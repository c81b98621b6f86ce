"""The rows of a KV cache: which are kept, and which join them; and the name of the argument that takes a cache."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import DynamicCache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer, LinearAttentionLayer
from transformers.modeling_outputs import BaseModelOutputWithPast
from typing_extensions import override

# A model's argument and its output's field: `cache` since transformers 5.24, `past_key_values` before.
CACHE = "cache" if "cache" in {field.name for field in fields(BaseModelOutputWithPast)} else "past_key_values"
ROOM = 64  # columns that `reserve` allocates ahead


class ReservedLayer(DynamicLayer):
    """A cache layer that writes the next tokens into reserved room instead of copying all to a longer tensor."""

    keys: torch.Tensor
    values: torch.Tensor
    _room: list[torch.Tensor]
    _filled: torch.Tensor | None = None

    @override
    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        columns = self.keys.shape[2]
        end = columns + key_states.shape[2]
        if self._filled is not self.keys or end > self._room[0].shape[2]:
            self._room = [pad(states, (0, 0, 0, end + ROOM - columns)) for states in (self.keys, self.values)]
        keys, values = self._room
        keys[:, :, columns:end] = key_states
        values[:, :, columns:end] = value_states
        self.keys = self._filled = keys[:, :, :end]
        self.values = values[:, :, :end]
        return self.keys, self.values


def reserve(cache: Any) -> None:
    """Give the layers of a movable cache room for the next tokens."""
    for number, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer:
            cache.layers[number] = reserved = ReservedLayer()
            reserved.__dict__.update(layer.__dict__)


def only_keys_and_values(cache: Any) -> bool:
    """Whether the cache holds the keys and values of all positions, and nothing else."""
    return isinstance(cache, DynamicCache) and all(type(layer) is DynamicLayer for layer in cache.layers)


def is_movable(cache: Any) -> bool:
    """Whether every layer caches either keys and values of all columns, or states without columns (convolutional,
    recurrent).
    """
    return isinstance(cache, DynamicCache) and all(
        type(layer) is LinearAttentionLayer or (type(layer) is DynamicLayer and layer.is_initialized)
        for layer in cache.layers
    )


def attends(cache: Any) -> bool:
    """Whether some layer of the cache holds keys and values."""
    return any(isinstance(layer, CacheLayerMixin) for layer in cache.layers)


def drop_rows(cache: Any, rows_B: torch.Tensor, columns: int) -> None:
    """Keep rows_B of a movable cache, without its first `columns`."""
    for layer in cache.layers:
        if isinstance(layer, LinearAttentionLayer):
            for states in (layer.conv_states, layer.recurrent_states):
                states.update({name: state[rows_B] for name, state in states.items() if state is not None})
        else:
            layer.keys, layer.values = layer.keys[rows_B, :, columns:], layer.values[rows_B, :, columns:]


def join_rows(cache: Any, other: Any) -> None:
    """Append the rows of `other` to a movable `cache`; the one with fewer columns is padded on the left."""
    for layer, new in zip(cache.layers, other.layers, strict=True):
        if isinstance(layer, LinearAttentionLayer):
            for states, more in ((layer.conv_states, new.conv_states), (layer.recurrent_states, new.recurrent_states)):
                states.update(
                    {name: torch.cat([state, more[name]]) for name, state in states.items() if state is not None}
                )
        else:
            columns = max(layer.keys.shape[2], new.keys.shape[2])
            for name in ("keys", "values"):
                parts = [getattr(part, name) for part in (layer, new)]
                setattr(layer, name, torch.cat([pad(part, (0, 0, columns - part.shape[2], 0)) for part in parts]))
