"""Whether weights are still numbers, and whether an error means that memory ran out."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

NO_MEMORY = ("can't allocate memory", "not enough memory", "size calculation overflowed", "CUBLAS_STATUS_ALLOC_FAILED")


@torch.no_grad()
def all_finite(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether no value in `tensors` is NaN or infinite; integer tensors, as of quantised weights, always are finite."""
    floats = [tensor.detach() for tensor in tensors if tensor.is_floating_point() and tensor.numel()]
    return math.isfinite(torch.nn.utils.get_total_norm(floats, norm_type=math.inf))  # the largest magnitude; NaN stays NaN


def out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that a CPU or a GPU has no memory left, or could never have as much as was asked for."""
    if isinstance(error, RuntimeError):
        return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in NO_MEMORY)
    return isinstance(error, MemoryError)
