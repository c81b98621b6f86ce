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

from reflectkit.errors import DivergedError
from reflectkit.eventloop import run_sync
from reflectkit.jsonl import replacing_folder, write_json
from reflectkit.models.checkpoint_metadata import ROLE_FILE, SERVICE, config_of
from reflectkit.models.labels import trie
from reflectkit.models.scoring import along_paths
from reflectkit.sampling import checks
from reflectkit.sampling.base import Sampler
from reflectkit.sampling.service import (
    ServiceSampler,
    label_places,
    label_rows,
    load_weights,
    probe,
)
from reflectkit.sampling.service_interface import OptimizerStep, ServiceAdapter
from reflectkit.train.learner import (
    LearnerSettings,
    LearnerState,
    LossOutput,
    PolicyLearner,
    check_finite,
)
from reflectkit.train.meter import Meter
from reflectkit.train.microbatch import Scored, Unit, scored_choices, units
from reflectkit.types import ANSWERS, Sample


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


class ServiceLearner(PolicyLearner):
    """Learns with an adapter on a service.

    Parameters
    ----------
    base: of the policy, as a folder or a hub id, for its tokenizer and config.
    record: what a checkpoint says about the service.
    start: the policy that training started from, for a KL penalty.
    clips: whether the loss of a token is `losses.clipped_loss`.
    meter: counts and pays what is asked.
    """

    def __init__(
        self,
        adapter: ServiceAdapter,
        tokenizer: Any,
        base: str,
        settings: LearnerSettings,
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
        self.adapter = adapter
        self.tokenizer = tokenizer
        self.base = base
        self.start = start
        self.record = dict(record)
        self.role = role
        self.answer = answer
        self.clips = clips
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
        all_facts = {"role": self.role, SERVICE: self.record, **facts}
        save_without_weights(folder, self.base, self.tokenizer, all_facts, self.answer, write_rest)

    @override
    def state(self) -> LearnerState:
        """Saves weights and optimizer on the service. The state has their path there, and their
        `probe`, to be compared when they are loaded.
        """
        self._saves += 1
        name = f"{self._prefix}-{self._saves}"
        self.record["state"] = run_sync(self.adapter.save(name))
        self.record["probe"] = run_sync(probe(self.adapter, self.tokenizer, self.url))
        numbers = {
            "pace": self.pace,
            SERVICE: dict(self.record),
            "metered": self.meter.state(),
        }
        return LearnerState(numbers, {})

    @override
    def load(self, state: LearnerState) -> None:
        self.pace = float(state.numbers["pace"])
        self.meter.restore(state.numbers["metered"])
        saved = state.numbers[SERVICE]
        run_sync(load_weights(self.adapter, saved, self.tokenizer, self.url))
        self.record |= {"state": saved["state"], "probe": saved["probe"]}

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
        """See `PolicyLearner.update`.

        Two metrics are added: the most requests that the sampler had in flight, and what the
        service has cost so far, if its prices are known.
        """
        output = super().update(samples, generator, rate, entropy_rate)
        metrics = dict(output.metrics)
        if isinstance(self._sampler, ServiceSampler):
            metrics["requests_in_flight"] = self._sampler.most_in_flight
        if any(self.meter.prices.values()):
            metrics["service_usd"] = self.meter.total_usd
        return replace(output, metrics=metrics)

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
        # 1. The rows, the weights of their tokens in the loss, and the tokens that are not replayed
        rows = rows_of(minibatch)
        numbers = [number for unit in minibatch for number in unit.rows]
        here = [samples[number] for number in numbers]
        token_counts = {number: sum(samples[number].loss_mask) for number in numbers}
        token_weights = self._token_weights(token_counts)
        fresh_tokens = 0
        for number, count in token_counts.items():
            if not samples[number].replayed:
                fresh_tokens += count
        if self._service_has_loss(samples, minibatch):
            return self._clipped_step(samples, minibatch, here, token_weights, fresh_tokens)

        # 2. The service reads the rows
        temperature = self.settings.temperature
        logprobs = self._read(self.adapter, rows)
        reference_N: torch.Tensor | None = None
        if self.start is not None:
            frozen = [torch.tensor(values) for values in self._read(self.start, rows)]
            reference_N = scored_rows(samples, minibatch, frozen, temperature).logprob_N

        # 3. The loss, and its slope at each log-probability
        leaves = [torch.tensor(values, requires_grad=True) for values in logprobs]
        scored = scored_rows(samples, minibatch, leaves, temperature)
        loss, tensors = self._loss(samples, scored, reference_N, token_weights)
        figures = self._numbers(tensors, fresh_tokens)
        loss.backward()
        slopes = []
        for leaf in leaves:
            slopes.append([0.0] * len(leaf) if leaf.grad is None else leaf.grad.tolist())

        # 4. Compare with the sampler; no step is made if the policy has moved too far
        is_first = self._changes is not None
        if self._changes is not None:
            self._compare(self._changes)
            self._changes = None
        steepest = max((abs(slope) for row in slopes for slope in row), default=0.0)
        check_finite(figures | {"slope": steepest, "objective": float(loss.detach())}, here)
        if may_stop and self._has_moved_too_far(figures["kl"]):
            return None
        if not all(unit.choices for unit in minibatch):
            del figures["entropy"]  # texts have none here

        # 5. The service adds up the gradients and makes a step
        answer = run_sync(self.adapter.backward(rows, logprobs, slopes))
        checks.rows(rows, answer, self.url)
        if is_first:
            self._compare_choices(minibatch, logprobs, answer)
        return self._make_step(figures, here)

    def _compare_choices(
        self,
        minibatch: Sequence[Unit],
        earlier: Sequence[Sequence[float]],
        answer: Sequence[Sequence[float]],
    ) -> None:
        """Report how far the log-probabilities of choices are from `earlier` ones.

        earlier, answer: of the tokens of each row of `rows_of`. The earlier ones may have been read
        to play. Raises MismatchError.
        """
        differences: list[float] = []
        lengths: list[int] = []
        first = 0
        for unit in minibatch:
            prompt_size = len(unit.tokens) - 1
            for row in range(first, first + len(unit.choices)):
                label = answer[row][prompt_size:]
                earlier_label = earlier[row][prompt_size:]
                differences += [new - old for new, old in zip(label, earlier_label, strict=True)]
                lengths.append(len(label))
            first += max(1, len(unit.choices))
        if differences:
            self._compare([(torch.tensor(differences), lengths)])

    def _service_has_loss(self, samples: Sequence[Sample], minibatch: Sequence[Unit]) -> bool:
        """Whether the service's own clipped loss is that of these rows. It reads them once instead
        of twice.

        That needs texts of the present policy, and a loss to which nothing is added.
        """
        settings = self.settings
        needs_kl = bool(settings.target_kl or settings.max_kl)
        is_extended = settings.is_cap or needs_kl or settings.mask != "none"
        if not self.clips or self.start is not None or is_extended:
            return False
        return not any(unit.choices or samples[unit.rows[0]].replayed for unit in minibatch)

    def _clipped_step(
        self,
        samples: Sequence[Sample],
        minibatch: Sequence[Unit],
        here: Sequence[Sample],
        token_weights: Mapping[int, float],
        fresh_tokens: int,
    ) -> dict[str, float]:
        """A step by the service's clipped loss.

        here: the samples of the minibatch. token_weights, fresh_tokens: see `PolicyLearner._loss`.
        """
        # 1. What the service needs: the sampler's log-probabilities, and weighted advantages
        rows = rows_of(minibatch)
        old_logprobs = []
        advantages = []
        for unit in minibatch:
            sample = samples[unit.rows[0]]
            weight = token_weights[unit.rows[0]]
            old_logprobs.append(list(sample.logprobs[1:]))
            columns = zip(sample.advantages[1:], sample.loss_mask[1:], strict=True)
            advantages.append([weight * value * is_trained for value, is_trained in columns])

        # 2. Its loss and gradients
        settings = self.settings
        clip = (1 - settings.clip, 1 + (settings.clip_high or settings.clip))
        answer = run_sync(self.adapter.clipped_backward(rows, old_logprobs, advantages, clip))
        checks.rows(rows, answer, self.url)

        # 3. Our figures of the same tokens, then the step
        logprobs = [torch.tensor(values) for values in answer]
        scored = scored_rows(samples, minibatch, logprobs, settings.temperature)
        _, tensors = self._loss(samples, scored, None, token_weights)
        figures = self._numbers(tensors, fresh_tokens)
        if self._changes is not None:
            self._compare(self._changes)
            self._changes = None
        check_finite(figures, here)
        del figures["entropy"]
        return self._make_step(figures, here)

    def _make_step(self, figures: dict[str, float], here: Sequence[Sample]) -> dict[str, float]:
        """Let the service make a step. Returns its `figures`, with the gradient's norm if the
        service tells it.

        Raises DivergedError, with the samples `here`, if the norm is not finite.
        """
        settings = self.settings
        rate = settings.learning_rate * self.schedule_rate * self.pace
        step = OptimizerStep(rate, settings.weight_decay, settings.max_grad_norm)
        norm = run_sync(self.adapter.step(step))
        if norm is None:
            return figures
        if not math.isfinite(norm):
            raise DivergedError(f"the update diverged (gradient_norm {norm})", here)
        return figures | {"gradient_norm": norm}

    def _read(self, adapter: ServiceAdapter, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        """The log-probabilities of the tokens of each row, after its first one."""
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
    """The scores of the trained tokens of `minibatch`, choices first.

    logprobs: of the tokens of each row of `rows_of`. Texts have no entropy, as it would need the
    whole vocabulary.
    """
    # 1. Choices and texts, each with its rows' log-probabilities
    choices: list[tuple[Unit, Sequence[torch.Tensor]]] = []
    texts: list[tuple[Unit, torch.Tensor]] = []
    start = 0
    for unit in minibatch:
        if unit.choices:
            end = start + len(unit.choices)
            choices.append((unit, logprobs[start:end]))
            start = end
        else:
            texts.append((unit, logprobs[start]))
            start += 1

    # 2. Their scores
    if not texts:
        return _scored_choices(samples, choices, temperature)
    if not choices:
        return _scored_texts(samples, texts)
    first = _scored_choices(samples, choices, temperature)
    second = _scored_texts(samples, texts)
    row_N = first.row_N + second.row_N
    return Scored(
        row_N=row_N,
        place_N=first.place_N + second.place_N,
        logprob_N=torch.cat([first.logprob_N, second.logprob_N]),
        entropy_N=torch.cat([first.entropy_N, second.entropy_N]),
        hidden_ND=torch.cat([first.hidden_ND, second.hidden_ND]),
        logprobs_NK=first.logprobs_NK.new_zeros(len(row_N), 0),
    )


def _scored_choices(
    samples: Sequence[Sample],
    choices: Sequence[tuple[Unit, Sequence[torch.Tensor]]],
    temperature: float,
) -> Scored:
    """The scores of choices, from U units and the log-probabilities of their `label_rows`."""
    tries = [trie(unit.choices) for unit, _ in choices]

    # 1. At each node, a softmax over the tokens that may come next
    node_logprobs: list[torch.Tensor] = []
    roots: list[int] = []
    for (unit, rows), tree in zip(choices, tries, strict=True):
        roots.append(len(node_logprobs))
        start = len(unit.tokens) - 1
        for places in label_places(tree, unit.choices):
            tokens = torch.stack([rows[row][start + place] for row, place in places])
            node_logprobs.append(torch.log_softmax(tokens / temperature, dim=-1))
    logprobs_NC = torch.nn.utils.rnn.pad_sequence(
        node_logprobs, batch_first=True, padding_value=-math.inf
    )

    # 2. The labels' log-probabilities; a service has no hidden states
    logprobs_UK = along_paths(logprobs_NC, tries, roots)
    hidden_UD = logprobs_UK.new_zeros(len(choices), 0)
    return scored_choices(samples, [unit for unit, _ in choices], logprobs_UK, hidden_UD)


def _scored_texts(
    samples: Sequence[Sample],
    texts: Sequence[tuple[Unit, torch.Tensor]],
) -> Scored:
    """The scores of the trained tokens of texts, from those of all tokens after the first one."""
    row_N = []
    place_N = []
    logprobs = []
    for unit, row_logprobs in texts:
        row = unit.rows[0]
        for place, is_trained in enumerate(samples[row].loss_mask):
            if is_trained:
                row_N.append(row)
                place_N.append(place)
                logprobs.append(row_logprobs[place - 1])
    none_N0 = torch.zeros(len(row_N), 0)
    return Scored(
        row_N=row_N,
        place_N=place_N,
        logprob_N=torch.stack(logprobs),
        entropy_N=torch.zeros(len(row_N)),
        hidden_ND=none_N0,
        logprobs_NK=none_N0,
    )
