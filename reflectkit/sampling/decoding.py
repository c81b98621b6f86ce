"""Text generation with a KV cache: prompt ids in, sampled ids and log-probabilities out.

Greedy by default. Sampling uses each row's own seed, so a row does not depend on its neighbours. Finished rows leave
the cache and waiting prompts take their place: iteration-level scheduling (Orca; Yu et al., OSDI 2022).

A prompt that begins like one that was read is read only from where it leaves it: in a conversation each prompt
continues the one before. Kept are the keys and values of each token, and for short convolutions (LFM2) their inputs, so
a new prompt may leave a kept one anywhere. Of linear attention (Qwen3.5), the state after the prompt is kept, so a new
one must continue all of it. This is exact up to the rounding of sums.
"""

from __future__ import annotations

import bisect
import threading
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad
from transformers import DynamicCache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer, LinearAttentionLayer
from typing_extensions import override

from reflectkit.models.scoring import (
    CACHE,
    SHORTEST_PREFIX,
    has_plain_head,
    head_logits,
    read_together,
    right_pad,
    shared_length,
    takes_positions,
    trunk_of,
    unwrapped,
)
from reflectkit.sampling.base import EVERYTHING, Truncation, truncated_rows
from reflectkit.seeding import uniform

LONG = 128  # tokens; keeping a shorter prompt costs more than reading it again
CAPACITY = 2**29  # bytes
WAIT = 32  # tokens; a prompt that shares so many more with another one of its batch is read after it
REST = 16  # tokens; a kept prompt is dropped if a new one shares all but so many of its tokens

Layer = tuple[torch.Tensor, ...]
"""What one layer caches of T tokens: keys and values (heads, T, size), the inputs of a convolution (channels, T), or,
after all tokens, the last inputs (channels, K) and the state (heads, size, size)."""


@dataclass(frozen=True)
class Read:
    """A prompt that was read, with what each layer caches of its T tokens."""

    tokens: tuple[int, ...]
    layers: tuple[Layer, ...] = ()

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return sum(part.nbytes for layer in self.layers for part in layer)


@dataclass(frozen=True)
class Prefix:
    """The first `length` tokens of `read`, with which another prompt begins; 0 if there is none."""

    read: Read = Read(())
    length: int = 0


