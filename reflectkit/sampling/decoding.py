"""Text generation with a KV cache: prompt ids in, sampled ids and log-probabilities out.

Greedy by default. Sampling uses each row's own seed, so a row does not depend on its neighbours.
Finished rows leave the cache and waiting prompts take their place: iteration-level scheduling
(Orca; Yu et al., OSDI 2022).

A prompt that begins like one that was read is read only from where it leaves it (`models/rows.py`):
in a conversation each prompt continues the one before. What was read is cached until the weights
change. This is exact up to the rounding of sums.

On a GPU, rows are in slots, and a step is a recording (`sampling/slots.py`).
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

from reflectkit.models.architecture import (
    CACHE,
    continues_prefixes,
    continues_states,
    takes_positions,
    text_config,
    trunk_of,
)
from reflectkit.models.device import on_device
from reflectkit.models.rows import (
    SHORTEST_PREFIX,
    CachedPrompt,
    GrowingLayer,
    Prefix,
    build_cache,
    left_pad,
    plan_tree,
    read,
    shared_length,
)
from reflectkit.models.scoring import head_logits
from reflectkit.sampling.base import EVERYTHING, Truncation, truncated_rows
from reflectkit.sampling.slots import Slots, pool_of
from reflectkit.seeding import uniform

LONG = 128  # tokens; keeping a shorter prompt costs more than reading it again
CAPACITY = 2**29  # bytes
WORTH = 32  # tokens that a prompt must share with another one of its batch to be read after it
REST = 16  # tokens; a cached prompt is dropped if a new one shares all but so many of its tokens
ROOM = 64  # columns of the cache that are allocated ahead
# Finished rows are dropped once they are one in 4, since dropping copies the cache and reads new
# prompts
CLEAR_AT = 4

KERNELS = [
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.MATH,
]
"""Of attention, while decoding. cuDNN's, which `load.pick_device` turns off, is faster for a token
at a time.
"""


# -------------------------------------------------------------------------------- prompts to reuse


class PrefixCache:
    """The prompts that were read with the current weights, for all threads. capacity: in bytes,
    beyond which `trim` drops what was used least recently.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.capacity = capacity
        self.size = 0
        """Bytes that are cached."""
        self._prompts: OrderedDict[tuple[int, ...], CachedPrompt] = OrderedDict()
        self._sorted: list[tuple[int, ...]] = []
        self._lock = threading.Lock()

    def longest(self, prompt: Sequence[int], whole: bool = False) -> Prefix:
        """The longest cached prefix of `prompt`, which leaves at least one token to read. whole:
        only all of a prompt that was read.
        """
        tokens = tuple(prompt)
        best = Prefix()
        with self._lock:
            place = bisect.bisect_left(self._sorted, tokens)
            candidates = self._sorted[max(0, place - 1) : place + 1]  # no other shares more tokens
            if whole:
                candidates = [cached for cached in self._prompts if tokens[: len(cached)] == cached]
            for cached in candidates:
                length = min(shared_length(tokens, cached), len(tokens) - 1)
                if whole and length < len(cached):
                    continue
                if length > best.length and length >= SHORTEST_PREFIX:
                    best = Prefix(self._prompts[cached], length)
            if best.length:
                self._prompts.move_to_end(best.prompt.tokens)
        return best

    def keep(
        self,
        prompt: CachedPrompt,
        prefix: Prefix,
        whole: bool = False,
    ) -> None:
        """Cache a prompt that was read after `prefix`, which it replaces if it continues from its
        end. whole: see `longest`; then another prompt may need the prefix.
        """
        if len(prompt.tokens) < LONG:
            return
        with self._lock:
            if prompt.tokens in self._prompts:
                return
            if not whole and len(prefix.prompt.tokens) - prefix.length <= REST:
                self._drop(prefix.prompt.tokens)
            self._prompts[prompt.tokens] = prompt
            bisect.insort(self._sorted, prompt.tokens)
            self.size += prompt.size

    def trim(self) -> None:
        """Drop prompts until the capacity is enough."""
        with self._lock:
            while self.size > self.capacity:
                self._drop(next(iter(self._prompts)))

    def clear(self) -> None:
        """Forget everything: the weights have changed."""
        with self._lock:
            self._prompts.clear()
            self._sorted.clear()
            self.size = 0

    def _drop(self, tokens: tuple[int, ...]) -> None:
        if tokens in self._prompts:
            self.size -= self._prompts.pop(tokens).size
            del self._sorted[bisect.bisect_left(self._sorted, tokens)]


