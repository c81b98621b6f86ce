"""What the processor computes fast: whether bfloat16 helps on a CPU."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reflectkit.models.load import LoadedModel

BFLOAT16_FLAGS = ("amx_bf16", "avx512_bf16")
"""Flags of processors with instructions for bfloat16, as Linux names them."""
LARGE = 50_000_000
"""Weights of a model whose passes take their time in matrix products; below, in launching them."""
CPU_INFO = Path("/proc/cpuinfo")


@cache
def bfloat16_flags() -> tuple[str, ...]:
    """Those of `BFLOAT16_FLAGS` that this CPU has; none where the system does not say it."""
    words = set(CPU_INFO.read_text().split()) if CPU_INFO.is_file() else set()
    return tuple(name for name in BFLOAT16_FLAGS if name in words)


def has_matrix_unit() -> bool:
    """Whether this CPU multiplies matrices of bfloat16 in hardware (AMX), several times as fast as
    with AVX-512 BF16.
    """
    return "amx_bf16" in bfloat16_flags()


def dtype_advice(player: LoadedModel) -> str:
    """A line for a model on a CPU that another `--dtype` makes several times as fast; "" if none
    does.

    A product of 512 × 576 and 576 × 1,536 takes 60 times as long in bfloat16 as in float32 on a CPU
    with neither flag. With one, SmolLM2-135M is two to four times as fast in bfloat16.
    """
    weight = next(player.model.parameters())
    small = sum(part.numel() for part in player.model.parameters()) < LARGE
    if weight.device.type != "cpu" or player.quantize != "none" or small:
        return ""
    flags = bfloat16_flags()
    if player.dtype == "float32" and flags:
        return (
            f"this CPU computes in bfloat16 ({', '.join(flags)}): --dtype bfloat16 may be 2 to 4"
            " times as fast"
        )
    if player.dtype != "float32" and CPU_INFO.is_file() and not flags:
        return (
            f"this CPU has no instructions for {player.dtype}: --dtype float32 is many times as"
            " fast"
        )
    return ""