class PrefixCache:
    """Keeps what was read with the current weights, for all threads. capacity: in bytes, beyond which `trim` drops what
    was used least recently.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.capacity = capacity
        self.size = 0
        """Bytes that are kept."""
        self._reads: OrderedDict[tuple[int, ...], Read] = OrderedDict()
        self._sorted: list[tuple[int, ...]] = []
        self._lock = threading.Lock()

    def longest(self, prompt: Sequence[int], whole: bool = False) -> Prefix:
        """The longest kept prefix of `prompt`, which leaves at least one token to read. whole: only all of one that was
        read.
        """
        tokens, best = tuple(prompt), Prefix()
        with self._lock:
            place = bisect.bisect_left(self._sorted, tokens)
            near_ones = self._sorted[max(0, place - 1) : place + 1]  # no other begins with as many of its tokens
            for near in [read for read in self._reads if tokens[: len(read)] == read] if whole else near_ones:
                length = min(shared_length(tokens, near), len(tokens) - 1)
                if whole and length < len(near):
                    continue
                if length > best.length and length >= SHORTEST_PREFIX:
                    best = Prefix(self._reads[near], length)
            if best.length:
                self._reads.move_to_end(best.read.tokens)
        return best

    def keep(self, read: Read, prefix: Prefix, whole: bool = False) -> None:
        """Keep a prompt that was read after `prefix`, which it replaces if it continues from its end. whole: see
        `longest`; then another prompt may need the prefix.
        """
        if len(read.tokens) < LONG:
            return
        with self._lock:
            if read.tokens in self._reads:
                return
            if not whole and len(prefix.read.tokens) - prefix.length <= REST:
                self._drop(prefix.read.tokens)
            self._reads[read.tokens] = read
            bisect.insort(self._sorted, read.tokens)
            self.size += read.size

    def trim(self) -> None:
        """Drop prompts until the capacity is enough."""
        with self._lock:
            while self.size > self.capacity:
                self._drop(next(iter(self._reads)))

    def clear(self) -> None:
        """Forget everything: the weights have changed."""
        with self._lock:
            self._reads.clear()
            self._sorted.clear()
            self.size = 0

    def _drop(self, tokens: tuple[int, ...]) -> None:
        if tokens in self._reads:
            self.size -= self._reads.pop(tokens).size
            del self._sorted[bisect.bisect_left(self._sorted, tokens)]


def pays(model: Any, prompts: Sequence[Sequence[int]]) -> bool:
    """Whether `read_prompts` is worth it for these prompts, and exact for the model."""
    return max(map(len, prompts), default=0) >= LONG and serves(model)


def serves(model: Any) -> bool:
    """Whether reading after a kept prefix is exact for the model: its layers attend to all earlier positions, are short
    convolutions, or are linear attention that continues from a state, and it takes positions.
    """
    config = unwrapped(model).config.get_text_config()
    kinds = {type(layer) for layer in DynamicCache(config=config).layers}
    known = {DynamicLayer, LinearAttentionLayer} if hasattr(config, "conv_L_cache") or folds(model) else {DynamicLayer}
    return kinds <= known and has_plain_head(model) and takes_positions(model)


def folds(model: Any) -> bool:
    """Whether the model folds its past into a state that it can go on from."""
    return str(unwrapped(model).config.get_text_config().model_type).startswith("qwen3_5")


def read_prompts(
    model: Any, prompts: Sequence[Sequence[int]], pad_id: int, kept: PrefixCache
) -> tuple[list[Read], torch.Tensor]:
    """(what was read of each prompt, logits_BV after it). Only the tokens after kept prefixes are read, and what
    several of the prompts begin with is read once. Long prompts are kept.
    """
    tokens, whole = [tuple(prompt) for prompt in prompts], folds(model)
    reads: list[Read] = [Read(())] * len(tokens)
    logits_V: list[torch.Tensor] = [torch.empty(0)] * len(tokens)
    waiting = list(range(len(tokens)))
    while waiting:
        prefixes = {row: kept.longest(tokens[row], whole) for row in waiting}
        now: list[int] = []  # rows that would not save WAIT tokens by being read after another one
        before: tuple[int, ...] = ()
        for row in sorted(prefixes, key=tokens.__getitem__):  # the row before shares the most tokens
            shared = min(shared_length(before, tokens[row]), len(tokens[row]) - 1)
            if whole and shared < len(before):
                shared = 0
            if shared - prefixes[row].length < WAIT:
                now.append(row)
            before = tokens[row]
        new_tokens = {row: len(tokens[row]) - prefixes[row].length for row in now}
        passes: list[list[int]] = []  # rows of similar lengths
        for row in sorted(now, key=lambda row: (-new_tokens[row], row)):
            first = passes[-1][0] if passes else row
            alike = read_together(new_tokens[row], new_tokens[first])
            if whole and (prefixes[row].length or prefixes[first].length):  # no padding after a state
                alike = new_tokens[row] == new_tokens[first]
            if passes and alike:
                passes[-1].append(row)
            else:
                passes.append([row])
        for rows in passes:
            new, logits_MV = _read_after(model, [tokens[row] for row in rows], [prefixes[row] for row in rows], pad_id)
            for row, read, line_V in zip(rows, new, logits_MV, strict=True):
                reads[row], logits_V[row] = read, line_V
                kept.keep(read, prefixes[row], whole)
        waiting = sorted(prefixes.keys() - now)
    kept.trim()  # only now, since the batch is in memory anyway
    return reads, torch.stack(logits_V)


@torch.no_grad()
def _read_after(
    model: Any, prompts: Sequence[Sequence[int]], prefixes: Sequence[Prefix], pad_id: int
) -> tuple[list[Read], torch.Tensor]:
    """As `read_prompts`, in one pass. The new tokens are padded on the right, where convolutions do not see it, or on
    the left, where states that begin here do not.
    """
    device, left = next(model.parameters()).device, folds(model)
    new = [prompt[prefix.length :] for prompt, prefix in zip(prompts, prefixes, strict=True)]
    past, width = max(prefix.length for prefix in prefixes), max(map(len, new))
    pairs = list(zip(prefixes, new, strict=True))
    padded = [(width - len(own), 0) if left else (0, width - len(own)) for own in new]
    seen_BT = [
        [0] * (past - prefix.length + before) + [1] * (prefix.length + len(own)) + [0] * behind
        for (prefix, own), (before, behind) in zip(pairs, padded, strict=True)
    ]
    steps_BW = [
        [prefix.length + min(max(step - before, 0), len(own) - 1) for step in range(width)]
        for (prefix, own), (before, _) in zip(pairs, padded, strict=True)
    ]
    rows = [(pad_id,) * before + tuple(own) for own, (before, _) in zip(new, padded, strict=True)]
    output = trunk_of(model)(
        input_ids=right_pad(rows, pad_id, device),
        **{CACHE: cache_of(model, prefixes, recording=True)},
        attention_mask=torch.tensor(seen_BT, device=device),
        position_ids=torch.tensor(steps_BW, device=device),
        use_cache=True,
    )
    reads = []
    for row, (prompt, (prefix, own), (_, behind)) in enumerate(zip(prompts, pairs, padded, strict=True)):
        layers: list[Layer] = []
        for number, held in enumerate(getattr(output, CACHE).layers):
            if left and isinstance(held, LinearAttentionLayer):
                layers.append((held.conv_states[0][row].clone(), held.recurrent_states[0][row].clone()))
                continue
            layer = _columns(held)
            ends = [part.shape[2] - behind for part in layer]
            fresh = [part[row, :, end - len(own) : end] for part, end in zip(layer, ends, strict=True)]
            if prefix.length:
                old = prefix.read.layers[number]
                fresh = [torch.cat([a[:, : prefix.length], b], dim=1) for a, b in zip(old, fresh, strict=True)]
            layers.append(tuple(part if prefix.length else part.clone() for part in fresh))
        reads.append(Read(tuple(prompt), tuple(layers)))
    rows_B = torch.arange(len(new), device=device)
    ends_B = torch.tensor([width - 1 - behind for _, behind in padded], device=device)
    return reads, head_logits(model, output.last_hidden_state[rows_B, ends_B], None)


def _columns(layer: Any) -> Layer:
    """What a layer of a cache holds of its tokens."""
    return (layer.conv_states[0],) if isinstance(layer, LinearAttentionLayer) else (layer.keys, layer.values)


def cache_of(model: Any, prefixes: Sequence[Prefix], *, recording: bool) -> Any:
    """A model's cache of B prefixes, padded on the left. recording: convolutions keep the inputs of all tokens to come,
    so that these can be kept too.
    """
    config, states = unwrapped(model).config.get_text_config(), folds(model)
    cache = DynamicCache(config=config)
    longest = max(prefix.length for prefix in prefixes)
    some = max(prefixes, key=lambda prefix: prefix.length).read
    for number, layer in enumerate(cache.layers):
        if isinstance(layer, LinearAttentionLayer):
            layer.record_past = recording and not states
        if not longest:
            continue
        if states and isinstance(layer, LinearAttentionLayer):
            inputs, state = (
                torch.stack([prefix.read.layers[number][place] if prefix.length else like * 0 for prefix in prefixes])
                for place, like in enumerate(some.layers[number])
            )
            layer.update_conv_state(inputs, conv_kernel_size=inputs.shape[-1])
            layer.update_recurrent_state(state)
            continue
        width = min(longest, config.conv_L_cache) if isinstance(layer, LinearAttentionLayer) else longest
        parts = []
        for place, like in enumerate(some.layers[number]):
            padded = like.new_zeros(len(prefixes), like.shape[0], width, *like.shape[2:])
            for row, prefix in enumerate(prefixes):
                held = min(prefix.length, width)
                if held:
                    padded[row, :, width - held :] = prefix.read.layers[number][place][
                        :, prefix.length - held : prefix.length
                    ]
            parts.append(padded)
        if isinstance(layer, LinearAttentionLayer):
            layer.update_conv_state(parts[0], conv_kernel_size=config.conv_L_cache)
        else:
            layer.update(*parts)
    return cache


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


CLEAR_AT = 4  # finished rows are dropped once they are one in 4, since dropping copies the cache and reads new prompts


@dataclass
class GeneratedText:
    """The text after one prompt. token_ids: with the stop token, if one came. logprobs: natural log-probability of each
    token under the distribution it was drawn from (temperature 1 for greedy rows).
    """

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


KERNELS = [
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.MATH,
]
"""Of attention, while decoding. cuDNN's, which `load.pick_device` turns off, is faster for a token at a time."""


