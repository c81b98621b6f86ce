"""Losses: pure functions of tensors, of N trained tokens, D decisions, B rows, K choices.

Each returns one number per token or row; the learner averages. They depart from the Reflect-RL
code: log-probs are over the legal actions only, and rows sampled by an earlier policy are
importance-weighted, never treated as fresh. This file does not import torch, so the command line
can list the algorithms quickly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class TrainedTokens:
    """The N trained tokens of a micro-batch."""

    logprob_N: torch.Tensor
    """Log-probabilities under the current policy, with gradients."""
    old_logprob_N: torch.Tensor
    """Log-probabilities at sampling time."""
    advantage_N: torch.Tensor
    """Advantages of the tokens' decisions."""
    decision_N: torch.Tensor
    """The number of each token's decision within the micro-batch, 0 … D-1."""
    decisions: int
    """D."""
    replayed_N: torch.Tensor
    """Whether an earlier policy sampled the token (bool)."""
    clip: float
    """--clip: PPO's clip range."""
    is_cap: float = 0.0
    """--importance-weight-max: most that an importance weight may be where earlier weights sampled;
    0: they did not.
    """
    clip_high: float = 0.0
    """--clip-high: its upper end, if that differs; 0: it does not."""

    def decision_sum(self, value_N: torch.Tensor) -> torch.Tensor:
        """For each token, the sum of `value_N` over the tokens of its decision (N)."""
        sums_D = value_N.new_zeros(self.decisions).index_add(0, self.decision_N, value_N)
        return sums_D[self.decision_N]


def weighted_loss(tokens: TrainedTokens) -> torch.Tensor:
    """REINFORCE's: -w A log π (Williams 1992, eq. 4), where w is the importance weight of the
    token's decision, at most `is_cap`, or 1 + clip without one, and without gradient.
    """
    # The importance weight of a whole decision, truncated (Ionides 2008)
    log_ratio_N = tokens.decision_sum((tokens.logprob_N - tokens.old_logprob_N).detach())
    weight_N = log_ratio_N.exp().clamp(max=tokens.is_cap or 1 + tokens.clip)
    return -weight_N * tokens.advantage_N * tokens.logprob_N


def clipped_loss(tokens: TrainedTokens) -> torch.Tensor:
    """PPO's and GRPO's (arXiv 1707.06347, eq. 7): the ratio is clipped to 1 - clip … 1 + clip where
    that lowers the objective; the upper end is 1 + clip_high if that is given ("clip-higher", DAPO,
    arXiv 2503.14476, eq. 8).

    Where the ratio is 1, the gradient is REINFORCE's. The ratio of a replayed token is at most the
    upper end whatever the sign of its advantage, since eq. 7 bounds it on one side only; so is, for
    the same reason, any by `is_cap`.
    """
    above = 1 + (tokens.clip_high or tokens.clip)
    # 1. The ratio, 1 at the first pass over fresh rows; of replayed tokens, at most the upper end
    ratio_N = (tokens.logprob_N - tokens.old_logprob_N).exp()
    ratio_N = ratio_N.clamp(max=above).where(tokens.replayed_N, ratio_N)
    if tokens.is_cap:
        ratio_N = ratio_N.clamp(max=tokens.is_cap)
    # 2. The worse of the objective with and without clipping
    clipped_N = ratio_N.clamp(1 - tokens.clip, above)
    return -(ratio_N * tokens.advantage_N).minimum(clipped_N * tokens.advantage_N)


def kl_estimate(
    logprob_N: torch.Tensor,
    old_logprob_N: torch.Tensor,
    reference_N: torch.Tensor,
    cap: float = 0.0,
) -> torch.Tensor:
    """w (r - 1 - log r) with r = reference / π (GRPO, eq. 4): never negative, and its mean over
    samples is KL(π, reference).

    The weight w = π / sampler makes the gradient that of the KL too (DeepSeek-V3.2, arXiv
    2512.02556), even where w is 1. cap: most that w may be; 0: no limit. A capped weight keeps its
    gradient, so a token's gradient is min(w, cap) (-log r) ∇ log π.
    """
    log_weight_N = logprob_N - old_logprob_N
    if cap:  # the clamp is of a constant, so a capped weight keeps its gradient
        log_weight_N = log_weight_N - (log_weight_N.detach() - math.log(cap)).clamp(min=0)
    difference_N = reference_N - logprob_N
    return log_weight_N.exp() * (difference_N.exp() - difference_N - 1)


