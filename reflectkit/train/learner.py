"""One update of the policy from rows with advantages: minibatches, losses, gradients, optimizer
steps.

Dropout stays off, so that the first pass reproduces the sampler's log-probs and the ratio starts at
exactly 1. Every process holds all rows and scores its share; gradients are summed, so the step does
not depend on the number of processes.
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
from reflectkit.models.load import (
    LoadedModel,
    Reference,
    all_finite,
    checkpoint_gradients,
    save_player,
)
from reflectkit.models.rows import right_pad
from reflectkit.models.scoring import can_share, reads_branches
from reflectkit.sampling.base import Sampler
from reflectkit.train import losses
from reflectkit.train.batch import commented_row
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
from reflectkit.types import SCORE, Sample, Trajectory

FIRST_PACE = 0.1
"""Factor of the learning rate in the first step, if there is a `target_kl`: Adam's first steps are
as long for a small gradient as for a large one, which ruins a policy that is nearly certain.
"""
LEAST_CHANGE, MOST_CHANGE = 0.5, 1.5
"""Limits of what a step changes this factor by."""
TOO_FAR = 2.0
"""An update ends at this many times the `target_kl`."""

Value = TypeVar("Value")


@dataclass(frozen=True)
class Settings:
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
    """See `TrainedTokens`, as for the next one and `is_cap`."""
    clip_high: float = 0.0
    is_cap: float = 0.0
    """0 if the current weights sampled."""
    mask: str = "none"
    """See `on_policy_enough`, as for the next one."""
    mask_ratio: float = 3.0
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
        settings: Settings,
        processes: Processes | None,
        notify: Callable[[str], None],
    ) -> None:
        self.settings, self.notify = settings, notify
        self.processes = processes or Processes()
        self._changes: list[tuple[torch.Tensor, list[int]]] | None = None
        self._mismatch: dict[str, float] = {}
        self.pace = FIRST_PACE if settings.target_kl else 1.0
        """Factor of the policy's learning rate, at most 1, that keeps updates near `target_kl`."""
        self.schedule_rate = 1.0
        self.entropy_rate = 1.0
        """The schedules' factors in the present update."""

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
        self.schedule_rate, self.entropy_rate = rate, entropy_rate
        parts = self._begin(samples)
        sums: dict[str, float] = {}
        self._changes = [] if self.settings.mismatch else None
        self._mismatch = {}
        # 2. Gradient steps: each epoch shuffles the units into minibatches anew
        steps, count = 0, math.ceil(len(samples) / self.settings.minibatch)
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
        # 3. Means of the figures over the steps
        self._end()
        means = {name: total / steps for name, total in sums.items()}
        loss = means.pop("loss")
        last_rate = self.settings.learning_rate * rate * self.pace
        return LossOutput(
            loss, means | {"gradient_steps": steps, "learning_rate": last_rate} | self._mismatch
        )

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
        Raises MismatchError.

        changes: the learner's log-probabilities less the sampler's, and the tokens of each answer
        among them.
        """
        mine_N = (
            torch.cat([change_N for change_N, _ in changes]).cpu() if changes else torch.zeros(0)
        )
        everyone = self.processes.gather(
            (mine_N, [length for _, lengths in changes for length in lengths])
        )
        change_N = torch.cat([theirs_N for theirs_N, _ in everyone])
        lengths = [length for _, theirs in everyone for length in theirs]
        self._mismatch = losses.mismatch(change_N)
        # 2. Whether the server samples the weights that learn
        sampler = self.settings.agrees_with
        if not sampler:
            return
        from reflectkit.sampling.checks import disagreement

        if difference := disagreement(change_N, self.settings.temperature, lengths):
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
        fresh_tokens: int,
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """A micro-batch's part of the loss and figures of a minibatch. token_weights: that of a
        token of each of its rows. fresh_tokens: how many of its tokens are not replayed.
        """
        # 1. Columns of the trained tokens
        settings, device = self.settings, scored.logprob_N.device
        places = list(zip(scored.row_N, scored.place_N, strict=True))

        def column(name: str) -> torch.Tensor:
            return torch.tensor(
                [getattr(samples[row], name)[place] for row, place in places], device=device
            )

        weight_N = torch.tensor([token_weights[row] for row, _ in places], device=device)
        old_N = column("logprobs")
        replayed_N = torch.tensor([samples[row].replayed for row, _ in places], device=device)
        starts, numbers = _decisions(samples, places)
        decision_N = torch.tensor(numbers, device=device)

        # 2. The algorithm's loss of each token, but not of those that are masked
        loss_N = settings.loss(
            losses.TrainedTokens(
                scored.logprob_N,
                old_N,
                column("advantages"),
                decision_N,
                len(starts),
                replayed_N,
                settings.clip,
                settings.is_cap,
                settings.clip_high,
            )
        )
        figures: dict[str, float] = {}
        if settings.mask != "none":
            number_of = {row: number for number, row in enumerate(dict.fromkeys(scored.row_N))}
            row_N = torch.tensor([number_of[row] for row in scored.row_N], device=device)
            kept_N = losses.on_policy_enough(
                scored.logprob_N - old_N,
                column("advantages"),
                row_N,
                settings.mask,
                settings.mask_ratio,
            )
            loss_N = loss_N.where(kept_N, 0.0)
            figures["masked"] = float((weight_N * ~kept_N).sum())

        # 3. Their weighted mean, less the entropy bonus, plus the divergence from the start
        policy_loss = (loss_N * weight_N).sum()
        spread = (scored.entropy_N * weight_N).sum()
        loss = policy_loss - self.entropy_rate * settings.entropy * spread
        figures |= {"loss": float(policy_loss.detach()), "entropy": float(spread.detach())}
        # An expectation over the current policy, so without replayed tokens
        if reference_N is not None:
            distance_N = losses.kl_estimate(scored.logprob_N, old_N, reference_N, settings.is_cap)
            distance = (distance_N * weight_N).masked_fill(replayed_N, 0.0).sum()
            loss = loss + settings.kl * distance
            figures["kl_to_start"] = float(distance.detach())

        # 4. The critic's loss, one error a decision, weighted as its tokens are
        if self.critic is not None:
            prompts = [samples[places[start][0]].tokens[: places[start][1]] for start in starts]
            value_D = self.critic(scored.hidden_ND[starts], prompts)
            error_D = losses.value_loss(
                value_D, column("returns")[starts], column("values")[starts], settings.value_clip
            )
            weight_D = torch.zeros(len(starts), device=device).index_add(0, decision_N, weight_N)
            critic_loss = (error_D * weight_D).sum() / self.critic.deviation**2
            loss = loss + critic_loss
            figures["value_loss"] = float(critic_loss.detach())

        # 5. How far the policy is from its sampler
        with torch.no_grad():
            moved_N = (scored.logprob_N - old_N)[~replayed_N]
            if self._changes is not None:
                _, lengths_D = torch.unique_consecutive(decision_N[~replayed_N], return_counts=True)
                self._changes.append((moved_N.clone(), lengths_D.tolist()))
            distance_to_sampler = float((torch.exp(moved_N) - 1 - moved_N).sum())
            figures["kl"] = distance_to_sampler / max(1, fresh_tokens)
            figures["ratio_deviation"] = float(moved_N.abs().max()) if len(moved_N) else 0.0
        return loss, figures

    def _token_weights(self, counts: Mapping[int, int]) -> dict[int, float]:
        """The weight of a token in each row, in a mean over all tokens or over rows, given each
        row's number of tokens that count.
        """
        tokens, rows = sum(counts.values()), sum(count > 0 for count in counts.values())
        by_token = self.settings.mean == "token"
        return {
            row: (1 / tokens if by_token else 1 / (rows * count)) if count else 0.0
            for row, count in counts.items()
        }


class LocalLearner(PolicyLearner):
    """Holds the policy, its optimizer, the critic (None without one) and the starting policy (None
    where it is not needed).

    teacher: the policy that reads comments, for distillation. processes: those that train together.
    """

    def __init__(
        self,
        player: LoadedModel,
        settings: Settings,
        critic: Critic | None = None,
        reference: Reference | None = None,
        processes: Processes | None = None,
        notify: Callable[[str], None] = lambda text: None,
        teacher: Reference | None = None,
    ) -> None:
        super().__init__(settings, processes, notify)
        self.player, self.critic, self.reference, self.teacher = player, critic, reference, teacher
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
            tensors |= {f"critic.{name}": value for name, value in self.critic.state_dict().items()}
        if self.teacher is not None and self.settings.ema:
            tensors |= {
                f"teacher.{name}": average for name, (average, _) in self.teacher.pairs().items()
            }
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
        value_of: dict[int, float] = {}
        for micro in packed(
            [Unit(tuple(prompt), (), (row,)) for row, prompt in enumerate(prompts)], self.max_tokens
        ):
            tokens = [unit.tokens for unit in micro]
            device = next(self.player.model.parameters()).device
            rows = torch.arange(len(micro), device=device)
            ends = torch.tensor([len(row) - 1 for row in tokens], device=device)
            # No label matters: the hidden state is all
            label = torch.zeros(len(micro), 1, dtype=torch.long, device=device)
            hidden_ND, _ = self.scorer(
                right_pad(tokens, self.player.pad_id, device), rows, ends, label
            )
            value_of |= zip(
                [unit.rows[0] for unit in micro],
                self.critic(hidden_ND, tokens).tolist(),
                strict=True,
            )
        return [value_of[row] for row in range(len(prompts))]

    @property
    def _separately(self) -> bool:
        """Whether the policy reads each choice alone."""
        return self.player.answer == SCORE

    def _pays_as_trees(self, batch: Sequence[Unit]) -> bool:
        """Whether minibatches like this one are read as trees."""
        if not can_share(self.player.model) or self.processes.sharded or self._separately:
            return False
        setting = self.settings.share_prefixes
        return saves(self.player.model, batch, self.max_tokens) if setting is None else setting

    def observe(self, hidden_BD: torch.Tensor, prompts: Sequence[tuple[int, ...]]) -> None:
        """Record the values of prompts that a sampler has just read with the current weights, which
        saves reading them again.

        hidden_BD: the policy's last hidden states of the B `prompts`.
        """
        if self.critic is not None:
            with torch.no_grad():
                self.observed |= zip(prompts, self.critic(hidden_BD, prompts).tolist(), strict=True)

    @override
    def valued(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        if self.critic is None:
            return list(trajectories)
        if self.processes.sharded:  # each has scored its share
            for observed in self.processes.gather(self.observed):
                self.observed |= observed
        prompts = dict.fromkeys(
            turn.decision.prompt_ids for trajectory in trajectories for turn in trajectory.turns
        )
        missing = [prompt for prompt in prompts if prompt not in self.observed]
        self.observed |= zip(missing, self.values(missing), strict=True)
        return [
            replace(
                trajectory,
                turns=tuple(
                    replace(
                        turn,
                        decision=replace(
                            turn.decision, value=self.observed[turn.decision.prompt_ids]
                        ),
                    )
                    for turn in trajectory.turns
                ),
            )
            for trajectory in trajectories
        ]

    def _optimizer_state(self) -> dict[str, torch.Tensor]:
        """Both optimizers' tensors as `<policy or critic>.<key>`. All processes must call this."""
        state = {f"policy.{key}": value for key, value in self.optimizer.tensors().items()}
        state["pace"] = torch.tensor(self.pace, dtype=torch.float64)
        critic = self.critic_optimizer.state_dict()["state"] if self.critic is not None else {}
        return state | {f"critic.{key}": value for key, value in flat(critic).items()}

    def _load_optimizer_state(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Restore what `_optimizer_state` returned. Raises KeyError or ValueError for tensors of
        another model.
        """
        mine = {
            key.removeprefix("policy."): value
            for key, value in tensors.items()
            if key.startswith("policy.")
        }
        critic = {
            key.removeprefix("critic."): value
            for key, value in tensors.items()
            if key.startswith("critic.")
        }
        if self.critic is not None:
            self.critic_optimizer.load_state_dict(
                self.critic_optimizer.state_dict() | {"state": nested(critic)}
            )
        self.optimizer.load(mine)
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
        numbers = [row for unit in minibatch for row in unit.rows]
        here = [samples[number] for number in numbers]
        # 2. Gradients of all processes; again in smaller micro-batches where memory ran out
        while True:
            if self._changes is not None:  # a step that ran out of memory is made again
                self._changes = []
            self.optimizer.zero_grad()
            self.critic_optimizer.zero_grad(set_to_none=True)
            figures = self._accumulate(samples, self._micro_batches(parts), numbers)
            everyone = self.processes.gather(figures)
            if all(theirs is not None for theirs in everyone):
                break
            self._halve(max(unit.size for unit in parts))
        # 3. Figures, and whether the step is made
        if self._changes is not None:
            self._compare(self._changes)
            self._changes = None
        merged = {name: sum(theirs[name] for theirs in everyone) for name in everyone[0]}
        merged["ratio_deviation"] = max(theirs["ratio_deviation"] for theirs in everyone)
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
        if not all(
            self.processes.gather(all_finite([*self.optimizer.parts(), *self.critic_weights]))
        ):
            raise DivergedError("the update diverged (a weight became NaN or infinite)", here)
        return merged

    def _micro_batches(self, parts: Sequence[Unit]) -> list[tuple[list[Unit], float]]:
        """This process's micro-batches of `parts`, each with its weight.

        If the policy is sharded, all processes must make equally many passes: one with fewer adds
        some of weight 0.
        """
        # Trees need neighbours that begin alike, others rows of similar lengths
        rank, count = self.processes.rank, self.processes.count
        if self.as_trees:  # neighbours begin alike, so each process has a block of them
            block = parts[rank * len(parts) // count : (rank + 1) * len(parts) // count]
            return [(micro, 1.0) for micro in packed_as_trees(block, self.max_tokens)]
        mine = [(micro, 1.0) for micro in packed(parts[rank::count], self.max_tokens)]
        if self.processes.sharded:
            most = max(len(packed(parts[other::count], self.max_tokens)) for other in range(count))
            mine += [(list(parts[:1]), 0.0)] * (most - len(mine))
        return mine

    def _accumulate(
        self,
        samples: Sequence[Sample],
        micros: Sequence[tuple[list[Unit], float]],
        numbers: Sequence[int],
    ) -> dict[str, float] | None:
        """Accumulate the gradients of `micros`, which make up the minibatch of samples `numbers`;
        None if memory ran out.
        """
        token_weights = self._token_weights(
            {
                number: 0 if samples[number].only_distilled else sum(samples[number].loss_mask)
                for number in numbers
            }
        )
        commented_weights = self._token_weights(
            {number: len(_commented(samples[number])) for number in numbers}
        )
        fresh = sum(
            sum(samples[number].loss_mask) for number in numbers if not samples[number].replayed
        )
        figures = dict.fromkeys(("loss", "entropy", "kl", "ratio_deviation"), 0.0)
        figures |= {"value_loss": 0.0} if self.critic is not None else {}
        figures |= {"kl_to_start": 0.0} if self.reference is not None else {}
        figures |= {"masked": 0.0} if self.settings.mask != "none" else {}
        figures |= {"divergence": 0.0} if self.teacher is not None else {}
        # 2. Micro-batch by micro-batch: score, loss, gradients
        try:
            for micro, weight in micros:
                scored = self._score(self.scorer, samples, micro)
                reference_N: torch.Tensor | None = None
                if self.reference is not None:
                    with torch.no_grad(), self.reference.model() as start:
                        scorer = self.scorer if start is self.player.model else start
                        reference_N = self._score(scorer, samples, micro).logprob_N
                loss, micro_figures = self._loss(samples, scored, reference_N, token_weights, fresh)
                if self.teacher is not None:
                    distance = self._divergence(self.teacher, samples, scored, commented_weights)
                    loss = loss + self.settings.distill * distance
                    micro_figures["divergence"] = float(distance.detach())
                (loss * weight * self.optimizer.loss_scale).backward()
                deviation = max(figures["ratio_deviation"], micro_figures["ratio_deviation"])
                figures = {
                    name: value + weight * micro_figures.get(name, 0.0)
                    for name, value in figures.items()
                }
                figures["ratio_deviation"] = deviation
            for parameter in self.critic_weights:
                if parameter.grad is not None:
                    parameter.grad /= self.optimizer.loss_scale
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            if self.processes.sharded:  # the others are inside a pass and cannot be told
                raise ReflectkitError(
                    "out of memory; run the same command again with a lower --max-tokens-per-batch"
                ) from None
            return None
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
        places = list(zip(scored.row_N, scored.place_N, strict=True))
        commented = {row: set(_commented(samples[row])) for row in dict.fromkeys(scored.row_N)}
        index = [number for number, (row, place) in enumerate(places) if place in commented[row]]
        if not index:
            return scored.logprob_N.sum() * 0.0
        decisions = dict.fromkeys((places[number][0], samples[places[number][0]].decisions[places[number][1]])
                                  for number in index)  # fmt: skip
        rows = [commented_row(samples[row], decision) for row, decision in decisions]
        split = packed_as_trees if self.as_trees else packed
        teacher_logprobs: dict[tuple[int, int], torch.Tensor] = {}
        with torch.no_grad(), teacher.model() as model:
            for micro in split(
                units(rows, reads_branches(model), self._separately), self.max_tokens
            ):
                part = self._score(model, rows, micro)
                teacher_logprobs |= zip(
                    zip(part.row_N, part.place_N, strict=True), part.logprobs_NK, strict=True
                )
        width = scored.logprobs_NK.shape[1]
        teacher_NK = torch.stack(
            [
                torch.nn.functional.pad(
                    teacher_logprobs[key], (0, width - len(teacher_logprobs[key])), value=-math.inf
                )
                for key in sorted(teacher_logprobs)  # by row and place, as those of `index` are
            ]
        )
        apart_N = losses.divergence(scored.logprobs_NK[index], teacher_NK, self.settings.divergence)
        weight_N = torch.tensor(
            [token_weights[places[number][0]] for number in index], device=apart_N.device
        )
        return (apart_N * weight_N).sum()

    def _score(
        self,
        model: Any,
        samples: Sequence[Sample],
        micro: Sequence[Unit],
    ) -> Scored:
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
        """Halve the micro-batches from now on. widest: tokens of the largest unit, which cannot be
        split.
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
        before, self.max_tokens = self.max_tokens, max(widest, self.max_tokens // 2)
        self.notify(
            f"out of memory: repeating the update with micro-batches of {self.max_tokens} tokens"
            f" instead of {before} (--max-tokens-per-batch)"
        )


def part_of(state: Mapping[str, Value], prefix: str) -> dict[str, Value]:
    """The entries whose names begin with `prefix`, without it."""
    return {
        name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)
    }


def _returns(samples: Sequence[Sample]) -> list[float]:
    """The returns of all trained tokens that the current policy wrote."""
    fresh = [sample for sample in samples if not sample.replayed]
    return [
        value
        for sample in fresh
        for value, is_trained in zip(sample.returns, sample.loss_mask, strict=True)
        if is_trained
    ]


def check_finite(figures: Mapping[str, float], samples: Sequence[Sample]) -> None:
    """Raises DivergedError, with the rows `samples`, if a figure is NaN or infinite."""
    if not all(math.isfinite(value) for value in figures.values()):
        values = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
        raise DivergedError(f"the update diverged ({values})", samples)


def _commented(sample: Sample) -> list[int]:
    """Positions of the trained tokens whose decision has a prompt with a comment."""
    if not sample.commented:
        return []
    return [
        place
        for place, number in enumerate(sample.decisions)
        if number >= 0 and sample.commented[number]
    ]


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