@torch.no_grad()
def read_prompts(
    model: Any,
    prompts: Sequence[Sequence[int]],
    pad_id: int,
    cached: PrefixCache,
) -> tuple[list[CachedPrompt], torch.Tensor]:
    """(what was read of each prompt, logits_BV after it). Only the tokens after cached prefixes are
    read, and what several of the prompts begin with is read once. Long prompts are cached.
    """
    at_ends = continues_states(model)
    rows = [tuple(prompt) for prompt in prompts]
    prefixes = [cached.longest(row, at_ends) for row in rows]
    lengths = [prefix.length for prefix in prefixes]
    plan = plan_tree(rows, least=WORTH, prefixes=lengths, at_ends=at_ends)
    reading = read(trunk_of(model), plan, pad_id, prefixes=prefixes, all_states=True)
    for number, chunk in plan.chunks.items():
        if plan.length(chunk):  # other rows begin a longer one
            prefix = prefixes[number] if chunk.parent is None else Prefix()
            cached.keep(reading.prompts[number], prefix, at_ends)
    cached.trim()  # only now, since the batch is in memory anyway
    hidden_BD = reading.hidden_at([(number, len(row) - 1) for number, row in enumerate(rows)])
    return [reading.prompts[number] for number in range(len(rows))], head_logits(
        model, hidden_BD, None
    )


# ------------------------------------------------------------------------------- rows of the cache


def is_movable(cache: Any) -> bool:
    """Whether rows can leave the cache and join it: each layer has keys and values of all columns,
    or states without columns (convolutional, recurrent).
    """
    for layer in cache.layers:
        if type(layer) is GrowingLayer and layer.is_initialized:
            continue
        if type(layer) is not LinearAttentionLayer:
            return False
    return True


def empty_cache(model: Any) -> DynamicCache | None:
    """A cache whose layers of keys and values grow in place. None: the model has other layers, and
    makes its own.
    """
    config = text_config(model)
    kinds = {type(layer) for layer in DynamicCache(config=config).layers}
    if not kinds or not kinds <= {DynamicLayer, LinearAttentionLayer}:
        return None
    return build_cache(config, [Prefix()], room=ROOM)


def drop_rows(
    cache: Any,
    rows_B: torch.Tensor,
    columns: int,
) -> None:
    """Keep rows_B of a movable cache, without its first `columns`."""
    for layer in cache.layers:
        if isinstance(layer, GrowingLayer):
            layer.select_rows(rows_B, columns)
        else:
            layer.reorder_cache(rows_B)


def join_rows(cache: Any, other: Any) -> None:
    """Append the rows of `other` to a movable `cache`; the one with fewer columns is padded on the
    left.
    """
    for number, (layer, new) in enumerate(zip(cache.layers, other.layers, strict=True)):
        if isinstance(layer, GrowingLayer):
            layer.append_rows(new)
            continue
        joined = LinearAttentionLayer(number_of_states=layer.number_of_states)
        for index, inputs in layer.conv_states.items():
            if inputs is not None:
                both = torch.cat([inputs, new.conv_states[index]])
                joined.update_conv_state(both, index, conv_kernel_size=inputs.shape[-1])
        for index, state in layer.recurrent_states.items():
            if state is not None:
                joined.update_recurrent_state(
                    torch.cat([state, new.recurrent_states[index]]), index
                )
        cache.layers[number] = joined


