"""The RL algorithms, one row each: settings, advantages and loss.

An algorithm of your own needs no registration: write an `Algorithm` in a module and pass its dotted path,
`rlft --algo package.module:NAME`. This file does not import torch, so the command line can list the algorithms quickly.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from reflectkit.config import Config, build, check_own_settings, option
from reflectkit.errors import ConfigError, ReflectkitError, out_of_memory, user_code_line
from reflectkit.registry import resolve
from reflectkit.text import pluralize
from reflectkit.train.advantages import (
    Estimates,
    Numbers,
    Rollouts,
    with_baseline,
    with_critic,
    within_groups,
)
from reflectkit.train.losses import TrainedTokens, clipped_loss, weighted_loss
from reflectkit.types import Status, Trajectory

if TYPE_CHECKING:
    import torch

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

    @property
    def needs_critic(self) -> bool:
        """Whether a critic is trained; `Rollouts` then contains its values."""
        return issubclass(self.settings, CriticSettings)


@dataclass(frozen=True)
class Objective(Generic[Own]):
    """An algorithm with its settings: what one run optimises."""

    algorithm: Algorithm[Own]
    settings: Own
    gamma: float = 1.0
    """Discount factor, 0 … 1."""
    normalize: bool = True
    """Whether advantages are divided by a standard deviation."""

    def estimate(
        self,
        fresh: Sequence[Trajectory],
        replayed: Sequence[Trajectory] = (),
        values: Sequence[Sequence[float]] = (),
    ) -> Estimates:
        """Advantages and critic targets of the decisions of `fresh` and then `replayed`, none of them ABORTED.

        values: the critic's value of each decision; empty without a critic.

        Raises
        ------
        ReflectkitError: the algorithm did not return one finite number per decision.
        """
        played = [*fresh, *replayed]
        assert all(trajectory.status is not Status.ABORTED for trajectory in played)
        rollouts = Rollouts(fresh, replayed, values, self.gamma, self.normalize)
        with self._errors_explained("estimate(rollouts, settings)"):
            estimates = self.algorithm.estimate(rollouts, self.settings)
        if not isinstance(estimates, Estimates):
            raise ReflectkitError(f"the algorithm's estimate must return Estimates, not {type(estimates).__name__}")
        if not isinstance(estimates.dropped, frozenset | set | None):
            raise ReflectkitError(
                f"the algorithm's dropped must be a set of groups or None, not {estimates.dropped!r:.80}"
            )
        return dataclasses.replace(
            estimates,
            advantages=_one_each(estimates.advantages, "advantages", played),
            returns=_one_each(estimates.returns, "returns", played),
        )

    def loss(self, tokens: TrainedTokens) -> torch.Tensor:
        """The loss of each token.

        Raises
        ------
        ReflectkitError: the algorithm returned another shape, or a loss from which no gradient reaches the policy.
        """
        import torch

        with self._errors_explained("loss(tokens, settings)"):
            loss_N = self.algorithm.loss(tokens, self.settings)
        if not isinstance(loss_N, torch.Tensor):
            raise ReflectkitError(f"the algorithm's loss must be a tensor, not {type(loss_N).__name__}")
        if loss_N.shape != tokens.logprob_N.shape:
            shapes = f"{tuple(tokens.logprob_N.shape)}, not {tuple(loss_N.shape)}"
            raise ReflectkitError(f"the algorithm's loss must be one number per trained token, of shape {shapes}")
        if tokens.logprob_N.requires_grad and not loss_N.requires_grad:
            raise ReflectkitError(
                "the algorithm's loss has no gradient; compute it from tokens.logprob_N, without detach or no_grad"
            )
        return loss_N

    @property
    def compares_groups(self) -> bool:
        """Whether episodes of the same problem are compared with each other."""
        with self._errors_explained("compares_groups(settings)"):
            return self.algorithm.compares_groups(self.settings)

    @contextlib.contextmanager
    def _errors_explained(self, call: str) -> Iterator[None]:
        """Raises ReflectkitError for an error in calling a user's function; one inside it names its own line."""
        try:
            yield
        except (ReflectkitError, MemoryError):
            raise
        except Exception as error:
            built_in = any(self.algorithm is row for row in ALGORITHMS.values())
            if built_in or out_of_memory(error) or user_code_line(error):
                raise
            raise ReflectkitError(f"the algorithm's {call} failed: {type(error).__name__}: {error}") from error


