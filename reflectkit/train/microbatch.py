"""Micro-batches: which rows are read in one pass, and the scores of their trained tokens."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from reflectkit.models.architecture import trunk_of
from reflectkit.models.device import on_device
from reflectkit.models.fast_pass import compiles
from reflectkit.models.labels import LabelPath, trie
from reflectkit.models.rows import Chunk, plan_tree, shared_length
from reflectkit.models.scoring import choice_logprobs, entropy, token_logprobs
from reflectkit.types import Sample

MOST_READ = 0.6
"""The greatest share of its tokens that a small model may still read, for trees to be faster."""
LEAST_SAVING = 25e6
"""Tokens times parameters of a layer, per unit: what trees must save a small model.

A row of a tree costs a model of 1 M parameters in four layers as much as 33 tokens: it gathers keys
and values, layer by layer, and its passes are smaller. At least three times as much must be saved.
"""
LARGE_LAYER = 1e6
"""Parameters of a layer, from which a model spends its time on a CPU on tokens and passes."""
PASS_TOKENS = 60
"""Tokens that cost a large model as much as a pass of a tree. With SmolLM2-135M and LoRA, they are
20 to 60.
"""
PASS_TOKENS_COMPILED = 130
"""The same where the layers of other passes are compiled. A pass of a tree has none of these."""
TREE_TOKEN_COMPILED = 1.3
"""What a token in a tree costs there, as against one in a pass with compiled layers."""
LOTS = 8
"""Lots of a prompt's rows that fill a minibatch. More mix it better, and read each prompt more
often: single rows cost 1.6 times the CPU time in `python -m benchmarks.learning`.
"""
FEW_UNITS = 16
"""Up to this many units of a micro-batch, a tree is built to know its size."""


@dataclass(frozen=True)
class Unit:
    """One input sequence: a row of text, or a prompt that several choices share."""

    tokens: tuple[int, ...]
    """The tokens of the text, or of the prompt."""
    choices: tuple[LabelPath, ...]
    """The tokens of each legal label (K) after the prompt; empty for a text."""
    rows: tuple[int, ...]
    """Indices of its samples."""
    branched: bool = False
    """Whether the prompt and the chains of its labels' trie are one row (`models.scoring`)."""
    separately: bool = False
    """Whether each label is read alone."""

    @cached_property
    def size(self) -> int:
        """The greatest number of tokens that are read for it."""
        prompt_size = len(self.tokens)
        if not self.choices:
            return prompt_size
        if self.separately:
            return prompt_size + sum(map(len, self.choices))
        labels = trie(self.choices)
        if self.branched:
            return prompt_size + sum(map(len, labels.chains))
        # The prompt is read once for each chain
        return (prompt_size + labels.depth) * max(1, len(labels.chains))


@dataclass(frozen=True)
class Scored:
    """The scores of N trained tokens or choices."""

    row_N: list[int]
    """The index of the sample of each."""
    place_N: list[int]
    """Its position in the sample."""
    logprob_N: torch.Tensor
    """Its log-probability, with gradients."""
    entropy_N: torch.Tensor
    """The entropy of its distribution in nats, with gradients."""
    hidden_ND: torch.Tensor
    """The hidden state that predicts it."""
    logprobs_NK: torch.Tensor
    """Log-probabilities of all K legal labels, or of the whole vocabulary; (N, 0) if this was not
    asked for.
    """


def units(
    samples: Sequence[Sample],
    branched: bool = False,
    separately: bool = False,
) -> list[Unit]:
    """The units of `samples`, in order of first occurrence. branched, separately: see `Unit`."""
    # 1. Choices after the same prompt among the same labels share a unit; a text has its own
    members: dict[tuple[Any, ...], list[int]] = {}
    for number, sample in enumerate(samples):
        if sample.choices:
            prompt = sample.tokens[: sample.start]
            members.setdefault((prompt, sample.choices), []).append(number)
        else:
            members[sample.tokens, (), number] = [number]

    # 2. The units
    result = []
    for (tokens, choices, *_), rows in members.items():
        result.append(Unit(tokens, choices, tuple(rows), branched, separately))
    return result


