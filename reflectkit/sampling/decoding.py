"""Text generation with a KV cache: prompt ids in, sampled ids and log-probabilities out.

Greedy by default. Sampling uses each row's own seed, so a row does not depend on its neighbours. Finished rows leave
the cache and waiting prompts take their place: iteration-level scheduling (Orca; Yu et al., OSDI 2022).
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import pad

from reflectkit.models.labels import Path
from reflectkit.models.prefixes import CACHE, attends, drop_rows, is_movable, join_rows, reserve
from reflectkit.models.scoring import takes_positions
from reflectkit.sampling.base import EVERYTHING, SampleOutput, SampleRequest, Truncation, draw
from reflectkit.sampling.decoding import Prefix, PrefixCache, cache_of, pays, read_prompts
from reflectkit.seeding import uniform

CLEAR_AT = 4  # finished rows are dropped once they are one in 4, since dropping copies the cache and reads new prompts


@dataclass
class Generated:
    """The text after one prompt. token_ids: with the stop token, if one came. logprobs: natural log-probability of each
    token under the distribution it was drawn from (temperature 1 for greedy rows).
    """

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


@torch.no_grad()
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
) -> list[Generated]:
    """The text after each prompt; it does not depend on the other prompts.

    Parameters
    ----------
    stop_ids: a row ends with any of these. max_new_tokens: one limit for all rows or one per row; 0 costs nothing.
    temperature: 0 is greedy. truncation: which tokens may be drawn, if temperature > 0. seeds: one per row, required if
    temperature > 0. width: rows decoded at once; the others wait. kept: KV cache of earlier prompts with the same
    weights; the new ones reuse it, and long ones are added.
    """
    limits = [max_new_tokens] * len(prompts) if isinstance(max_new_tokens, int) else list(max_new_tokens)
    generated = [Generated() for _ in prompts]
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
    width = max(map(len, rows))
    input_ids_BT = torch.full((len(rows), width), pad_id, dtype=torch.long)
    attention_mask_BT = torch.zeros((len(rows), width), dtype=torch.long)
    for index, row in enumerate(rows):
        input_ids_BT[index, width - len(row) :] = torch.tensor(row, dtype=torch.long)
        attention_mask_BT[index, width - len(row) :] = 1
    return input_ids_BT.to(device), attention_mask_BT.to(device)


def position_ids(attention_mask_BT: torch.Tensor) -> torch.Tensor:
    """Each token's position in its row, from 0; padding is at 0. Without it, left padding would shift positions."""
    return (attention_mask_BT.cumsum(dim=1) - 1).clamp(min=0)


def draw_label(ask: SampleRequest, logprobs: tuple[float, ...], version: int) -> SampleOutput:
    """The label that `ask` draws, given the log-probabilities of all."""
    allowed = logprobs
    if ask.temperature and ask.truncation:
        allowed = tuple(truncated_rows(torch.tensor([logprobs], dtype=torch.float64), ask.truncation)[0].tolist())
    chosen = draw(allowed, ask.temperature, ask.seed)
    return SampleOutput(ask.labels[chosen], (allowed[chosen],), logprobs, version)


def truncated_rows(logprobs_BV: torch.Tensor, truncation: Truncation) -> torch.Tensor:
    """Log-probabilities after truncation, in float64 where they are added up; -inf for what may not be drawn.

    >>> truncated_rows(torch.tensor([[0.5, 0.25, 0.25]]).log(), Truncation(top_p=0.7)).exp()
    tensor([[0.6667, 0.3333, 0.0000]])
    """
    if truncation.top_k:
        smallest_B1 = logprobs_BV.topk(min(truncation.top_k, logprobs_BV.shape[1])).values[:, -1:]
        logprobs_BV = logprobs_BV.masked_fill(logprobs_BV < smallest_B1, -torch.inf)
    if truncation.top_p < 1:
        sorted_BV, order_BV = torch.log_softmax(logprobs_BV.double(), dim=-1).sort(descending=True, stable=True)
        before_BV = pad(sorted_BV.exp().cumsum(dim=-1)[:, :-1], (1, 0))
        left_BV = torch.zeros_like(order_BV, dtype=torch.bool).scatter(1, order_BV, before_BV < truncation.top_p)
        logprobs_BV = logprobs_BV.masked_fill(~left_BV, -torch.inf)
    if truncation.min_p:
        smallest_B1 = logprobs_BV.amax(dim=-1, keepdim=True) + math.log(truncation.min_p)
        logprobs_BV = logprobs_BV.masked_fill(logprobs_BV < smallest_B1, -torch.inf)
    return torch.log_softmax(logprobs_BV, dim=-1)


def sample_tokens(logprobs_BV: torch.Tensor, draws: Sequence[float]) -> torch.Tensor:
    """One token per row (B), by inverting the cumulative distribution at the row's draw, 0 ≤ draw < 1."""
    upto_BV = logprobs_BV.double().exp().cumsum(dim=-1)
    draws_B1 = torch.tensor(draws, dtype=torch.float64, device=logprobs_BV.device)[:, None]
    chosen_B1 = torch.searchsorted(upto_BV, draws_B1 * upto_BV[:, -1:], right=True)
    return chosen_B1.squeeze(1).clamp(max=logprobs_BV.shape[1] - 1)


class ScoreMemo:
    """Log-probabilities of labels after prompts, by kind, which is what else they depend on: a temperature, a version.

    capacity: about how many bytes, after which `trim` forgets everything; 2**28 are 75,000 prompts of 800 tokens.
    """

    def __init__(self, capacity: int = 2**28) -> None:
        self.capacity, self.size = capacity, 0
        self._rows: dict[tuple[tuple[Path, ...], bytes, Hashable], tuple[float, ...]] = {}

    def get(self, labels: tuple[Path, ...], prompt: Sequence[int], kind: Hashable) -> tuple[float, ...] | None:
        """The log-probabilities that were kept, if any."""
        return self._rows.get((labels, array("i", prompt).tobytes(), kind))

    def keep(self, labels: tuple[Path, ...], prompt: Sequence[int], kind: Hashable, row: tuple[float, ...]) -> None:
        """Keep the log-probabilities of all `labels`."""
        self._rows[labels, array("i", prompt).tobytes(), kind] = row
        self.size += 160 + 4 * len(prompt) + 32 * len(row)

    def trim(self) -> None:
        """Forget everything if the capacity is exceeded."""
        if self.size > self.capacity:
            self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._rows.clear()
        self.size = 0