@torch.no_grad()
@sdpa_kernel(KERNELS)
def decode(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    pad_id: int,
    stop_ids: frozenset[int],
    max_new_tokens: int | Sequence[int],
    temperature: float = 0.0,
    truncation: Truncation = EVERYTHING,
    seeds: Sequence[int] = (),
    width: int = 64,
    kept: PrefixCache | None = None,
) -> list[GeneratedText]:
    """The text after each prompt; it does not depend on the other prompts.

    stop_ids: a row ends with any of these. max_new_tokens: one limit for all rows or one per row; 0 costs nothing.
    temperature: 0 is greedy. truncation: which tokens may be drawn, if temperature > 0. seeds: one per row, required if
    temperature > 0. width: rows decoded at once; the others wait. kept: KV cache of earlier prompts with the same
    weights; the new ones reuse it, and long ones are added.
    """
    limits = [max_new_tokens] * len(prompts) if isinstance(max_new_tokens, int) else list(max_new_tokens)
    generated = [GeneratedText() for _ in prompts]
    reader = _Reader(model, pad_id, (kept or PrefixCache()) if pays(model, prompts) else None)

    def pick(rows: _Rows, logits_BV: torch.Tensor) -> None:
        """Add a token to each open row and close those that it ends; closed rows keep their position."""
        logprobs_BV = torch.log_softmax(logits_BV.float() / (temperature or 1.0), dim=-1)
        if temperature > 0:
            if truncation:
                logprobs_BV = truncated_rows(logprobs_BV, truncation)
            draws = [0.0] * len(rows.places)
            for row in rows.open:
                place = rows.places[row]
                draws[row] = uniform(seeds[place], "token", len(generated[place].token_ids))
            rows.last_B1 = sample_tokens(logprobs_BV, draws)[:, None]
        else:
            rows.last_B1 = logprobs_BV.argmax(dim=-1, keepdim=True)
        moved = torch.tensor(rows.open, device=logprobs_BV.device)
        rows.positions_B1 = rows.positions_B1.index_add(0, moved, torch.ones_like(rows.last_B1[: len(rows.open)]))
        tokens, logprobs = rows.last_B1[:, 0].tolist(), logprobs_BV.gather(1, rows.last_B1)[:, 0].tolist()
        still_open = []
        for row in rows.open:
            place = rows.places[row]
            generated[place].token_ids.append(tokens[row])
            generated[place].logprobs.append(logprobs[row])
            if tokens[row] not in stop_ids and len(generated[place].token_ids) < limits[place]:
                still_open.append(row)
        rows.open = still_open

    waiting = deque(index for index, limit in enumerate(limits) if limit > 0)
    rows: _Rows | None = None
    while rows is not None or waiting:
        if rows is not None and rows.movable and CLEAR_AT * (len(rows.places) - len(rows.open)) >= len(rows.places):
            rows.drop_closed()
        if rows is not None and not rows.open:
            rows = None
        elif waiting and (rows is None or (rows.movable and len(rows.places) < width)):
            count = width - (0 if rows is None else len(rows.places))
            places = [waiting.popleft() for _ in range(min(count, len(waiting)))]
            new, logits_BV = reader.read(places, [prompts[place] for place in places])
            pick(new, logits_BV)
            rows = new if rows is None else rows.joined_by(new)
        elif rows is not None:
            pick(rows, reader.step(rows))
    return generated


