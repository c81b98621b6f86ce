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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from typing_extensions import override

from reflectkit.errors import DivergedError, MismatchError, ReflectkitError, out_of_memory
from reflectkit.eventloop import run_sync
from reflectkit.models.device import on_device
from reflectkit.models.load import (
    LoadedModel,
    Reference,
    all_finite,
    checkpoint_gradients,
    save_player,
)
from reflectkit.models.recording import HELD, stop_recording
from reflectkit.models.rows import right_pad
from reflectkit.models.scoring import can_share, reads_branches
from reflectkit.sampling.base import Sampler
from reflectkit.train import losses
from reflectkit.train.critic import Critic
from reflectkit.train.microbatch import (
    Scored,
    Unit,
    minibatches,
    packed,
    packed_as_trees,
    saves,
    score,
    units,
)
from reflectkit.train.optimizers import flat, make_optimizer, nested
from reflectkit.train.processes import Processes
from reflectkit.train.training_rows import commented_row
from reflectkit.types import SCORE, Sample, Trajectory

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

        # 2. Gradient steps: each epoch shuffles the units into minibatches anew
        sums: dict[str, float] = {}
        steps = 0
        count = math.ceil(len(samples) / self.settings.minibatch)
        for index in range(self.settings.epochs * count):
            if index % count == 0:
                generator.shuffle(parts)
                batches = minibatches(parts, count)
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
        """Prepare an update; the units of its rows. Rows of one prompt stay together, for one
        forward pass.
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
        if not self.settings.target_kl:
            return False
        self._adapt_pace(kl)
        return kl > TOO_FAR * self.settings.target_kl

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

        # 3. Their weighted mean, less the entropy bonus
        policy_loss = (loss_N * weight_N).sum()
        mean_entropy = (scored.entropy_N * weight_N).sum()
        loss = policy_loss - self.entropy_rate * settings.entropy * mean_entropy
        figures["loss"] = policy_loss.detach()
        figures["entropy"] = mean_entropy.detach()

        # 4. The divergence from the start: an expectation over the current policy, so without
        #    replayed tokens
        if reference_N is not None:
            distance_N = losses.kl_estimate(
                scored.logprob_N, tokens.old_logprob_N, reference_N, settings.is_cap
            )
            distance = (distance_N * weight_N).masked_fill(tokens.replayed_N, 0.0).sum()
            loss = loss + settings.kl * distance
            figures["kl_to_start"] = distance.detach()

        # 5. The critic's loss
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

        # 6. How far the policy is from its sampler
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


class LocalLearner(PolicyLearner):
    """Holds the policy, its optimizer, the critic (None without one) and the starting policy (None
    where it is not needed).

    teacher: the policy that reads comments, for distillation. processes: those that train together.
    """

    def __init__(
        self,
        player: LoadedModel,
        settings: LearnerSettings,
        critic: Critic | None = None,
        reference: Reference | None = None,
        processes: Processes | None = None,
        notify: Callable[[str], None] = lambda text: None,
        teacher: Reference | None = None,
    ) -> None:
        super().__init__(settings, processes, notify)
        self.player = player
        self.critic = critic
        self.reference = reference
        self.teacher = teacher
        self.max_tokens = settings.max_tokens
        player.activate()
        self.optimizer = make_optimizer(
            player.model,
            self.processes,
            rate=settings.learning_rate,
            max_norm=settings.max_grad_norm,
            decay=settings.weight_decay,
        )
        self.scorer = self.optimizer.scorer
        self.as_trees = False
        """Whether rows that begin alike are read once, as trees."""
        self.observed: dict[tuple[int, ...], float] = {}
        """Values of prompts that were read with the current weights."""
        self.critic_weights = list(critic.parameters()) if critic is not None else []
        # Without a critic it has a weight that never gets a gradient
        self.critic_optimizer = torch.optim.AdamW(
            self.critic_weights or [torch.zeros(1)], settings.critic_rate, weight_decay=0.0
        )

    @override
    def _begin(self, samples: Sequence[Sample]) -> list[Unit]:
        self.forget()
        self.player.model.eval()
        self.player.activate()
        if self.settings.gradient_checkpointing:
            checkpoint_gradients(self.player.model)
        if self.critic is not None:
            self.critic.set_scale(_returns(samples))
        for group in self.critic_optimizer.param_groups:
            group["lr"] = self.settings.critic_rate * self.schedule_rate
        return units(samples, reads_branches(self.scorer), self._separately)

    @override
    def _end(self) -> None:
        if self.teacher is not None and self.settings.ema:
            self.teacher.follow(self.settings.ema)

    @override
    def publish(self, sampler: Sampler, version: int) -> None:
        run_sync(sampler.publish(self.player, version))

    @override
    def save(
        self,
        folder: Path,
        facts: Mapping[str, Any],
        write_rest: Callable[[Path], None] | None = None,
    ) -> None:
        weights = self.optimizer.model_state()
        if self.processes.first:
            save_player(folder, self.player, dict(facts), write_rest, weights)

    @override
    def state(self) -> LearnerState:
        tensors = {f"optimizer.{name}": value for name, value in self._optimizer_state().items()}
        if self.critic is not None:
            for name, value in self.critic.state_dict().items():
                tensors[f"critic.{name}"] = value
        if self.teacher is not None and self.settings.ema:
            for name, (average, _) in self.teacher.pairs().items():
                tensors[f"teacher.{name}"] = average
        return LearnerState({"max_tokens": self.max_tokens}, tensors)

    @override
    def load(self, state: LearnerState) -> None:
        if self.critic is not None:
            self.critic.load_state_dict(part_of(state.tensors, "critic."))
        self._load_optimizer_state(part_of(state.tensors, "optimizer."))
        if self.teacher is not None and self.settings.ema:
            self.teacher.load(part_of(state.tensors, "teacher."))
        self.max_tokens = min(self.max_tokens, int(state.numbers["max_tokens"]))

    @property
    @override
    def has_critic(self) -> bool:
        return self.critic is not None

    @override
    def forget(self) -> None:
        self.observed.clear()

    @override
    @torch.no_grad()
    def values(self, prompts: Sequence[Sequence[int]]) -> list[float]:
        """The critic's value of each prompt, in units of reward."""
        assert self.critic is not None
        self.player.activate()
        device = next(self.player.model.parameters()).device
        parts = [Unit(tuple(prompt), (), (row,)) for row, prompt in enumerate(prompts)]
        value_of: dict[int, float] = {}
        for micro in packed(parts, self.max_tokens):
            # 1. The last hidden state of each prompt. The scorer needs a label, and any will do
            tokens = [unit.tokens for unit in micro]
            input_ids_BT = right_pad(tokens, self.player.pad_id, device)
            row_B = torch.arange(len(micro), device=device)
            end_B = on_device([len(row) - 1 for row in tokens], device)
            label_B1 = torch.zeros(len(micro), 1, dtype=torch.long, device=device)
            hidden_BD, _ = self.scorer(input_ids_BT, row_B, end_B, label_B1)

            # 2. Its value
            values = self.critic(hidden_BD, tokens).tolist()
            for unit, value in zip(micro, values, strict=True):
                value_of[unit.rows[0]] = value
        return [value_of[row] for row in range(len(prompts))]

    @property
    def _separately(self) -> bool:
        """Whether the policy reads each choice alone."""
        return self.player.answer == SCORE

    def _pays_as_trees(self, batch: Sequence[Unit]) -> bool:
        """Whether minibatches like this one are read as trees."""
        if not can_share(self.player.model) or self.processes.sharded or self._separately:
            return False
        if self.settings.share_prefixes is not None:
            return self.settings.share_prefixes
        return saves(self.player.model, batch, self.max_tokens)

    def observe(self, hidden_BD: torch.Tensor, prompts: Sequence[tuple[int, ...]]) -> None:
        """Record the values of prompts that a sampler has just read with the current weights. They
        need not be read again.

        hidden_BD: the policy's last hidden states of the B `prompts`.
        """
        if self.critic is not None:
            with torch.no_grad():
                values = self.critic(hidden_BD, prompts).tolist()
            self.observed |= zip(prompts, values, strict=True)

    @override
    def valued(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        if self.critic is None:
            return list(trajectories)
        # 1. The values of the prompts that were read, and of the others
        if self.processes.sharded:  # each has scored its share
            for observed in self.processes.gather(self.observed):
                self.observed |= observed
        missing: dict[tuple[int, ...], None] = {}
        for trajectory in trajectories:
            for turn in trajectory.turns:
                if turn.decision.prompt_ids not in self.observed:
                    missing[turn.decision.prompt_ids] = None
        prompts = list(missing)
        self.observed |= zip(prompts, self.values(prompts), strict=True)

        # 2. The trajectories with them
        result = []
        for trajectory in trajectories:
            turns = []
            for turn in trajectory.turns:
                value = self.observed[turn.decision.prompt_ids]
                decision = replace(turn.decision, value=value)
                turns.append(replace(turn, decision=decision))
            result.append(replace(trajectory, turns=tuple(turns)))
        return result

    def _optimizer_state(self) -> dict[str, torch.Tensor]:
        """Both optimizers' tensors as `<policy or critic>.<key>`. All processes must call this."""
        state = {f"policy.{key}": value for key, value in self.optimizer.tensors().items()}
        state["pace"] = torch.tensor(self.pace, dtype=torch.float64)
        if self.critic is not None:
            critic = self.critic_optimizer.state_dict()["state"]
            for key, value in flat(critic).items():
                state[f"critic.{key}"] = value
        return state

    def _load_optimizer_state(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Restore what `_optimizer_state` returned. Raises KeyError or ValueError for tensors of
        another model.
        """
        if self.critic is not None:
            critic = nested(part_of(tensors, "critic."))
            state = self.critic_optimizer.state_dict() | {"state": critic}
            self.critic_optimizer.load_state_dict(state)
        self.optimizer.load(part_of(tensors, "policy."))
        self.pace = float(tensors["pace"])

    @override
    def _step(
        self,
        samples: Sequence[Sample],
        minibatch: Sequence[Unit],
        may_stop: bool,
    ) -> dict[str, float] | None:
        # 1. How the minibatch is read; the update's first one decides
        if not may_stop:
            self.as_trees = self._pays_as_trees(minibatch)
        parts = sorted(minibatch, key=lambda unit: unit.tokens if self.as_trees else -unit.size)
        numbers = [number for unit in minibatch for number in unit.rows]
        here = [samples[number] for number in numbers]

        # 2. Gradients of all processes; again in smaller micro-batches where memory ran out
        while True:
            if self._changes is not None:  # a step that ran out of memory is made again
                self._changes = []
            self.optimizer.zero_grad()
            self.critic_optimizer.zero_grad(set_to_none=True)
            figures_here = self._accumulate(samples, self._micro_batches(parts), numbers)
            everywhere = self.processes.gather(figures_here)
            if all(figures is not None for figures in everywhere):
                break
            if any(HELD):  # the memory of recordings may be enough
                stop_recording("out of memory")
            else:
                self._halve(max(unit.size for unit in parts))

        # 3. Figures of all processes, and whether the step is made
        if self._changes is not None:
            self._compare(self._changes)
            self._changes = None
        merged = {name: sum(figures[name] for figures in everywhere) for name in everywhere[0]}
        merged["ratio_deviation"] = max(figures["ratio_deviation"] for figures in everywhere)
        check_finite(merged, here)
        if may_stop and self._has_moved_too_far(merged["kl"]):
            return None

        # 4. The step, of the policy and of the critic
        self.optimizer.schedule(self.schedule_rate * self.pace)
        merged["gradient_norm"] = self.optimizer.step()
        check_finite(merged, here)
        if self.critic is not None:
            self.processes.add_gradients(self.critic_weights)
            self.critic_optimizer.step()
        is_finite = all_finite([*self.optimizer.parts(), *self.critic_weights])
        if not all(self.processes.gather(is_finite)):
            raise DivergedError("the update diverged (a weight became NaN or infinite)", here)
        return merged

    def _micro_batches(self, parts: Sequence[Unit]) -> list[tuple[list[Unit], float]]:
        """This process's micro-batches of `parts`, each with its weight.

        If the policy is sharded, all processes must make equally many passes: one with fewer adds
        some of weight 0.
        """
        rank = self.processes.rank
        count = self.processes.count

        # 1. Trees need neighbours that begin alike, so each process has a block of them
        if self.as_trees:
            block = parts[rank * len(parts) // count : (rank + 1) * len(parts) // count]
            return [(micro, 1.0) for micro in packed_as_trees(block, self.max_tokens)]

        # 2. Otherwise the processes have rows of similar lengths
        micros = [(micro, 1.0) for micro in packed(parts[rank::count], self.max_tokens)]
        if self.processes.sharded:
            most = max(len(packed(parts[other::count], self.max_tokens)) for other in range(count))
            filler = (list(parts[:1]), 0.0)
            micros += [filler] * (most - len(micros))
        return micros

    def _accumulate(
        self,
        samples: Sequence[Sample],
        micros: Sequence[tuple[list[Unit], float]],
        numbers: Sequence[int],
    ) -> dict[str, float] | None:
        """Accumulate the gradients of `micros`. Returns figures, or None if memory ran out.

        micros: this process's micro-batches, with their weights. numbers: of the samples in the
        minibatch of all processes.
        """
        # 1. The weights of tokens in the losses
        token_counts = {}
        comment_counts = {}
        fresh_tokens = 0
        for number in numbers:
            sample = samples[number]
            count = sum(sample.loss_mask)
            token_counts[number] = 0 if sample.only_distilled else count
            comment_counts[number] = len(_commented(sample))
            if not sample.replayed:
                fresh_tokens += count
        token_weights = self._token_weights(token_counts)
        comment_weights = self._token_weights(comment_counts)

        # 2. The figures
        names = ["loss", "entropy", "kl", "ratio_deviation"]
        if self.critic is not None:
            names.append("value_loss")
        if self.reference is not None:
            names.append("kl_to_start")
        if self.settings.mask != "none":
            names.append("masked")
        if self.teacher is not None:
            names.append("divergence")
        found: list[tuple[float, dict[str, torch.Tensor]]] = []

        # 3. Micro-batch by micro-batch: score, loss, gradients
        try:
            for micro, weight in micros:
                scored = self._score(self.scorer, samples, micro)
                reference_N: torch.Tensor | None = None
                if self.reference is not None:
                    with torch.no_grad(), self.reference.model() as start:
                        scorer = self.scorer if start is self.player.model else start
                        reference_N = self._score(scorer, samples, micro).logprob_N
                loss, micro_figures = self._loss(samples, scored, reference_N, token_weights)
                if self.teacher is not None:
                    distance = self._divergence(self.teacher, samples, scored, comment_weights)
                    loss = loss + self.settings.distill * distance
                    micro_figures["divergence"] = distance.detach()
                (loss * weight * self.optimizer.loss_scale).backward()
                found.append((weight, micro_figures))
            for parameter in self.critic_weights:
                if parameter.grad is not None:
                    parameter.grad /= self.optimizer.loss_scale

        # 4. Out of memory
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            if self.processes.sharded:  # the others are inside a pass and cannot be told
                raise ReflectkitError(
                    "out of memory; run the same command again with a lower --max-tokens-per-batch"
                ) from None
            return None

        # 5. The figures, now that a GPU has all that it has to do
        figures = dict.fromkeys(names, 0.0)
        for weight, micro_figures in found:
            values = self._numbers(micro_figures, fresh_tokens)
            deviation = max(figures["ratio_deviation"], values["ratio_deviation"])
            for name in names:
                figures[name] += weight * values.get(name, 0.0)
            figures["ratio_deviation"] = deviation
        return figures

    def _divergence(
        self,
        teacher: Reference,
        samples: Sequence[Sample],
        scored: Scored,
        token_weights: Mapping[int, float],
    ) -> torch.Tensor:
        """A micro-batch's part of the mean divergence of the policy from the `teacher`, which reads
        comments.

        token_weights: that of a token that has a comment, in each row. The teacher scores the
        tokens that the policy wrote, after the prompts with comments.
        """
        # 1. The trained tokens that have a comment: their indices, weights and decisions
        commented = {row: set(_commented(samples[row])) for row in dict.fromkeys(scored.row_N)}
        index: list[int] = []
        weights: list[float] = []
        decisions: dict[tuple[int, int], None] = {}
        places = zip(scored.row_N, scored.place_N, strict=True)
        for number, (row, place) in enumerate(places):
            if place in commented[row]:
                index.append(number)
                weights.append(token_weights[row])
                decisions[row, samples[row].decisions[place]] = None
        if not index:
            return scored.logprob_N.sum() * 0.0

        # 2. The teacher's log-probabilities of the same tokens, by row and place
        rows = [commented_row(samples[row], decision) for row, decision in decisions]
        pack = packed_as_trees if self.as_trees else packed
        teacher_logprobs: dict[tuple[int, int], torch.Tensor] = {}
        with torch.no_grad(), teacher.model() as model:
            parts = units(rows, reads_branches(model), self._separately)
            for micro in pack(parts, self.max_tokens):
                part = self._score(model, rows, micro)
                keys = zip(part.row_N, part.place_N, strict=True)
                teacher_logprobs |= zip(keys, part.logprobs_NK, strict=True)

        # 3. The same in the order of `index`, which is that of rows and places, padded to K
        width = scored.logprobs_NK.shape[1]
        teacher_rows = []
        for key in sorted(teacher_logprobs):
            logprobs_K = teacher_logprobs[key]
            padding = (0, width - len(logprobs_K))
            teacher_rows.append(torch.nn.functional.pad(logprobs_K, padding, value=-math.inf))
        teacher_NK = torch.stack(teacher_rows)

        # 4. The weighted mean
        student_NK = scored.logprobs_NK[index]
        divergence_N = losses.divergence(student_NK, teacher_NK, self.settings.divergence)
        weight_N = on_device(weights, divergence_N.device)
        return (divergence_N * weight_N).sum()

    def _score(
        self,
        model: Any,
        samples: Sequence[Sample],
        micro: Sequence[Unit],
    ) -> Scored:
        """The scores of a micro-batch under `model`; see `microbatch.score`."""
        return score(
            model,
            samples,
            micro,
            self.player.pad_id,
            self.settings.temperature,
            share=self.as_trees,
            whole=self.teacher is not None,
            entropy_learns=self.settings.entropy != 0,
        )

    def _halve(self, widest: int) -> None:
        """Halve the micro-batches from now on.

        widest: tokens of the largest unit, which cannot be split. Raises ReflectkitError if it has
        a micro-batch of its own already.
        """
        if self.max_tokens <= widest:
            raise ReflectkitError(
                f"out of memory with a single row of {widest} tokens; use --gradient-checkpointing,"
                " --lora-r or a smaller model"
            )
        self.optimizer.zero_grad()
        # Give back what the failed pass held
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        before = self.max_tokens
        self.max_tokens = max(widest, before // 2)
        self.notify(
            f"out of memory: repeating the update with micro-batches of {self.max_tokens} tokens"
            f" instead of {before} (--max-tokens-per-batch)"
        )


def part_of(state: Mapping[str, Value], prefix: str) -> dict[str, Value]:
    """The entries whose names begin with `prefix`, without it."""
    part = {}
    for name, value in state.items():
        if name.startswith(prefix):
            part[name.removeprefix(prefix)] = value
    return part


def _returns(samples: Sequence[Sample]) -> list[float]:
    """The returns of all trained tokens that the current policy wrote."""
    returns = []
    for sample in samples:
        if sample.replayed:
            continue
        for value, is_trained in zip(sample.returns, sample.loss_mask, strict=True):
            if is_trained:
                returns.append(value)
    return returns


def check_finite(figures: Mapping[str, float], samples: Sequence[Sample]) -> None:
    """Raises DivergedError, with the rows `samples`, if a figure is NaN or infinite."""
    if not all(math.isfinite(value) for value in figures.values()):
        values = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
        raise DivergedError(f"the update diverged ({values})", samples)


def _commented(sample: Sample) -> list[int]:
    """Positions of the trained tokens whose decision has a prompt with a comment."""
    if not sample.commented:
        return []
    places = []
    for place, decision in enumerate(sample.decisions):
        if decision >= 0 and sample.commented[decision]:
            places.append(place)
    return places


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
