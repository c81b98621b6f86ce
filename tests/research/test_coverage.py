"""bench coverage: which cells there are, that what is drawn has the rate and correlation it should, and what is
reported.
"""

from __future__ import annotations

import numpy as np
import pytest

from research import coverage as bench_coverage


@pytest.mark.parametrize(("correlation", "wanted"), [("0", 0.0), ("0.5", 0.5), ("0.5, half alike", 0.5), ("1", 1.0)])
def test_what_is_drawn_has_its_rate_and_correlation(correlation: str, wanted: float) -> None:
    """Clusters of two: the correlation is (P(both) - p²) / (p - p²)."""
    chance, sizes_C = np.random.default_rng(0), np.full(50, 2)
    counts_NC = bench_coverage.draw_rates(chance, 2000, sizes_C, 0.2, correlation)
    assert counts_NC.mean() / 2 == pytest.approx(0.2, abs=0.01)
    assert ((counts_NC == 2).mean() - 0.04) / 0.16 == pytest.approx(wanted, abs=0.02)
    won_NC, lost_NC = bench_coverage.draw_pairs(chance, 2000, sizes_C, 0.5, 0.4, correlation)
    assert (won_NC.mean() / 2, lost_NC.mean() / 2) == pytest.approx((0.3, 0.2), abs=0.01)
    assert ((won_NC == 2).mean() - 0.09) / 0.21 == pytest.approx(wanted, abs=0.02)