@dataclass
class _Rows:
    """B rows decoded at once. Their columns: padding, then each row's own tokens."""

    places: list[int]
    """The index of each row's prompt."""
    open: list[int]
    """The numbers of the unfinished rows."""
    cache: Any
    """KV cache of all columns but the last token's, which is still to be read."""
    last_B1: torch.Tensor
    """The last token of each row."""
    positions_B1: torch.Tensor
    """The position of the last token."""
    mask_BT: torch.Tensor
    """1 where a row has a token."""
    movable: bool
    """Whether rows can leave the cache and join it."""

    def drop_closed(self) -> None:
        """Drop finished rows, and columns that are padding in all the others."""
        if not self.open:
            return
        rows_B = torch.tensor(self.open, device=self.mask_BT.device)
        mask_BT = self.mask_BT[rows_B]
        padding = int(mask_BT.any(dim=0).int().argmax())  # columns before the longest row's first token
        self.mask_BT = mask_BT[:, padding:]
        drop_rows(self.cache, rows_B, padding)
        self.last_B1, self.positions_B1 = self.last_B1[rows_B], self.positions_B1[rows_B]
        self.places = [self.places[row] for row in self.open]
        self.open = list(range(len(self.places)))

    def joined_by(self, others: _Rows) -> _Rows:
        """These rows with `others` appended."""
        count, columns = len(self.places), max(self.mask_BT.shape[1], others.mask_BT.shape[1])
        join_rows(self.cache, others.cache)
        return _Rows(
            places=self.places + others.places,
            open=self.open + [count + row for row in others.open],
            cache=self.cache,
            last_B1=torch.cat([self.last_B1, others.last_B1]),
            positions_B1=torch.cat([self.positions_B1, others.positions_B1]),
            mask_BT=torch.cat([pad(rows.mask_BT, (columns - rows.mask_BT.shape[1], 0)) for rows in (self, others)]),
            movable=self.movable,
        )


