"""The parts `peers-…` of `make gpu-report`: rollouts and updates against TRL on this device."""

from __future__ import annotations

from benchmarks import scenes
from benchmarks.gpu import Bench, Measured
from benchmarks.gpu_parts import compile_at_once, need_setup
from reflectkit.console import Quiet
from reflectkit.models.hub import silence_libraries

SCALE = 4
"""Times as many episodes as one CPU core gets."""


def peers(bench: Bench, scene: str) -> Measured:
    """A scene of `make bench-peers` in bfloat16, with LoRA: three rounds, one if shapes are tiny."""
    need_setup(bench)
    compile_at_once()
    silence_libraries()
    dtype, rounds, scale = ("float32", 1, 1) if bench.fast else ("bfloat16", 3, SCALE)
    compared = scenes.Bench(
        str(bench.folder / "model"), rounds, bench.seed, bench.folder / "data", Quiet(), dtype, bench.device, scale
    )
    return Measured(note=" ".join(scenes.SCENES[scene](compared)))
