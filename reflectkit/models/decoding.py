"""Decoding of free text with a key-value cache: the reflector's comments, and a policy's answers without choices.

Greedy by default, so that a comment is a function of its prompt and can be guessed from earlier ones. Sampling uses
each row's own seed, so that a row does not depend on its neighbours. Finished rows are dropped from the cache, and
waiting prompts join the rows that are still open: Orca's iteration-level scheduling (Yu et al., OSDI 2022).
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import pad
from transformers.cache_utils import DynamicLayer

from reflectkit.core.seeding import uniform
from reflectkit.models.cache_rows import CACHE, is_movable, join, select, widened
from reflectkit.models.drafts import Guide
from reflectkit.models.lean import ROOM, NextTokens, Roomy
from reflectkit.models.padding import left_pad
from reflectkit.models.prefix_cache import PrefixCache, cache_of, pays, read_prompts
from reflectkit.models.sampler import EVERYTHING, Truncation
from reflectkit.models.scoring import attends_to_all, forward_arguments, read_prefix, takes_positions, unwrapped
from reflectkit.models.stop_strings import StopStrings

CLEAR_AT = 4  # finished rows are dropped once they are one in 4, since dropping copies the cache and reads new prompts
AHEAD = 7  # guessed tokens that are read at once behind the last token
GUESSES = 48  # of all rows in one pass: with many of them a pass takes as long as its tokens, and wrong ones cost
MISSES = 3  # passes in a row in which all guesses were wrong, after which a row is guessed only once in RETRY tokens
RETRY = 4
BLOCK = 256  # probabilities per block when sampling


@dataclass
class Written:
    """The text written after one prompt. token_ids: including the stop token or stop string, if any. logprobs: natural
    log-probability of each token under the distribution it was drawn from (temperature 1 for greedy rows). stopped:
    ended by a stop token or stop string rather than at its limit. stop_token: the last token is one of the stop ids.
    """

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stopped: bool = False
    stop_token: bool = False

    @property
    def text_ids(self) -> list[int]:
        """The tokens without the stop token; a stop string is text and stays."""
        return self.token_ids[:-1] if self.stop_token else self.token_ids


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
    stop_strings: Sequence[str] = (),
    tokenizer: Any = None,
    guides: Sequence[Guide] = (),
    kept: PrefixCache | None = None,
) -> list[Written]:
    """The text written after each prompt; it does not depend on the other prompts, nor on the guides.

    Parameters
    ----------
    stop_ids: a row ends with any of these. max_new_tokens: one limit for all rows or one per row; 0 costs nothing.
    temperature: 0 is greedy. truncation: which tokens may be drawn, if temperature > 0. seeds: one per row, required if
    temperature > 0. width: rows decoded at once; the others wait. stop_strings: a row ends with the token that
    completes one of these in its text, special tokens included; they require the tokenizer. guides: of greedy rows, one
    each, to guess the next tokens. Guesses are read at once, and those that the model would have written itself are
    kept: speculative decoding (Leviathan et al. 2023, arXiv 2211.17192), exact up to the rounding of the
    log-probabilities. kept: what was read with the same weights, where long prompts begin, is not read again; the
    prompts are kept in it.
    """
    limits = [max_new_tokens] * len(prompts) if isinstance(max_new_tokens, int) else list(max_new_tokens)
    written = [Written() for _ in prompts]
    pen = _Pen(written, limits, stop_ids, StopStrings(stop_strings, tokenizer), temperature, truncation, seeds)
    pen.guides = list(guides)
    waiting = deque(index for index, limit in enumerate(limits) if limit > 0)
    reader = _Reader(model, [prompts[index] for index in waiting], pad_id, kept)
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
            pen.write(new, logits_BV)
            rows = new if rows is None else rows.joined_by(new)
        elif rows is not None:
            guesses = pen.guesses(rows) if reader.takes_guesses(rows) else []
            if any(guesses):
                pen.write_ahead(rows, guesses, reader.step_ahead(rows, guesses))
            else:
                pen.write(rows, reader.step(rows))
    return written


@dataclass
class _Rows:
    """B rows decoded at once. Their columns: the shared prefix, then padding, then each row's own tokens."""

    places: list[int]
    """The index of each row's prompt."""
    open: list[int]
    """The numbers of the unfinished rows."""
    cache: Any
    """Of all columns but the last token's, which is still to be read."""
    last_B1: torch.Tensor
    """The last token of each row."""
    positions_B1: torch.Tensor
    """The position of the last token."""
    mask_BT: torch.Tensor
    """1 where a row has a token."""
    prefix: int
    """Columns of the prefix that all prompts share."""
    movable: bool
    """Whether rows can be dropped from the cache and joined to it."""
    is_open_B1: torch.Tensor
    """1 for unfinished rows, else 0."""
    room: torch.Tensor | None = None
    """`mask_BT` as bools, with columns ahead (B, C); None after rows have left or joined."""

    def seen_with_next(self, count: int = 1) -> torch.Tensor:
        """The mask as bools (B, T), with columns for the next `count` tokens, which `mask_BT` has from now on."""
        columns = self.mask_BT.shape[1] + count
        if self.room is None or columns > self.room.shape[1]:
            self.room = pad(self.mask_BT.long(), (0, ROOM), value=1).bool()
        self.mask_BT = self.room[:, :columns]
        return self.mask_BT

    def drop_closed(self) -> None:
        """Drop finished rows, and columns that are padding in all the others."""
        if not self.open:
            return
        rows_B = torch.tensor(self.open, device=self.mask_BT.device)
        own_BT = self.mask_BT[rows_B, self.prefix :]
        dead = int(own_BT.any(dim=0).int().argmax())  # columns before the longest row's first token
        self.mask_BT = torch.cat([self.mask_BT[rows_B, : self.prefix], own_BT[:, dead:]], dim=1)
        select(self.cache, rows_B, self.prefix, dead)
        self.last_B1, self.positions_B1 = self.last_B1[rows_B], self.positions_B1[rows_B]
        self.is_open_B1 = self.is_open_B1[rows_B]
        self.room = None
        self.places = [self.places[row] for row in self.open]
        self.open = list(range(len(self.places)))

    def joined_by(self, others: _Rows) -> _Rows:
        """These rows with `others` appended."""
        count, columns = len(self.places), max(self.mask_BT.shape[1], others.mask_BT.shape[1])
        masks = [widened(rows.mask_BT, self.prefix, columns - rows.mask_BT.shape[1], dim=1) for rows in (self, others)]
        join(self.cache, others.cache, self.prefix)
        return _Rows(
            places=self.places + others.places,
            open=self.open + [count + row for row in others.open],
            cache=self.cache,
            last_B1=torch.cat([self.last_B1, others.last_B1]),
            positions_B1=torch.cat([self.positions_B1, others.positions_B1]),
            mask_BT=torch.cat(masks),
            prefix=self.prefix,
            movable=self.movable,
            is_open_B1=torch.cat([self.is_open_B1, others.is_open_B1]),
        )


