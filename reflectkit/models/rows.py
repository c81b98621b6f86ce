"""One layout of rows that begin alike, for sampling, for the loss and for decoding.

A pass of the model reads B rows of these columns:

    | gap | past | stem | branches | padding |

The *past* was read by an earlier pass; its cached states are given, and it is not read again. The
*stem* is new: each of its tokens sees the past and the stem before it. The *branches* continue the
stem and do not see one another, as the labels of a choice do. A gap or padding is never seen, and
positions leave it out.

A plan says which pass reads what, once, of rows that begin alike. `plan_tree` reads the longest
rows as trunks, and every other row only from where it leaves one of them, so an episode whose
prompts grow costs little more than its last prompt. `plan_common_prefix` makes two passes, as a GPU
likes few large ones. Both are exact up to the rounding of sums, and gradients flow through the
cached states.

A layer's state of a token is its keys and values, or, for a short convolution (LFM2), its input.
Linear attention (Qwen3.5) has one state after all tokens, so a row can continue another one only at
its end.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, LinearAttentionLayer
from typing_extensions import override

from reflectkit.models.architecture import (
    CACHE,
    continues_states,
    takes_masks,
    takes_positions,
    text_config,
)
from reflectkit.models.device import on_device
from reflectkit.models.fast_pass import fast_pass

SHORTEST_PREFIX = 8  # tokens; a shorter common prefix is not worth a separate pass
DEPTH = 3  # how often a row may leave another one; deeper branches are read again
NARROW = 16  # tokens; chunks as short as this are read together, whatever their lengths

States = tuple[tuple[torch.Tensor, ...], ...]
"""What each layer caches of T tokens: keys and values (heads, T, size); the inputs of a convolution
(channels, T); or, after all tokens, the last inputs (channels, K) and the state (heads, size,
size).
"""


# ------------------------------------------------------------------------------------- the columns


def right_pad(
    rows: Sequence[Sequence[int]],
    pad_id: int,
    device: torch.device,
) -> torch.Tensor:
    """`rows` as one tensor (B, T), padded on the right."""
    width = max(map(len, rows))
    ids = []
    for row in rows:
        gap = width - len(row)
        ids.append([*row, *[pad_id] * gap])
    return on_device(ids, device)


def left_pad(
    rows: Sequence[Sequence[int]],
    pad_id: int,
    device: torch.device,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(input_ids_BT, attention_mask_BT) of `rows`, padded on the left: the last token of each is in
    the last column.
    """
    width = max(map(len, rows))
    ids = []
    mask = []
    for row in rows:
        gap = width - len(row)
        ids.append([*[pad_id] * gap, *row])
        mask.append([0] * gap + [1] * len(row))
    return on_device(ids, device), on_device(mask, device)


