"""Build and fit of an sft run on a training service (--engine): the rows are made here, and the
weights are there.

Per gradient step, the service reads a batch, the loss and its slopes are computed here, and the
service adds up the gradients of these slopes and makes a step of AdamW. A checkpoint holds the path
of weights and optimizer on the service, the log, and what was paid.
"""

from __future__ import annotations

import math
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reflectkit.chat.client import Budget
from reflectkit.chat.config import BudgetSpentError
from reflectkit.config import identifying
from reflectkit.console import Progress, Report
from reflectkit.errors import CheckpointError, DataError, DivergedError
from reflectkit.eventloop import run_sync
from reflectkit.jsonl import read_json, write_json
from reflectkit.models.checkpoint_metadata import SERVICE, model_facts
from reflectkit.runs.run import checkpoints, seal
from reflectkit.sampling import checks
from reflectkit.sampling.service import (
    ServiceBase,
    base_on_service,
    load_weights,
    open_service,
    opened_adapter,
    probe,
    record_of,
)
from reflectkit.sampling.service_interface import OptimizerStep, ServiceAdapter
from reflectkit.seeding import generator
from reflectkit.text import pluralize
from reflectkit.train.meter import READ, TRAINED, Meter, MeteredService, token_plan
from reflectkit.train.processes import Processes, stopped_between
from reflectkit.train.service_learner import save_without_weights
from reflectkit.train.settings import tracking
from reflectkit.train.sft.build import gradient_steps, last_checkpoint
from reflectkit.train.sft.fit import EXPLODED, MEASUREMENTS
from reflectkit.train.sft.measure import ACCURACY, LOSS, PROBABILITY, since_gain
from reflectkit.train.sft.resolve import SFTRun
from reflectkit.train.sft.tokens import NOT_TRAINED, encode_for, row_length
from reflectkit.train.trainer import schedule_factor

STATE = "training_state.json"
"""A file of a checkpoint: the log, the step, and what was paid."""
LOG_EVERY = 20
"""Steps between rows of the log."""


@dataclass(frozen=True)
class ServiceTraining:
    """The adapter, the rows and the number of steps of training on a service."""

    run: SFTRun
    folder: Path
    """The folder of the run."""
    source: str
    """The base as a folder or a hub id, for its tokenizer and config."""
    tokenizer: Any
    adapter: ServiceAdapter
    record: dict[str, Any]
    """The entry about the service in a checkpoint."""
    meter: Meter
    url: str
    """The URL of the service, for messages."""
    rows: list[dict[str, Any]]
    """The rows to train on, as tokens."""
    held_out: list[dict[str, Any]]
    """The held-out rows, on which the adapter is measured."""
    steps: int
    """The number of gradient steps, at most."""
    resume: Path | None
    """The checkpoint that training starts from."""
    parameters: None = None
    """The number of parameters, which only the service knows."""
    processes: Processes = field(default_factory=Processes)
    """Only this process."""

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return max(map(row_length, self.rows))


def build(
    run: SFTRun,
    folder: Path,
    progress: Progress,
) -> ServiceTraining:
    """An adapter on the service, and the rows as tokens.

    folder: the run's, with the checkpoints to resume from.

    Raises DataError: a row is too long. ConfigError: the service does not have the base. GoneError:
    it is away.
    """
    config = run.config
    rows = run.rows
    settings = config.engine.settings
    assert run.start is not None

    # 1. The rows as tokens, before anything is paid
    source = run.start.text
    reader = ServiceBase.of(source)
    encoded = encode_for(config, rows.source, rows.training, reader, prompt_loss=config.prompt_loss)
    held_out = encode_for(config, rows.held_out_source, rows.held_out, reader)

    # 2. The service
    meter = Meter(settings.prices, Budget(config.max_cost_usd))
    service = MeteredService(open_service(config.engine.name, settings, progress.news), meter)
    models = run_sync(service.models())

    # 3. The adapter: a new one, or that of a checkpoint which was trained there
    earlier = record_of(run.start.text)
    base = base_on_service(
        models, earlier.get("base") or source, settings.service_model, service.url
    )
    rank = int(earlier.get("rank") or config.lora.r)
    resume = last_checkpoint(folder, progress)
    first_weights = earlier if resume is None else {}
    seed = config.run.seed
    opening = opened_adapter(service, base, rank, seed, first_weights, reader.tokenizer)
    adapter = run_sync(opening)
    progress.news(f"{service.url}: a LoRA adapter of rank {rank} on {base}")

    # 4. What is needed to train
    record = {
        "engine": config.engine.name,
        "rows": settings.service_rows,
        "base": base,
        "rank": rank,
    }
    return ServiceTraining(
        run=run,
        folder=folder,
        source=source,
        tokenizer=reader.tokenizer,
        adapter=adapter,
        record=record,
        meter=meter,
        url=service.url,
        rows=encoded,
        held_out=held_out,
        steps=gradient_steps(config, len(encoded)),
        resume=resume,
    )