# -------------------------------------------------------------------------------------- generation


@dataclass
class GeneratedText:
    """The text after one prompt. token_ids: with the stop token, if one came. logprobs: natural
    log-probability of each token under the distribution it was drawn from (temperature 1 for greedy
    rows).
    """

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


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
    prefix_cache: PrefixCache | None = None,
) -> list[GeneratedText]:
    """The text after each prompt; it does not depend on the other prompts.

    stop_ids: a row ends with any of these. max_new_tokens: one limit for all rows or one per row; 0
    costs nothing. temperature: 0 is greedy. truncation: which tokens may be drawn, if temperature >
    0. seeds: one per row, required if temperature > 0. width: rows decoded at once; the others
    wait. prefix_cache: KV cache of earlier prompts with the same weights; the new ones reuse it,
    and long ones are added.
    """
    # 1. What writes tokens, and what reads them
    limits = [max_new_tokens] * len(prompts) if isinstance(max_new_tokens, int) else max_new_tokens
    writer = _Writer(
        texts=[GeneratedText() for _ in prompts],
        limits=limits,
        stop_ids=stop_ids,
        temperature=temperature,
        truncation=truncation,
        seeds=seeds,
    )
    longest = max(map(len, prompts), default=0)
    if longest < LONG or not continues_prefixes(model):
        prefix_cache = None
    elif prefix_cache is None:
        prefix_cache = PrefixCache()
    reader = _Reader(model, pad_id, prefix_cache)
    waiting = deque(index for index, limit in enumerate(limits) if limit > 0)

    # 2. On a GPU in slots, where the model can
    pool = pool_of(model) if waiting else None
    if pool is not None:
        with pool.lock:
            most = max(len(prompts[place]) + limits[place] for place in waiting)
            longest_text = max(limits[place] for place in waiting)
            slots = pool.take(model, min(width, len(waiting)), most, longest_text)
            if slots is not None:
                decoder = _SlotDecoder(slots, reader, writer, prompts, waiting, width)
                pool.steps += decoder.run()
                return writer.texts

    # 3. Rounds: drop rows, read new prompts, or write one more token of each row
    rows: _Rows | None = None
    while rows is not None or waiting:
        if rows is not None and rows.movable and rows.are_mostly_closed:
            rows.drop_closed()
        if rows is not None and not rows.open:
            rows = None
            continue
        row_count = 0 if rows is None else len(rows.places)
        has_room = rows is None or (rows.movable and row_count < width)
        if waiting and has_room:
            count = min(width - row_count, len(waiting))
            places = [waiting.popleft() for _ in range(count)]
            new, logits_BV = reader.read(places, [prompts[place] for place in places])
            writer.write(new, logits_BV)
            rows = new if rows is None else rows.joined_by(new)
        elif rows is not None:
            writer.write(rows, reader.step(rows))
    return writer.texts


