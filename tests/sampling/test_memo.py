"""The memo of scores: what it holds, and how many bytes."""

from __future__ import annotations

import tracemalloc

import pytest

from reflectkit.sampling.memo import ScoreMemo


@pytest.mark.parametrize("length", [10, 80])
def test_its_size_is_what_it_holds(length: int) -> None:
    """2,000 prompts, each with the same four labels in tuples of its own."""
    memo = ScoreMemo()
    tracemalloc.start()
    for number in range(2000):
        prompt = [1000 + number, *range(500, 499 + length)]
        memo.keep(tuple((300 + one, 7) for one in range(4)), prompt, 1.0, tuple(0.1 * number for _ in range(4)))
        del prompt
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.6 * memo.size < held < 1.3 * memo.size


def test_beyond_its_capacity_it_starts_again() -> None:
    memo, labels = ScoreMemo(10_000), ((5,), (6,))
    most = 0
    for number in range(500):
        memo.trim()
        memo.keep(labels, [number] * 100, 1.0, (-0.5, -0.9))
        assert memo.get(labels, [number] * 100, 1.0) == (-0.5, -0.9)
        most = max(most, memo.size)
    assert 5_000 < most < 11_000
    assert memo.get(labels, [0] * 100, 1.0) is None
    assert memo.get(labels, [499] * 100, 0.7) is None