def shared_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Number of tokens that both begin with."""
    for place, (token, other) in enumerate(zip(first, second, strict=False)):
        if token != other:
            return place
    return min(len(first), len(second))


@dataclass(frozen=True)
class Row:
    """What one row of a pass has: `past` tokens of an earlier pass, then the stem, then the
    branches.
    """

    stem: Sequence[int] = ()
    branches: Sequence[Sequence[int]] = ()
    past: int = 0


def pass_arguments(
    rows: Sequence[Row],
    pad_id: int,
    device: torch.device,
    *,
    left: bool = False,
) -> dict[str, torch.Tensor]:
    """The model's arguments that read `rows` in one pass: input ids, and where they are needed a
    mask and positions.

    left: whether new tokens are padded on the left, where linear attention, which begins there,
    does not see it.
    """
    if any(row.branches for row in rows):
        return _branch_arguments(rows, pad_id, device)
    # 1. Without gaps there is no mask: a token never sees what is right of it
    stems = [row.stem for row in rows]
    sizes = [len(stem) for stem in stems]
    pasts = [row.past for row in rows]
    past = max(pasts)
    has_gap = min(pasts) < past
    if not left and not has_gap:
        return {"input_ids": right_pad(stems, pad_id, device)}
    # 2. The step of each new token in its row, negative or too large in padding
    past_B1 = on_device(pasts, device)[:, None]
    size_B1 = on_device(sizes, device)[:, None]
    width = max(sizes)
    step_BT = torch.arange(width, device=device).expand(len(rows), -1)
    if left:
        input_ids_BT, _ = left_pad(stems, pad_id, device)
        step_BT = step_BT - (width - size_B1)
    else:
        input_ids_BT = right_pad(stems, pad_id, device)

    # 3. The mask of past and new columns
    past_BP = _past_mask(past_B1, past)
    new_BT = (step_BT >= 0) & (step_BT < size_B1)
    mask_BC = torch.cat([past_BP, new_BT], dim=1)

    # 4. Positions, which go on after the past; in padding any will do that the model has
    step_BT = step_BT.clamp(min=0).minimum(size_B1 - 1)
    return {
        "input_ids": input_ids_BT,
        "attention_mask": mask_BC.long(),
        "position_ids": past_B1 + step_BT,
    }


def _past_mask(past_B1: torch.Tensor, width: int) -> torch.Tensor:
    """Which of the `width` columns of the past (B, P) a row has: the last `past_B1`."""
    column_P = torch.arange(width, device=past_B1.device)
    return column_P >= width - past_B1


def _branch_arguments(
    rows: Sequence[Row],
    pad_id: int,
    device: torch.device,
) -> dict[str, torch.Tensor]:
    """As `pass_arguments`, with a mask (B, 1, T, P + T) that hides each branch from the others."""
    # 1. Tokens, the branch of each, and positions: each branch continues the stem
    tokens: list[list[int]] = []
    numbers: list[list[int]] = []  # of each token: 0 in the stem, then the number of its branch
    positions: list[list[int]] = []
    for row in rows:
        stem_end = row.past + len(row.stem)
        row_tokens = list(row.stem)
        row_numbers = [0] * len(row.stem)
        row_positions = list(range(row.past, stem_end))
        for number, branch in enumerate(row.branches, 1):
            row_tokens += branch
            row_numbers += [number] * len(branch)
            row_positions += range(stem_end, stem_end + len(branch))
        tokens.append(row_tokens)
        numbers.append(row_numbers)
        positions.append(row_positions)

    # 2. Of the new tokens, one sees the stem and its own branch before it
    number_BT = right_pad(numbers, -1, device)
    seen_number_B1T = number_BT[:, None, :]
    own_number_BT1 = number_BT[:, :, None]
    in_stem_B1T = seen_number_B1T == 0
    same_branch_BTT = seen_number_B1T == own_number_BT1
    seen_BTT = (in_stem_B1T | same_branch_BTT).tril()

    # 3. All of them see the past
    pasts = [row.past for row in rows]
    past_B1 = on_device(pasts, device)[:, None]
    past_BP = _past_mask(past_B1, max(pasts))
    width = number_BT.shape[1]
    past_BTP = past_BP[:, None, :].expand(-1, width, -1)
    mask_BTC = torch.cat([past_BTP, seen_BTT], dim=2)
    return {
        "input_ids": right_pad(tokens, pad_id, device),
        "attention_mask": mask_BTC[:, None],
        "position_ids": right_pad(positions, 0, device),
    }


# --------------------------------------------------------------------------------------- the cache


@dataclass(frozen=True)
class CachedPrompt:
    """A prompt that was read, with what each layer caches of its T tokens."""

    tokens: tuple[int, ...]
    layers: States = ()

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return sum(part.nbytes for layer in self.layers for part in layer)


@dataclass(frozen=True)
class Prefix:
    """The first `length` tokens of `prompt`, with which another row begins; 0 if there is none."""

    prompt: CachedPrompt = CachedPrompt(())
    length: int = 0


class GrowingLayer(DynamicLayer):
    """A cache layer of keys and values (B, heads, T, size) that rows can leave and join.

    room: columns that are allocated ahead, so that the next tokens are written there instead of
    copying all to a longer tensor; 0 where gradients flow.
    """

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(
        self,
        keys: torch.Tensor | None = None,
        values: torch.Tensor | None = None,
        room: int = 0,
    ) -> None:
        super().__init__()
        self.room = room
        self._buffers: tuple[torch.Tensor, ...] = ()
        self._written: torch.Tensor | None = None  # the keys that the buffers hold
        if keys is not None and values is not None:
            self.lazy_initialization(keys, values)
            self.keys, self.values = keys, values

    @override
    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add the keys and values of new tokens; those of all tokens."""
        if not self.room:
            return super().update(key_states, value_states, *args, **kwargs)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.keys, self.values = key_states[:, :, :0], value_states[:, :, :0]
        start = self.keys.shape[2]
        end = start + key_states.shape[2]
        # New buffers, if rows have left or joined, or these are full
        is_current = self._written is self.keys
        if not is_current or end > self._buffers[0].shape[2]:
            more = end + self.room - start
            padding = (0, 0, 0, more)
            self._buffers = (pad(self.keys, padding), pad(self.values, padding))
        keys, values = self._buffers
        keys[:, :, start:end] = key_states
        values[:, :, start:end] = value_states
        self.keys = self._written = keys[:, :, :end]
        self.values = values[:, :, :end]
        return self.keys, self.values

    def select_rows(self, rows_B: torch.Tensor, first_column: int) -> None:
        """Keep rows_B, from `first_column` on."""
        self.keys = self.keys[rows_B, :, first_column:]
        self.values = self.values[rows_B, :, first_column:]

    def append_rows(self, other: GrowingLayer) -> None:
        """Append the rows of `other`; the one with fewer columns is padded on the left."""
        columns = max(layer.keys.shape[2] for layer in (self, other))
        self.keys = _stacked(self.keys, other.keys, columns)
        self.values = _stacked(self.values, other.values, columns)


