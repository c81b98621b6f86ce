"""Whether a model on this CPU is told that another type of weights is faster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from reflectkit.models import processor
from reflectkit.models.load import LoadedModel


@pytest.mark.parametrize(
    ("flags", "dtype", "weights", "advice"),
    [
        ("fpu amx_bf16 avx512_bf16", "float32", 1, "--dtype bfloat16"),
        ("fpu avx512_bf16", "float32", 1, "--dtype bfloat16"),
        ("fpu avx512_bf16", "bfloat16", 1, ""),
        ("fpu sse2", "float32", 1, ""),
        ("fpu sse2", "bfloat16", 1, "--dtype float32"),
        ("fpu amx_bf16", "float32", 10**9, ""),
    ],
)
def test_the_faster_type_is_named(
    policy: LoadedModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: str,
    dtype: str,
    weights: int,
    advice: str,
) -> None:
    """weights: from how many on a model is large."""
    (tmp_path / "cpuinfo").write_text(f"model name\t: any\nflags\t\t: {flags}\n")
    monkeypatch.setattr(processor, "CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(processor, "LARGE", weights)
    processor.bfloat16_flags.cache_clear()
    told = processor.dtype_advice(replace(policy, dtype=dtype))
    processor.bfloat16_flags.cache_clear()
    assert advice in told if advice else told == ""
