"""Rows of tokens read as a tree: what several rows begin with is read once, with gradients.

The longest rows are trunks. Every other row is read only from where it leaves one that was read already, with that
one's keys and values before it. So an episode whose prompts grow costs little more than its last prompt. Gradients flow
through the keys and values. This is exact for plain causal attention, up to the rounding of sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
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


SHORTEST = 8  # tokens; a shorter common prefix is not worth keys and values of its own
DEPTH = 3  # how often a row may leave another one; deeper branches are read again
NARROW = 16  # tokens; chunks as short as this are read together, whatever their lengths


@dataclass(frozen=True)
class Chunk:
    """What is read of one row: its tokens from `start` on, after the read tokens with the numbers `before` (start)."""

    row: int
    start: int
    before: list[int]


@dataclass
class Tree:
    """How R rows are read."""

    levels: list[list[list[Chunk]]] = field(default_factory=list)
    """Passes, each of several chunks; those of a level need only what earlier levels have read."""
    paths: list[list[int]] = field(default_factory=list)
    """For each row, the numbers of its tokens among all that are read, in reading order."""


def right_pad(rows: Sequence[Sequence[int]], pad_id: int, device: torch.device) -> torch.Tensor:
    """`rows` as one tensor (B, T), padded on the right."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[pad_id] * (width - len(row))] for row in rows], device=device)


def shared_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Number of tokens that both begin with."""
    return next(
        (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def read_together(length: int, widest: int) -> bool:
    """Whether `length` tokens go into a pass of `widest`: at least half as many, or all of them few."""
    return 2 * length >= widest or widest <= NARROW


def tree_of(rows: Sequence[Sequence[int]], at_once: int | None = None) -> Tree:
    """The tree of `rows`, none of which is empty. at_once: most chunks in a pass."""
    owner: list[int] = [-1]  # of each node of the trie of rows: the row that reads it; the root has none
    below: list[dict[int, int]] = [{}]
    chunks: dict[int, tuple[int, int, int]] = {}  # of each row: level, start, the row that it leaves
    for row in sorted(range(len(rows)), key=lambda index: -len(rows[index])):  # longer rows first, as trunks
        tokens, node, shared, usable, leaves = rows[row], 0, 0, 0, -1
        for token in tokens:
            following = below[node].get(token)
            if following is None:
                break
            node, shared = following, shared + 1
            if chunks[owner[node]][0] < DEPTH or shared == len(tokens):
                usable, leaves = shared, owner[node]
        if usable < SHORTEST:
            usable, leaves = 0, -1
        chunks[row] = (0 if leaves < 0 else chunks[leaves][0] + 1, usable, leaves)
        for token in tokens[shared:]:
            below[node][token] = len(owner)
            node = len(owner)
            owner.append(row)
            below.append({})
    tree, count = Tree(paths=[[] for _ in rows]), 0
    for row in sorted(range(len(rows)), key=lambda index: (chunks[index][0], chunks[index][1] - len(rows[index]))):
        level, start, leaves = chunks[row]
        before = tree.paths[leaves][:start] if start else []
        length = len(rows[row]) - start
        tree.paths[row] = before + list(range(count, count + length))
        count += length
        if not length:
            continue  # another row begins with it
        while len(tree.levels) <= level:
            tree.levels.append([])
        passes = tree.levels[level]
        widest = len(rows[passes[-1][0].row]) - passes[-1][0].start if passes else 0
        if passes and read_together(length, widest) and len(passes[-1]) < (at_once or len(rows)):
            passes[-1].append(Chunk(row, start, before))
        else:
            passes.append([Chunk(row, start, before)])
    return tree


def hidden_at(
    trunk: Any,
    rows: Sequence[Sequence[int]],
    places: Sequence[tuple[int, int]],
    pad_id: int,
    at_once: int | None = None,
) -> torch.Tensor:
    """The last hidden states (N, D) at N (row, place) pairs.

    trunk: a model below its head, which attends to all earlier positions and takes positions. at_once: see `tree_of`.
    """
    device = next(trunk.parameters()).device
    tree = tree_of(rows, at_once)
    states: list[torch.Tensor] = []  # of the read tokens (n, D), pass by pass
    keys: list[list[torch.Tensor]] = []  # by layer: (n, heads, size) of the read tokens
    values: list[list[torch.Tensor]] = []
    for number, level in enumerate(tree.levels):
        last = number == len(tree.levels) - 1
        keys, values = ([[torch.cat(parts)] for parts in layers] for layers in (keys, values))
        for chunks in level:
            tokens = [rows[chunk.row][chunk.start :] for chunk in chunks]
            past, width = max(len(chunk.before) for chunk in chunks), max(map(len, tokens))
            cache = DynamicCache()
            if past:
                index_MP = right_pad([chunk.before for chunk in chunks], 0, device)
                for layer, (key, value) in enumerate(zip(keys, values, strict=True)):
                    cache.update(key[0][index_MP].transpose(1, 2), value[0][index_MP].transpose(1, 2), layer)
            seen, positions = [], []
            for chunk, own in zip(chunks, tokens, strict=True):
                gap, rest = past - chunk.start, width - len(own)
                seen.append([1] * chunk.start + [0] * gap + [1] * len(own) + [0] * rest)
                positions.append([chunk.start + min(step, len(own) - 1) for step in range(width)])
            output = trunk(
                input_ids=right_pad(tokens, pad_id, device),
                **{CACHE: cache},
                attention_mask=torch.tensor(seen, device=device),
                position_ids=torch.tensor(positions, device=device),
                use_cache=True,
            )
            own_MW = torch.tensor([row[past:] for row in seen], device=device, dtype=torch.bool)
            states.append(output.last_hidden_state[own_MW])
            if not last:
                for layer, held in enumerate(getattr(output, CACHE).layers):
                    if len(keys) <= layer:
                        keys.append([])
                        values.append([])
                    keys[layer].append(held.keys[:, :, past:].transpose(1, 2)[own_MW])
                    values[layer].append(held.values[:, :, past:].transpose(1, 2)[own_MW])
    index_N = torch.tensor([tree.paths[row][place] for row, place in places], device=device)
    return torch.cat(states)[index_N]