def _stacked(
    first: torch.Tensor,
    second: torch.Tensor,
    columns: int,
) -> torch.Tensor:
    """The rows of both (B, heads, T, size), padded on the left to so many columns."""
    parts = []
    for part in (first, second):
        gap = columns - part.shape[2]
        parts.append(pad(part, (0, 0, gap, 0)))
    return torch.cat(parts)


def build_cache(
    config: Any,
    prefixes: Sequence[Prefix],
    *,
    recording: bool = False,
    states: bool = False,
    room: int = 0,
) -> DynamicCache:
    """A model's cache of B prefixes, padded on the left.

    recording: convolutions keep the inputs of all tokens to come, so that another row can leave
    these anywhere. states: see `continues_states`. room: see `GrowingLayer`.
    """
    cache = DynamicCache(config=config)
    if recording:
        cache.activate_past_recording()
    # Each layer of the prefixes, of its kind: attention, linear attention, convolution
    longest = max(prefix.length for prefix in prefixes)
    past = _Pool(prefixes) if longest else None
    for number, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer:
            keys, values = past.columns(number, longest) if past else (None, None)
            cache.layers[number] = GrowingLayer(keys, values, room)
        elif past and states:
            inputs, state = past.ends(number)
            layer.update_conv_state(inputs, conv_kernel_size=inputs.shape[-1])
            layer.update_recurrent_state(state)
        elif past:
            width = min(longest, config.conv_L_cache)
            (inputs,) = past.columns(number, width)
            layer.update_conv_state(inputs, conv_kernel_size=config.conv_L_cache)
    return cache


