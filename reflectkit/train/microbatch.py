"""Micro-batches: which rows are read in one pass, and the scores of their trained tokens."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from reflectkit.models.labels import Path, trie
from reflectkit.models.rows import plan_tree, shared_length
from reflectkit.models.scoring import choice_logprobs, entropy, token_logprobs
from reflectkit.types import Sample

READ, WORTH = 0.6, 25e6
"""Limits of `saves`. Of a row, a tree costs a model of 1 M parameters in four layers as much as 33
tokens: it gathers keys and values, layer by layer, and its passes are smaller. At least three times
as much must be saved.
"""
FEW = 16  # units of a micro-batch; of more, a tree is not built to know its size
LARGE, PASS = 1e6, 60
"""A model with LARGE parameters a layer spends its time on a CPU on tokens and passes. With
SmolLM2-135M and LoRA, a pass of a tree costs as much as 20 to 60 tokens.
"""


@dataclass(frozen=True)
class Unit:
    """One input sequence: the tokens of a text row, or a prompt that several choices share. rows:
    indices of its samples. branched: whether the prompt and the chains of its labels' trie are one
    row (`models.scoring`). separately: whether the labels are read alone.
    """

    tokens: tuple[int, ...]
    choices: tuple[Path, ...]
    rows: tuple[int, ...]
    branched: bool = False
    separately: bool = False

    @cached_property
    def size(self) -> int:
        """How many tokens are read for it at most: unless it is branched, the prompt once for each
        chain.
        """
        if not self.choices:
            return len(self.tokens)
        if self.separately:
            return len(self.tokens) + sum(map(len, self.choices))
        labels = trie(self.choices)
        if self.branched:
            return len(self.tokens) + sum(map(len, labels.chains))
        return (len(self.tokens) + labels.depth) * max(1, len(labels.chains))


@dataclass(frozen=True)
class Scored:
    """N trained tokens or choices: row_N, the sample of each; place_N, its position there;
    logprob_N and entropy_N, with gradients; hidden_ND, the hidden state that predicts it.
    """

    row_N: list[int]
    place_N: list[int]
    logprob_N: torch.Tensor
    entropy_N: torch.Tensor
    hidden_ND: torch.Tensor
    logprobs_NK: torch.Tensor
    """Of all K legal labels, or of the whole vocabulary; (N, 0) if this was not asked for."""


def units(
    samples: Sequence[Sample],
    branched: bool = False,
    separately: bool = False,
) -> list[Unit]:
    """The units of `samples`, in order of first occurrence. branched, separately: see `Unit`."""
    members: dict[tuple[Any, ...], list[int]] = {}
    for number, sample in enumerate(samples):
        key = (
            (sample.tokens[: sample.start], sample.choices)
            if sample.choices
            else (sample.tokens, (), number)
        )
        members.setdefault(key, []).append(number)
    return [
        Unit(key[0], key[1], tuple(rows), branched, separately) for key, rows in members.items()
    ]


def minibatches(parts: Sequence[Unit], count: int) -> list[list[Unit]]:
    """`parts` split in order into `count` minibatches whose numbers of rows differ by at most one.

    A unit whose rows belong to two minibatches is split.
    """
    total = sum(len(unit.rows) for unit in parts)
    ends = [(index + 1) * total // count for index in range(count)]
    result: list[list[Unit]] = [[] for _ in range(count)]
    position, index = 0, 0
    for unit in parts:
        # A unit whose rows do not fit into the present minibatch goes on in the next
        rows = unit.rows
        while rows:
            while position == ends[index]:
                index += 1
            here = rows[: ends[index] - position]
            result[index].append(replace(unit, rows=here))
            position, rows = position + len(here), rows[len(here) :]
    return result


def packed(parts: Sequence[Unit], max_tokens: int) -> list[list[Unit]]:
    """`parts` in micro-batches of similar lengths and at most `max_tokens` tokens, padding
    included; a longer unit gets a micro-batch of its own.
    """
    if parts and parts[0].separately:
        return _packed_by_prompt(parts, max_tokens)
    batches: list[list[Unit]] = []
    for unit in sorted(parts, key=lambda unit: -unit.size):
        last = batches[-1] if batches else []
        alike = last and bool(last[0].choices) == bool(unit.choices)
        if alike and last[0].size * (len(last) + 1) <= max_tokens:
            last.append(unit)
        else:
            batches.append([unit])
    return batches


def _packed_by_prompt(parts: Sequence[Unit], max_tokens: int) -> list[list[Unit]]:
    """`parts` whose labels are read alone, in micro-batches of at most `max_tokens` tokens. Units
    with the same prompt are neighbours, and a label that several of them have is counted and read
    once.
    """
    batches: list[list[Unit]] = []
    size, read = 0, set[tuple[tuple[int, ...], Path]]()
    for unit in sorted(parts, key=lambda unit: unit.tokens):
        new = {(unit.tokens, path) for path in unit.choices} - read
        new_tokens = sum(len(path) for _, path in new) + len(unit.tokens)
        if not batches or size + new_tokens > max_tokens:
            batches.append([])
            new, size, new_tokens = {(unit.tokens, path) for path in unit.choices}, 0, unit.size
            read = set()
        batches[-1].append(unit)
        size += new_tokens
        read |= new
    return batches


def saves(
    model: Any,
    parts: Sequence[Unit],
    max_tokens: int,
) -> bool:
    """Whether reading `parts` as trees is faster, in micro-batches of `max_tokens`: never on a GPU.

    A large model must save more than PASS tokens, padding included, for each pass that trees add. A
    small one must read at most READ of the tokens, and save WORTH tokens times parameters of a
    layer for each unit.
    """
    # 1. The size of a layer, which says what a token costs against a pass
    weights = list(model.parameters())
    if weights[0].device.type != "cpu":
        return False
    micros = packed_as_trees(parts, max_tokens)
    layer = (
        sum(weight.numel() for weight in weights) / model.config.get_text_config().num_hidden_layers
    )
    # 2. A large model: tokens that trees save, padding included, against passes that they add
    if layer >= LARGE:
        plain = packed(parts, max_tokens)
        more_passes = -len(plain)
        saved = sum(len(micro) * max(len(unit.tokens) for unit in micro) for micro in plain)
        for micro in micros:
            rows = [unit.tokens for unit in micro]
            for chunks in itertools.chain(*plan_tree(rows).levels):
                more_passes += 1
                saved -= len(chunks) * max(len(rows[chunk.row]) - chunk.start for chunk in chunks)
        return saved > PASS * more_passes
    # 3. A small model: tokens that neighbours share
    pairs = (pair for micro in micros for pair in itertools.pairwise(micro))
    total = sum(len(unit.tokens) for unit in parts)
    saved = sum(shared_length(one.tokens, other.tokens) for one, other in pairs)
    return total - saved <= READ * total and saved * layer >= WORTH * len(parts)


def packed_as_trees(parts: Sequence[Unit], max_tokens: int) -> list[list[Unit]]:
    """`parts` in micro-batches of units that begin alike, to be read as trees (`models.scoring`).

    The tokens that are read, with padding, and the keys and values before them as an eighth of a
    token each are together `max_tokens` at most. Padding is counted where units are long; else the
    tokens are counted twice. A larger unit gets a micro-batch of its own.
    """
    batches: list[list[Unit]] = []
    read = widest = 0
    for unit in sorted(parts, key=lambda unit: (bool(unit.choices), unit.tokens)):
        # 1. The tokens that this unit adds to the last micro-batch
        last = batches[-1] if batches else []
        alike = last and bool(last[0].choices) == bool(unit.choices)
        new = unit.size - (shared_length(last[-1].tokens, unit.tokens) if alike else 0)
        widest = max(widest, unit.size)
        # 2. Whether they fit by a simple bound; if units are long, by the tree's true size
        fits = alike and 2 * (read + new) + (len(last) + 1) * widest // 8 <= max_tokens
        if alike and not fits and not unit.choices and FEW * unit.size >= max_tokens:
            fits = _tree_size([*(other.tokens for other in last), unit.tokens]) <= max_tokens
        if fits:
            last.append(unit)
            read += new
        else:
            batches.append([unit])
            read, widest = unit.size, unit.size
    return batches


def _tree_size(rows: Sequence[Sequence[int]]) -> int:
    """What `packed_as_trees` counts of `rows`."""
    size = 0
    for chunks in itertools.chain(*plan_tree(rows).levels):
        width = max(len(rows[chunk.row]) - chunk.start for chunk in chunks)
        size += len(chunks) * (width + max(chunk.start for chunk in chunks) // 8)
    return size


def score(
    model: Any,
    samples: Sequence[Sample],
    micro: Sequence[Unit],
    pad_id: int,
    temperature: float,
    *,
    share: bool = False,
    whole: bool = False,
    entropy_learns: bool = True,
) -> Scored:
    """Score the trained tokens of a micro-batch of only choices or only text. model: a model or its
    Scorer. share: what its units begin with is read once, if the model allows. whole,
    entropy_learns: see `token_logprobs`.
    """
    # 1. Texts: the tokens that each row's mask marks
    prompts = [unit.tokens for unit in micro]
    if not micro[0].choices:
        masks = [samples[unit.rows[0]].loss_mask for unit in micro]
        scores = token_logprobs(
            model, prompts, masks, pad_id=pad_id, temperature=temperature, share=share, whole=whole,
            entropy_learns=entropy_learns,
        )  # fmt: skip
        trained_places = [
            (unit.rows[0], place)
            for unit, mask in zip(micro, masks, strict=True)
            for place, trained in enumerate(mask)
            if trained
        ]
        rows, places = map(list, zip(*trained_places, strict=True))
        return Scored(rows, places, *scores)
    # 2. Choices: one pass for each prompt, whatever was chosen there
    choices = [unit.choices for unit in micro]
    logprobs_UK, hidden_UD = choice_logprobs(
        model,
        prompts,
        choices,
        pad_id=pad_id,
        temperature=temperature,
        share=share,
        separately=micro[0].separately,
    )
    return scored_choices(samples, micro, logprobs_UK, hidden_UD)


def scored_choices(
    samples: Sequence[Sample],
    micro: Sequence[Unit],
    logprobs_UK: torch.Tensor,
    hidden_UD: torch.Tensor,
) -> Scored:
    """The scores of what was chosen in the rows of `micro`, U units, from those of all their
    labels.
    """
    # Several rows may share a unit: each has its own action, and the unit's distribution
    rows = [row for unit in micro for row in unit.rows]
    places = [samples[row].start for row in rows]
    actions = [
        samples[row].choices.index(samples[row].tokens[place:])
        for row, place in zip(rows, places, strict=True)
    ]
    unit_N = torch.tensor(
        [index for index, unit in enumerate(micro) for _ in unit.rows], device=logprobs_UK.device
    )
    action_N = torch.tensor(actions, device=unit_N.device)
    # Before the entropy: the order in which gradients are summed
    logprob_N = logprobs_UK[unit_N, action_N]
    entropy_N = entropy(logprobs_UK)[unit_N]
    return Scored(rows, places, logprob_N, entropy_N, hidden_UD[unit_N], logprobs_UK[unit_N])