@dataclass
class ServiceFit:
    """Training on a service in progress, and then its result."""

    training: ServiceTraining
    steps: int = 0
    """The number of steps so far."""
    log: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Figures by step."""
    losses: list[float] = field(default_factory=list)
    """The losses of the steps since the last row of the log, in nats per trained token."""
    checkpoint: Path = Path()
    """The checkpoint of the last step."""
    prefix: str = field(default_factory=lambda: f"reflectkit-{secrets.token_hex(4)}")
    """The prefix of all names under which this process saves on the service."""

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The rows of the log: one every 20 steps, and one for each measurement on held-out rows."""
        return [{**figures, "step": step} for step, figures in sorted(self.log.items())]

    @property
    def measurements(self) -> list[dict[str, Any]]:
        """The rows of the log with a measurement on held-out rows."""
        return [row for row in self.metrics if LOSS in row]

    def save(self) -> None:
        """Save weights and optimizer on the service, and their path there in `checkpoint-<step>`."""
        # 1. On the service
        training = self.training
        step = self.steps
        path = run_sync(training.adapter.save(f"{self.prefix}-{step}"))
        values = run_sync(probe(training.adapter, training.tokenizer, training.url))

        # 2. What the checkpoint is, and how well it does
        facts = dict(training.run.facts)
        facts["role"] = training.run.config.role
        facts[SERVICE] = {**training.record, "state": path, "probe": values}
        facts["step"] = step
        figures = self.log.get(step, {})
        for name in (PROBABILITY, LOSS):
            if name in figures:
                facts[name] = figures[name]

        # 3. Where training continues
        state = {
            "step": step,
            "log": list(self.log.items()),
            "losses": self.losses,
            "metered": training.meter.state(),
        }

        def write_state(staging: Path) -> None:
            write_json(staging / STATE, state)
            seal(staging)

        self.checkpoint = training.folder / f"checkpoint-{step}"
        save_without_weights(
            self.checkpoint,
            training.source,
            training.tokenizer,
            facts,
            training.run.rows.answer,
            write_state,
        )

    def load(self, checkpoint: Path) -> None:
        """Continue from `checkpoint`. Raises LostWeightsError if the service no longer has its
        weights.
        """
        # 1. The state here
        training = self.training
        try:
            state = read_json(checkpoint / STATE)
            record = dict(model_facts(checkpoint)[SERVICE])
            self.steps = int(state["step"])
            self.log = {int(step): dict(figures) for step, figures in state["log"]}
            self.losses = list(map(float, state["losses"]))
            training.meter.restore(state["metered"])
        except (DataError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{checkpoint} holds no state of sft on a service ({error!r})"
            ) from None

        # 2. The weights
        run_sync(load_weights(training.adapter, record, training.tokenizer, training.url))
        self.checkpoint = checkpoint

    def best(self) -> int | None:
        """The step of the best measurement; None without one."""
        best_step = None
        best_probability = -math.inf
        for row in self.measurements:
            # Of equal probabilities, the later step
            if row[PROBABILITY] >= best_probability:
                best_step = row["step"]
                best_probability = row[PROBABILITY]
        return best_step

    def prune(self, keep: int) -> None:
        """Remove all checkpoints but the last `keep` and the best. Weights on the service stay."""
        best = self.best()
        for old in checkpoints(self.training.folder)[:-keep]:
            if old.name != f"checkpoint-{best}":
                shutil.rmtree(old, ignore_errors=True)