class _Pool:
    """The states of the prompts that `prefixes` begin, to be gathered for a pass."""

    def __init__(self, prefixes: Sequence[Prefix]) -> None:
        self.prefixes = prefixes
        self.lengths = [prefix.length for prefix in prefixes]
        # 1. Each prompt once, with the number of its tokens that a prefix has
        self.prompts: list[CachedPrompt] = []
        self.sizes: list[int] = []
        numbers: dict[int, int] = {}
        for prefix in prefixes:
            if not prefix.length:
                continue
            number = numbers.setdefault(id(prefix.prompt), len(self.prompts))
            if number == len(self.prompts):
                self.prompts.append(prefix.prompt)
                self.sizes.append(0)
            self.sizes[number] = max(self.sizes[number], prefix.length)
        # 2. Where the prompt of each row begins, if these are one after another
        starts = list(itertools.accumulate(self.sizes, initial=0))
        self.starts: list[int] = []
        for prefix in prefixes:
            self.starts.append(starts[numbers[id(prefix.prompt)]] if prefix.length else 0)

    def columns(self, number: int, width: int) -> list[torch.Tensor]:
        """What layer `number` caches (B, heads or channels, width, …) of the last tokens of each
        prefix. Zeros are left of a short one if the layer is a convolution, which has no mask.
        """
        layers = [prompt.layers[number] for prompt in self.prompts]
        parts = zip(*layers, strict=True)  # by part: keys, values
        # 1. One prefix for all rows is not copied
        is_same_length = len(set(self.lengths)) == 1
        if len(self.prompts) == 1 and is_same_length:
            end = self.lengths[0]
            rows = len(self.lengths)
            views = []
            for (part,) in parts:
                view = part[None, :, end - width : end]
                views.append(view.expand(rows, *[-1] * part.ndim))
            return views

        # 2. The place of each column, if all prompts are one after another
        device = layers[0][0].device
        start_B1 = on_device(self.starts, device)[:, None]
        length_B1 = on_device(self.lengths, device)[:, None]
        column_W = torch.arange(width, device=device)
        place_BW = column_W + length_B1 - width
        index_BW = start_B1 + place_BW.clamp(min=0)

        # 3. The states there
        gathered = []
        for tensors in parts:
            beginnings = []
            for tensor, size in zip(tensors, self.sizes, strict=True):
                beginnings.append(tensor[:, :size])
            pool = torch.cat(beginnings, dim=1)
            states = pool[:, index_BW].transpose(0, 1)
            if pool.ndim == 2:  # a convolution's inputs
                exists_BW = place_BW >= 0
                states = states * exists_BW[:, None]
            gathered.append(states)
        return gathered

    def ends(self, number: int) -> list[torch.Tensor]:
        """The states (B, …) of linear attention layer `number` after each prefix; zeros after none."""
        zeros = tuple(part * 0 for part in self.prompts[0].layers[number])
        rows = []
        for prefix in self.prefixes:
            rows.append(prefix.prompt.layers[number] if prefix.length else zeros)
        return [torch.stack(parts) for parts in zip(*rows, strict=True)]


# ---------------------------------------------------------------------------------------- the plan


@dataclass(frozen=True)
class Chunk:
    """What is read of row `row`: its tokens from `start` on. parent: the row whose first `start`
    tokens come before; None if these are the prefix that is known of the row.
    """

    row: int
    start: int = 0
    parent: int | None = None


@dataclass
class Plan:
    """Which pass reads what of `rows`."""

    rows: Sequence[Sequence[int]]
    chunks: dict[int, Chunk] = field(default_factory=dict)
    """By row. That of a row that another one begins with has no tokens."""
    levels: list[list[list[Chunk]]] = field(default_factory=list)
    """Passes, each of several chunks; those of a level need only what earlier levels have read."""

    def length(self, chunk: Chunk) -> int:
        """Number of tokens that are read."""
        return len(self.rows[chunk.row]) - chunk.start


def plan_common_prefix(rows: Sequence[Sequence[int]]) -> Plan | None:
    """Two passes: what all `rows` begin with, as one more row at the end, and what follows it in
    each. None if that is too short to be worth a pass.
    """
    # 1. What the first and the last in order share, all share
    count = len(rows)
    tuples = [tuple(row) for row in rows]
    first, last = min(tuples), max(tuples)
    shortest = min(map(len, rows))
    length = min(shared_length(first, last), shortest - 1)
    if length < SHORTEST_PREFIX or count < 2:
        return None
    # 2. The trunk is one more row, which all others leave
    trunk = Chunk(count)
    chunks = [Chunk(row, start=length, parent=count) for row in range(count)]
    by_row = {chunk.row: chunk for chunk in (*chunks, trunk)}
    levels = [[[trunk]], [chunks]]
    return Plan([*rows, first[:length]], by_row, levels)