def _one_each(numbers: Numbers, name: str, played: Sequence[Trajectory]) -> Numbers:
    """`numbers` as floats. Raises ReflectkitError unless there is a finite one for each decision of `played`."""
    try:
        rows = [[float(value) for value in row] for row in numbers]
    except (TypeError, ValueError) as error:
        raise ReflectkitError(f"the algorithm's {name} must be a list of numbers per episode ({error})") from None
    if unusable := [value for row in rows for value in row if not math.isfinite(value)]:
        raise ReflectkitError(f"the algorithm's {name} must be finite numbers, not {unusable[0]}")
    needed, returned = [len(trajectory.turns) for trajectory in played], [len(row) for row in rows]
    if needed != returned:
        raise ReflectkitError(
            f"the algorithm's {name} must be one number per decision: {sum(needed)} in"
            f" {pluralize(len(needed), 'episode')}, not {sum(returned)} in {len(returned)}"
        )
    return rows


class ReinforceSettings(Config):
    """REINFORCE's own settings."""

    baseline: Literal["none", "batch", "leave-one-out"] = option(
        "batch",
        help="Baseline subtracted from the returns: none, batch (their mean) or leave-one-out (the mean of the group's"
        " others; a group with one episode left is dropped).",
    )


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


class PpoSettings(CriticSettings):
    """PPO's own settings."""

    gae_lambda: float = option(1.0, help="GAE's λ: 1 uses full returns, 0 one-step TD errors.", ge=0, le=1)


class GrpoSettings(Config):
    """GRPO's own settings."""

    advantages: Literal["episode", "step", "own"] = option(
        "episode",
        help="What is compared in a group: episode (returns), step (returns-to-go) or own (each step's own reward).",
    )
    step_groups: float = option(
        0.0, help="Weight of a second comparison, among a group's steps from the same state (GiGPO); 0: off.", ge=0
    )


ALGORITHMS: dict[str, Algorithm[Any]] = {
    "reinforce": Algorithm(
        ReinforceSettings,
        lambda rollouts, settings: with_baseline(rollouts, settings.baseline),
        lambda tokens, settings: weighted_loss(tokens),
        compares_groups=lambda settings: settings.baseline == "leave-one-out",
        summary="returns minus a baseline",
    ),
    "ppo": Algorithm(
        PpoSettings,
        lambda rollouts, settings: with_critic(rollouts, settings.gae_lambda),
        lambda tokens, settings: clipped_loss(tokens),
        summary="critic and clipped ratio",
    ),
    "grpo": Algorithm(
        GrpoSettings,
        lambda rollouts, settings: within_groups(rollouts, settings.advantages, settings.step_groups),
        lambda tokens, settings: clipped_loss(tokens),
        compares_groups=lambda settings: True,
        group_size=8,
        summary="groups of episodes of the same problem and clipped ratio",
    ),
}


def algorithm(name: str) -> Algorithm[Any]:
    """The algorithm called `name`, or the one at the dotted path `name`.

    Raises
    ------
    UnknownNameError: there is none. ConfigError: it is not a usable Algorithm.
    """
    chosen = resolve("algorithm", name, ALGORITHMS)
    if not isinstance(chosen, Algorithm):
        raise ConfigError(f"{name} is not an Algorithm; see reflectkit.train.algorithms.Algorithm")
    check_own_settings(chosen.settings, name)
    for function in ("estimate", "loss", "compares_groups"):
        if not callable(getattr(chosen, function)):
            raise ConfigError(f"{name}: {function} must be a function, not {getattr(chosen, function)!r:.80}")
    if not isinstance(chosen.group_size, int) or chosen.group_size < 1:
        raise ConfigError(f"{name}: group_size must be a whole number from 1, not {chosen.group_size!r:.80}")
    return chosen


def objective(name: str, *, gamma: float = 1.0, normalize: bool = True, **settings: Any) -> Objective[Any]:
    """The algorithm called `name` with its own `settings`.

    >>> objective("ppo", gae_lambda=0.9).settings.head
    'linear'
    """
    chosen = algorithm(name)
    return Objective(chosen, build(chosen.settings, settings, name), gamma, normalize)
