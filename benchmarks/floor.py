"""Bare passes: the model's own forward and backward passes over the tokens of a round, and nothing else.

For a rollout, one forward pass over each different prompt that was answered with a choice. Of texts and conversations,
what the model did not write is read once, and then come the cached passes over what it wrote, one token at a time, for
all rows at once. For an update, one forward and backward pass over each different row, with
the head and the cross-entropy where a token is trained.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from benchmarks.rl import decoding_floor
from benchmarks.sft import bare_pass
from reflectkit.models.load import LoadedModel
from reflectkit.models.rows import right_pad
from reflectkit.train.microbatch import packed, units
from reflectkit.types import Sample


@torch.no_grad()
def rollout(player: LoadedModel, samples: Sequence[Sample], max_tokens: int) -> None:
    """Read the prompts, and write the texts."""
    device = next(player.model.parameters()).device
    for micro in packed([unit for unit in units(samples) if unit.choices], max_tokens):
        input_ids_BT = right_pad([unit.tokens for unit in micro], player.pad_id, device)
        player.model(input_ids=input_ids_BT, use_cache=False, logits_to_keep=1)
    read, written = (
        [
            [token for token, trained in zip(sample.tokens, sample.loss_mask, strict=True) if trained == wanted]
            for sample in samples
            if not sample.choices
        ]
        for wanted in (0, 1)
    )
    if read:
        decoding_floor(player, read, written, len(read))


def update(player: LoadedModel, samples: Sequence[Sample], max_tokens: int) -> None:
    """Learn from the rows, without an optimizer."""
    device = next(player.model.parameters()).device
    for micro in packed(units(samples), max_tokens):
        rows = [samples[unit.rows[0]] for unit in micro]
        ignored = [
            [token if trained else -100 for token, trained in zip(row.tokens, row.loss_mask, strict=True)]
            for row in rows
        ]
        bare_pass(
            player.model,
            {
                "input_ids": right_pad([row.tokens for row in rows], player.pad_id, device),
                "attention_mask": right_pad([[1] * len(row.tokens) for row in rows], 0, device),
                "labels": right_pad(ignored, -100, device),
            },
        )
    player.model.zero_grad()