def plan_tree(
    rows: Sequence[Sequence[int]],
    *,
    most: int | None = None,
    least: int = SHORTEST_PREFIX,
    prefixes: Sequence[int] = (),
    at_ends: bool = False,
) -> Plan:
    """The plan that reads each beginning of `rows`, none of which is empty, once.

    most: chunks in a pass. least: tokens that a row must share to leave another one. prefixes: how
    many tokens of each row need not be read, as an earlier plan has read them. at_ends: whether a
    row can leave another one only at its end.
    """
    plan = Plan(rows)
    lengths = list(prefixes) or [0] * len(rows)

    # 1. A trie of the tokens, in which a node's owner is the row that reads its token; None for a
    #    token of a known prefix, which no row reads
    below: list[dict[int, int]] = [{}]
    owner: list[int | None] = [None]
    level_of: dict[int, int] = {}
    # Long rows first, which others leave; where they can only at the end, short ones first
    order = sorted(range(len(rows)), key=lambda row: len(rows[row]), reverse=not at_ends)
    for row in order:
        tokens = rows[row]
        node = place = 0
        start, parent = 0, None
        # 2. How far the row is in the trie, and the last place at which it can leave another one
        while place < len(tokens) and tokens[place] in below[node]:
            node = below[node][tokens[place]]
            place += 1
            candidate = owner[node]
            if candidate is None:
                continue
            if at_ends and len(rows[candidate]) != place:
                continue
            is_shallow = level_of[candidate] < DEPTH
            if is_shallow or place == len(tokens):
                start, parent = place, candidate
        # 3. Its chunk: what follows there, or all of it where that saves too little
        is_whole = start == len(tokens)
        if not is_whole and start - lengths[row] < least:
            start, parent = lengths[row], None
        plan.chunks[row] = Chunk(row, start, parent)
        level_of[row] = 0 if parent is None else level_of[parent] + 1
        for number, token in enumerate(tokens[place:], place):
            below[node][token] = len(below)
            node = len(below)
            below.append({})
            owner.append(row if number >= start else None)
        if at_ends:
            owner[node] = row

    # 4. Passes of chunks of similar lengths, level by level
    def rank(chunk: Chunk) -> tuple[int, int, int]:
        return level_of[chunk.row], -plan.length(chunk), chunk.row

    chunks = [chunk for chunk in plan.chunks.values() if plan.length(chunk)]
    room = most or len(rows)
    for chunk in sorted(chunks, key=rank):
        level = level_of[chunk.row]
        while len(plan.levels) <= level:
            plan.levels.append([])
        passes = plan.levels[level]
        has_room = bool(passes) and len(passes[-1]) < room
        if has_room and _read_together(plan, passes[-1][0], chunk, at_ends):
            passes[-1].append(chunk)
        else:
            passes.append([chunk])
    return plan


def _read_together(
    plan: Plan,
    widest: Chunk,
    chunk: Chunk,
    at_ends: bool,
) -> bool:
    """Whether `chunk` goes into the pass of the longer chunk `widest`: it has at least half as many
    tokens, or both have few. After a state of linear attention there can be no padding.
    """
    length = plan.length(chunk)
    most = plan.length(widest)
    has_state = widest.start > 0 or chunk.start > 0
    if at_ends and has_state:
        return length == most
    return 2 * length >= most or most <= NARROW


# ------------------------------------------------------------------------------------- the reading