class _Reader:
    """Runs the model: over new prompts, and over one more token of each row."""

    def __init__(self, model: Any, pad_id: int, kept: PrefixCache | None) -> None:
        self.model, self.pad_id, self.kept = model, pad_id, kept
        self.device = next(model.parameters()).device
        self.takes_positions = takes_positions(model)

    def read(self, places: list[int], prompts: Sequence[Sequence[int]]) -> tuple[_Rows, torch.Tensor]:
        """(rows without a new token yet, logits_BV of their first)."""
        input_ids, mask_BT = left_pad(prompts, self.pad_id, self.device)
        if self.kept is not None:
            reads, logits_BV = read_prompts(self.model, prompts, self.pad_id, self.kept)
            cache = cache_of(self.model, [Prefix(read, len(read.tokens)) for read in reads], recording=False)
        else:
            cache, logits_BV = self._forward(input_ids, mask_BT, position_ids(mask_BT), None)
        movable = self.takes_positions and is_movable(cache)
        if movable:
            reserve(cache)
        last_B1, positions_B1 = input_ids[:, -1:], mask_BT.sum(dim=1, keepdim=True) - 1
        return _Rows(places, list(range(len(places))), cache, last_B1, positions_B1, mask_BT, movable), logits_BV

    def step(self, rows: _Rows) -> torch.Tensor:
        """logits_BV after each row's last token, which is added to the cache."""
        rows.mask_BT = pad(rows.mask_BT, (0, 1), value=1)
        rows.cache, logits_BV = self._forward(rows.last_B1, rows.mask_BT, rows.positions_B1, rows.cache)
        return logits_BV

    def _forward(
        self, input_ids: torch.Tensor, mask_BT: torch.Tensor, positions: torch.Tensor, cache: Any
    ) -> tuple[Any, torch.Tensor]:
        """(cache, logits_BV of the last column). Left padding is harmless with a mask and positions."""
        placed = {"position_ids": positions} if self.takes_positions else {}
        if cache is not None and not attends(cache):  # Mamba masks the new columns alone
            mask_BT = mask_BT[:, -1:]
        output = self.model(
            input_ids=input_ids, attention_mask=mask_BT, use_cache=True, logits_to_keep=1, **{CACHE: cache}, **placed
        )
        return getattr(output, CACHE), output.logits[:, -1]


def left_pad(rows: Sequence[Sequence[int]], pad_id: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """(input_ids_BT, attention_mask_BT) of `rows`, padded on the left: every row's last token is in the last column."""
    gaps = [max(map(len, rows)) - len(row) for row in rows]
    ids = [[pad_id] * gap + list(row) for row, gap in zip(rows, gaps, strict=True)]
    mask = [[0] * gap + [1] * len(row) for row, gap in zip(rows, gaps, strict=True)]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


def position_ids(attention_mask_BT: torch.Tensor) -> torch.Tensor:
    """Each token's position in its row, from 0; padding is at 0. Without it, left padding would shift positions."""
    return (attention_mask_BT.cumsum(dim=1) - 1).clamp(min=0)


def sample_tokens(logprobs_BV: torch.Tensor, draws: Sequence[float]) -> torch.Tensor:
    """One token per row (B), by inverting the cumulative distribution at the row's draw, 0 ≤ draw < 1."""
    upto_BV = logprobs_BV.double().exp().cumsum(dim=-1)
    draws_B1 = torch.tensor(draws, dtype=torch.float64, device=logprobs_BV.device)[:, None]
    chosen_B1 = torch.searchsorted(upto_BV, draws_B1 * upto_BV[:, -1:], right=True)
    return chosen_B1.squeeze(1).clamp(max=logprobs_BV.shape[1] - 1)