def minibatches(
    parts: Sequence[Unit],
    count: int,
    generator: random.Random,
) -> list[list[Unit]]:
    """The rows of `parts` in `count` random minibatches, whose sizes differ by at most one.

    In a game of few states, a state has many rows, and a step on the rows of one state would also
    change what is done in those that read alike. So a prompt's rows are drawn in several lots, each
    at most a LOTS-th of a minibatch. Rows of a minibatch with the same prompt are one unit there.
    """
    # 1. The rows of each prompt, as pairs (index of a part, row). Where labels are read alone, parts
    #    with other labels may have the same prompt
    rows_of: dict[Any, list[tuple[int, int]]] = {}
    for number, unit in enumerate(parts):
        prompt = unit.tokens if unit.separately else number
        rows_of.setdefault(prompt, []).extend((number, row) for row in unit.rows)

    # 2. Their lots. Neighbouring steps of a search have most labels in common, which are then read
    #    once, so they stay neighbours
    row_count = sum(len(unit.rows) for unit in parts)
    lot_size = max(1, row_count // (LOTS * count))
    lots = []
    for rows in rows_of.values():
        if parts[0].separately:
            rows.sort(key=lambda pair: pair[1])
        else:
            rows = generator.sample(rows, len(rows))
        for first in range(0, len(rows), lot_size):
            lots.append(rows[first : first + lot_size])

    # 3. All rows, by lots in random order
    generator.shuffle(lots)
    mixed = list(itertools.chain(*lots))

    # 4. The units of each minibatch
    result = []
    for index in range(count):
        start, end = index * row_count // count, (index + 1) * row_count // count
        members: dict[int, list[int]] = {}
        for number, row in mixed[start:end]:
            members.setdefault(number, []).append(row)
        result.append(
            [replace(parts[number], rows=tuple(here)) for number, here in members.items()]
        )
    return result


def packed(parts: Sequence[Unit], max_tokens: int) -> list[list[Unit]]:
    """`parts` in micro-batches of similar lengths and at most `max_tokens` tokens, with padding.

    A longer unit gets a micro-batch of its own.
    """
    if parts and parts[0].separately:
        return _packed_by_prompt(parts, max_tokens)
    batches: list[list[Unit]] = []
    last: list[Unit] = []
    for unit in sorted(parts, key=lambda unit: -unit.size):
        # The first unit is the longest; the others are padded to its size
        if _is_same_kind(last, unit) and last[0].size * (len(last) + 1) <= max_tokens:
            last.append(unit)
        else:
            last = [unit]
            batches.append(last)
    return batches


def _is_same_kind(micro: Sequence[Unit], unit: Unit) -> bool:
    """Whether `unit` is a choice, as those of `micro` are, or a text, as they are. False if `micro`
    is empty.
    """
    return bool(micro) and bool(micro[0].choices) == bool(unit.choices)


def _packed_by_prompt(parts: Sequence[Unit], max_tokens: int) -> list[list[Unit]]:
    """`parts` whose labels are read alone, in micro-batches of at most `max_tokens` tokens.

    Units with the same prompt are neighbours, in the order of their rows, and a label that several
    of them have is counted and read once.
    """
    batches: list[list[Unit]] = []
    size = 0
    # Prompts and labels of the last micro-batch
    read: set[tuple[tuple[int, ...], LabelPath]] = set()
    for unit in sorted(parts, key=lambda unit: (unit.tokens, unit.rows)):
        # 1. What this unit adds to the last micro-batch: its prompt, and labels that are not there
        labels = {(unit.tokens, path) for path in unit.choices}
        new_labels = labels - read
        new_size = len(unit.tokens) + sum(len(path) for _, path in new_labels)

        # 2. If that does not fit, it starts the next one
        if not batches or size + new_size > max_tokens:
            batches.append([])
            size = 0
            read = set()
            new_labels = labels
            new_size = unit.size
        batches[-1].append(unit)
        size += new_size
        read |= new_labels
    return batches


def saves(
    model: Any,
    parts: Sequence[Unit],
    max_tokens: int,
) -> bool:
    """Whether reading `parts` as trees is faster, in micro-batches of `max_tokens`: never on a GPU.

    A large model must save more than PASS_TOKENS tokens, padding included, for each pass that trees
    add, or PASS_TOKENS_COMPILED. A small one must read at most MOST_READ of the tokens, and save
    LEAST_SAVING for each unit.
    """
    # 1. The size of a layer, which says what a token costs against a pass
    weights = list(model.parameters())
    if weights[0].device.type != "cpu":
        return False
    layer_count = model.config.get_text_config().num_hidden_layers
    layer_size = sum(weight.numel() for weight in weights) / layer_count
    trees = packed_as_trees(parts, max_tokens)

    # 2. A large model: tokens that trees save, padding included, against passes that they add
    if layer_size >= LARGE_LAYER:
        is_compiled = compiles(trunk_of(model))
        pass_tokens = PASS_TOKENS_COMPILED if is_compiled else PASS_TOKENS
        tree_token = TREE_TOKEN_COMPILED if is_compiled else 1.0
        saved_tokens = 0.0
        more_passes = 0
        for micro in packed(parts, max_tokens):
            saved_tokens += len(micro) * max(len(unit.tokens) for unit in micro)
            more_passes -= 1
        for micro in trees:
            rows = [unit.tokens for unit in micro]
            for chunks in itertools.chain(*plan_tree(rows).levels):
                saved_tokens -= tree_token * len(chunks) * _width(rows, chunks)
                more_passes += 1
        return saved_tokens > pass_tokens * more_passes

    # 3. A small model: tokens that neighbours share
    tokens = sum(len(unit.tokens) for unit in parts)
    saved_tokens = 0
    for micro in trees:
        for unit, following in itertools.pairwise(micro):
            saved_tokens += shared_length(unit.tokens, following.tokens)
    reads_little = tokens - saved_tokens <= MOST_READ * tokens
    return reads_little and saved_tokens * layer_size >= LEAST_SAVING * len(parts)


def packed_as_trees(parts: Sequence[Unit], max_tokens: int) -> list[list[Unit]]:
    """`parts` in micro-batches of units that begin alike, to be read as trees (`models.scoring`).

    The tokens that are read, with padding, and the keys and values before them as an eighth of a
    token each are together `max_tokens` at most. Padding is counted where units are long; else the
    tokens are counted twice. A larger unit gets a micro-batch of its own.
    """
    batches: list[list[Unit]] = []
    last: list[Unit] = []
    read = 0  # tokens of the last micro-batch
    widest = 0  # tokens of its largest unit
    for unit in sorted(parts, key=lambda unit: (bool(unit.choices), unit.tokens)):
        fits = False
        if _is_same_kind(last, unit):
            # 1. The tokens that this unit adds to the last micro-batch
            new = unit.size - shared_length(last[-1].tokens, unit.tokens)
            widest = max(widest, unit.size)

            # 2. Whether they fit by a simple bound; if texts are long, by the tree's true size
            fits = 2 * (read + new) + (len(last) + 1) * widest // 8 <= max_tokens
            is_long_text = not unit.choices and FEW_UNITS * unit.size >= max_tokens
            if not fits and is_long_text:
                rows = [other.tokens for other in last]
                fits = _tree_size([*rows, unit.tokens]) <= max_tokens

        # 3. Otherwise it starts the next micro-batch
        if fits:
            last.append(unit)
            read += new
        else:
            last = [unit]
            batches.append(last)
            read = widest = unit.size
    return batches


def _tree_size(rows: Sequence[Sequence[int]]) -> int:
    """What `packed_as_trees` counts of `rows`: tokens, and an eighth of the keys and values."""
    size = 0
    for chunks in itertools.chain(*plan_tree(rows).levels):
        longest_start = max(chunk.start for chunk in chunks)
        size += len(chunks) * (_width(rows, chunks) + longest_start // 8)
    return size


def _width(rows: Sequence[Sequence[int]], chunks: Sequence[Chunk]) -> int:
    """Tokens of the longest of the chunks that one pass reads of `rows`."""
    return max(len(rows[chunk.row]) - chunk.start for chunk in chunks)


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
    """The scores of the trained tokens of a micro-batch, which has only choices or only texts.

    model: a model or its Scorer. share: whether what its units begin with is read once, if the
    model allows. whole, entropy_learns: see `token_logprobs`.
    """
    # 1. Choices: one pass for each prompt, whatever was chosen there
    prompts = [unit.tokens for unit in micro]
    if micro[0].choices:
        logprobs_UK, hidden_UD = choice_logprobs(
            model,
            prompts,
            [unit.choices for unit in micro],
            pad_id=pad_id,
            temperature=temperature,
            share=share,
            separately=micro[0].separately,
        )
        return scored_choices(samples, micro, logprobs_UK, hidden_UD)

    # 2. Texts: the tokens that each row's mask marks
    masks = [samples[unit.rows[0]].loss_mask for unit in micro]
    scores = token_logprobs(
        model,
        prompts,
        masks,
        pad_id=pad_id,
        temperature=temperature,
        share=share,
        whole=whole,
        entropy_learns=entropy_learns,
    )
    row_N = []
    place_N = []
    for unit, mask in zip(micro, masks, strict=True):
        for place, is_trained in enumerate(mask):
            if is_trained:
                row_N.append(unit.rows[0])
                place_N.append(place)
    return Scored(row_N, place_N, *scores)


def scored_choices(
    samples: Sequence[Sample],
    micro: Sequence[Unit],
    logprobs_UK: torch.Tensor,
    hidden_UD: torch.Tensor,
) -> Scored:
    """The scores of what was chosen in the N rows of `micro`.

    logprobs_UK: of all labels of its U units. hidden_UD: the last hidden state of each prompt.
    """
    # 1. The unit and the action of each row; a unit may have several rows
    row_N = []
    place_N = []
    units_of_rows = []
    actions = []
    for number, unit in enumerate(micro):
        for row in unit.rows:
            sample = samples[row]
            start = sample.start
            row_N.append(row)
            place_N.append(start)
            units_of_rows.append(number)
            actions.append(sample.choices.index(sample.tokens[start:]))
    unit_N = on_device(units_of_rows, logprobs_UK.device)
    action_N = on_device(actions, logprobs_UK.device)

    # 2. Log-probabilities before entropies: gradients are summed in this order
    logprob_N = logprobs_UK[unit_N, action_N]
    entropy_N = entropy(logprobs_UK)[unit_N]
    return Scored(row_N, place_N, logprob_N, entropy_N, hidden_UD[unit_N], logprobs_UK[unit_N])
