"""Packs: rows that begin alike, as one pass over the trie of their tokens (--share-prefixes).

A pack holds the tokens of the trie in the order in which the sorted rows add them; what rows share
is read once. A token attends to its ancestors alone and has their number as its position. Hidden
states, loss and gradients are those of the rows one by one, up to the rounding of sums. Unlike the
trees of `models.scoring` this is one plain pass with a mask, so it works with adapters, recomputed
activations and TRL's trainer, and for the short convolutions of LFM2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from reflectkit.models.architecture import (
    attends_to_all,
    recomputes_activations,
    takes_positions,
    trunk_of,
    unwrapped,
)
from reflectkit.models.rows import shared_length
from reflectkit.train.sft.tokens import NOT_TRAINED

Encoded = Mapping[str, Sequence[int]]
"""A row or a pack: lists of token ids and of their labels, places or parents, by name."""
PAIRS_PER_TOKEN = 6
"""Times a model's width: pairs of tokens whose attention costs as much as the rest of reading a
token. A layer has 12 D² weights, and a pair takes 2 D products."""


def pack(
    rows: Sequence[Encoded],
    limit: int,
    width: int,
) -> list[dict[str, list[int]]]:
    """Packs of all `rows`, each of at most `limit` tokens unless a single row has more.

    A row joins the pack of the row before it in sorted order where the tokens that it shares with
    it cost more to read than the attention between what it adds and the rest of the pack.

    rows: input_ids and labels of each, not empty; labels are NOT_TRAINED where nothing is trained.
    width: of the model's hidden states.

    Returns
    -------
    For each pack: input_ids of its T tokens; parents, the number of the token before each, or -1;
    sources and targets, for every trained token of every row the number of the token before it, and
    the token. A token that two rows train on is there twice.
    """
    packs: list[dict[str, list[int]]] = []
    before: Sequence[int] = ()
    path: list[int] = []  # numbers of the tokens of the row before
    for row in sorted(rows, key=lambda row: list(row["input_ids"])):
        # 1. Whether it joins the last pack
        tokens = row["input_ids"]
        prefix = shared_length(before, tokens)
        new = len(tokens) - prefix
        size = len(packs[-1]["input_ids"]) if packs else 0
        is_cheaper = PAIRS_PER_TOKEN * width * prefix >= 2 * size * new
        if not packs or size + new > limit or not is_cheaper:
            packs.append({"input_ids": [], "parents": [], "sources": [], "targets": []})
            prefix, size = 0, 0

        # 2. Its tokens, and the trained ones among them
        path = path[:prefix] + list(range(size, size + len(tokens) - prefix))
        columns = packs[-1]
        columns["input_ids"] += tokens[prefix:]
        for place in range(prefix, len(tokens)):
            columns["parents"].append(path[place - 1] if place else -1)
        for parent, label in zip(path, row["labels"][1:], strict=False):
            if label != NOT_TRAINED:
                columns["sources"].append(parent)
                columns["targets"].append(label)
        before = tokens
    return packs


def can_pack(model: Any) -> bool:
    """Whether packs are read exactly by the model: it takes positions and a mask of pairs, and each
    layer attends to all tokens before or is a short convolution of LFM2 whose activations are not
    recomputed.
    """
    config = unwrapped(model).config.get_text_config()
    masks_tokens = getattr(config, "alibi", False)  # Falcon's, made of a mask of tokens
    if not takes_positions(model) or masks_tokens:
        return False
    if config._attn_implementation not in ("sdpa", "eager"):
        return False
    if config.model_type == "lfm2":
        return not recomputes_activations(model)
    return attends_to_all(model)


def collate(packs: Sequence[Encoded], pad_id: int) -> dict[str, torch.Tensor]:
    """B packs as tensors, padded on the right to T tokens.

    Returns
    -------
    input_ids, attention_mask (1 for a token of a pack), position_ids and parents,
    each (B, T); sources, the numbers among the B x T tokens of the N tokens before a trained one,
    and shift_labels, the trained ones, both (1, N), which are also the labels, for the trainer to
    count.
    """
    width = max(len(columns["input_ids"]) for columns in packs)
    ids_BT = torch.full((len(packs), width), pad_id)
    mask_BT = torch.zeros((len(packs), width), dtype=torch.long)
    parents_BT = torch.full((len(packs), width), -1)
    places_BT = torch.zeros((len(packs), width), dtype=torch.long)
    sources: list[int] = []
    targets: list[int] = []
    for row, columns in enumerate(packs):
        size = len(columns["input_ids"])
        places: list[int] = []
        for parent in columns["parents"]:
            places.append(places[parent] + 1 if parent >= 0 else 0)
        ids_BT[row, :size] = torch.tensor(columns["input_ids"])
        mask_BT[row, :size] = 1
        parents_BT[row, :size] = torch.tensor(columns["parents"])
        places_BT[row, :size] = torch.tensor(places)
        sources += [row * width + source for source in columns["sources"]]
        targets += columns["targets"]
    return {
        "input_ids": ids_BT,
        "attention_mask": mask_BT,
        "position_ids": places_BT,
        "parents": parents_BT,
        "sources": torch.tensor([sources], dtype=torch.long),
        "shift_labels": torch.tensor([targets], dtype=torch.long),
        "labels": torch.tensor([targets], dtype=torch.long),
    }


@contextmanager
def selecting(trunk: nn.Module, select: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """While it is open, `trunk` returns the hidden states (N, D) that `select` takes from all
    (B, T, D), as one row.
    """

    def replace_states(
        _: nn.Module,
        __: Any,
        output: Any,
    ) -> Any:
        output.last_hidden_state = select(output.last_hidden_state)[None]
        return output

    hook = trunk.register_forward_hook(replace_states)
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def reading(
    model: Any,
    parents_BT: torch.Tensor,
    sources_N: torch.Tensor,
) -> Iterator[None]:
    """While it is open, the model reads packs, and its trunk returns the hidden states (1, N, D) at
    N of the B x T tokens.

    model: one that `can_pack`; its positions are up to the caller. parents_BT: of each token, -1
    for a first one.
    """
    trunk = trunk_of(model)
    mask = _mask(parents_BT, trunk)

    def with_mask(
        _: nn.Module,
        args: Any,
        kwargs: dict[str, Any],
    ) -> tuple[Any, dict[str, Any]]:
        return args, kwargs | {"attention_mask": mask}

    hook = trunk.register_forward_pre_hook(with_mask, with_kwargs=True)
    convolutions = []
    for module in trunk.modules():
        if type(module).__name__ == "Lfm2ShortConv":
            convolutions.append(module)
    try:
        for layer in convolutions:
            layer.forward = partial(_convolve, layer, parents_BT)
        with selecting(trunk, lambda hidden_BTD: hidden_BTD.flatten(0, 1)[sources_N]):
            yield
    finally:
        for layer in convolutions:
            vars(layer).pop("forward", None)
        hook.remove()


def _mask(parents_BT: torch.Tensor, trunk: Any) -> torch.Tensor:
    """Which tokens each token attends to (B, 1, T, T): itself and its ancestors; padding attends to
    itself.
    """
    rows, size = parents_BT.shape
    attends_BTT = np.tile(np.eye(size, dtype=bool), (rows, 1, 1))
    for row, parents in enumerate(parents_BT.tolist()):
        for token, parent in enumerate(parents):
            if parent >= 0:
                attends_BTT[row, token] |= attends_BTT[row, parent]
    mask = torch.from_numpy(attends_BTT)[:, None].to(parents_BT.device)
    if trunk.config._attn_implementation == "sdpa":
        return mask
    # Eager attention adds its mask to the scores
    dtype = next(weight.dtype for weight in trunk.parameters() if weight.is_floating_point())
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)


def _convolve(
    layer: Any,
    parents_BT: torch.Tensor,
    hidden_states: torch.Tensor,
    **_: Any,
) -> torch.Tensor:
    """The forward of LFM2's short convolution `layer`, along each token's ancestors instead of its
    left neighbours.
    """
    gate_BTD, out_BTD, value_BTD = layer.in_proj(hidden_states).chunk(3, dim=-1)
    gated_BTD = gate_BTD * value_BTD
    weight_DK = layer.conv.weight.squeeze(1)
    mixed_BTD = gated_BTD * weight_DK[:, -1]

    # Index -1 is the column of zeros at the end: no ancestor
    padded = torch.cat([gated_BTD, torch.zeros_like(gated_BTD[:, :1])], dim=1)
    parents = torch.cat([parents_BT, torch.full_like(parents_BT[:, :1], -1)], dim=1)
    ancestors = parents_BT
    for back in range(2, weight_DK.shape[1] + 1):
        index = (ancestors % padded.shape[1])[..., None].expand(-1, -1, padded.shape[-1])
        mixed_BTD = mixed_BTD + padded.gather(1, index) * weight_DK[:, -back]
        ancestors = parents.gather(1, ancestors % padded.shape[1])
    if layer.conv.bias is not None:
        mixed_BTD = mixed_BTD + layer.conv.bias
    result: torch.Tensor = layer.out_proj(out_BTD * mixed_BTD)
    return result