def fit(training: ServiceTraining, progress: Progress) -> ServiceFit:
    """Train the adapter, and save it. The same command resumes from the last checkpoint.

    Raises DivergedError; GoneError: the service is away for too long; BudgetSpentError.
    """
    config = training.run.config
    save_steps = config.checkpoints.save_steps
    state = ServiceFit(training)
    if training.resume is not None:
        state.load(training.resume)
    settings = identifying(config) | {"max_steps": training.steps}
    with (
        progress.bar(f"SFT {config.role}", training.steps, state.steps) as bar,
        tracking(config.checkpoints.report_to, training.folder, settings) as log,
        stopped_between("step", progress) as stop,
    ):
        while state.steps < training.steps and not has_no_more_gain(state):
            # 1. A step
            try:
                loss = step(state)
            except BudgetSpentError:
                if state.steps:
                    state.save()
                raise
            state.losses.append(loss)
            bar_figures = {"loss": loss}

            # 2. The log, and the measurement on held-out rows
            figures: dict[str, Any] = {}
            if state.steps % LOG_EVERY == 0 or state.steps == training.steps:
                figures["loss"] = math.fsum(state.losses) / len(state.losses)
                state.losses.clear()
            if is_measured(training, state.steps):
                figures |= measure(training)
                bar_figures["held-out loss"] = figures[LOSS]
            if figures:
                state.log[state.steps] = figures
                log(figures, state.steps)
            bar.advance(1, **bar_figures)

            # 3. The checkpoint
            is_best = bool(figures) and state.best() == state.steps
            if state.steps % save_steps == 0 or is_best or stop:
                state.save()
                state.prune(config.checkpoints.keep_checkpoints)
            if stop:
                raise KeyboardInterrupt

    # 4. The last checkpoint and the best one stay
    if state.checkpoint.name != f"checkpoint-{state.steps}":
        state.save()
    state.prune(1)
    if state.steps < training.steps:
        steps = pluralize(state.steps, "step")
        failures = pluralize(config.most_measurements, "measurement")
        progress.news(f"ended after {steps}: no gain on held-out rows in {failures} (--patience)")
    return state


