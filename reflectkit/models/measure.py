"""How much memory training takes: weights and optimizer state by their sizes, the rest by counting live tensors."""

from __future__ import annotations

import contextlib
import math
import re
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from typing_extensions import override


class PeakMemory(TorchDispatchMode):
    """Counts the tensors that are made while it is entered, on any device.

    live: bytes of those that still exist. peak: the most at once. What a kernel needs inside is not counted. It slows
    small operations several times.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: set[int] = set()

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        before = {_storage(one)._cdata for one in tree_leaves((args, kwargs)) if _counts(one)}
        for one in tree_leaves(result):
            if _counts(one) and _storage(one)._cdata not in before | self._known:  # a view of an input is none of ours
                self._add(_storage(one))
        return result

    def _add(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        self._known.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._remove, key, size)

    def _remove(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size


def _counts(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided and type(value).__name__ != "FakeTensor"


def _storage(value: torch.Tensor) -> Any:
    return value.untyped_storage()


def free_memory(device: torch.device, limits: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that can still be taken on `device`; on a CPU also by the limit of a container, if any (cgroup 2).

    limits: the folder of that limit.
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = int(psutil.virtual_memory().available)
    with contextlib.suppress(OSError, ValueError):  # no container, or "max"
        limit, used = (int((limits / name).read_text()) for name in ("memory.max", "memory.current"))
        cached = re.search(r"^inactive_file (\d+)$", (limits / "memory.stat").read_text(), re.MULTILINE)
        free = min(free, limit - used + (int(cached[1]) if cached else 0))
    return free


def split_parameters(models: Iterable[Any]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """(trained, frozen) parameters of `models`, each once although models may share them."""
    every = {id(weight): weight for model in models for weight in model.parameters()}.values()
    return [one for one in every if one.requires_grad], [one for one in every if not one.requires_grad]


def count(weights: Iterable[torch.Tensor]) -> int:
    """The number of parameters; a weight packed into bytes by quantisation counts as often as it has bytes."""
    return sum(weight.numel() for weight in weights)


def size(weights: Iterable[torch.Tensor]) -> int:
    """Bytes of `weights`."""
    return sum(weight.numel() * weight.element_size() for weight in weights)


def optimizer_size(name: str, weights: Iterable[torch.Tensor]) -> int:
    """Bytes of the state of optimizer `name` (see `models.training`) over `weights`, but for its step counters.

    AdamW holds two numbers for each weight, SGD with momentum one, Adafactor one for each row and column of a matrix.
    """
    total = 0
    for weight in weights:
        shape, each = weight.shape, weight.element_size()
        if name == "adafactor" and weight.ndim > 1:
            outer = math.prod(shape[:-2])
            total += outer * (shape[-2] + shape[-1]) * each
        else:
            total += {"adamw": 2, "sgd": 1, "adafactor": 1}[name] * weight.numel() * each
    return total
