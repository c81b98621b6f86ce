"""Numbers from Python on the device of a model."""

from __future__ import annotations

from typing import Any

import torch


def on_device(
    values: Any,
    device: torch.device,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """A tensor of `values`, as `torch.tensor` makes it.

    A GPU copies it when it comes to it. `torch.tensor` would wait until the GPU has done all that
    it was given, and the GPU would then wait for what comes next.
    """
    if device.type != "cuda":
        return torch.tensor(values, dtype=dtype, device=device)
    return torch.tensor(values, dtype=dtype).pin_memory().to(device, non_blocking=True)
