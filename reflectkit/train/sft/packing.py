"""Packs: rows that begin alike, in one pass over the trie of their tokens (--share-prefixes).

A pack has the tokens of the trie in the order in which the sorted rows add them. A beginning that
rows have in common is read once. A token attends to itself and its ancestors, and their number is
its position. Hidden states, loss and gradients are those of the rows one by one, up to the rounding
of sums.

`models.rows` also reads rows that begin alike, but in several passes, with cached states between
them. A pack is one plain pass with a mask. So it works with TRL's trainer, with adapters and
recomputed activations, and for the short convolutions of LFM2.

Shapes: B packs, T tokens of the longest, N trained tokens of all rows, D numbers of a hidden state,
K taps of a convolution.
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
"""A row or a pack as lists by name, for example of token ids and of labels."""
PAIRS_PER_TOKEN = 6
"""Reading a token, without its attention, costs as much as the attention between PAIRS_PER_TOKEN x
D pairs of tokens: a layer has 12 D² weights, and a pair takes 2 D products.
"""


def pack(
    rows: Sequence[Encoded],
    limit: int,
    width: int,
) -> list[dict[str, list[int]]]:
    """Packs of all `rows`, each of at most `limit` tokens unless a single row has more.

    A row can join the pack of the row before it in sorted order. It does so if the tokens that both
    begin with cost more to read than the attention between the row's other tokens and the pack.

    rows: each has input_ids, not empty, and labels, which are NOT_TRAINED for tokens that are not
    trained on. width: D.

    Returns
    -------
    For each pack, lists by name:

    input_ids: its T tokens.
    parents: for each token, the index of the token before it in its rows; -1 for a first one.
    sources, targets: for each trained token of each row, the index of the token before it, and the
    token itself. A token that two rows train on is there twice.
    """
    packs: list[dict[str, list[int]]] = []
    last_tokens: Sequence[int] = ()
    path: list[int] = []  # the index in the pack of each token of the last row
    for row in sorted(rows, key=lambda row: list(row["input_ids"])):
        # 1. Whether the row joins the last pack, and with how many tokens of the last row
        tokens = row["input_ids"]
        prefix = shared_length(last_tokens, tokens)
        new = len(tokens) - prefix
        size = len(packs[-1]["input_ids"]) if packs else 0
        is_cheaper = PAIRS_PER_TOKEN * width * prefix >= 2 * size * new
        if not packs or size + new > limit or not is_cheaper:
            packs.append({"input_ids": [], "parents": [], "sources": [], "targets": []})
            prefix = 0
            size = 0

        # 2. Add its other tokens, each after its parent
        columns = packs[-1]
        new_path = list(range(size, size + len(tokens) - prefix))
        path = path[:prefix] + new_path
        columns["input_ids"] += tokens[prefix:]
        for place in range(prefix, len(tokens)):
            parent = path[place - 1] if place else -1
            columns["parents"].append(parent)

        # 3. Add its trained tokens
        for source, label in zip(path, row["labels"][1:], strict=False):
            if label != NOT_TRAINED:
                columns["sources"].append(source)
                columns["targets"].append(label)
        last_tokens = tokens
    return packs


def can_pack(model: Any) -> bool:
    """Whether the model reads a pack as it reads the rows one by one.

    It must take positions, and a mask of pairs of tokens. Each layer must attend to all tokens
    before, or be a short convolution of LFM2 whose activations are not recomputed.
    """
    config = unwrapped(model).config.get_text_config()
    # Falcon's alibi takes its positions from a mask of tokens
    has_alibi = getattr(config, "alibi", False)
    if not takes_positions(model) or has_alibi:
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
    input_ids, position_ids, parents: of the packs (B, T).
    attention_mask: 1 for a token of a pack, 0 for padding (B, T).
    sources: among all B x T tokens, the indices of the N tokens before a trained one (1, N).
    shift_labels: the trained tokens (1, N).
    labels: the same, for the trainer to count.
    """
    width = max(len(columns["input_ids"]) for columns in packs)
    ids_BT = torch.full((len(packs), width), pad_id)
    mask_BT = torch.zeros((len(packs), width), dtype=torch.long)
    parents_BT = torch.full((len(packs), width), -1)
    places_BT = torch.zeros((len(packs), width), dtype=torch.long)
    sources: list[int] = []
    targets: list[int] = []
    for row, columns in enumerate(packs):
        # 1. The position of a token is one after that of its parent
        size = len(columns["input_ids"])
        places: list[int] = []
        for parent in columns["parents"]:
            places.append(places[parent] + 1 if parent >= 0 else 0)

        # 2. The rows of the tensors
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
    """In this context, `trunk` returns only some of its hidden states, as one row (1, N, D).

    select: takes them (N, D) from all hidden states (B, T, D).
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
    """In this context, the model reads packs, and its trunk returns hidden states (1, N, D).

    model: one that `can_pack`; the caller gives it the positions. parents_BT: the index of each
    token's parent, -1 for a first one. sources_N: the tokens whose hidden states are returned,
    among all B x T.
    """
    # 1. Attention gets a mask of pairs in place of the mask of tokens
    trunk = trunk_of(model)
    mask = _mask(parents_BT, trunk)

    def with_mask(
        _: nn.Module,
        args: Any,
        kwargs: dict[str, Any],
    ) -> tuple[Any, dict[str, Any]]:
        return args, kwargs | {"attention_mask": mask}

    hook = trunk.register_forward_pre_hook(with_mask, with_kwargs=True)

    # 2. Short convolutions get another forward, until the context ends
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
    """Which tokens each token attends to, as an attention mask (B, 1, T, T).

    A token attends to itself and its ancestors. Padding, which has no parents, attends to itself.
    """
    # 1. A token attends to what its parent attends to, and to itself
    rows, size = parents_BT.shape
    attends_BTT = np.tile(np.eye(size, dtype=bool), (rows, 1, 1))
    for row, parents in enumerate(parents_BT.tolist()):
        for token, parent in enumerate(parents):
            if parent >= 0:
                attends_BTT[row, token] |= attends_BTT[row, parent]
    mask = torch.from_numpy(attends_BTT)[:, None].to(parents_BT.device)
    if trunk.config._attn_implementation == "sdpa":
        return mask

    # 2. Eager attention adds its mask to the scores
    dtype = next(weight.dtype for weight in trunk.parameters() if weight.is_floating_point())
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)


def _convolve(
    layer: Any,
    parents_BT: torch.Tensor,
    hidden_states: torch.Tensor,
    **_: Any,
) -> torch.Tensor:
    """The forward of LFM2's short convolution `layer`, along a token's ancestors.

    The layer's own forward takes a token's left neighbours instead.
    """
    # 1. The last tap is of the token itself
    gate_BTD, out_BTD, value_BTD = layer.in_proj(hidden_states).chunk(3, dim=-1)
    gated_BTD = gate_BTD * value_BTD
    weight_DK = layer.conv.weight.squeeze(1)
    mixed_BTD = gated_BTD * weight_DK[:, -1]

    # 2. One more column, of zeros, is the ancestor with index -1: there is none
    padded = torch.cat([gated_BTD, torch.zeros_like(gated_BTD[:, :1])], dim=1)
    parents = torch.cat([parents_BT, torch.full_like(parents_BT[:, :1], -1)], dim=1)
    columns = padded.shape[1]

    # 3. The other taps are of the parent, of its parent, and so on
    ancestors = parents_BT
    for back in range(2, weight_DK.shape[1] + 1):
        place_BT = ancestors % columns
        index_BTD = place_BT[..., None].expand(-1, -1, padded.shape[-1])
        mixed_BTD = mixed_BTD + padded.gather(1, index_BTD) * weight_DK[:, -back]
        ancestors = parents.gather(1, place_BT)
    if layer.conv.bias is not None:
        mixed_BTD = mixed_BTD + layer.conv.bias
    result: torch.Tensor = layer.out_proj(out_BTD * mixed_BTD)
    return result
