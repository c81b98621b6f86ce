"""The attention that a training pass takes: transformers' "sdpa", or "eager" where that is faster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from reflectkit.models.architecture import recomputes_activations, takes_masks

SHORT = 128
"""The most tokens of a row, past included, that are read with eager attention. It keeps a matrix of
all pairs of them for the backward pass.
"""


@contextmanager
def fast_attention(
    trunk: Any,
    arguments: Mapping[str, torch.Tensor],
    past: int = 0,
) -> Iterator[None]:
    """A context for a pass of `trunk` with `arguments`, whose rows continue `past` tokens.

    On a CPU in bfloat16, torch computes the gradients of scaled dot product attention slowly: a
    sixth of the time of an update with short rows.
    """
    if not _is_eager_faster(trunk, arguments, past):
        yield
        return
    trunk.set_attn_implementation("eager")
    try:
        yield
    finally:
        trunk.set_attn_implementation("sdpa")


def _is_eager_faster(
    trunk: Any,
    arguments: Mapping[str, torch.Tensor],
    past: int,
) -> bool:
    """Whether a pass is one of short rows, with gradients, in bfloat16 on a CPU. Not one that hides
    branches by a mask of pairs, whose form differs, nor one that is read again in the backward pass.
    """
    if not torch.is_grad_enabled() or not takes_masks(trunk):
        return False
    input_ids_BT = arguments["input_ids"]
    mask = arguments.get("attention_mask")
    if past + input_ids_BT.shape[1] > SHORT or (mask is not None and mask.ndim > 2):
        return False
    weight = next(trunk.parameters())
    is_on_cpu = weight.device.type == "cpu"
    is_slow = is_on_cpu and weight.dtype == torch.bfloat16
    return is_slow and not recomputes_activations(trunk)
