"""Running out of memory is told apart from other errors, and explained."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from reflectkit.errors import ReflectkitError, memory_explained


def full_gpu() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 7 GiB\nGPU 0 has …")


@pytest.mark.parametrize(
    "fails", [lambda: torch.empty(2**50), lambda: torch.empty(2**62), lambda: bytearray(2**60), full_gpu]
)
def test_no_memory_is_one_line_with_advice(fails: Callable[[], object]) -> None:
    with pytest.raises(ReflectkitError) as caught:
        memory_explained("lower --max-concurrency")(fails)()
    assert str(caught.value) == "out of memory; lower --max-concurrency"