@dataclass
class Reading:
    """What the passes of a plan have read."""

    plan: Plan
    hidden: list[torch.Tensor] = field(default_factory=list)
    """The last hidden states (B, T, D) of each pass."""
    cells: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """Of each row with a chunk: the pass, the row there, and the first column."""
    prompts: dict[int, CachedPrompt] = field(default_factory=dict)
    """The rows whose states are cached: those that others leave, or all of them."""

    def hidden_at(self, places: Sequence[tuple[int, int]]) -> torch.Tensor:
        """The last hidden states (N, D) at N (row, place) pairs."""
        # 1. The cells in which these tokens were read, pass by pass
        by_pass: list[list[tuple[int, int]]] = [[] for _ in self.hidden]
        where: list[tuple[int, int]] = []
        for row, place in places:
            chunk = self.plan.chunks[row]
            while place < chunk.start and chunk.parent is not None:
                chunk = self.plan.chunks[chunk.parent]
            number, line, first_column = self.cells[chunk.row]
            column = first_column + place - chunk.start
            where.append((number, len(by_pass[number])))
            by_pass[number].append((line, column))
        # 2. Their states, in the order of `places`
        parts = []
        for states_BTD, cells in zip(self.hidden, by_pass, strict=True):
            if not cells:
                continue
            cells_N2 = on_device(cells, states_BTD.device)
            line_N, column_N = cells_N2.unbind(dim=1)
            parts.append(states_BTD[line_N, column_N])
        states_ND = torch.cat(parts)
        starts = list(itertools.accumulate(map(len, by_pass), initial=0))
        index = [starts[number] + place for number, place in where]
        return states_ND[on_device(index, states_ND.device)]


def read(
    trunk: Any,
    plan: Plan,
    pad_id: int,
    *,
    prefixes: Sequence[Prefix] = (),
    all_states: bool = False,
) -> Reading:
    """Read the rows of `plan`.

    trunk: a model below its head that can read so; see `architecture.attends_to_all` and
    `continues_prefixes`. prefixes: what an earlier plan has read of each row. all_states: whether
    the states of all rows are cached.
    """
    reading = Reading(plan)
    states = continues_states(trunk)
    device = next(trunk.parameters()).device
    parents = {chunk.parent for chunk in plan.chunks.values()}
    for chunks in itertools.chain(*plan.levels):
        # 1. The chunks' tokens, and the states before each: those of its parent
        tokens = []
        pasts = []
        for chunk in chunks:
            tokens.append(plan.rows[chunk.row][chunk.start :])
            if chunk.parent is not None:
                pasts.append(Prefix(reading.prompts[chunk.parent], chunk.start))
            elif prefixes:
                pasts.append(prefixes[chunk.row])
            else:
                pasts.append(Prefix())
        sizes = [len(stem) for stem in tokens]
        past = max(prefix.length for prefix in pasts)
        cached = [all_states or chunk.row in parents for chunk in chunks]

        # 2. The rows of the pass: one for each chunk, or one with all of them as its branches
        side_by_side = not states and _fit_side_by_side(trunk, pasts, sum(sizes))
        if side_by_side:
            rows = [Row(branches=tokens, past=past)]
        else:
            rows = []
            for stem, prefix in zip(tokens, pasts, strict=True):
                rows.append(Row(stem, past=prefix.length))

        # 3. The pass
        arguments: dict[str, Any] = pass_arguments(rows, pad_id, device, left=states)
        has_cache = past > 0 or any(cached)
        if has_cache:
            arguments[CACHE] = build_cache(
                text_config(trunk),
                pasts[: len(rows)],
                recording=all_states and not states,
                states=states,
            )
        with fast_pass(trunk, arguments, past):
            output = trunk(**arguments, use_cache=has_cache)

        # 4. Where the chunks are in it
        width = arguments["input_ids"].shape[1]
        columns = [width - size if states else 0 for size in sizes]
        if side_by_side:
            columns = list(itertools.accumulate(sizes, initial=0))[:-1]
        for number, (chunk, column) in enumerate(zip(chunks, columns, strict=True)):
            line = 0 if side_by_side else number
            reading.cells[chunk.row] = (len(reading.hidden), line, column)
        reading.hidden.append(output.last_hidden_state)

        # 5. The states of those whose rows are continued
        lines = _lines(arguments[CACHE], states) if any(cached) else []
        for chunk, prefix, is_cached in zip(chunks, pasts, cached, strict=True):
            if not is_cached:
                continue
            _, line, column = reading.cells[chunk.row]
            first = column - width  # from the right, where the new columns are
            span = (line, first, first + plan.length(chunk))
            layers = _row_states(lines, prefix, span, all_states)
            row_tokens = tuple(plan.rows[chunk.row])
            reading.prompts[chunk.row] = CachedPrompt(row_tokens, layers)

    # 6. Rows with which another one begins have no chunk
    if all_states:
        for chunk in plan.chunks.values():
            if chunk.parent is not None and not plan.length(chunk):
                _cache_beginning(reading, chunk)
    return reading


