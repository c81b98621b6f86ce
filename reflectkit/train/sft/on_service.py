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
from reflectkit.models.checkpoint_metadata import (
    SERVICE,
    model_facts,
)
from reflectkit.runs.run import checkpoints, seal
from reflectkit.sampling import checks
from reflectkit.sampling.service import ServiceBase, base_on_service, loaded, open_service
from reflectkit.sampling.service_interface import OptimizerStep, ServiceAdapter
from reflectkit.seeding import generator
from reflectkit.text import pluralize
from reflectkit.train.meter import READ, TRAINED, Meter, MeteredService, token_plan
from reflectkit.train.processes import Processes, stopped_between
from reflectkit.train.service_learner import probe, refuse_other_weights, save_without_weights
from reflectkit.train.settings import tracking
from reflectkit.train.sft.build import gradient_steps, last_checkpoint
from reflectkit.train.sft.fit import EXPLODED, MEASUREMENTS
from reflectkit.train.sft.measure import ACCURACY, LOSS, PROBABILITY, since_gain
from reflectkit.train.sft.resolve import SFTRun
from reflectkit.train.sft.tokens import NOT_TRAINED, encode_for, row_length
from reflectkit.train.trainer import schedule_factor

STATE = "training_state.json"
"""The log of a checkpoint, its step, and what was paid."""
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
    """An adapter on the service, and the rows as tokens. folder: the run's, with the checkpoints to
    resume from.

    Raises DataError: a row is too long. ConfigError: the service does not have the base. GoneError:
    it is away.
    """
    config, rows = run.config, run.rows
    settings = config.engine.settings
    assert run.start is not None

    # 1. The rows as tokens, before anything is paid
    source = run.start.text
    reader = ServiceBase.of(source)
    encoded = encode_for(config, rows.source, rows.training, reader, prompt_loss=config.prompt_loss)
    held_out = encode_for(config, rows.held_out_source, rows.held_out, reader)

    # 2. The adapter: a new one, or that of a checkpoint which was trained there
    meter = Meter(settings.prices, Budget(config.max_cost_usd))
    service = MeteredService(open_service(config.engine.name, settings, progress.news), meter)
    earlier = dict(run.start.facts.get(SERVICE) or {})
    names = run_sync(service.models())
    base = base_on_service(
        names, earlier.get("base") or source, settings.service_model, service.url
    )
    rank = int(earlier.get("rank") or config.lora.r)
    resume = last_checkpoint(folder, progress)
    state = earlier.get("state") if resume is None else None
    adapter = run_sync(loaded(service, base, rank, config.run.seed, state))
    progress.news(f"{service.url}: a LoRA adapter of rank {rank} on {base}")
    record = {
        "engine": config.engine.name,
        "rows": settings.service_rows,
        "base": base,
        "rank": rank,
    }
    return ServiceTraining(
        run,
        folder,
        source,
        reader.tokenizer,
        adapter,
        record,
        meter,
        service.url,
        encoded,
        held_out,
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
        """Save weights and optimizer on the service, and what leads there in `checkpoint-<step>`."""
        # 1. On the service
        training, step = self.training, self.steps
        path = run_sync(training.adapter.save(f"{self.prefix}-{step}"))
        record = training.record | {"state": path}
        log = self.log.get(step, {})
        figures = {name: log[name] for name in (PROBABILITY, LOSS) if name in log}
        # 2. Here: what the checkpoint is, how well it does, and where training goes on
        role, answer = training.run.config.role, training.run.rows.answer
        facts = training.run.facts | {"role": role, SERVICE: record, "step": step} | figures
        state = {
            "step": step,
            "log": list(self.log.items()),
            "losses": self.losses,
            "metered": training.meter.state(),
            "probe": probe(training.adapter, training.tokenizer),
        }

        def write_state(staging: Path) -> None:
            write_json(staging / STATE, state)
            seal(staging)

        self.checkpoint = training.folder / f"checkpoint-{step}"
        save_without_weights(
            self.checkpoint, training.source, training.tokenizer, facts, answer, write_state
        )

    def load(self, place: Path) -> None:
        """Go on from checkpoint `place`. Raises CheckpointError if the service does not have its
        weights any more.
        """
        training = self.training
        try:
            state = read_json(place / STATE)
            path = model_facts(place)[SERVICE]["state"]
            self.steps = int(state["step"])
            self.log = {int(step): dict(figures) for step, figures in state["log"]}
            self.losses = list(map(float, state["losses"]))
            training.meter.restore(state["metered"])
        except (DataError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{place} holds no state of sft on a service ({error!r})"
            ) from None
        # A service that was restarted may know the name, and hold other weights under it
        run_sync(training.adapter.load(path))
        refuse_other_weights(path, probe(training.adapter, training.tokenizer), state["probe"])
        self.checkpoint = place

    def best(self) -> int | None:
        """The step of the best measurement, the last of equals; None without one."""
        # Of equal probabilities, the later step
        ranked = [(row[PROBABILITY], row["step"]) for row in self.measurements]
        return max(ranked)[1] if ranked else None

    def prune(self, keep: int) -> None:
        """Remove all checkpoints but the last `keep` and the best. What they name on the service
        stays there.
        """
        best = self.best()
        for old in checkpoints(self.training.folder)[:-keep]:
            if old.name != f"checkpoint-{best}":
                shutil.rmtree(old, ignore_errors=True)


def fit(training: ServiceTraining, progress: Progress) -> ServiceFit:
    """Train the adapter, and save it.

    Raises DivergedError, GoneError: the service is away for too long, and BudgetSpentError. The
    same command goes on from the last checkpoint.
    """
    config = training.run.config
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
            figures = {"loss": loss}

            # 2. The log, and the measurement on held-out rows
            if state.steps % LOG_EVERY == 0 or state.steps == training.steps:
                mean = math.fsum(state.losses) / len(state.losses)
                state.log.setdefault(state.steps, {})["loss"] = mean
                state.losses.clear()
            if is_measured(training, state.steps):
                measured = measure(training)
                state.log.setdefault(state.steps, {}).update(measured)
                figures["held-out loss"] = measured[LOSS]
            if state.steps in state.log:
                log(state.log[state.steps], state.steps)
            bar.advance(1, **figures)

            # 3. The checkpoint
            is_best = state.steps in state.log and state.best() == state.steps
            if state.steps % config.checkpoints.save_steps == 0 or is_best or stop:
                state.save()
                state.prune(config.checkpoints.keep_checkpoints)
            if stop:
                raise KeyboardInterrupt
    # 4. The end: the last checkpoint and the best one stay
    if state.checkpoint.name != f"checkpoint-{state.steps}":
        state.save()
    state.prune(1)
    if state.steps < training.steps:
        steps = pluralize(state.steps, "step")
        failures = pluralize(config.most_measurements, "measurement")
        progress.news(f"ended after {steps}: no gain on held-out rows in {failures} (--patience)")
    return state


def step(state: ServiceFit) -> float:
    """A gradient step on the next batch. Returns its loss, in nats per trained token. Raises
    DivergedError.
    """
    training, config = state.training, state.training.run.config
    batch = batch_of(training, state.steps)
    rows = [row["input_ids"] for row in batch]
    logprobs = read(training, rows)

    # 1. The loss: the mean over all trained tokens of the batch, whose slopes are equal
    values = trained_logprobs(batch, logprobs)
    loss = -math.fsum(values) / len(values)
    guessing = math.log(len(training.tokenizer))
    if not loss <= EXPLODED * guessing:
        what = f"the loss is {loss:.4g} nats per token, and that of guessing {guessing:.2g}"
        fix = f"lower --learning-rate, which is {config.optim.rate:g}"
        raise DivergedError(f"training diverged at step {state.steps + 1} ({what}); {fix}")

    # 2. The service adds up the gradients and makes a step
    slopes = []
    for row in batch:
        slopes.append([-(label != NOT_TRAINED) / len(values) for label in row["labels"][1:]])
    run_sync(training.adapter.backward(rows, logprobs, slopes))
    optim, steps = config.optim, training.steps
    warmup = max(1, steps // 20) if optim.warmup_steps is None else optim.warmup_steps
    rate = optim.rate * schedule_factor(optim.schedule, state.steps, steps, warmup)
    run_sync(training.adapter.step(OptimizerStep(rate, optim.weight_decay, optim.max_grad_norm)))
    state.steps += 1
    return loss


def batch_of(training: ServiceTraining, number: int) -> list[dict[str, Any]]:
    """The rows of gradient step `number` (0 is the first). Each pass over the rows has an order of
    its own.
    """
    config = training.run.config
    # From the step alone, so that a resumed run goes on with the same rows
    epoch, place = divmod(number, -(-len(training.rows) // config.batch_size))
    order = list(range(len(training.rows)))
    generator(config.run.seed, "sft rows", epoch).shuffle(order)
    first = place * config.batch_size
    return [training.rows[index] for index in order[first : first + config.batch_size]]


def read(training: ServiceTraining, rows: Sequence[Sequence[int]]) -> list[list[float]]:
    """The log-probabilities of the tokens of `rows` after their first ones."""
    logprobs = run_sync(training.adapter.forward(rows))
    checks.rows(rows, logprobs, training.url)
    return logprobs


def trained_logprobs(
    batch: Sequence[Mapping[str, Any]], logprobs: Sequence[Sequence[float]]
) -> list[float]:
    """The log-probabilities of the trained tokens of `batch`. logprobs: of all its tokens but the
    first of each row.
    """
    values = []
    for row, row_logprobs in zip(batch, logprobs, strict=True):
        for label, logprob in zip(row["labels"][1:], row_logprobs, strict=True):
            if label != NOT_TRAINED:
                values.append(logprob)
    return values


def is_measured(training: ServiceTraining, step: int) -> bool:
    """Whether held-out rows are measured after gradient step `step`."""
    every = training.run.config.validate_steps or -(-training.steps // MEASUREMENTS)
    return bool(training.held_out) and (step == training.steps or step % every == 0)


def measure(training: ServiceTraining) -> dict[str, float]:
    """PROBABILITY and LOSS of held-out rows, see `train.sft.measure`. A service tells no likeliest
    token.
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
    """Whether held-out rows have gained nothing for so long that training ends."""
    patience = state.training.run.config.most_measurements
    # A service tells no accuracy; a gain is one of the probability
    measurements = [{**row, ACCURACY: 0.0} for row in state.measurements]
    return bool(patience) and since_gain(measurements) >= patience


def plan(run: SFTRun) -> Report:
    """The tokens that training takes, and dollars where prices are given (--plan). Nothing is
    asked.
    """
    config, rows = run.config, run.rows
    assert run.start is not None
    base = ServiceBase.of(run.start.text)
    encoded = encode_for(config, rows.source, rows.training, base, prompt_loss=config.prompt_loss)
    steps = gradient_steps(config, len(encoded))
    # Batches are drawn, so their tokens are known on average
    mean = sum(map(row_length, encoded)) / len(encoded)
    trained = round(steps * config.batch_size * mean)
    held_out = sum(map(row_length, encode_for(config, rows.held_out_source, rows.held_out, base)))
    measurements = min(steps, MEASUREMENTS)
    if config.validate_steps:
        measurements = steps // config.validate_steps
    counts = {READ: trained + held_out * measurements, TRAINED: trained}
    return token_plan("sft", config.engine, config.run.results_dir, "steps", steps, counts)
