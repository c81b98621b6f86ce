"""The RL algorithms: each has its settings, its advantages and its loss, and a row of `ALGORITHMS`.

An algorithm of your own needs no registration: write an `Algorithm` in a module and pass its dotted
path, `rlft --algo package.module:NAME`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from typing_extensions import override

from reflectkit.config import (
    Config,
    NoSettings,
    Rule,
    check_own_settings,
    chosen_by,
    flag,
    leaves,
    non_default,
    option,
)
from reflectkit.errors import ConfigError, ReflectkitError
from reflectkit.registry import code_files, module_of, resolve
from reflectkit.train.advantages import (
    Estimates,
    Rollouts,
    with_baseline,
    with_critic,
    within_groups,
)
from reflectkit.train.losses import TrainedTokens, clipped_loss, weighted_loss
from reflectkit.types import Trajectory

if TYPE_CHECKING:
    import torch


Own = TypeVar("Own", bound=Config)


@dataclass(frozen=True)
class Algorithm(Generic[Own]):
    """How rlft learns from the episodes of an update."""

    settings: type[Own]
    """A `Config`: the algorithm's own settings, which become flags. `option` gives a field a help
    text. A subclass of CriticSettings means that the algorithm trains a critic.
    """
    estimate: Callable[[Rollouts, Own], Estimates]
    """The advantage, and the critic's target, of each decision."""
    loss: Callable[[TrainedTokens, Own], torch.Tensor]
    """The loss of each trained token, in the shape of `logprob_N`; the learner averages, and adds
    entropy bonus and KL.
    """
    compares_groups: Callable[[Own], bool] = lambda settings: False
    """Whether episodes of the same problem are compared with each other; replayed episodes are then
    not allowed.
    """
    group_size: int = 1
    """Episodes of each problem unless --group-size is given."""
    learns_from_reward: bool = True
    """Whether rewards change the policy. Otherwise comments alone do (--distill-comments)."""
    clips: bool = False
    """Whether `loss` is `clipped_loss`, which a training service may then compute itself."""
    summary: str = ""
    """A few words for the help of --algo."""


class CriticSettings(Config):
    """Settings of an algorithm with a critic."""

    critic: Literal["auto", "linear", "mlp"] = option(
        "auto", help="Critic head: linear or mlp; auto means linear."
    )
    critic_trunk: Literal["detached", "shared", "separate"] = option(
        "detached",
        help=(
            "Critic trunk: the policy's without training it (detached) or with (shared), or a"
            " separate copy."
        ),
    )
    critic_rate: float = option(5e-3, help="Learning rate of the critic.", gt=0)
    value_clip: float = option(
        0.0,
        help="Clip range of the critic's values around those at sampling time; 0: no clipping.",
        ge=0,
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
        help="Baseline subtracted from the returns: none, batch (their mean) or leave-one-out (the"
        " mean of the group's others; a group with one episode left is dropped).",
    )


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
        help=(
            "GAE's λ: 1 uses full returns, 0 one-step TD errors; 0.95 by default for choices with"
            " --model."
        ),
        ge=0,
        le=1,
    )
    shrink_values: bool = option(
        True,
        help="Move the critic's values towards their mean where they do not predict returns.",
    )


PPO = Algorithm(
    PpoSettings,
    lambda rollouts, settings: with_critic(rollouts, settings.gae_lambda, settings.shrink_values),
    lambda tokens, settings: clipped_loss(tokens),
    clips=True,
    summary="critic and clipped ratio",
)


# GRPO


class GrpoSettings(Config):
    """GRPO's own settings."""

    advantages: Literal["episode", "step", "own"] | None = option(
        None,
        help="What is compared in a group: episode (returns), step (returns-to-go) or own (each"
        " step's own reward); default: own in memory, as in Mem-α, else episode.",
    )
    step_groups: float = option(
        0.0,
        help=(
            "Weight of a second comparison, among a group's steps from the same state (GiGPO); 0:"
            " off."
        ),
        ge=0,
    )


GRPO = Algorithm(
    GrpoSettings,
    lambda rollouts, settings: within_groups(
        rollouts, settings.advantages or "episode", settings.step_groups
    ),
    lambda tokens, settings: clipped_loss(tokens),
    clips=True,
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
    clips=True,
    learns_from_reward=False,
    summary="no rewards: --distill-comments alone",
)


