"""The memo of scores: what it holds, and how many bytes."""

from __future__ import annotations

from reflectkit.sampling.base import ScoreMemo


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
