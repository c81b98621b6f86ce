"""The learner with torch in this process: memory, processes, the critic and its values, the
teacher of a distillation, and what is saved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from typing_extensions import override

from reflectkit.errors import DivergedError, ReflectkitError, out_of_memory
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
from reflectkit.train.learner import (
    LearnerSettings,
    LearnerState,
    PolicyLearner,
    check_finite,
    part_of,
)
from reflectkit.train.microbatch import Scored, Unit, packed, packed_as_trees, saves, score, units
from reflectkit.train.optimizers import flat, make_optimizer, nested
from reflectkit.train.processes import Processes
from reflectkit.train.training_rows import commented_row
from reflectkit.types import SCORE, Sample, Trajectory


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
            self.critic.follow(_returns(samples))
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
        if self.settings.has_targets:
            names.append("table_divergence")
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


def _commented(sample: Sample) -> list[int]:
    """Positions of the trained tokens whose decision has a prompt with a comment."""
    if not sample.commented:
        return []
    places = []
    for place, decision in enumerate(sample.decisions):
        if decision >= 0 and sample.commented[decision]:
            places.append(place)
    return places
