"""A policy on a training service that learns with the losses of this process.

Per gradient step: the service reads the rows, the loss and its slopes are computed here, the
service adds up the gradients of these slopes, and makes a step of AdamW. That is exact, as a loss
reaches the weights only through the log-probabilities of the tokens that were read. What needs more
than those is refused in `train.resolve`: the entropy of texts, a temperature of texts, a critic,
distillation.
"""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from typing_extensions import override

from reflectkit.errors import CheckpointError, DivergedError
from reflectkit.eventloop import run_sync
from reflectkit.jsonl import replacing_folder, write_json
from reflectkit.models.checkpoint_metadata import ROLE_FILE, SERVICE, config_of
from reflectkit.models.labels import trie
from reflectkit.models.scoring import along_paths
from reflectkit.sampling import checks
from reflectkit.sampling.base import Sampler
from reflectkit.sampling.service import ServiceSampler, label_places, label_rows
from reflectkit.sampling.service_interface import OptimizerStep, ServiceAdapter
from reflectkit.train.learner import LearnerState, LossOutput, PolicyLearner, Settings, check_finite
from reflectkit.train.meter import Meter
from reflectkit.train.microbatch import Scored, Unit, scored_choices, units
from reflectkit.types import ANSWERS, Sample

PROBE_TOKENS = 16
"""Of the row whose log-probabilities identify saved weights."""
SAME = 0.02
"""Nats by which these may differ where the weights are the same; services round to bfloat16."""


def save_without_weights(
    folder: Path,
    base: str,
    tokenizer: Any,
    facts: Mapping[str, Any],
    answer: str,
    write_rest: Callable[[Path], None] | None = None,
) -> None:
    """Write a model folder, atomically, whose weights are on a service.

    base: a folder or a hub id, for its config. facts: JSON values, with the role and what leads to
    the weights. answer: what the policy answers a choice with. write_rest: writes more files into
    the folder that it is given.
    """
    with replacing_folder(folder) as staging:
        config_of(base).save_pretrained(staging)
        tokenizer.save_pretrained(staging)
        form = {"answer": answer} if answer in ANSWERS[1:] else {}
        write_json(staging / ROLE_FILE, {**facts, **form})
        if write_rest is not None:
            write_rest(staging)


def probe(adapter: ServiceAdapter, tokenizer: Any) -> list[float]:
    """Log-probabilities of tokens that are spread over the vocabulary, which identify weights."""
    row = checks.spread(len(tokenizer), PROBE_TOKENS)
    return run_sync(adapter.forward([row]))[0]


def refuse_other_weights(
    path: str,
    here: Sequence[float],
    saved: Sequence[float],
) -> None:
    """Raises CheckpointError if the weights loaded from `path` have another `probe` than the saved
    ones had.
    """
    apart = max(abs(one - other) for one, other in zip(here, saved, strict=True))
    if not apart <= SAME:
        difference = f"log-probabilities differ by {apart:.2g} nats"
        raise CheckpointError(f"{path} holds other weights than were saved ({difference})")


