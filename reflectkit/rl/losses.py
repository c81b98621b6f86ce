"""REINFORCE's, PPO's and GRPO's losses as pure functions of tensors. N trained tokens, B rows, K choices.

Each gives one number a token or row; the learner averages. Departs from the Reflect-RL code: log-probs are over the legal
actions alone, and rows that an earlier policy sampled are weighted, never treated as fresh.
"""

from __future__ import annotations

import torch


def reinforce(logprob_N: torch.Tensor, advantage_N: torch.Tensor, log_ratio_N: torch.Tensor, cap: float) -> torch.Tensor:
    """-w A log π (Williams 1992, eq. 4), w the importance weight of the decision, at most `cap` and no part of the gradient.

    log_ratio_N: log π now less log π when it was sampled, summed over the decision's tokens; 0 for a fresh row, whose w is 1.
    """
    weight_N = torch.exp(log_ratio_N.detach()).clamp(max=cap)  # truncated importance sampling, Ionides 2008
    return -weight_N * advantage_N * logprob_N


def clipped_surrogate(
    logprob_N: torch.Tensor,
    old_logprob_N: torch.Tensor,
    advantage_N: torch.Tensor,
    clip: float,
    replayed_N: torch.Tensor | None = None,
) -> torch.Tensor:
    """PPO's loss (arXiv 1707.06347, eq. 7), and GRPO's: the ratio counts within 1 ± clip where that lowers the objective.

    Where the ratio is 1 its gradient is REINFORCE's. replayed_N: whether a row is an older policy's; its ratio, the importance
    weight, is at most 1 + clip whatever the advantage's sign, for eq. 7 bounds it on one side only.
    """
    ratio_N = torch.exp(logprob_N - old_logprob_N)  # 1 at the first pass over fresh rows
    if replayed_N is not None:
        ratio_N = torch.where(replayed_N, ratio_N.clamp(max=1 + clip), ratio_N)
    clipped_N = torch.clamp(ratio_N, 1 - clip, 1 + clip)
    return -torch.min(ratio_N * advantage_N, clipped_N * advantage_N)


def kl_estimate(logprob_N: torch.Tensor, old_logprob_N: torch.Tensor, reference_N: torch.Tensor) -> torch.Tensor:
    """w (r - 1 - log r), r = reference / π (GRPO, eq. 4): never negative; its mean over samples is KL(π, reference).

    w = π / sampler makes the gradient that of the KL too (DeepSeek-V3.2, arXiv 2512.02556), also where it is 1.
    """
    difference_N = reference_N - logprob_N
    return torch.exp(logprob_N - old_logprob_N) * (torch.exp(difference_N) - difference_N - 1)


def entropy(logprobs_BK: torch.Tensor) -> torch.Tensor:
    """Entropy of each row's distribution over its legal choices, in nats (B); -inf entries count for nothing."""
    finite_BK = torch.where(torch.isfinite(logprobs_BK), logprobs_BK, torch.zeros_like(logprobs_BK))
    return -(torch.exp(logprobs_BK) * finite_BK).sum(dim=-1)


def value_loss(value_B: torch.Tensor, return_B: torch.Tensor, old_value_B: torch.Tensor, clip: float) -> torch.Tensor:
    """Half the squared error of the critic. With `clip` > 0 the larger of it and of the error with the value held within `clip`
    of what it was at sampling, in the env's unit (as in OpenAI's baselines for PPO).
    """
    error_B = (value_B - return_B).pow(2)
    if clip > 0:
        held_B = old_value_B + torch.clamp(value_B - old_value_B, -clip, clip)
        error_B = torch.max(error_B, (held_B - return_B).pow(2))
    return 0.5 * error_B
