"""One update of the policy from rows with advantages: minibatches, losses, gradients, optimizer
steps.

Dropout stays off, so that the first pass reproduces the sampler's log-probs up to rounding, and the
ratio starts at 1. Every process holds all rows and scores its share; gradients are summed, so the
step does not depend on the number of processes.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from typing_extensions import override

from reflectkit.errors import DivergedError, MismatchError
from reflectkit.models.device import on_device
from reflectkit.sampling.base import Sampler
from reflectkit.train import losses
from reflectkit.train.critic import Critic
from reflectkit.train.microbatch import Scored, Unit, minibatches
from reflectkit.train.processes import Processes
from reflectkit.types import Sample, Trajectory

FIRST_PACE = 0.1
"""Factor of the learning rate in the first step, if there is a `target_kl`: Adam's first steps are
as long for a small gradient as for a large one, which ruins a policy that is nearly certain.
"""
LEAST_CHANGE = 0.5
"""The least factor by which a step changes this factor."""
MOST_CHANGE = 1.5
"""The greatest one."""
TOO_FAR = 2.0
"""An update ends at this many times the `target_kl`."""

Value = TypeVar("Value")


@dataclass(frozen=True)
class LearnerSettings:
    """How to learn; the names that rlft's settings have too mean the same there."""

    # The optimizer
    learning_rate: float
    """Its peak, for the policy."""
    weight_decay: float = 0.0
    max_grad_norm: float = 0.3
    critic_rate: float = 5e-3
    """Adam's learning rate for the critic."""

    # The loss of a trained token
    loss: Callable[[losses.TrainedTokens], torch.Tensor] = losses.clipped_loss
    clip: float = 0.2
    """See `TrainedTokens`."""
    clip_high: float = 0.0
    """See `TrainedTokens`."""
    is_cap: float = 0.0
    """See `TrainedTokens`; 0 if the current weights sampled."""
    mask: str = "none"
    """The `kind` of `on_policy_enough`."""
    mask_ratio: float = 3.0
    """The `limit` of `on_policy_enough`."""
    value_clip: float = 0.0
    """See `value_loss`."""

    # What else the policy is to do
    entropy: float = 0.01
    kl: float = 0.0
    """Weight of the divergence from the starting policy."""
    distill: float = 0.0
    """Weight of the divergence from the teacher, which reads comments."""
    divergence: str = "forward"
    ema: float = 0.0
    """The share of itself that the teacher keeps in each update; 0: it is frozen."""
    has_targets: bool = False
    """Whether rows have a `Sample.target`."""

    # An update
    epochs: int = 1
    minibatch: int = 512
    mean: str = "token"
    """Over all trained tokens ("token"), or over those of each row and then over rows ("row")."""
    temperature: float = 1.0
    """The sampler's."""
    target_kl: float = 0.0
    """The divergence from the sampling policy that an update is to have, a mean over trained
    tokens; the learning rate adapts to it. 0: it does not.
    """
    max_kl: float = 0.0
    """At this divergence from the sampling policy an update ends; 0: it is made in full."""

    # Memory and speed
    max_tokens: int = 16384
    """Tokens of a micro-batch, padding included."""
    gradient_checkpointing: bool = False
    share_prefixes: bool | None = None
    """Whether what rows begin with is read once, if the model allows, which changes the order of
    sums; None: where that saves enough (`saves`).
    """

    # Whether the sampler has the weights that learn
    agrees_with: str = ""
    """The sampler of these weights. Log-probabilities beyond the limits of `sampling.checks`, in
    all or in one answer, end the update. Empty: they may differ.
    """
    mismatch: bool = False
    """Whether to report `losses.mismatch` of the first minibatch, a random part of the rows, before
    its step.
    """


@dataclass(frozen=True)
class LossOutput:
    """What an update did."""

    loss: float | None
    """The mean over its gradient steps; None if there was nothing to learn."""
    metrics: Mapping[str, float]
    """The other figures."""

    @property
    def figures(self) -> dict[str, float]:
        """All figures; empty if there was nothing to learn."""
        return {} if self.loss is None else {"loss": self.loss, **self.metrics}


