"""Checks of weights."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch


@torch.no_grad()
def all_finite(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether no value in `tensors` is NaN or infinite. Integer tensors, e.g. quantised weights, are skipped."""
    floats = [tensor.detach() for tensor in tensors if tensor.is_floating_point() and tensor.numel()]
    return math.isfinite(
        torch.nn.utils.get_total_norm(floats, norm_type=math.inf)
    )  # the largest magnitude; NaN stays NaN