class ServiceLearner(PolicyLearner):
    """Learns with an adapter on a service.

    base: of the policy, as a folder or a hub id, for its tokenizer and config. record: what a
    checkpoint says about the service. start: the policy that training started from, for a KL
    penalty. clips: whether the loss of a token is `losses.clipped_loss`. meter: counts what is
    asked.
    """

    def __init__(
        self,
        adapter: ServiceAdapter,
        tokenizer: Any,
        base: str,
        settings: Settings,
        record: Mapping[str, Any],
        *,
        role: str | None = None,
        answer: str = "",
        start: ServiceAdapter | None = None,
        clips: bool = False,
        meter: Meter | None = None,
        notify: Callable[[str], None] = lambda text: None,
    ) -> None:
        super().__init__(settings, None, notify)
        self.meter = meter or Meter()
        self.adapter, self.tokenizer, self.base, self.start = adapter, tokenizer, base, start
        self.record, self.role, self.answer, self.clips = dict(record), role, answer, clips
        self.url = str(self.record.get("engine", "the service"))
        self._prefix = f"reflectkit-{secrets.token_hex(4)}"
        self._saves = 0
        self._sampler: Sampler | None = None

    @override
    def publish(self, sampler: Sampler, version: int) -> None:
        self._sampler = sampler
        run_sync(sampler.publish(self.adapter, version))

    @override
    def save(
        self,
        folder: Path,
        facts: Mapping[str, Any],
        write_rest: Callable[[Path], None] | None = None,
    ) -> None:
        known = {"role": self.role, SERVICE: self.record} | dict(facts)
        save_without_weights(folder, self.base, self.tokenizer, known, self.answer, write_rest)

    @override
    def state(self) -> LearnerState:
        """Saves weights and optimizer on the service; their path there is part of the state, and so
        is what they say, to be compared when they are loaded.
        """
        self._saves += 1
        self.record["state"] = run_sync(self.adapter.save(f"{self._prefix}-{self._saves}"))
        said = {**self.record, "probe": probe(self.adapter, self.tokenizer)}
        return LearnerState({"pace": self.pace, SERVICE: said, "metered": self.meter.state()}, {})

    @override
    def load(self, state: LearnerState) -> None:
        saved = state.numbers[SERVICE]
        run_sync(self.adapter.load(saved["state"]))
        self.record["state"] = saved["state"]
        self.pace = float(state.numbers["pace"])
        self.meter.restore(state.numbers["metered"])
        refuse_other_weights(saved["state"], probe(self.adapter, self.tokenizer), saved["probe"])

    @override
    def forget(self) -> None:
        """Nothing is kept."""

    @override
    def update(
        self,
        samples: Sequence[Sample],
        generator: random.Random,
        rate: float = 1.0,
        entropy_rate: float = 1.0,
    ) -> LossOutput:
        """See `PolicyLearner.update`; with the most requests that the sampler had in flight, and
        what the service has cost so far, if its prices are known.
        """
        output = super().update(samples, generator, rate, entropy_rate)
        more: dict[str, float] = {}
        if isinstance(self._sampler, ServiceSampler):
            more["requests_in_flight"] = self._sampler.most_in_flight
        if any(self.meter.prices.values()):
            more["service_usd"] = self.meter.total_usd
        return replace(output, metrics={**output.metrics, **more})

    @override
    def _begin(self, samples: Sequence[Sample]) -> list[Unit]:
        return units(samples)

    @override
    def _step(
        self,
        samples: Sequence[Sample],
        minibatch: Sequence[Unit],
        may_stop: bool,
    ) -> dict[str, float] | None:
        numbers = [row for unit in minibatch for row in unit.rows]
        here = [samples[number] for number in numbers]

        rows = rows_of(minibatch)
        if self._service_has_loss(samples, minibatch):
            return self._clipped_step(samples, minibatch, rows, here, numbers)

        # 1. The service reads the rows
        logprobs = self._read(self.adapter, rows)
        reference_N: torch.Tensor | None = None
        if self.start is not None:
            frozen = [torch.tensor(values) for values in self._read(self.start, rows)]
            reference_N = scored_rows(
                samples, minibatch, frozen, self.settings.temperature
            ).logprob_N

        # 2. The loss, and its slope at each log-probability
        leaves = [torch.tensor(values, requires_grad=True) for values in logprobs]
        scored = scored_rows(samples, minibatch, leaves, self.settings.temperature)
        token_weights = self._token_weights(
            {number: sum(samples[number].loss_mask) for number in numbers}
        )
        fresh = sum(
            sum(samples[number].loss_mask) for number in numbers if not samples[number].replayed
        )
        loss, figures = self._loss(samples, scored, reference_N, token_weights, fresh)
        loss.backward()
        slopes = [[0.0] * len(leaf) if leaf.grad is None else leaf.grad.tolist() for leaf in leaves]
        is_first = self._changes is not None
        if self._changes is not None:
            self._compare(self._changes)
            self._changes = None
        steepest = max((abs(slope) for row in slopes for slope in row), default=0.0)
        check_finite(figures | {"slope": steepest, "objective": float(loss.detach())}, here)
        if may_stop and self._has_moved_too_far(figures["kl"]):
            return None

        if not all(unit.choices for unit in minibatch):
            del figures["entropy"]  # which texts have none of here

        # 3. The service adds up the gradients and makes a step
        answer = run_sync(self.adapter.backward(rows, logprobs, slopes))
        checks.rows(rows, answer, self.url)
        if is_first:
            self._compare_choices(minibatch, logprobs, answer)
        return self._stepped(figures, here)

    def _compare_choices(
        self,
        minibatch: Sequence[Unit],
        known: Sequence[Sequence[float]],
        answer: Sequence[Sequence[float]],
    ) -> None:
        """Report how far the log-probabilities of choices are from `known`, which may have been
        read to play. Raises MismatchError.
        """
        differences: list[float] = []
        lengths: list[int] = []
        first = 0
        for unit in minibatch:
            place = len(unit.tokens) - 1
            for row in range(first, first + len(unit.choices)):
                pairs = zip(answer[row][place:], known[row][place:], strict=True)
                tokens = [new - old for new, old in pairs]
                differences += tokens
                lengths.append(len(tokens))
            first += max(1, len(unit.choices))
        if differences:
            self._compare([(torch.tensor(differences), lengths)])

    def _service_has_loss(self, samples: Sequence[Sample], minibatch: Sequence[Unit]) -> bool:
        """Whether the service's own clipped loss is that of these rows: texts of the present
        policy, with nothing added to it. It reads them once instead of twice.
        """
        settings = self.settings
        has_policy_loss_only = (
            self.start is None
            and settings.mask == "none"
            and not settings.is_cap
            and not settings.target_kl
        )
        texts = all(not unit.choices and not samples[unit.rows[0]].replayed for unit in minibatch)
        return self.clips and has_policy_loss_only and texts

    def _clipped_step(
        self,
        samples: Sequence[Sample],
        minibatch: Sequence[Unit],
        rows: Sequence[tuple[int, ...]],
        here: Sequence[Sample],
        numbers: Sequence[int],
    ) -> dict[str, float]:
        """A step by the service's clipped loss. rows, here, numbers: what is read, its samples and
        their places.
        """
        # 1. What the service needs: the sampler's log-probabilities, and weighted advantages
        settings = self.settings
        token_weights = self._token_weights(
            {number: sum(samples[number].loss_mask) for number in numbers}
        )
        old, advantages = [], []
        for unit in minibatch:
            sample, weight = samples[unit.rows[0]], token_weights[unit.rows[0]]
            old.append(list(sample.logprobs[1:]))
            columns = zip(sample.advantages[1:], sample.loss_mask[1:], strict=True)
            advantages.append([weight * value * trained for value, trained in columns])
        # 2. Its loss and gradients
        clip = (1 - settings.clip, 1 + (settings.clip_high or settings.clip))
        logprobs = run_sync(self.adapter.clipped_backward(rows, old, advantages, clip))
        checks.rows(rows, logprobs, self.url)
        scored = scored_rows(
            samples, minibatch, [torch.tensor(row) for row in logprobs], settings.temperature
        )
        # 3. Our figures of the same tokens, then the step
        fresh = sum(sum(samples[number].loss_mask) for number in numbers)
        _, figures = self._loss(samples, scored, None, token_weights, fresh)
        if self._changes is not None:
            self._compare(self._changes)
            self._changes = None
        check_finite(figures, here)
        del figures["entropy"]
        return self._stepped(figures, here)

    def _stepped(self, figures: dict[str, float], here: Sequence[Sample]) -> dict[str, float]:
        """`figures` of a step that the service makes now, with the gradient's norm if it tells
        that.
        """
        settings = self.settings
        rate = settings.learning_rate * self.schedule_rate * self.pace
        norm = run_sync(
            self.adapter.step(OptimizerStep(rate, settings.weight_decay, settings.max_grad_norm))
        )
        if norm is None:
            return figures
        if not math.isfinite(norm):
            raise DivergedError(f"the update diverged (gradient_norm {norm})", here)
        return figures | {"gradient_norm": norm}

    def _read(self, adapter: ServiceAdapter, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        logprobs = run_sync(adapter.forward(rows))
        checks.rows(rows, logprobs, self.url)
        return logprobs


def rows_of(minibatch: Sequence[Unit]) -> list[tuple[int, ...]]:
    """What the service reads: a row for each label of a choice, and each row of text."""
    rows: list[tuple[int, ...]] = []
    # In the order in which `scored_rows` counts them
    for unit in minibatch:
        rows += label_rows(unit.tokens, unit.choices) if unit.choices else [unit.tokens]
    return rows


def scored_rows(
    samples: Sequence[Sample],
    minibatch: Sequence[Unit],
    logprobs: Sequence[torch.Tensor],
    temperature: float,
) -> Scored:
    """The scores of the trained tokens of `minibatch`, choices first, from the log-probabilities of
    the tokens of `rows_of`, each a tensor. Texts have no entropy, as it would need the whole
    vocabulary.
    """
    starts, start = [], 0
    for unit in minibatch:
        starts.append(start)
        start += max(1, len(unit.choices))
    with_choices = [number for number, unit in enumerate(minibatch) if unit.choices]
    with_text = [number for number, unit in enumerate(minibatch) if not unit.choices]
    parts: list[Scored] = []

    # 1. Choices: a softmax over the tokens that may come next, wherever labels part
    if with_choices:
        tries = [trie(minibatch[number].choices) for number in with_choices]
        nodes: list[torch.Tensor] = []
        roots: list[int] = []
        for number, tree in zip(with_choices, tries, strict=True):
            unit, first = minibatch[number], starts[number]
            roots.append(len(nodes))
            for places in label_places(tree, unit.choices):
                tokens = [
                    logprobs[first + row][len(unit.tokens) - 1 + place] for row, place in places
                ]
                nodes.append(torch.log_softmax(torch.stack(tokens) / temperature, dim=-1))
        logprobs_NC = torch.nn.utils.rnn.pad_sequence(
            nodes, batch_first=True, padding_value=-math.inf
        )
        logprobs_UK = along_paths(logprobs_NC, tries, roots)
        hidden_UD = logprobs_UK.new_zeros(len(with_choices), 0)
        parts.append(
            scored_choices(
                samples, [minibatch[number] for number in with_choices], logprobs_UK, hidden_UD
            )
        )

    # 2. Texts
    if with_text:
        places = [
            (number, place)
            for number in with_text
            for place, is_trained in enumerate(samples[minibatch[number].rows[0]].loss_mask)
            if is_trained
        ]
        tokens_N = torch.stack([logprobs[starts[number]][place - 1] for number, place in places])
        rows = [minibatch[number].rows[0] for number, _ in places]
        zeros_N, none_N0 = torch.zeros(len(places)), torch.zeros(len(places), 0)
        parts.append(
            Scored(rows, [place for _, place in places], tokens_N, zeros_N, none_N0, none_N0)
        )

    # 3. Both, where a minibatch has both
    if len(parts) == 1:
        return parts[0]
    choices, texts = parts
    return Scored(
        choices.row_N + texts.row_N,
        choices.place_N + texts.place_N,
        torch.cat([choices.logprob_N, texts.logprob_N]),
        torch.cat([choices.entropy_N, texts.entropy_N]),
        torch.cat([choices.hidden_ND, texts.hidden_ND]),
        choices.logprobs_NK.new_zeros(len(choices.row_N) + len(texts.row_N), 0),
    )