@dataclass(frozen=True)
class LearnerState:
    """What a learner needs besides the policy's weights to go on exactly."""

    numbers: Mapping[str, Any]
    """JSON values."""
    tensors: Mapping[str, torch.Tensor]


class Learner(ABC):
    """A policy that learns from rows. `LocalLearner` does it with torch in this process; a training
    service may do it elsewhere.
    """

    notify: Callable[[str], None]
    """Called with a line of text when a setting had to be changed."""

    @abstractmethod
    def update(
        self,
        samples: Sequence[Sample],
        generator: random.Random,
        rate: float = 1.0,
        entropy_rate: float = 1.0,
    ) -> LossOutput:
        """Learn from `samples`; `generator` shuffles them. rate, entropy_rate: the schedules'
        factors for the learning rates and for the entropy bonus, 0 … 1.

        Raises DivergedError and MismatchError.
        """

    @abstractmethod
    def publish(self, sampler: Sampler, version: int) -> None:
        """Let `sampler` sample from the present weights. version: the number of updates."""

    @abstractmethod
    def save(
        self,
        folder: Path,
        facts: Mapping[str, Any],
        write_rest: Callable[[Path], None] | None = None,
    ) -> None:
        """Write the policy to the model folder `folder`, atomically. All processes must call this.

        facts: JSON values saved with it. write_rest: writes more files into the folder that it is
        given.
        """

    @abstractmethod
    def state(self) -> LearnerState:
        """What is saved next to the policy. All processes must call this."""

    @abstractmethod
    def load(self, state: LearnerState) -> None:
        """Restore what `state` returned. Raises KeyError or ValueError for the state of another
        model.
        """

    @property
    def has_critic(self) -> bool:
        """Whether a critic learns, too."""
        return False

    def values(self, prompts: Sequence[Sequence[int]]) -> list[float]:
        """The critic's value of each prompt, in units of reward."""
        raise NotImplementedError

    def valued(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """`trajectories` of the current policy with the critic's value of each decision's prompt,
        if there is a critic. All processes must call this.
        """
        return list(trajectories)

    @abstractmethod
    def forget(self) -> None:
        """Forget what was read with the present weights."""


class PolicyLearner(Learner):
    """The steps of an update, wherever the weights are: minibatches, the loss of their rows, and
    the pace of learning.

    processes: those that train together.
    """

    critic: Critic | None = None

    def __init__(
        self,
        settings: LearnerSettings,
        processes: Processes | None,
        notify: Callable[[str], None],
    ) -> None:
        self.settings = settings
        self.notify = notify
        self.processes = processes or Processes()
        self._changes: list[tuple[torch.Tensor, list[int]]] | None = None
        """What `_compare` takes, of the first minibatch; None if it is not compared, or was."""
        self._mismatch: dict[str, float] = {}
        self.pace = FIRST_PACE if settings.target_kl else 1.0
        """Factor of the policy's learning rate, at most 1, that keeps updates near `target_kl`."""
        self.schedule_rate = 1.0
        """The schedule's factor of the learning rates in the present update."""
        self.entropy_rate = 1.0
        """The schedule's factor of the entropy bonus in the present update."""

    @override
    def update(
        self,
        samples: Sequence[Sample],
        generator: random.Random,
        rate: float = 1.0,
        entropy_rate: float = 1.0,
    ) -> LossOutput:
        """Learn from `samples`; `generator` shuffles them into minibatches. Returns the mean of
        each figure over the steps.

        rate, entropy_rate: the schedules' factors for the learning rates and for the entropy
        bonus, 0 … 1.

        Raises DivergedError: a loss or gradient is NaN or infinite (the step was not made), or a
        weight is after the step. MismatchError: the sampler's log-probabilities are not this
        policy's; no step was made.
        """
        if not samples:
            return LossOutput(None, {})
        # 1. Prepare
        self.schedule_rate = rate
        self.entropy_rate = entropy_rate
        self._changes = [] if self.settings.mismatch else None
        self._mismatch = {}
        parts = self._begin(samples)

        # 2. Gradient steps: each epoch shuffles the rows into minibatches anew
        sums: dict[str, float] = {}
        steps = 0
        count = math.ceil(len(samples) / self.settings.minibatch)
        for index in range(self.settings.epochs * count):
            if index % count == 0:
                batches = minibatches(parts, count, generator)
            figures = self._step(samples, batches[index % count], may_stop=steps > 0)
            if figures is None:
                break
            steps += 1
            for name, value in figures.items():
                sums[name] = sums.get(name, 0.0) + value
        self._end()

        # 3. Means of the figures over the steps
        metrics = {name: total / steps for name, total in sums.items()}
        loss = metrics.pop("loss")
        metrics["gradient_steps"] = steps
        metrics["learning_rate"] = self.settings.learning_rate * rate * self.pace
        return LossOutput(loss, metrics | self._mismatch)

    @abstractmethod
    def _begin(self, samples: Sequence[Sample]) -> list[Unit]:
        """Prepare an update; the units of its rows. Those of one prompt are one unit, which
        `minibatches` splits.
        """

    @abstractmethod
    def _step(
        self,
        samples: Sequence[Sample],
        minibatch: Sequence[Unit],
        may_stop: bool,
    ) -> dict[str, float] | None:
        """One gradient step on a minibatch; None, without a step, if the policy has moved too far.

        may_stop: whether it is not the update's first.
        """

    def _end(self) -> None:
        """After the last step of an update."""

    def _has_moved_too_far(self, kl: float) -> bool:
        """Adapt the pace to `kl`, the divergence from the sampling policy. Whether the update ends
        there.
        """
        target, limit = self.settings.target_kl, self.settings.max_kl
        if target:
            self._adapt_pace(kl)
        is_off_target = bool(target) and kl > TOO_FAR * target
        is_over_limit = bool(limit) and kl > limit
        return is_off_target or is_over_limit

    def _adapt_pace(self, kl: float) -> None:
        """Slow down if `kl`, the divergence from the sampling policy, is above `target_kl`; speed
        up below half of it.

        The divergence of a small step is quadratic in its length, hence the square root.
        """
        target = self.settings.target_kl
        if target / 2 <= kl <= target:
            return
        # Within its limits, and never faster than the schedule
        change = math.sqrt(target / max(kl, 1e-12))
        self.pace = min(1.0, self.pace * min(max(change, LEAST_CHANGE), MOST_CHANGE))

    def _compare(self, changes: Sequence[tuple[torch.Tensor, list[int]]]) -> None:
        """Report how far the log-probabilities of the first minibatch are from the sampler's.

        changes: the learner's log-probabilities less the sampler's, and the numbers of tokens of
        the answers among them. Raises MismatchError.
        """
        # 1. The changes of all processes
        here_N = torch.zeros(0)
        lengths_here: list[int] = []
        if changes:
            here_N = torch.cat([change_N for change_N, _ in changes]).cpu()
        for _, part in changes:
            lengths_here += part
        everywhere = self.processes.gather((here_N, lengths_here))
        change_N = torch.cat([process_N for process_N, _ in everywhere])
        lengths = [length for _, process_lengths in everywhere for length in process_lengths]
        self._mismatch = losses.mismatch(change_N)

        # 2. Whether the server samples the weights that learn
        sampler = self.settings.agrees_with
        if not sampler:
            return
        from reflectkit.sampling.checks import disagreement

        difference = disagreement(change_N, self.settings.temperature, lengths)
        if difference:
            raise MismatchError(
                f"{sampler}: log-probabilities differ from those of the weights that learn {difference},"
                " so the update was not made; see that the server has the same base, unquantised,"
                " and loads the adapter of each update"
            )

    def _loss(
        self,
        samples: Sequence[Sample],
        scored: Scored,
        reference_N: torch.Tensor | None,
        token_weights: Mapping[int, float],
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """A micro-batch's part of the loss and figures of a minibatch; the figures as `_numbers`
        takes them. To look at them here would make a GPU wait for what comes next.

        Parameters
        ----------
        scored: the N trained tokens of the micro-batch.
        reference_N: their log-probabilities under the starting policy, for a KL penalty.
        token_weights: the weight of a token, by row.
        """
        # 1. Columns of the trained tokens
        settings = self.settings
        device = scored.logprob_N.device
        places = list(zip(scored.row_N, scored.place_N, strict=True))
        weight_N = on_device([token_weights[row] for row, _ in places], device)
        starts, numbers = _decisions(samples, places)
        tokens = losses.TrainedTokens(
            logprob_N=scored.logprob_N,
            old_logprob_N=_column(samples, places, "logprobs", device),
            advantage_N=_column(samples, places, "advantages", device),
            decision_N=on_device(numbers, device),
            decisions=len(starts),
            replayed_N=on_device([samples[row].replayed for row, _ in places], device),
            clip=settings.clip,
            is_cap=settings.is_cap,
            clip_high=settings.clip_high,
        )

        # 2. The algorithm's loss of each token, without those that are masked
        loss_N = settings.loss(tokens)
        figures: dict[str, torch.Tensor] = {}
        if settings.mask != "none":
            counts_N = self._unmasked(tokens, scored.row_N)
            loss_N = loss_N.where(counts_N, 0.0)
            figures["masked"] = (weight_N * ~counts_N).sum()

        # 3. What choices are drawn towards
        if settings.has_targets:
            distance_N = _target_distances(samples, scored)
            loss_N = loss_N + distance_N
            figures["table_divergence"] = (distance_N * weight_N).sum().detach()

        # 4. Their weighted mean, less the entropy bonus
        policy_loss = (loss_N * weight_N).sum()
        mean_entropy = (scored.entropy_N * weight_N).sum()
        loss = policy_loss - self.entropy_rate * settings.entropy * mean_entropy
        figures["loss"] = policy_loss.detach()
        figures["entropy"] = mean_entropy.detach()

        # 5. The divergence from the start: an expectation over the current policy, so without
        #    replayed tokens
        if reference_N is not None:
            distance_N = losses.kl_estimate(
                scored.logprob_N, tokens.old_logprob_N, reference_N, settings.is_cap
            )
            distance = (distance_N * weight_N).masked_fill(tokens.replayed_N, 0.0).sum()
            loss = loss + settings.kl * distance
            figures["kl_to_start"] = distance.detach()

        # 6. The critic's loss
        if self.critic is not None:
            hidden_DH = scored.hidden_ND[starts]
            weight_D = torch.zeros(len(starts), device=device)
            weight_D = weight_D.index_add(0, tokens.decision_N, weight_N)
            decision_places = [places[start] for start in starts]
            critic_loss = self._critic_loss(
                self.critic, samples, decision_places, hidden_DH, weight_D
            )
            loss = loss + critic_loss
            figures["value_loss"] = critic_loss.detach()

        # 7. How far the policy is from its sampler
        fresh = [number for number, (row, _) in enumerate(places) if not samples[row].replayed]
        return loss, figures | self._sampler_figures(tokens, fresh)

    def _unmasked(self, tokens: losses.TrainedTokens, rows: Sequence[int]) -> torch.Tensor:
        """Whether each of N tokens is close enough to its sampler to count. rows: of the tokens."""
        number_of = {row: number for number, row in enumerate(dict.fromkeys(rows))}
        row_N = on_device([number_of[row] for row in rows], tokens.logprob_N.device)
        return losses.on_policy_enough(
            tokens.logprob_N - tokens.old_logprob_N,
            tokens.advantage_N,
            row_N,
            self.settings.mask,
            self.settings.mask_ratio,
        )

    def _critic_loss(
        self,
        critic: Critic,
        samples: Sequence[Sample],
        places: Sequence[tuple[int, int]],
        hidden_DH: torch.Tensor,
        weight_D: torch.Tensor,
    ) -> torch.Tensor:
        """The critic's loss, with one error for each of D decisions.

        places: (row, place) of each decision's first token. hidden_DH: the policy's hidden states
        before it. weight_D: the sum of the weights of its tokens.
        """
        prompts = [samples[row].tokens[:place] for row, place in places]
        value_D = critic(hidden_DH, prompts)
        error_D = losses.value_loss(
            value_D,
            _column(samples, places, "returns", value_D.device),
            _column(samples, places, "values", value_D.device),
            self.settings.value_clip,
        )
        return (error_D * weight_D).sum() / critic.deviation**2

    @torch.no_grad()
    def _sampler_figures(
        self,
        tokens: losses.TrainedTokens,
        fresh: Sequence[int],
    ) -> dict[str, torch.Tensor]:
        """How far the policy is from its sampler, by tokens that are not replayed. Keeps their
        changes for `_compare`, if it is due.

        fresh: the numbers of these tokens.
        """
        change_N = tokens.logprob_N - tokens.old_logprob_N
        decision_N = tokens.decision_N
        if len(fresh) < len(change_N):
            fresh_F = on_device(fresh, change_N.device).long()
            change_N, decision_N = change_N[fresh_F], decision_N[fresh_F]
        if self._changes is not None:
            _, lengths_D = torch.unique_consecutive(decision_N, return_counts=True)
            self._changes.append((change_N.clone(), lengths_D.tolist()))
        return {
            "kl": (torch.exp(change_N) - 1 - change_N).sum(),
            "ratio_deviation": change_N.abs().max() if fresh else change_N.new_zeros(()),
        }

    @staticmethod
    def _numbers(figures: Mapping[str, torch.Tensor], fresh_tokens: int) -> dict[str, float]:
        """The figures of `_loss`. fresh_tokens: how many tokens of the minibatch are not replayed,
        over which "kl" is a mean.
        """
        numbers = {name: float(value) for name, value in figures.items()}
        numbers["kl"] /= max(1, fresh_tokens)
        return numbers

    def _token_weights(self, counts: Mapping[int, int]) -> dict[int, float]:
        """The weight of a token in each row, in a mean over all tokens or over rows.

        counts: the number of tokens of each row that count.
        """
        token_count = sum(counts.values())
        row_count = sum(count > 0 for count in counts.values())
        weights = {}
        for row, count in counts.items():
            if not count:
                weights[row] = 0.0
            elif self.settings.mean == "token":
                weights[row] = 1 / token_count
            else:
                weights[row] = 1 / (row_count * count)
        return weights


def part_of(state: Mapping[str, Value], prefix: str) -> dict[str, Value]:
    """The entries whose names begin with `prefix`, without it."""
    part = {}
    for name, value in state.items():
        if name.startswith(prefix):
            part[name.removeprefix(prefix)] = value
    return part


def check_finite(figures: Mapping[str, float], samples: Sequence[Sample]) -> None:
    """Raises DivergedError, with the rows `samples`, if a figure is NaN or infinite."""
    if not all(math.isfinite(value) for value in figures.values()):
        values = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
        raise DivergedError(f"the update diverged ({values})", samples)


def _target_distances(samples: Sequence[Sample], scored: Scored) -> torch.Tensor:
    """The weighted divergence of the policy from the target of each of N choices, in nats; 0 for
    one without a target.
    """
    # 1. The targets' log-probabilities, padded to K, and their weights
    width = scored.logprobs_NK.shape[1]
    rows = []
    weights = []
    for number in scored.row_N:
        target = samples[number].target
        probabilities = target.probabilities if target is not None else ()
        rows.append([*probabilities, *[0.0] * (width - len(probabilities))])
        weights.append(target.weight if target is not None else 0.0)
    device = scored.logprob_N.device
    target_NK = on_device(rows, device).log()

    # 2. KL(target, policy)
    distance_N = losses.divergence(scored.logprobs_NK, target_NK, "forward")
    return distance_N * on_device(weights, device)


def _column(
    samples: Sequence[Sample],
    places: Sequence[tuple[int, int]],
    name: str,
    device: torch.device,
) -> torch.Tensor:
    """The numbers called `name` of N tokens, which are at these (row, place) pairs."""
    values = [getattr(samples[row], name)[place] for row, place in places]
    return on_device(values, device)


def _decisions(
    samples: Sequence[Sample], places: Sequence[tuple[int, int]]
) -> tuple[list[int], list[int]]:
    """(index of each decision's first token, number of each token's decision) for tokens at
    `places`, in order.
    """
    starts: list[int] = []
    numbers: list[int] = []
    previous: tuple[int, int] | None = None
    for index, (row, place) in enumerate(places):
        decision = (row, samples[row].decisions[place])
        if decision != previous:
            starts.append(index)
        numbers.append(len(starts) - 1)
        previous = decision
    return starts, numbers