def step(state: ServiceFit) -> float:
    """A gradient step on the next batch. Returns its loss, in nats per trained token.

    Raises DivergedError.
    """
    # 1. The service reads the batch
    training = state.training
    config = training.run.config
    batch = batch_of(training, state.steps)
    rows = [row["input_ids"] for row in batch]
    logprobs = read(training, rows)

    # 2. The loss: the mean over all trained tokens of the batch
    values = trained_logprobs(batch, logprobs)
    loss = -math.fsum(values) / len(values)
    guessing = math.log(len(training.tokenizer))
    if not loss <= EXPLODED * guessing:
        what = f"the loss is {loss:.4g} nats per token, and that of guessing {guessing:.2g}"
        fix = f"lower --learning-rate, which is {config.optim.rate:g}"
        raise DivergedError(f"training diverged at step {state.steps + 1} ({what}); {fix}")

    # 3. Its slopes, equal for all trained tokens, by which the service adds up the gradients
    slopes = []
    for row in batch:
        slopes.append([-(label != NOT_TRAINED) / len(values) for label in row["labels"][1:]])
    run_sync(training.adapter.backward(rows, logprobs, slopes))

    # 4. The step
    optim = config.optim
    warmup = optim.warmup_steps
    if warmup is None:
        warmup = max(1, training.steps // 20)
    rate = optim.rate * schedule_factor(optim.schedule, state.steps, training.steps, warmup)
    run_sync(training.adapter.step(OptimizerStep(rate, optim.weight_decay, optim.max_grad_norm)))
    state.steps += 1
    return loss


def batch_of(training: ServiceTraining, number: int) -> list[dict[str, Any]]:
    """The rows of gradient step `number`, counted from 0. Each epoch has an order of its own.

    The order depends on the seed and the epoch alone, so a resumed run reads the same rows.
    """
    config = training.run.config
    size = config.batch_size
    batches = math.ceil(len(training.rows) / size)
    epoch, place = divmod(number, batches)
    order = list(range(len(training.rows)))
    generator(config.run.seed, "sft rows", epoch).shuffle(order)
    first = place * size
    return [training.rows[index] for index in order[first : first + size]]


def read(training: ServiceTraining, rows: Sequence[Sequence[int]]) -> list[list[float]]:
    """The log-probabilities of the tokens of `rows` after their first ones."""
    logprobs = run_sync(training.adapter.forward(rows))
    checks.rows(rows, logprobs, training.url)
    return logprobs


def trained_logprobs(
    batch: Sequence[Mapping[str, Any]], logprobs: Sequence[Sequence[float]]
) -> list[float]:
    """The log-probabilities of the trained tokens of `batch`.

    logprobs: of all its tokens but the first of each row.
    """
    values = []
    for row, row_logprobs in zip(batch, logprobs, strict=True):
        for label, logprob in zip(row["labels"][1:], row_logprobs, strict=True):
            if label != NOT_TRAINED:
                values.append(logprob)
    return values


def is_measured(training: ServiceTraining, step: int) -> bool:
    """Whether held-out rows are measured after gradient step `step`."""
    if not training.held_out:
        return False
    interval = training.run.config.validate_steps or math.ceil(training.steps / MEASUREMENTS)
    return step == training.steps or step % interval == 0


def measure(training: ServiceTraining) -> dict[str, float]:
    """PROBABILITY and LOSS of held-out rows, see `train.sft.measure`.

    There is no ACCURACY, since a service does not tell the likeliest token.
    """
    values: list[float] = []
    size = training.run.config.batch_size
    for first in range(0, len(training.held_out), size):
        batch = training.held_out[first : first + size]
        logprobs = read(training, [row["input_ids"] for row in batch])
        values += trained_logprobs(batch, logprobs)
    return {
        PROBABILITY: math.fsum(map(math.exp, values)) / len(values),
        LOSS: -math.fsum(values) / len(values),
    }


def has_no_more_gain(state: ServiceFit) -> bool:
    """Whether training ends because the last `most_measurements` had no gain on held-out rows."""
    patience = state.training.run.config.most_measurements
    if not patience:
        return False
    # Without an accuracy, a gain is one of the probability
    measurements = [{**row, ACCURACY: 0.0} for row in state.measurements]
    return since_gain(measurements) >= patience


def plan(run: SFTRun) -> Report:
    """The report of --plan: the tokens that training takes, and dollars where prices are given.

    The service is not asked.
    """
    # 1. The rows as tokens
    config = run.config
    rows = run.rows
    assert run.start is not None
    base = ServiceBase.of(run.start.text)
    encoded = encode_for(config, rows.source, rows.training, base, prompt_loss=config.prompt_loss)
    held_out = encode_for(config, rows.held_out_source, rows.held_out, base)

    # 2. Tokens of all batches, on average, since batches are drawn
    steps = gradient_steps(config, len(encoded))
    mean_length = sum(map(row_length, encoded)) / len(encoded)
    trained_tokens = round(steps * config.batch_size * mean_length)

    # 3. Tokens of all measurements on held-out rows
    measurements = min(steps, MEASUREMENTS)
    if config.validate_steps:
        measurements = steps // config.validate_steps
    measured_tokens = sum(map(row_length, held_out)) * measurements

    # 4. A step reads the rows, and then trains on them
    counts = {READ: trained_tokens + measured_tokens, TRAINED: trained_tokens}
    return token_plan("sft", config.engine, config.run.results_dir, "steps", steps, counts)