@dataclass
class _Writer:
    """Adds tokens to texts. Its fields are the arguments of `decode`."""

    texts: list[GeneratedText]
    limits: Sequence[int]
    stop_ids: frozenset[int]
    temperature: float
    truncation: Truncation
    seeds: Sequence[int]

    def write(self, rows: _Rows, logits_BV: torch.Tensor) -> None:
        """Add a token to each open row and close those that it ends; closed rows keep their
        position.
        """
        # 1. The tokens; a closed row draws at 0
        draws = [0.0] * len(rows.places)
        for row in rows.open:
            place = rows.places[row]
            draws[row] = self.draw(place, len(self.texts[place].token_ids))
        rows.last_B1, logprobs_B1 = self.choose(logits_BV, draws)

        # 2. Positions move on in open rows alone: a full context has no position after its last
        open_rows = on_device(rows.open, logits_BV.device)
        steps = torch.ones_like(rows.last_B1[: len(rows.open)])
        rows.positions_B1 = rows.positions_B1.index_add(0, open_rows, steps)

        # 3. What is written, and which rows end
        tokens = rows.last_B1[:, 0].tolist()
        logprobs = logprobs_B1[:, 0].tolist()
        still_open = []
        for row in rows.open:
            if self.add(rows.places[row], tokens[row], logprobs[row]):
                still_open.append(row)
        rows.open = still_open

    def choose(
        self,
        logits_BV: torch.Tensor,
        draws: Sequence[float],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(a token of each row (B, 1), its log-probability): the one at the row's draw, or the
        likeliest.
        """
        logprobs_BV = torch.log_softmax(logits_BV.float() / (self.temperature or 1.0), dim=-1)
        if self.temperature > 0:
            if self.truncation:
                logprobs_BV = truncated_rows(logprobs_BV, self.truncation)
            tokens_B1 = sample_tokens(logprobs_BV, draws)[:, None]
        else:
            tokens_B1 = logprobs_BV.argmax(dim=-1, keepdim=True)
        return tokens_B1, logprobs_BV.gather(1, tokens_B1)

    def draw(self, place: int, number: int) -> float:
        """From 0 to 1, by the seed of the text at `place`, for its token of that number."""
        return uniform(self.seeds[place], "token", number) if self.temperature > 0 else 0.0

    def add(self, place: int, token: int, logprob: float) -> bool:
        """Add a token to the text at `place`; whether it goes on."""
        text = self.texts[place]
        text.token_ids.append(token)
        text.logprobs.append(logprob)
        return len(text.token_ids) < self.limits[place] and token not in self.stop_ids


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

    @property
    def are_mostly_closed(self) -> bool:
        """Whether enough rows are finished to drop them."""
        closed_count = len(self.places) - len(self.open)
        return CLEAR_AT * closed_count >= len(self.places)

    def drop_closed(self) -> None:
        """Drop finished rows, and columns that are padding in all the others."""
        if not self.open:
            return
        rows_B = on_device(self.open, self.mask_BT.device)
        mask_BT = self.mask_BT[rows_B]
        # Columns before the longest row's first token
        padding = int(mask_BT.any(dim=0).int().argmax())
        self.mask_BT = mask_BT[:, padding:]
        drop_rows(self.cache, rows_B, padding)
        self.last_B1, self.positions_B1 = self.last_B1[rows_B], self.positions_B1[rows_B]
        self.places = [self.places[row] for row in self.open]
        self.open = list(range(len(self.places)))

    def joined_by(self, others: _Rows) -> _Rows:
        """These rows with `others` appended."""
        count = len(self.places)
        columns = max(self.mask_BT.shape[1], others.mask_BT.shape[1])
        masks = []
        for rows in (self, others):
            missing = columns - rows.mask_BT.shape[1]
            masks.append(pad(rows.mask_BT, (missing, 0)))
        join_rows(self.cache, others.cache)
        return _Rows(
            places=self.places + others.places,
            open=self.open + [count + row for row in others.open],
            cache=self.cache,
            last_B1=torch.cat([self.last_B1, others.last_B1]),
            positions_B1=torch.cat([self.positions_B1, others.positions_B1]),
            mask_BT=torch.cat(masks),
            movable=self.movable,
        )


class _Reader:
    """Runs the model: over new prompts, and over one more token of each row."""

    def __init__(
        self,
        model: Any,
        pad_id: int,
        prefix_cache: PrefixCache | None,
    ) -> None:
        self.model, self.pad_id, self.prefix_cache = model, pad_id, prefix_cache
        self.device = next(model.parameters()).device
        self.takes_positions = takes_positions(model)

    def read(
        self, places: list[int], prompts: Sequence[Sequence[int]]
    ) -> tuple[_Rows, torch.Tensor]:
        """(rows without a new token yet, logits_BV of their first)."""
        input_ids, mask_BT = left_pad(prompts, self.pad_id, self.device)
        if self.prefix_cache is not None:
            cached, logits_BV = read_prompts(self.model, prompts, self.pad_id, self.prefix_cache)
            prefixes = [Prefix(prompt, len(prompt.tokens)) for prompt in cached]
            states = continues_states(self.model)
            cache: Any = build_cache(text_config(self.model), prefixes, states=states, room=ROOM)
        else:
            cache = empty_cache(self.model)
            cache, logits_BV = self._forward(input_ids, mask_BT, position_ids(mask_BT), cache)
        movable = self.takes_positions and is_movable(cache)
        last_B1, positions_B1 = input_ids[:, -1:], mask_BT.sum(dim=1, keepdim=True) - 1
        return _Rows(
            places, list(range(len(places))), cache, last_B1, positions_B1, mask_BT, movable
        ), logits_BV

    def step(self, rows: _Rows) -> torch.Tensor:
        """logits_BV after each row's last token, which is added to the cache."""
        rows.mask_BT = pad(rows.mask_BT, (0, 1), value=1)
        rows.cache, logits_BV = self._forward(
            rows.last_B1, rows.mask_BT, rows.positions_B1, rows.cache
        )
        return logits_BV

    def _forward(
        self,
        input_ids: torch.Tensor,
        mask_BT: torch.Tensor,
        positions: torch.Tensor,
        cache: Any,
    ) -> tuple[Any, torch.Tensor]:
        """(cache, logits_BV of the last column). Left padding is harmless with a mask and
        positions.
        """
        arguments = {"position_ids": positions} if self.takes_positions else {}
        attends = cache is None or any(isinstance(layer, CacheLayerMixin) for layer in cache.layers)
        if not attends:  # Mamba masks the new columns alone
            mask_BT = mask_BT[:, -input_ids.shape[1] :]
        output = self.model(
            input_ids=input_ids,
            attention_mask=mask_BT,
            use_cache=True,
            logits_to_keep=1,
            **{CACHE: cache},
            **arguments,
        )
        return getattr(output, CACHE), output.logits[:, -1]


# ------------------------------------------------------------------------------- in slots, on a GPU


@dataclass
class _Written:
    """Tokens that a GPU is about to write, and copies to the host's memory.

    entries: (their number there, slot, place of the text). copied: passed when they are there.
    """

    entries: list[tuple[int, int, int]]
    tokens: torch.Tensor
    logprobs: torch.Tensor
    copied: Any


class _SlotDecoder:
    """Decodes in slots.

    A step is launched before the tokens of the one before are looked at, so that the GPU need not
    wait for the host. A text that ends there gets one more token, which is thrown away.
    """

    def __init__(
        self,
        slots: Slots,
        reader: _Reader,
        writer: _Writer,
        prompts: Sequence[Sequence[int]],
        waiting: deque[int],
        width: int,
    ) -> None:
        self.slots, self.reader, self.writer = slots, reader, writer
        self.prompts, self.waiting = prompts, waiting
        self.width = min(width, slots.count)
        self.free = list(range(self.width))
        self.place_of: dict[int, int] = {}
        """The text of each slot whose next token is still to be launched."""
        self.ended: set[int] = set()
        """The places of texts that a stop token has ended."""
        self.counts = [0] * len(prompts)
        """The tokens of each text that were launched."""
        self.launched: deque[_Written] = deque()

    def run(self) -> int:
        """Write all texts. Returns the number of steps."""
        steps = 0
        while self.waiting or self.place_of or self.launched:
            has_room = not self.place_of or len(self.free) * CLEAR_AT >= self.width
            if self.waiting and has_room:
                while self.launched:
                    self._look()
                self._read()
            elif self.place_of:
                self._step()
                steps += 1
            if self.launched and (len(self.launched) > 1 or not self.place_of):
                self._look()
        return steps

    def _read(self) -> None:
        """Read waiting prompts into free slots, and write their first tokens."""
        count = min(len(self.free), len(self.waiting))
        places = [self.waiting.popleft() for _ in range(count)]
        slots = [self.free.pop() for _ in range(count)]
        rows, logits_NV = self.reader.read(places, [self.prompts[place] for place in places])
        self.slots.fill(slots, rows.cache, rows.mask_BT)
        draws = [self.writer.draw(place, 0) for place in places]
        tokens_N1, logprobs_N1 = self.writer.choose(logits_NV, draws)
        self.slots.token_S1[on_device(slots, tokens_N1.device)] = tokens_N1
        self.place_of.update(zip(slots, places, strict=True))
        entries = [(number, *entry) for number, entry in enumerate(zip(slots, places, strict=True))]
        self._launch(entries, tokens_N1, logprobs_N1)

    def _step(self) -> None:
        """Write a token in each slot with an open text."""
        draws = [0.0] * self.slots.count
        for slot, place in self.place_of.items():
            draws[slot] = self.writer.draw(place, self.counts[place])
        tokens_S1, logprobs_S1 = self.writer.choose(self.slots.step(), draws)
        self.slots.token_S1.copy_(tokens_S1)
        entries = [(slot, slot, place) for slot, place in self.place_of.items()]
        self._launch(entries, tokens_S1, logprobs_S1)

    def _launch(
        self,
        entries: list[tuple[int, int, int]],
        tokens_B1: torch.Tensor,
        logprobs_B1: torch.Tensor,
    ) -> None:
        """Have the tokens copied; those that are the last of their text free its slot."""
        tokens, logprobs = _on_host(tokens_B1), _on_host(logprobs_B1)
        copied = None
        if tokens_B1.device.type == "cuda":
            copied = torch.cuda.Event()
            copied.record(torch.cuda.current_stream(tokens_B1.device))
        self.launched.append(_Written(entries, tokens, logprobs, copied))
        for _, slot, place in entries:
            self.counts[place] += 1
            if self.counts[place] == self.writer.limits[place]:
                del self.place_of[slot]
                self.free.append(slot)

    def _look(self) -> None:
        """Wait for the oldest tokens that were launched, and add them to their texts."""
        written = self.launched.popleft()
        if written.copied is not None:
            written.copied.synchronize()
        tokens = written.tokens[:, 0].tolist()
        logprobs = written.logprobs[:, 0].tolist()
        for number, slot, place in written.entries:
            if place in self.ended:
                continue
            goes_on = self.writer.add(place, tokens[number], logprobs[number])
            if not goes_on:
                self.ended.add(place)
                if self.place_of.get(slot) == place:
                    del self.place_of[slot]
                    self.free.append(slot)


def _on_host(values: torch.Tensor) -> torch.Tensor:
    """A copy in the host's memory, which a GPU fills later."""
    if values.device.type != "cuda":
        return values
    copy = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return copy.copy_(values, non_blocking=True)


# --------------------------------------------------------------------------- positions and draws


def position_ids(attention_mask_BT: torch.Tensor) -> torch.Tensor:
    """Each token's position in its row, from 0; padding is at 0. Without it, left padding would
    shift positions.
    """
    return (attention_mask_BT.cumsum(dim=1) - 1).clamp(min=0)


def sample_tokens(logprobs_BV: torch.Tensor, draws: Sequence[float]) -> torch.Tensor:
    """One token per row (B), by inverting the cumulative distribution at the row's draw, 0 ≤ draw <
    1.
    """
    draws_B1 = on_device(draws, logprobs_BV.device, torch.float64)[:, None]
    upto_BV = logprobs_BV.double().exp().cumsum(dim=-1)
    chosen_B1 = torch.searchsorted(upto_BV, draws_B1 * upto_BV[:, -1:], right=True)
    return chosen_B1.squeeze(1).clamp(max=logprobs_BV.shape[1] - 1)