class _Reader:
    """Runs the model: over new prompts (their common prefix once), and over one more token of each row."""

    def __init__(
        self, model: Any, prompts: Sequence[Sequence[int]], pad_id: int, kept: PrefixCache | None = None
    ) -> None:
        self.model, self.pad_id = model, pad_id
        self.kept = kept if kept is not None and pays(model, prompts) else None
        self.device = next(model.parameters()).device
        self.takes_positions, self.hides = takes_positions(model), attends_to_all(model)
        self.lean = NextTokens(model) if NextTokens.serves(model) else None
        self.context = getattr(unwrapped(model).config.get_text_config(), "max_position_embeddings", None) or 2**20
        self.cache: Any = None
        self.prefix = 0
        if prompts and self.takes_positions and self.kept is None:
            self.cache, self.prefix = read_prefix(model, prompts)

    def read(self, places: list[int], prompts: Sequence[Sequence[int]]) -> tuple[_Rows, torch.Tensor]:
        """(rows without a new token yet, logits_BV of their first)."""
        if self.kept is not None:
            reads, logits_BV = read_prompts(self.model, prompts, self.pad_id, self.kept)
            input_ids, mask_BT = left_pad(prompts, self.pad_id, self.device)
            return self._rows(places, cache_of(self.model, reads), input_ids, mask_BT), logits_BV
        input_ids, own_mask_BT = left_pad([prompt[self.prefix :] for prompt in prompts], self.pad_id, self.device)
        mask_BT = torch.cat([own_mask_BT.new_ones(len(prompts), self.prefix), own_mask_BT], dim=1)
        arguments = forward_arguments(self.model, mask_BT)
        if self.takes_positions:
            arguments["position_ids"] = arguments["position_ids"][:, self.prefix :]
        cache = copy.deepcopy(self.cache)
        if cache is not None:
            cache.batch_repeat_interleave(len(prompts))
        output = self.model(input_ids=input_ids, use_cache=True, logits_to_keep=1, **{CACHE: cache}, **arguments)
        return self._rows(places, getattr(output, CACHE), input_ids, mask_BT), output.logits[:, -1]

    def _rows(self, places: list[int], cache: Any, input_ids: torch.Tensor, mask_BT: torch.Tensor) -> _Rows:
        """Rows whose prompts were read."""
        positions_B1 = mask_BT.sum(dim=1, keepdim=True) - 1
        movable = self.takes_positions and is_movable(cache)
        if movable:
            cache.layers = [Roomy.of(one) if type(one) is DynamicLayer else one for one in cache.layers]
        return _Rows(
            places=places,
            open=list(range(len(places))),
            cache=cache,
            last_B1=input_ids[:, -1:],
            positions_B1=positions_B1,
            mask_BT=mask_BT,
            prefix=self.prefix,
            movable=movable,
            is_open_B1=torch.ones_like(positions_B1),
        )

    def step(self, rows: _Rows) -> torch.Tensor:
        """logits_BV after each row's last token, which is added to the cache."""
        if self.lean is not None and rows.movable:
            seen = rows.seen_with_next()[:, None, None]
            return self.lean(rows.last_B1, rows.positions_B1, rows.cache.layers, seen)[:, -1]
        rows.mask_BT = pad(rows.mask_BT, (0, 1), value=1)
        arguments = {"attention_mask": rows.mask_BT}
        if self.takes_positions:
            arguments["position_ids"] = rows.positions_B1
        output = self.model(
            input_ids=rows.last_B1, use_cache=True, logits_to_keep=1, **{CACHE: rows.cache}, **arguments
        )
        rows.cache = getattr(output, CACHE)
        return output.logits[:, -1]

    def takes_guesses(self, rows: _Rows) -> bool:
        """Whether tokens that were read can be hidden again: not if a layer folds them into a state."""
        return self.hides and rows.movable and all(isinstance(layer, Roomy) for layer in rows.cache.layers)

    def step_ahead(self, rows: _Rows, guesses: Sequence[Sequence[int]]) -> torch.Tensor:
        """logits_BSV after each row's last token and the S - 1 guesses behind it, all of which are added to the cache.
        Rows with fewer guesses are padded.
        """
        ahead = max(map(len, guesses))
        guess_BS = torch.tensor([[*row, *[self.pad_id] * (ahead - len(row))] for row in guesses], device=self.device)
        tokens_BS = torch.cat([rows.last_B1, guess_BS], dim=1)
        offsets_S = torch.arange(ahead + 1, device=self.device)
        positions_BS = (rows.positions_B1 + offsets_S).clamp(max=self.context - 1)  # of padding
        before = rows.mask_BT.shape[1]
        seen_BT = rows.seen_with_next(ahead + 1)
        if self.lean is None:
            output = self.model(
                input_ids=tokens_BS,
                attention_mask=seen_BT.long(),
                position_ids=positions_BS,
                **{CACHE: rows.cache},
                use_cache=True,
            )
            return output.logits
        seen = seen_BT[:, None, None].repeat(1, 1, ahead + 1, 1)
        seen[..., before:] &= offsets_S[:, None] >= offsets_S
        return self.lean(tokens_BS, positions_BS, rows.cache.layers, seen)