ALGORITHMS: dict[str, Algorithm[Any]] = {
    "reinforce": REINFORCE,
    "ppo": PPO,
    "grpo": GRPO,
    "none": NONE,
}


@cache
def algorithm(name: str) -> Algorithm[Any]:
    """The algorithm called `name`, or the one at the dotted path `name`.

    Raises UnknownNameError: there is none. ConfigError: it is not an Algorithm, or its settings
    cannot be flags.
    """
    # By its name here, or by MODULE:NAME of the user's own
    definition = resolve("algorithm", name, ALGORITHMS)
    if not isinstance(definition, Algorithm):
        raise ConfigError(f"{name} is not an Algorithm; see reflectkit.train.algorithms.Algorithm")
    check_own_settings(definition.settings, name)
    return definition


_SUMMARIES = ", ".join(f"{name} ({row.summary})" for name, row in ALGORITHMS.items())
_GROUP_SIZES = ", ".join(
    f"{row.group_size} for {name}" for name, row in ALGORITHMS.items() if row.group_size > 1
)


class AlgorithmConfig(Config):
    """Algorithm: how the policy learns from episodes."""

    name: str = option(
        "grpo",
        name="algo",
        help=f"{_SUMMARIES}; or your own as package.module:NAME. Default: grpo, but ppo for choices"
        " with --model, that is, without SFT.",
        essential=True,
    )
    settings: Any = chosen_by(
        "name", settings=lambda name: algorithm(name).settings, names=lambda: ALGORITHMS
    )
    # Advantages
    gamma: float = option(1.0, help="Discount factor; the paper uses 1.", ge=0, le=1)
    normalize: bool = option(
        True, help="Divide advantages by their standard deviation over the batch or the group."
    )
    group_size: int = option(
        0,
        help=f"Episodes of each drawn problem; 0: {_GROUP_SIZES}, otherwise 1.",
        ge=0,
        essential=True,
    )
    # The loss of a token
    clip: float = option(
        0.2, help="PPO clip range; reinforce caps its importance weights at 1 + this.", gt=0
    )
    clip_high: float = option(
        0.0,
        help="Upper end of the PPO clip range, e.g. 0.28 (clip-higher); 0: that of --clip.",
        ge=0,
    )
    mask: Literal["none", "token", "sequence", "geometric"] = option(
        "none",
        name="off_policy_mask",
        help="Leave out of the loss what is too far from the policy that sampled it: each token, or"
        " rows by the product (sequence) or, with negative advantages, the geometric mean of their"
        " ratios.",
    )
    mask_ratio: float = option(
        3.0,
        help=(
            "Limit of --off-policy-mask: a ratio of policy to sampler; for geometric, its inverse."
        ),
        gt=1,
    )
    # Passes over a batch
    epochs: int = option(
        1, help="Passes over each batch; 4 by default for choices with --model.", ge=1
    )
    target_kl: float = option(
        0.0,
        help="KL divergence from the sampling policy that an update is to have: the learning rate"
        " adapts, and at twice this divergence the update ends; 0: neither. Default for PPO with"
        " --policy: 0.01.",
        ge=0,
    )
    max_kl: float = option(
        0.0,
        help="KL divergence from the sampling policy at which an update ends; 0: it is made in full."
        " Default for choices by PPO with --model: 0.5.",
        ge=0,
    )
    minibatch: int = option(
        512,
        help=(
            "Rows per gradient step, over all processes; 128 by default for choices with --model."
        ),
        ge=1,
    )
    # The loss of an update
    loss_mean: Literal["token", "row"] = option(
        "token",
        help=(
            "Average the loss over all tokens (token), or over each row and then over rows (row)."
        ),
    )
    entropy: float = option(
        0.02, name="entropy_coef", help="Weight of the entropy bonus, over the legal actions.", ge=0
    )
    entropy_schedule: Literal["constant", "linear"] = option(
        "constant", help="Over the updates, the entropy bonus is constant, or falls to 0 linearly."
    )
    novelty: float = option(
        0.0,
        help="Weight of the advantage of choices that were rarely made in their state, which fades to"
        " 0 in the first half of the updates; smaller in runs of fewer than 60; 3 by default for"
        " random weights.",
        ge=0,
    )
    table_coef: float = option(
        0.0,
        help="Weight of the divergence from the best choices by a table of what choices led to in"
        " states that recur; 1 by default for random weights.",
        ge=0,
    )
    kl: float = option(
        0.0, name="kl_coef", help="Weight of the KL divergence from the starting policy.", ge=0
    )
    replay_size: int = option(
        0, help="Successful episodes kept for replay, importance-weighted; the paper uses 50.", ge=0
    )

    @override
    def contradictions(self) -> Iterator[Rule]:
        # 1. Settings of what is off
        no_mask = "--mask-ratio is a setting of a mask; add --off-policy-mask, or leave it out"
        yield self.mask == "none" and non_default(self, "mask_ratio"), no_mask
        # 2. Comparisons in a group, which one flag may have turned on
        if not self.compares_groups:
            return
        names = [leaf.name for leaf in leaves(type(self.settings))]
        flags = f"--algo {self.name}"
        changed = non_default(self)
        for name in names:
            if name in changed:
                flags += f" {flag(name)} {getattr(self.settings, name)}"
        few = f"{flags} compares episodes of one problem: --group-size must be at least 2"
        yield self.repeats < 2, f"{few}, got {self.repeats}"
        replayed = "compares episodes of a group, and replayed ones are in no current group"
        yield self.replay_size, f"--replay-size: {flags} {replayed}; leave it out"

    @property
    def code_files(self) -> list[Path]:
        """The files of an algorithm of the user's own: inputs of a run, so that an edit makes a new
        one.
        """
        return code_files([] if self.name in ALGORITHMS else [module_of(self.name)])

    @property
    def compares_groups(self) -> bool:
        """Whether episodes of the same problem are compared with each other."""
        return algorithm(self.name).compares_groups(self.settings)

    @property
    def learns_from_reward(self) -> bool:
        """Whether rewards change the policy."""
        return algorithm(self.name).learns_from_reward

    @property
    def clips(self) -> bool:
        """Whether the loss of a token is `losses.clipped_loss`."""
        return algorithm(self.name).clips

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
        """Advantages and critic targets of the decisions of `fresh` and then `replayed`, none of
        them ABORTED.

        values: the critic's value of each decision; empty without a critic.

        Raises ReflectkitError: the algorithm did not return one finite number per decision.
        """
        # 1. What the algorithm says, which may be the user's own
        rollouts = Rollouts(fresh, replayed, values, self.gamma, self.normalize)
        estimates = algorithm(self.name).estimate(rollouts, self.settings)
        if not isinstance(estimates, Estimates):
            raise ReflectkitError(
                f"the algorithm's estimate must return Estimates, not {type(estimates).__name__}"
            )

        # 2. One finite number for each decision
        decision_counts = [len(row) for row in rollouts.rewards]
        numbers = {}
        for name in ("advantages", "returns"):
            numbers[name] = [list(map(float, row)) for row in getattr(estimates, name)]
        for name, rows in numbers.items():
            counts = [len(row) for row in rows]
            is_finite = all(all(map(math.isfinite, row)) for row in rows)
            if counts != decision_counts or not is_finite:
                raise ReflectkitError(
                    f"the algorithm's {name} must be one finite number per decision, by episode"
                )
        return Estimates(numbers["advantages"], numbers["returns"], estimates.groups_to_skip)

    def loss(self, tokens: TrainedTokens) -> torch.Tensor:
        """The loss of each token.

        Raises ReflectkitError: it has another shape, or no gradient reaches the policy from it.
        """
        loss_N = algorithm(self.name).loss(tokens, self.settings)
        logprob_N = tokens.logprob_N
        # Where the policy learns, so must the loss: a detached one would train nothing, unseen
        has_shape = getattr(loss_N, "shape", None) == logprob_N.shape
        if not has_shape or logprob_N.requires_grad > loss_N.requires_grad:
            raise ReflectkitError(
                "the algorithm's loss must be one number per trained token, in the shape of"
                " tokens.logprob_N and with a gradient to it"
            )
        return loss_N
