"""Limits of the differences between a server's log-probabilities and this process's."""

from __future__ import annotations

import math

import pytest
import torch

from reflectkit.sampling.checks import disagreement


@pytest.mark.parametrize(
    ("differences", "temperature", "figure"),
    [
        ([0.05, -0.05] * 50, 1.0, ""),
        ([0.5, -0.5] * 50, 1.0, "by 0.5 nats on average over 100 tokens (limit 0.36)"),  # 0.3 · (1 + 2 / 10)
        ([0.5, -0.5] * 2, 1.0, ""),  # four tokens: 0.3 · (1 + 2 / 2)
        ([0.5, -0.5] * 50, 0.5, ""),  # half the temperature, twice the logits
        ([0.0] * 95 + [2.0] * 5, 1.0, ""),
        ([0.0] * 93 + [2.0] * 7, 1.0, "by 2 nats at the 95% quantile of 100 tokens (limit 1)"),
        ([math.nan], 1.0, "by nan nats on average over 1 token (limit 0.9)"),
        ([], 1.0, ""),
    ],
)
def test_limits(differences: list[float], temperature: float, figure: str) -> None:
    assert disagreement(torch.tensor(differences), temperature) == figure