def _fit_side_by_side(
    trunk: Any,
    prefixes: Sequence[Prefix],
    tokens: int,
) -> bool:
    """Whether chunks of so many tokens are read as branches in one row: where all follow the same
    tokens, whose states are then not copied for each, and are shorter than these. Only without
    gradients, so that training rounds as ever.
    """
    first = prefixes[0]
    if torch.is_grad_enabled() or len(prefixes) < 2:
        return False
    if tokens > first.length:
        return False
    for prefix in prefixes:
        if prefix.prompt is not first.prompt or prefix.length != first.length:
            return False
    return takes_masks(trunk) and takes_positions(trunk)


def _lines(cache: Any, states: bool) -> list[tuple[bool, list[tuple[torch.Tensor, ...]]]]:
    """(whether it has one state after all tokens, its parts by line of the pass) of each layer of
    the cache of a pass.
    """
    layers = []
    for layer in cache.layers:
        is_linear = isinstance(layer, LinearAttentionLayer)
        has_end = states and is_linear
        if has_end:
            parts = [layer.conv_states[0], layer.recurrent_states[0]]
        elif is_linear:
            parts = [layer.conv_states[0]]
        else:
            parts = [layer.keys, layer.values]
        by_line = [part.unbind() for part in parts if part is not None]
        layers.append((has_end, list(zip(*by_line, strict=True))))
    return layers


def _row_states(
    lines: Sequence[tuple[bool, Sequence[tuple[torch.Tensor, ...]]]],
    prefix: Prefix,
    span: tuple[int, int, int],
    copies: bool,
) -> States:
    """What each layer of a pass holds of one row: the states of its prefix, then those in `span`.

    lines: see `_lines`. span: the line of the pass, and the first and the last column, from the
    right. copies: without the memory of the whole pass.
    """
    line, first, last = span
    layers: list[tuple[torch.Tensor, ...]] = []
    for number, (has_end, rows) in enumerate(lines):
        # 1. Linear attention has one state after all tokens
        if has_end:
            layers.append(tuple(part.clone() for part in rows[line]))
            continue
        # 2. Others have one a token, after those of the prefix
        columns = []
        for place, part in enumerate(rows[line]):
            end = part.shape[1]
            column = part[:, end + first : end + last]
            if prefix.length:
                before = prefix.prompt.layers[number][place][:, : prefix.length]
                column = torch.cat([before, column], dim=1)
            elif copies:
                column = column.clone()
            columns.append(column)
        layers.append(tuple(columns))
    return tuple(layers)


def _cache_beginning(reading: Reading, chunk: Chunk) -> None:
    """Cache the states of a row with which another one begins."""
    parent = chunk.parent
    while parent is not None and parent not in reading.prompts:
        parent = reading.plan.chunks[parent].parent
    assert parent is not None
    longer = reading.prompts[parent]
    tokens = tuple(reading.plan.rows[chunk.row])
    if len(longer.tokens) == len(tokens):
        reading.prompts[chunk.row] = longer
        return
    layers = []
    for layer in longer.layers:
        layers.append(tuple(part[:, : chunk.start] for part in layer))
    reading.prompts[chunk.row] = CachedPrompt(tokens, tuple(layers))
