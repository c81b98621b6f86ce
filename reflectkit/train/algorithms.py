"""The RL algorithms: each has its settings, its advantages and its loss, and a row of `ALGORITHMS`.

An algorithm of your own needs no registration: write an `Algorithm` in a module and pass its dotted path,
`rlft --algo package.module:NAME`. This file does not import torch, so the command line can list the algorithms quickly.

Losses are pure functions of tensors: N trained tokens, D decisions, B rows, K choices. Each returns one number per
token or row; the learner averages. They depart from the Reflect-RL code: log-probs are over the legal actions only, and
rows sampled by an earlier policy are importance-weighted, never treated as fresh. Advantages are plain numbers, which
every process computes over the whole batch, so baselines and deviations do not depend on the number of processes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar

from pydantic import model_validator

from reflectkit.config import Config, NoSettings, check_own_settings, chosen_by, flag, leaves, non_default, option
from reflectkit.errors import ConfigError, ReflectkitError, refuse
from reflectkit.registry import code_files, module_of, resolve
from reflectkit.types import Trajectory

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
    """--importance-weight-max: most that an importance weight may be where earlier weights sampled; 0: they did not."""
    clip_high: float = 0.0
    """--clip-high: its upper end, if that differs; 0: it does not."""

    def decision_sum(self, value_N: torch.Tensor) -> torch.Tensor:
        """For each token, the sum of `value_N` over the tokens of its decision (N)."""
        sums_D = value_N.new_zeros(self.decisions).index_add(0, self.decision_N, value_N)
        return sums_D[self.decision_N]


def weighted_loss(tokens: TrainedTokens) -> torch.Tensor:
    """REINFORCE's: -w A log π (Williams 1992, eq. 4), where w is the importance weight of the token's decision, at most
    `is_cap`, or 1 + clip without one, and without gradient.
    """
    log_ratio_N = tokens.decision_sum((tokens.logprob_N - tokens.old_logprob_N).detach())
    weight_N = log_ratio_N.exp().clamp(max=tokens.is_cap or 1 + tokens.clip)  # truncated, Ionides 2008
    return -weight_N * tokens.advantage_N * tokens.logprob_N


def clipped_loss(tokens: TrainedTokens) -> torch.Tensor:
    """PPO's and GRPO's (arXiv 1707.06347, eq. 7): the ratio is clipped to 1 - clip … 1 + clip where that lowers the
    objective; the upper end is 1 + clip_high if that is given ("clip-higher", DAPO, arXiv 2503.14476, eq. 8).

    Where the ratio is 1, the gradient is REINFORCE's. The ratio of a replayed token is at most the upper end whatever
    the sign of its advantage, since eq. 7 bounds it on one side only; so is, for the same reason, any by `is_cap`.
    """
    above = 1 + (tokens.clip_high or tokens.clip)
    ratio_N = (tokens.logprob_N - tokens.old_logprob_N).exp()  # 1 at the first pass over fresh rows
    ratio_N = ratio_N.clamp(max=above).where(tokens.replayed_N, ratio_N)
    if tokens.is_cap:
        ratio_N = ratio_N.clamp(max=tokens.is_cap)
    clipped_N = ratio_N.clamp(1 - tokens.clip, above)
    return -(ratio_N * tokens.advantage_N).minimum(clipped_N * tokens.advantage_N)


def kl_estimate(
    logprob_N: torch.Tensor, old_logprob_N: torch.Tensor, reference_N: torch.Tensor, cap: float = 0.0
) -> torch.Tensor:
    """w (r - 1 - log r) with r = reference / π (GRPO, eq. 4): never negative, and its mean over samples is KL(π,
    reference).

    The weight w = π / sampler makes the gradient that of the KL too (DeepSeek-V3.2, arXiv 2512.02556), even where w is
    1. cap: most that w may be; 0: no limit. A capped weight keeps its gradient, so a token's gradient is min(w, cap)
    (-log r) ∇ log π.
    """
    log_weight_N = logprob_N - old_logprob_N
    if cap:
        log_weight_N = log_weight_N - (log_weight_N.detach() - math.log(cap)).clamp(min=0)
    difference_N = reference_N - logprob_N
    return log_weight_N.exp() * (difference_N.exp() - difference_N - 1)


def on_policy_enough(
    change_N: torch.Tensor, advantage_N: torch.Tensor, row_N: torch.Tensor, kind: str, limit: float
) -> torch.Tensor:
    """Which tokens may be learned from, given how far the policy has moved from their sampler (N, bool).

    change_N: log π - log sampler. row_N: the number of each token's row. limit: a ratio of at least 1. kind: "token"
    drops tokens whose ratio exceeds it, and "sequence" rows whose product of ratios does (TRL's `token_mask` and
    `sequence_mask`). "geometric" drops tokens with a negative advantage in rows whose geometric mean of ratios is below
    1 / limit (DeepSeek-V3.2, arXiv 2512.02556, eq. 9; TRL's `off_policy_mask_threshold` of log limit).
    """
    change_N = change_N.detach()
    bound = math.log(limit)
    if kind == "token":
        return change_N <= bound
    sums_B = change_N.new_zeros(int(row_N.max()) + 1).index_add(0, row_N, change_N)
    if kind == "sequence":
        return (sums_B <= bound)[row_N]
    lengths_B = change_N.new_zeros(len(sums_B)).index_add(0, row_N, change_N.new_ones(len(change_N)))
    return (advantage_N >= 0) | (-sums_B / lengths_B.clamp(min=1) <= bound)[row_N]


def divergence(student_NK: torch.Tensor, teacher_NK: torch.Tensor, kind: str) -> torch.Tensor:
    """How far each of the N distributions of the student is from its teacher's, in nats (N).

    student_NK, teacher_NK: log-probabilities; -inf for what is no choice. kind: "forward", KL(teacher, student);
    "reverse", KL(student, teacher); "js", Jensen-Shannon, the mean of either's KL from their mean, at most log 2.
    """
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
    """How far the learner's log-probabilities are from the sampler's, for the same tokens; empty without tokens.

    change_N: the learner's minus the sampler's. The effective sample size is the share of the tokens that would say as
    much with equal weights, (Σ w)² / (N Σ w²) with w = π / sampler (Kong 1992).
    """
    if not len(change_N):
        return {}
    weight_N = (change_N.double() - change_N.max()).exp()  # a common factor cancels
    return {
        "logprob_difference_mean": float(change_N.abs().mean()),
        "logprob_difference_max": float(change_N.abs().max()),
        "effective_sample_size": float(weight_N.sum() ** 2 / (len(weight_N) * (weight_N**2).sum())),
    }


def value_loss(value_B: torch.Tensor, return_B: torch.Tensor, old_value_B: torch.Tensor, clip: float) -> torch.Tensor:
    """Half the critic's squared error. With `clip` > 0, the larger of it and the error of the value clipped to within
    `clip` of its value at sampling, in units of reward (as in OpenAI Baselines' PPO).
    """
    error_B = (value_B - return_B).pow(2)
    if clip > 0:
        clipped_B = old_value_B + (value_B - old_value_B).clamp(-clip, clip)
        error_B = error_B.maximum((clipped_B - return_B).pow(2))
    return 0.5 * error_B


SPREAD = 1e-8  # values that lie this close together count as equal


def returns_to_go(rewards: Sequence[float], gamma: float) -> list[float]:
    """G_t = r_t + gamma * G_{t+1} for each step of one episode (Sutton and Barto, eq. 3.9).

    >>> returns_to_go([1.0, 2.0, 4.0], 0.5)
    [3.0, 4.0, 4.0]
    """
    returns = [0.0] * len(rewards)
    following = 0.0
    for index in range(len(rewards) - 1, -1, -1):
        following = rewards[index] + gamma * following
        returns[index] = following
    return returns


def generalised_advantages(rewards: Sequence[float], values: Sequence[float], gamma: float, lam: float) -> list[float]:
    """A_t = delta_t + gamma * lam * A_{t+1}, with delta_t = r_t + gamma * V_{t+1} - V_t (GAE, arXiv 1506.02438, eq.
    16).

    values: the critic's value at each step of one episode. lam: 1 uses full returns, 0 one-step TD errors.

    >>> generalised_advantages([1.0, 2.0], [0.5, 1.0], 1.0, 0.0)
    [1.5, 1.0]
    """
    advantages = [0.0] * len(rewards)
    following = next_value = 0.0
    for index in range(len(rewards) - 1, -1, -1):
        delta = rewards[index] + gamma * next_value - values[index]
        following = delta + gamma * lam * following
        advantages[index], next_value = following, values[index]
    return advantages


def leave_one_out(returns: Sequence[Sequence[float]], groups: Sequence[Hashable]) -> list[list[float]]:
    """Each return-to-go minus the mean of the group's *other* episodes at the same step; episodes that have ended count
    0.

    At the first step that is RLOO (arXiv 2402.14740, eq. 6). An episode alone in its group, e.g. because its siblings
    were aborted, has nothing to be compared with: its values are 0, see `lone`.

    >>> leave_one_out([[1.0, 1.0], [2.0], [6.0, 5.0]], ["a", "a", "a"])
    [[-3.0, -1.5], [-1.5], [4.5, 4.5]]
    """
    members = _members(groups)
    result = []
    for row, group in zip(returns, groups, strict=True):
        rows = [returns[index] for index in members[group]]
        if len(rows) == 1:
            result.append([0.0] * len(row))
            continue
        others = len(rows) - 1
        sums = [math.fsum(other[step] for other in rows if step < len(other)) for step in range(len(row))]
        result.append([value - (total - value) / others for value, total in zip(row, sums, strict=True)])
    return result


def lone(groups: Sequence[Hashable]) -> frozenset[Hashable]:
    """The groups of one member, given each member's group.

    >>> lone(["a", "b", "a"])
    frozenset({'b'})
    """
    return frozenset(group for group, indices in _members(groups).items() if len(indices) == 1)


def group_relative(
    scores: Sequence[float], groups: Sequence[Hashable], scale: bool
) -> tuple[list[float], frozenset[Hashable]]:
    """Each score minus its group's mean, divided by the group's standard deviation with `scale` (GRPO, arXiv
    2402.03300, section 4.1).

    Without `scale` it is Dr. GRPO's (arXiv 2503.20783). Uses the sample standard deviation (n - 1). Returns the
    advantages, all 0 in a group without spread, and the set of those groups; groups of one are among them.

    >>> group_relative([1.0, 3.0, 5.0, 5.0], ["a", "a", "b", "b"], scale=False)
    ([-1.0, 1.0, 0.0, 0.0], frozenset({'b'}))
    """
    result = [0.0] * len(scores)
    flat = set()
    for group, indices in _members(groups).items():
        own = [scores[index] for index in indices]
        if max(own) - min(own) <= SPREAD:
            flat.add(group)
            continue
        mean = math.fsum(own) / len(own)
        spread = math.sqrt(math.fsum((score - mean) ** 2 for score in own) / (len(own) - 1))
        for index in indices:
            result[index] = (scores[index] - mean) / (spread if scale else 1.0)
    return result, frozenset(flat)


def deviation(values: Sequence[float]) -> float:
    """The population standard deviation of `values` (n); 1 if they are all equal or there are none."""
    if not values or max(values) - min(values) <= SPREAD:
        return 1.0
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))


def _members(groups: Sequence[Hashable]) -> dict[Hashable, list[int]]:
    members: dict[Hashable, list[int]] = defaultdict(list)
    for index, group in enumerate(groups):
        members[group].append(index)
    return members


Numbers = list[list[float]]
"""One number per decision, by episode."""


@dataclass(frozen=True)
class Rollouts:
    """The episodes of one update. `Numbers` about them are in the order of `fresh` and then `replayed`."""

    fresh: Sequence[Trajectory]
    """Episodes that the current policy played."""
    replayed: Sequence[Trajectory] = ()
    """Episodes from the replay buffer. They were selected for success, so baselines and deviations leave them out."""
    values: Sequence[Sequence[float]] = ()
    """The critic's value of each decision, by episode; empty without a critic."""
    gamma: float = 1.0
    """Discount factor, 0 … 1."""
    normalize: bool = True
    """Whether advantages are divided by a standard deviation."""

    @cached_property
    def rewards(self) -> Numbers:
        """The reward of each decision."""
        return [[turn.reward for turn in trajectory.turns] for trajectory in (*self.fresh, *self.replayed)]

    @cached_property
    def returns(self) -> Numbers:
        """The discounted return-to-go of each decision."""
        return [returns_to_go(row, self.gamma) for row in self.rewards]

    @property
    def groups(self) -> list[str]:
        """The group of each fresh episode. Episodes of one group started from the same state."""
        return [trajectory.group for trajectory in self.fresh]

    def scaled(self, advantages: Numbers, dropped: Collection[Hashable] = ()) -> Numbers:
        """`advantages` divided by the standard deviation over the fresh episodes that are trained on; unchanged without
        `normalize`.
        """
        if not self.normalize:
            return advantages
        rows = zip(self.groups, advantages, strict=False)  # the fresh ones are the first
        spread = deviation([value for group, row in rows if group not in dropped for value in row])
        return [[value / spread for value in row] for row in advantages]


@dataclass(frozen=True)
class Estimates:
    """What an algorithm computes from `Rollouts`."""

    advantages: Numbers
    returns: Numbers
    """The critic's targets; recorded but unused without a critic."""
    dropped: frozenset[Hashable] | None = None
    """Groups that are not trained on, since their episodes are all alike or only one is left; None if the algorithm
    never drops any.
    """


Own = TypeVar("Own", bound=Config)


@dataclass(frozen=True)
class Algorithm(Generic[Own]):
    """How rlft learns from the episodes of an update."""

    settings: type[Own]
    """A `Config`: the algorithm's own settings, which become flags. `option` gives a field a help text. A subclass of
    CriticSettings means that the algorithm trains a critic.
    """
    estimate: Callable[[Rollouts, Own], Estimates]
    """The advantage, and the critic's target, of each decision."""
    loss: Callable[[TrainedTokens, Own], torch.Tensor]
    """The loss of each trained token, in the shape of `logprob_N`; the learner averages, and adds entropy bonus and KL.
    """
    compares_groups: Callable[[Own], bool] = lambda settings: False
    """Whether episodes of the same problem are compared with each other; replayed episodes are then not allowed."""
    group_size: int = 1
    """Episodes of each problem unless --group-size is given."""
    summary: str = ""
    """A few words for the help of --algo."""


class CriticSettings(Config):
    """Settings of an algorithm with a critic."""

    critic: Literal["auto", "linear", "mlp"] = option("auto", help="Critic head: linear or mlp; auto means linear.")
    critic_trunk: Literal["detached", "shared", "separate"] = option(
        "detached",
        help="Critic trunk: the policy's without training it (detached) or with (shared), or a separate copy.",
    )
    critic_rate: float = option(5e-3, help="Learning rate of the critic.", gt=0)
    value_clip: float = option(
        0.0, help="Clip range of the critic's values around those at sampling time; 0: no clipping.", ge=0
    )

    @property
    def head(self) -> str:
        """linear or mlp."""
        return "linear" if self.critic == "auto" else self.critic


# REINFORCE


class ReinforceSettings(Config):
    """REINFORCE's own settings."""

    baseline: Literal["none", "batch", "leave-one-out"] = option(
        "batch",
        help="Baseline subtracted from the returns: none, batch (their mean) or leave-one-out (the mean of the group's"
        " others; a group with one episode left is dropped).",
    )


def with_baseline(rollouts: Rollouts, baseline: str) -> Estimates:
    """Returns minus a baseline. With leave-one-out, the only episode left of a group is dropped."""
    if baseline == "leave-one-out":
        dropped = lone(rollouts.groups)
        return Estimates(
            rollouts.scaled(leave_one_out(rollouts.returns, rollouts.groups), dropped), rollouts.returns, dropped
        )
    fresh = [value for row in rollouts.returns[: len(rollouts.fresh)] for value in row]
    mean = math.fsum(fresh) / max(1, len(fresh)) if baseline == "batch" else 0.0
    return Estimates(rollouts.scaled([[value - mean for value in row] for row in rollouts.returns]), rollouts.returns)


REINFORCE = Algorithm(
    ReinforceSettings,
    lambda rollouts, settings: with_baseline(rollouts, settings.baseline),
    lambda tokens, settings: weighted_loss(tokens),
    compares_groups=lambda settings: settings.baseline == "leave-one-out",
    summary="returns minus a baseline",
)


# PPO


class PpoSettings(CriticSettings):
    """PPO's own settings."""

    gae_lambda: float = option(
        1.0,
        help="GAE's λ: 1 uses full returns, 0 one-step TD errors; 0.95 by default for choices with --model.",
        ge=0,
        le=1,
    )


def with_critic(rollouts: Rollouts, lam: float) -> Estimates:
    """Generalised advantages. The critic's targets are the unscaled advantages plus its values."""
    pairs = list(zip(rollouts.rewards, rollouts.values, strict=True))
    advantages = [generalised_advantages(rewards, values, rollouts.gamma, lam) for rewards, values in pairs]
    targets = [
        [advantage + value for advantage, value in zip(row, values, strict=True)]
        for row, (_, values) in zip(advantages, pairs, strict=True)
    ]
    return Estimates(rollouts.scaled(advantages), targets)


PPO = Algorithm(
    PpoSettings,
    lambda rollouts, settings: with_critic(rollouts, settings.gae_lambda),
    lambda tokens, settings: clipped_loss(tokens),
    summary="critic and clipped ratio",
)


# GRPO


class GrpoSettings(Config):
    """GRPO's own settings."""

    advantages: Literal["episode", "step", "own"] | None = option(
        None,
        help="What is compared in a group: episode (returns), step (returns-to-go) or own (each step's own reward);"
        " default: own in memory, as in Mem-α, else episode.",
    )
    step_groups: float = option(
        0.0, help="Weight of a second comparison, among a group's steps from the same state (GiGPO); 0: off.", ge=0
    )


def within_groups(rollouts: Rollouts, compared: str, state_weight: float) -> Estimates:
    """Group-relative advantages, for rollouts without replayed episodes. The only episode left of a group is dropped,
    also where its steps differ.

    compared: the episodes' returns ("episode"), the steps' returns-to-go ("step") or the steps' own rewards ("own",
    Mem-α). state_weight: weight of a second comparison, among the group's steps from the same state; 0: none.
    """
    returns, groups = rollouts.returns, rollouts.groups
    if compared == "episode":
        first = [row[0] if row else 0.0 for row in returns]
        relative, dropped = group_relative(first, groups, rollouts.normalize)
        advantages = [[value] * len(row) for value, row in zip(relative, returns, strict=True)]
    else:
        scores = returns if compared == "step" else [_own_rewards(trajectory) for trajectory in rollouts.fresh]
        owners: list[Hashable] = [group for group, row in zip(groups, returns, strict=True) for _ in row]
        advantages, dropped = _steps_relative(scores, owners, rollouts.normalize)
    if state_weight > 0:
        states = [
            (group, turn.observation.text, tuple(sorted(turn.observation.choices)))  # their order may be shuffled
            for group, trajectory in zip(groups, rollouts.fresh, strict=True)
            for turn in trajectory.turns
        ]
        locally, _ = _steps_relative(returns, states, rollouts.normalize)
        advantages = [  # GiGPO, arXiv 2505.10978, eq. 8
            [advantage + state_weight * local for advantage, local in zip(row, local_row, strict=True)]
            for row, local_row in zip(advantages, locally, strict=True)
        ]
        dropped -= {group for group, row in zip(groups, advantages, strict=True) if any(row)}
    alone = lone(groups)
    advantages = [[0.0] * len(row) if group in alone else row for group, row in zip(groups, advantages, strict=True)]
    return Estimates(advantages, returns, dropped | alone)


def _steps_relative(scores: Numbers, groups: Sequence[Hashable], scale: bool) -> tuple[Numbers, frozenset[Hashable]]:
    """Each step's score relative to those of all steps in its group, given each step's group; and groups without
    spread.
    """
    relative, flat = group_relative([value for row in scores for value in row], groups, scale)
    left = iter(relative)
    return [[next(left) for _ in row] for row in scores], flat


def _own_rewards(trajectory: Trajectory) -> list[float]:
    """Each step's own reward plus the reward that all steps share; the last step's reward includes it already."""
    shared = trajectory.turns[-1].info.get("shared_reward", 0.0) if trajectory.turns else 0.0
    last = len(trajectory.turns) - 1
    return [turn.reward + (0.0 if number == last else shared) for number, turn in enumerate(trajectory.turns)]


GRPO = Algorithm(
    GrpoSettings,
    lambda rollouts, settings: within_groups(rollouts, settings.advantages or "episode", settings.step_groups),
    lambda tokens, settings: clipped_loss(tokens),
    compares_groups=lambda settings: True,
    group_size=8,
    summary="groups of episodes of the same problem and clipped ratio",
)


NONE = Algorithm(
    NoSettings,
    lambda rollouts, settings: Estimates(
        [[0.0] * len(row) for row in rollouts.returns], rollouts.returns, frozenset(rollouts.groups)
    ),
    lambda tokens, settings: clipped_loss(tokens),
    summary="no rewards: --distill-comments alone",
)


ALGORITHMS: dict[str, Algorithm[Any]] = {"reinforce": REINFORCE, "ppo": PPO, "grpo": GRPO, "none": NONE}


@cache
def algorithm(name: str) -> Algorithm[Any]:
    """The algorithm called `name`, or the one at the dotted path `name`.

    Raises UnknownNameError: there is none. ConfigError: it is not an Algorithm, or its settings cannot be flags.
    """
    chosen = resolve("algorithm", name, ALGORITHMS)
    if not isinstance(chosen, Algorithm):
        raise ConfigError(f"{name} is not an Algorithm; see reflectkit.train.algorithms.Algorithm")
    check_own_settings(chosen.settings, name)
    return chosen


_SUMMARIES = ", ".join(f"{name} ({row.summary})" for name, row in ALGORITHMS.items())
_GROUP_SIZES = ", ".join(f"{row.group_size} for {name}" for name, row in ALGORITHMS.items() if row.group_size > 1)


class AlgorithmConfig(Config):
    """Algorithm: how the policy learns from episodes."""

    name: str = option(
        "grpo",
        name="algo",
        help=f"{_SUMMARIES}; or your own as package.module:NAME. Default: grpo, but ppo for choices with --model, that"
        " is, without SFT.",
        essential=True,
    )
    settings: Any = chosen_by("name", settings=lambda name: algorithm(name).settings, names=lambda: ALGORITHMS)
    gamma: float = option(1.0, help="Discount factor; the paper uses 1.", ge=0, le=1)
    normalize: bool = option(True, help="Divide advantages by their standard deviation over the batch or the group.")
    group_size: int = option(
        0, help=f"Episodes of each drawn problem; 0: {_GROUP_SIZES}, otherwise 1.", ge=0, essential=True
    )
    clip: float = option(0.2, help="PPO clip range; reinforce caps its importance weights at 1 + this.", gt=0)
    clip_high: float = option(
        0.0, help="Upper end of the PPO clip range, e.g. 0.28 (clip-higher); 0: that of --clip.", ge=0
    )
    mask: Literal["none", "token", "sequence", "geometric"] = option(
        "none",
        name="off_policy_mask",
        help="Leave out of the loss what is too far from the policy that sampled it: each token, or rows by the product"
        " (sequence) or, with negative advantages, the geometric mean of their ratios.",
    )
    mask_ratio: float = option(
        3.0, help="Limit of --off-policy-mask: a ratio of policy to sampler; for geometric, its inverse.", gt=1
    )
    epochs: int = option(1, help="Passes over each batch; 4 by default for choices with --model.", ge=1)
    target_kl: float = option(
        0.0, help="Stop an update early at this KL divergence from the sampling policy; 0: never.", ge=0
    )
    minibatch: int = option(
        512, help="Rows per gradient step, over all processes; 128 by default for choices with --model.", ge=1
    )
    loss_mean: Literal["token", "row"] = option(
        "token", help="Average the loss over all tokens (token), or over each row and then over rows (row)."
    )
    entropy: float = option(
        0.02, name="entropy_coef", help="Weight of the entropy bonus, over the legal actions.", ge=0
    )
    novelty: float = option(
        0.0,
        help="Weight of the advantage of states that were rarely seen, which fades to 0 in the first half of the"
        " updates; 0.5 by default for random weights.",
        ge=0,
    )
    kl: float = option(0.0, name="kl_coef", help="Weight of the KL divergence from the starting policy.", ge=0)
    replay_size: int = option(
        0, help="Successful episodes kept for replay, importance-weighted; the paper uses 50.", ge=0
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.mask == "none" and non_default(self, "mask_ratio"):
            raise ConfigError("--mask-ratio is a setting of a mask; add --off-policy-mask, or leave it out")
        if not self.compares_groups:
            return self
        own = [leaf.name for leaf in leaves(type(self.settings))]
        given = [f"{flag(name)} {getattr(self.settings, name)}" for name in non_default(self, *own) if name in own]
        flags = " ".join([f"--algo {self.name}", *given])
        few = f"{flags} compares episodes of one problem: --group-size must be at least 2, got {self.repeats}"
        refuse(self.repeats < 2, few)
        replayed = f"--replay-size: {flags} compares episodes of a group, and replayed ones are in no current group"
        refuse(self.replay_size, f"{replayed}; leave it out")
        return self

    @property
    def code_files(self) -> list[Path]:
        """The files of an algorithm of the user's own: inputs of a run, so that an edit makes a new one."""
        return code_files([] if self.name in ALGORITHMS else [module_of(self.name)])

    @property
    def compares_groups(self) -> bool:
        """Whether episodes of the same problem are compared with each other."""
        return algorithm(self.name).compares_groups(self.settings)

    @property
    def critic(self) -> CriticSettings | None:
        """The critic's settings; None without a critic."""
        return self.settings if isinstance(self.settings, CriticSettings) else None

    @property
    def repeats(self) -> int:
        """Number of episodes of each drawn problem."""
        return self.group_size or algorithm(self.name).group_size

    def estimate(
        self,
        fresh: Sequence[Trajectory],
        replayed: Sequence[Trajectory] = (),
        values: Sequence[Sequence[float]] = (),
    ) -> Estimates:
        """Advantages and critic targets of the decisions of `fresh` and then `replayed`, none of them ABORTED.

        values: the critic's value of each decision; empty without a critic.

        Raises ReflectkitError: the algorithm did not return one finite number per decision.
        """
        rollouts = Rollouts(fresh, replayed, values, self.gamma, self.normalize)
        estimates = algorithm(self.name).estimate(rollouts, self.settings)
        if not isinstance(estimates, Estimates):
            raise ReflectkitError(f"the algorithm's estimate must return Estimates, not {type(estimates).__name__}")
        decisions = [len(row) for row in rollouts.rewards]
        numbers = {
            name: [[float(value) for value in row] for row in getattr(estimates, name)]
            for name in ("advantages", "returns")
        }
        for name, rows in numbers.items():
            finite = all(math.isfinite(value) for row in rows for value in row)
            if [len(row) for row in rows] != decisions or not finite:
                raise ReflectkitError(f"the algorithm's {name} must be one finite number per decision, by episode")
        return Estimates(numbers["advantages"], numbers["returns"], estimates.dropped)

    def loss(self, tokens: TrainedTokens) -> torch.Tensor:
        """The loss of each token.

        Raises ReflectkitError: it has another shape, or no gradient reaches the policy from it.
        """
        loss_N = algorithm(self.name).loss(tokens, self.settings)
        logprob_N = tokens.logprob_N
        if getattr(loss_N, "shape", None) != logprob_N.shape or logprob_N.requires_grad > loss_N.requires_grad:
            raise ReflectkitError(
                "the algorithm's loss must be one number per trained token, in the shape of tokens.logprob_N and with a"
                " gradient to it"
            )
        return loss_N
