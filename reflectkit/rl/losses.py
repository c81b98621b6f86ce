"""The policy's and the critic's losses as pure functions of tensors. B rows, K choices."""

from __future__ import annotations

import torch


def policy_gradient_loss(
    logprob_B: torch.Tensor, old_logprob_B: torch.Tensor, advantage_B: torch.Tensor, clip: float
) -> torch.Tensor:
    """The clipped surrogate; at the first pass over fresh rows its gradient is REINFORCE's.

    Where the ratio is 1, d/dθ (ratio * A) = A * d/dθ log π (Williams 1992, eq. 4); `clip` bounds how far later passes move.
    """
    ratio_B = torch.exp(logprob_B - old_logprob_B)  # 1 at the first pass; PPO, arXiv 1707.06347, section 3
    clipped_B = torch.clamp(ratio_B, 1 - clip, 1 + clip)
    return -torch.min(ratio_B * advantage_B, clipped_B * advantage_B).mean()  # eq. 7


def entropy(logprobs_BK: torch.Tensor) -> torch.Tensor:
    """Entropy of each row's distribution over its legal choices, in nats (B); -inf entries count for nothing."""
    finite_BK = torch.where(torch.isfinite(logprobs_BK), logprobs_BK, torch.zeros_like(logprobs_BK))
    return -(torch.exp(logprobs_BK) * finite_BK).sum(dim=-1)


def value_loss(value_B: torch.Tensor, return_B: torch.Tensor) -> torch.Tensor:
    """Half the mean squared error of the critic."""
    return 0.5 * (value_B - return_B).pow(2).mean()