@dataclass
class _Pen:
    """Picks the next token of each row and records it with its log-probability."""

    written: list[Written]
    """The result of each prompt."""
    limits: list[int]
    """The most tokens after each prompt."""
    stop_ids: frozenset[int]
    """Tokens that end a row."""
    stop_strings: StopStrings
    """Strings that end a row."""
    temperature: float
    """0 is greedy."""
    truncation: Truncation
    """Which tokens may be drawn at another temperature."""
    seeds: Sequence[int]
    """One per prompt, if the temperature is above 0."""
    guides: list[Guide] = field(default_factory=list)
    """One per prompt, if the rows are greedy and are to be guessed."""
    misses: dict[int, int] = field(default_factory=dict)
    """Of a prompt: passes in a row in which all guesses were wrong."""

    def write(self, rows: _Rows, logits_BV: torch.Tensor) -> None:
        """Add a token to each open row and close those that it ends; closed rows keep their position."""
        logprobs_BV = torch.log_softmax(logits_BV.float() / (self.temperature or 1.0), dim=-1)
        if self.temperature > 0:
            if self.truncation:
                logprobs_BV = truncated_rows(logprobs_BV, self.truncation)
            draws = [0.0] * len(rows.places)
            for row in rows.open:
                place = rows.places[row]
                draws[row] = uniform(self.seeds[place], "token", len(self.written[place].token_ids))
            chosen_B = sample_tokens(logprobs_BV, draws)
        else:
            chosen_B = logprobs_BV.argmax(dim=-1)
        chosen_B1 = chosen_B[:, None]
        tokens, logprobs = torch.cat([chosen_B1.double(), logprobs_BV.gather(1, chosen_B1).double()], dim=1).T.tolist()
        still_open = [row for row in rows.open if self._add(rows.places[row], int(tokens[row]), logprobs[row])]
        rows.last_B1 = chosen_B1
        rows.positions_B1 = rows.positions_B1 + rows.is_open_B1
        self._close(rows, still_open)

    def guesses(self, rows: _Rows) -> list[list[int]]:
        """The guesses of each row's next tokens, at most AHEAD, and GUESSES in all; none beyond the row's limit."""
        guesses: list[list[int]] = [[] for _ in rows.places]
        ahead = min(AHEAD, GUESSES // len(rows.open))
        for row in rows.open if self.guides else ():
            place = rows.places[row]
            written = self.written[place].token_ids
            if self.misses.get(place, 0) < MISSES or len(written) % RETRY == 0:
                guesses[row] = self.guides[place].guess(written, min(ahead, self.limits[place] - len(written) - 1))
        return guesses

    def write_ahead(self, rows: _Rows, guesses: Sequence[Sequence[int]], logits_BSV: torch.Tensor) -> None:
        """Add to each open row its next token, and those behind it as long as what was read is what was guessed."""
        logprobs_BS, chosen_BS = torch.log_softmax(logits_BSV.float(), dim=-1).max(dim=-1)
        chosen, logprobs = chosen_BS.tolist(), logprobs_BS.tolist()
        added, still_open = [0] * len(rows.places), []
        for row in rows.open:
            place, guess = rows.places[row], guesses[row]
            for token, logprob in zip(chosen[row], logprobs[row], strict=True):
                is_open = self._add(place, token, logprob)
                added[row] += 1
                if not is_open or added[row] > len(guess) or guess[added[row] - 1] != token:
                    break
            if is_open:
                still_open.append(row)
            self.misses[place] = self.misses.get(place, 0) + 1 if guess and added[row] == 1 else 0
        added_B1 = torch.tensor(added, device=rows.last_B1.device)[:, None]
        kept_B1 = added_B1.clamp(min=1)
        rows.last_B1 = chosen_BS.gather(1, kept_B1 - 1)
        rows.positions_B1 = rows.positions_B1 + added_B1
        rows.mask_BT[:, -chosen_BS.shape[1] :] = torch.arange(chosen_BS.shape[1], device=kept_B1.device) < kept_B1
        self._close(rows, still_open)

    def _add(self, place: int, token: int, logprob: float) -> bool:
        """Add a token to the text; whether the text goes on."""
        line = self.written[place]
        line.token_ids.append(token)
        line.logprobs.append(logprob)
        if token in self.stop_ids:
            line.stopped = line.stop_token = True
        elif self.stop_strings.end(line.token_ids):
            line.stopped = True
        return not line.stopped and len(line.token_ids) < self.limits[place]

    def _close(self, rows: _Rows, still_open: list[int]) -> None:
        """Close all rows but those that are still open."""
        if len(still_open) < len(rows.open):
            rows.open = still_open
            rows.is_open_B1 = torch.zeros_like(rows.is_open_B1)
            rows.is_open_B1[still_open] = 1


def truncated_rows(logprobs_BV: torch.Tensor, truncation: Truncation) -> torch.Tensor:
    """`models.sampler.truncated` for each row, in float64 where probabilities are added up."""
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
    """One token per row, by inverting the cumulative distribution at the row's draw: first over blocks, then within
    one.

    The cumulative sum over a large vocabulary, which must be in float64, would cost more than the softmax.
    """
    probs_BNK = pad(logprobs_BV.exp(), (0, -logprobs_BV.shape[1] % BLOCK)).unflatten(1, (-1, BLOCK))
    blocks_BN = probs_BNK.sum(dim=-1).double()
    upto_BN = blocks_BN.cumsum(dim=-1)
    draws_B1 = torch.tensor(draws, dtype=torch.float64, device=logprobs_BV.device)[:, None]
    target_B1 = draws_B1 * upto_BN[:, -1:]
    block_B1 = torch.searchsorted(upto_BN, target_B1, right=True).clamp(max=upto_BN.shape[1] - 1)
    rest_B1 = target_B1 - pad(upto_BN, (1, 0)).gather(1, block_B1)  # ≥ 0, and less than the block's own sum
    inside_BK = probs_BNK.take_along_dim(block_B1[..., None], dim=1)[:, 0].double().cumsum(dim=-1)
    share_B1 = rest_B1 / blocks_BN.gather(1, block_B1)
    inside_B1 = torch.searchsorted(inside_BK, share_B1 * inside_BK[:, -1:], right=True).clamp(max=BLOCK - 1)
    return (block_B1 * BLOCK + inside_B1).squeeze(1).clamp(max=logprobs_BV.shape[1] - 1)