def on_policy_enough(
    change_N: torch.Tensor,
    advantage_N: torch.Tensor,
    row_N: torch.Tensor,
    kind: str,
    limit: float,
) -> torch.Tensor:
    """Which tokens may be learned from, given how far the policy has moved from their sampler (N,
    bool).

    change_N: log π - log sampler. row_N: the number of each token's row. limit: a ratio of at least
    1. kind: "token" drops tokens whose ratio exceeds it, and "sequence" rows whose product of
    ratios does (TRL's `token_mask` and `sequence_mask`). "geometric" drops tokens with a negative
    advantage in rows whose geometric mean of ratios is below 1 / limit (DeepSeek-V3.2, arXiv
    2512.02556, eq. 9; TRL's `off_policy_mask_threshold` of log limit).
    """
    change_N = change_N.detach()
    bound = math.log(limit)
    # Single tokens; then whole rows, by the sum or the mean of their changes
    if kind == "token":
        return change_N <= bound
    sums_B = change_N.new_zeros(int(row_N.max()) + 1).index_add(0, row_N, change_N)
    if kind == "sequence":
        return (sums_B <= bound)[row_N]
    lengths_B = change_N.new_zeros(len(sums_B)).index_add(
        0, row_N, change_N.new_ones(len(change_N))
    )
    return (advantage_N >= 0) | (-sums_B / lengths_B.clamp(min=1) <= bound)[row_N]


def divergence(
    student_NK: torch.Tensor,
    teacher_NK: torch.Tensor,
    kind: str,
) -> torch.Tensor:
    """How far each of the N distributions of the student is from its teacher's, in nats (N).

    student_NK, teacher_NK: log-probabilities; -inf for what is no choice. kind: "forward",
    KL(teacher, student); "reverse", KL(student, teacher); "js", Jensen-Shannon, the mean of
    either's KL from their mean, at most log 2.
    """
    # What is no choice counts 0 on both sides
    legal_NK = student_NK.isfinite() & teacher_NK.isfinite()
    student_NK, teacher_NK = student_NK.where(legal_NK, 0.0), teacher_NK.where(legal_NK, 0.0)

    def kl(p_NK: torch.Tensor, q_NK: torch.Tensor) -> torch.Tensor:
        return (p_NK.exp() * (p_NK - q_NK)).where(legal_NK, 0.0).sum(dim=-1)

    if kind == "forward":
        return kl(teacher_NK, student_NK)
    if kind == "reverse":
        return kl(student_NK, teacher_NK)
    mean_NK = student_NK.logaddexp(teacher_NK) - math.log(2)
    return (kl(student_NK, mean_NK) + kl(teacher_NK, mean_NK)) / 2


def mismatch(change_N: torch.Tensor) -> dict[str, float]:
    """How far the learner's log-probabilities are from the sampler's, for the same tokens; empty
    without tokens.

    change_N: the learner's minus the sampler's. The effective sample size is the share of the
    tokens that would say as much with equal weights, (Σ w)² / (N Σ w²) with w = π / sampler (Kong
    1992).
    """
    if not len(change_N):
        return {}
    weight_N = (change_N.double() - change_N.max()).exp()  # a common factor cancels
    return {
        "logprob_difference_mean": float(change_N.abs().mean()),
        "logprob_difference_max": float(change_N.abs().max()),
        "effective_sample_size": float(weight_N.sum() ** 2 / (len(weight_N) * (weight_N**2).sum())),
    }


def value_loss(
    value_B: torch.Tensor,
    return_B: torch.Tensor,
    old_value_B: torch.Tensor,
    clip: float,
) -> torch.Tensor:
    """Half the critic's squared error. With `clip` > 0, the larger of it and the error of the value
    clipped to within `clip` of its value at sampling, in units of reward (as in OpenAI Baselines'
    PPO).
    """
    error_B = (value_B - return_B).pow(2)
    if clip > 0:
        clipped_B = old_value_B + (value_B - old_value_B).clamp(-clip, clip)
        error_B = error_B.maximum((clipped_B - return_B).pow(2))
    return 0.5 * error_B
