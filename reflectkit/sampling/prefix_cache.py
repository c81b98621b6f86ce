"""KV cache of prompts that were read: a prompt that begins like one of them is read only from where it leaves it.

In a conversation each prompt continues the one before, so most of it was read in the last turn. Kept are the keys and
values of each token, and for short convolutions (LFM2) their inputs, so a new prompt may leave a kept one anywhere. Of
linear attention (Qwen3.5), the state after the prompt is kept, so a new one must continue all of it. This is exact up
to the rounding of sums.
"""

from __future__ import annotations

import bisect
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, LinearAttentionLayer

from reflectkit.models.prefixes import CACHE, read_together, right_pad, shared_length
from reflectkit.models.scoring import (
    SHORTEST_PREFIX,
    has_plain_head,
    head_logits,
    takes_positions,
    trunk_of,
    unwrapped,
)

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
