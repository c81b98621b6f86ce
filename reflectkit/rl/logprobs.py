"""Rows to micro-batches, and micro-batches to the log-probs of their trained tokens, with gradients.

Choices with the same prompt share one forward pass. This is exact, since they share the distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from reflectkit.core.types import Sample
from reflectkit.models.labels import Path, trie
from reflectkit.models.prefixes import shared_length, tree_of
from reflectkit.models.scoring import choice_logprobs, token_logprobs
from reflectkit.rl.losses import entropy


@dataclass(frozen=True)
class Unit:
    """One input sequence: the tokens of a text row, or a prompt that several choices share. rows: indices of its
    samples.
    """

    tokens: tuple[int, ...]
    choices: tuple[Path, ...]
    rows: tuple[int, ...]

    @cached_property
    def size(self) -> int:
        """How many tokens are read for it at most: the prompt once for each chain of its labels' trie."""
        labels = trie(self.choices) if self.choices else None
        return len(self.tokens) if not labels else (len(self.tokens) + labels.depth) * max(1, len(labels.chains))


@dataclass(frozen=True)
class Scored:
    """N trained tokens or choices: row_N, the sample of each; place_N, its position there; logprob_N and entropy_N,
    with gradients; hidden_ND, the hidden state that predicts it.
    """

    row_N: list[int]
    place_N: list[int]
    logprob_N: torch.Tensor
    entropy_N: torch.Tensor
    hidden_ND: torch.Tensor


def units(samples: Sequence[Sample]) -> list[Unit]:
    """The units of `samples`, in order of first occurrence."""
    members: dict[tuple[Any, ...], list[int]] = {}
    for number, sample in enumerate(samples):
        key = (sample.tokens[: sample.start], sample.choices) if sample.choices else (sample.tokens, (), number)
        members.setdefault(key, []).append(number)
    return [Unit(key[0], key[1], tuple(rows)) for key, rows in members.items()]


def minibatches(parts: Sequence[Unit], count: int) -> list[list[Unit]]:
    """`parts` split in order into `count` minibatches whose numbers of rows differ by at most one.

    A unit whose rows belong to two minibatches is split.
    """
    total = sum(len(unit.rows) for unit in parts)
    ends = [(index + 1) * total // count for index in range(count)]
    result: list[list[Unit]] = [[] for _ in range(count)]
    position, index = 0, 0
    for unit in parts:
        rows = unit.rows
        while rows:
            while position == ends[index]:
                index += 1
            here = rows[: ends[index] - position]
            result[index].append(replace(unit, rows=here))
            position, rows = position + len(here), rows[len(here) :]
    return result


def packed(parts: Sequence[Unit], max_tokens: int) -> list[list[Unit]]:
    """`parts` in micro-batches of similar lengths and at most `max_tokens` tokens, padding included; a longer unit gets
    a micro-batch of its own.
    """
    batches: list[list[Unit]] = []
    for unit in sorted(parts, key=lambda unit: -unit.size):
        last = batches[-1] if batches else []
        alike = last and bool(last[0].choices) == bool(unit.choices)
        if alike and last[0].size * (len(last) + 1) <= max_tokens:
            last.append(unit)
        else:
            batches.append([unit])
    return batches


def packed_as_trees(parts: Sequence[Unit], max_tokens: int) -> list[list[Unit]]:
    """`parts` in micro-batches of units that begin alike, to be read as trees (`models.prefixes`).

    The tokens that are read are counted twice, for padding, and the keys and values behind them as an eighth of a token
    each: together `max_tokens` at most. A larger unit gets a micro-batch of its own.
    """
    batches: list[list[Unit]] = []
    read = widest = 0
    for unit in sorted(parts, key=lambda unit: (bool(unit.choices), unit.tokens)):
        last = batches[-1] if batches else []
        alike = last and bool(last[0].choices) == bool(unit.choices)
        new = unit.size - (shared_length(last[-1].tokens, unit.tokens) if alike else 0)
        widest = max(widest, unit.size)
        if alike and 2 * (read + new) + (len(last) + 1) * widest // 8 <= max_tokens:
            last.append(unit)
            read += new
        else:
            batches.append([unit])
            read, widest = unit.size, unit.size
    return batches


def tokens_read(micro: Sequence[Unit]) -> int:
    """How many tokens of prompts and texts are read if what they begin with is read once."""
    tokens = [unit.tokens for unit in micro]
    return tree_of(tokens).read


def score(
    model: Any,
    samples: Sequence[Sample],
    micro: Sequence[Unit],
    pad_id: int,
    temperature: float,
    *,
    share: bool = False,
) -> Scored:
    """Score the trained tokens of a micro-batch of only choices or only text. model: a model or its Scorer. share: what
    its units begin with is read once, if the model allows.
    """
    if micro[0].choices:
        logprobs_UK, hidden_UD = choice_logprobs(
            model,
            [unit.tokens for unit in micro],
            [unit.choices for unit in micro],
            pad_id=pad_id,
            temperature=temperature,
            share=share,
        )
        row_N = [row for unit in micro for row in unit.rows]
        unit_N = torch.tensor([index for index, unit in enumerate(micro) for _ in unit.rows], device=logprobs_UK.device)
        place_N = [samples[row].start for row in row_N]
        action_N = torch.tensor(
            [
                samples[row].choices.index(samples[row].tokens[place:])
                for row, place in zip(row_N, place_N, strict=True)
            ],
            device=unit_N.device,
        )
        return Scored(
            row_N,
            place_N,
            logprobs_UK[unit_N, action_N],
            entropy(logprobs_UK)[unit_N],
            hidden_UD[unit_N],
        )
    row_of = [unit.rows[0] for unit in micro]
    masks = [samples[row].loss_mask for row in row_of]
    logprob_N, logprobs_NV, hidden_ND = token_logprobs(
        model, [unit.tokens for unit in micro], masks, pad_id=pad_id, temperature=temperature, share=share
    )
    marked = [(row, place) for row, mask in zip(row_of, masks, strict=True) for place, one in enumerate(mask) if one]
    rows, places = [row for row, _ in marked], [place for _, place in marked]
    return Scored(rows, places, logprob_N, entropy(logprobs_NV), hidden_ND)
