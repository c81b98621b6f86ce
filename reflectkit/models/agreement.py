"""How far the log-probabilities of the same weights may differ between an inference server and this process."""

from __future__ import annotations

import math

import torch

from reflectkit.core.text import pluralize

MEAN_LIMIT = 0.3
"""Most that the mean difference over many tokens may be, in nats. Between a policy in float32 or bfloat16 here and
vLLM in bfloat16 it was 0.02 to 0.05 (SmolLM2-135M with LoRA, which docs/large-policies.md describes).
"""
SHARE = 0.95
HIGH_LIMIT = 1.0
"""Most that the difference may be, in nats, for the best-agreeing SHARE of the tokens; there it was 0.13."""


def disagreement(difference_N: torch.Tensor, temperature: float = 1.0) -> str:
    """Which limit the differences exceed, with the figure; "" if none. The mean over N tokens may be 2 / √N above its
    limit, as a part of it. temperature: of the log-probabilities; a lower one enlarges the differences of the logits.
    """
    if not len(difference_N):
        return ""
    distance_N, count, scale = difference_N.abs().double(), len(difference_N), max(1.0, 1 / temperature)
    for what, figure, limit in (
        ("on average over", float(distance_N.mean()), MEAN_LIMIT * (1 + 2 / math.sqrt(count))),
        (f"at the {SHARE:.0%} quantile of", float(distance_N.quantile(SHARE, interpolation="lower")), HIGH_LIMIT),
    ):
        if not figure <= limit * scale:
            return f"by {figure:.3g} nats {what} {pluralize(count, 'token')} (limit {limit * scale:.3g})"
    return ""
