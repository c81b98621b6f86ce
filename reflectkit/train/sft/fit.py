"""Fit, the third of sft's four steps: TRL's loop, and callbacks that each do one thing next to it."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import pickle
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import TrainerCallback

from reflectkit.config import identifying
from reflectkit.console import Bar, Progress
from reflectkit.errors import CheckpointError, DataError, DivergedError
from reflectkit.jsonl import read_json, share_files
from reflectkit.models.load import all_finite, save_player
from reflectkit.runs.run import CHECKSUMS, checkpoints, seal
from reflectkit.text import pluralize
from reflectkit.train.processes import stopped_between
from reflectkit.train.settings import Log, tracking
from reflectkit.train.sft.build import TRAINER_FOLDER, Training, build_trainer
from reflectkit.train.sft.measure import (
    ACCURACY,
    LOSS,
    PROBABILITY,
    measure,
    measure_decisions,
    since_gain,
)

ARGUMENTS = "training_args.bin"
"""The only file of a trainer's checkpoint that has code in it. It is not needed to resume."""
ORDER = "epoch_order.safetensors"
"""torch's random state at the start of the epoch."""
FIGURES = "figures.json"
"""A file with the figures for the next row of the log: sums since the last row, and the tokens so
far.
"""
MEASUREMENTS = 20
"""The number of measurements on held-out rows in a run, by default."""
EXPLODED = 10
"""A loss of this many times the loss of guessing means that training has failed."""
FULL_DISK_BYTES = 4 * 2**20


class NoStepLeftError(Exception):
    """The run that is resumed has taken its last step; the trainer's loop would take one more."""


@dataclass
class SFTFit:
    """Training in progress, as the callbacks see it, and then its result."""

    training: Training
    trainer: Any
    """TRL's trainer."""
    bar: Bar
    log: Log = lambda figures, step: None
    """Called with figures and the step, for the trackers."""
    stop: Sequence[int] = ()
    """Not empty if training should stop after the current step, with a checkpoint."""
    is_stopping: bool = False
    """Whether one of the processes should stop."""
    figures: dict[str, float] = field(default_factory=dict)
    """The figures that the progress bar shows."""
    checkpoint: Path = Path()
    """The model after the last step."""

    @property
    def steps(self) -> int:
        """The number of steps so far."""
        return int(self.trainer.state.global_step)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The rows of the log: one every 20 steps, and one for each measurement on held-out rows."""
        rows: dict[int, dict[str, Any]] = {}
        for record in self.trainer.state.log_history:
            if "loss" not in record and LOSS not in record:
                continue
            row = rows.setdefault(record["step"], {})
            for name, value in record.items():
                # A norm in 16 bits may be infinite
                row[name] = value if math.isfinite(value) else None
        return [dict(sorted(row.items())) for row in rows.values()]

    def save(self, measures: Mapping[str, float]) -> Path:
        """Save the model in `checkpoint-<step>`; all processes must call this.

        measures: figures of the last measurement on held-out rows, if there was one.
        """
        training, processes = self.training, self.training.processes
        target = training.folder / f"checkpoint-{self.steps}"
        weights = processes.whole_weights(training.player.model)
        if processes.first:
            facts = {**training.run.facts, "step": self.steps, **measures}
            save_player(target, training.player, facts, seal, weights)
        processes.wait()
        return target


def prepare(
    training: Training,
    bar: Bar,
    log: Log = lambda figures, step: None,
    stop: Sequence[int] = (),
) -> SFTFit:
    """Training that is about to begin. log, stop: see `SFTFit`."""
    fit = SFTFit(training, build_trainer(training), bar, log, stop)
    for callback in (SFTProgressBar(fit), Guard(fit), HeldOutLoss(fit), SFTCheckpoints(fit)):
        fit.trainer.add_callback(callback)
    return fit


def fit(training: Training, progress: Progress) -> SFTFit:
    """Train the model in place, and save it. All processes must call this.

    Raises DivergedError, and CheckpointError for a checkpoint with code in it; incomplete
    checkpoints are removed.
    """
    config, resume = training.run.config, training.resume
    trackers = config.checkpoints.report_to if training.processes.first else ()
    settings = identifying(config) | {"max_steps": training.steps}
    first_step = int(resume.name.rpartition("-")[2]) if resume else 0
    with (
        progress.bar(f"SFT {config.role}", training.steps, first_step) as bar,
        tracking(trackers, training.folder, settings) as log,
    ):
        try:
            with stopped_between("step", progress) as stop:
                state = prepare(training, bar, log, stop)
                with contextlib.suppress(NoStepLeftError):
                    state.trainer.train(resume_from_checkpoint=str(resume) if resume else None)
                if state.is_stopping:
                    raise KeyboardInterrupt
        except BaseException as error:
            _clear_after(error, training)
            raise

    if training.held_out and state.steps < training.steps:
        failures = pluralize(config.most_measurements, "measurement")
        steps = pluralize(state.steps, "step")
        progress.news(f"ended after {steps}: no gain on held-out rows in {failures} (--patience)")
    last = state.metrics[-1] if training.held_out else {}
    measures = {name: last[name] for name in (PROBABILITY, LOSS, ACCURACY) if training.held_out}
    state.checkpoint = state.save(measures)
    return state


def _clear_after(error: BaseException, training: Training) -> None:
    """Remove what an interrupted run leaves incomplete. Raises what explains `error` better."""
    folder = training.folder / TRAINER_FOLDER
    is_full = shutil.disk_usage(training.folder).free < FULL_DISK_BYTES
    for checkpoint in checkpoints(folder):
        is_complete = (checkpoint / CHECKSUMS).is_file()
        if training.processes.first and not is_complete:
            shutil.rmtree(checkpoint, ignore_errors=True)  # or a full disk would stay full
    if isinstance(error, DivergedError) and (saved := checkpoints(folder)):
        raise DivergedError(f"{error}; its last checkpoint is {saved[-1]}") from None
    if isinstance(error, pickle.UnpicklingError):  # the trainer reads tensors and plain values only
        code = "holds more than tensors, and is not read; delete it"
        raise CheckpointError(f"{training.resume} {code}") from None
    if is_full and isinstance(error, RuntimeError):  # torch does not say why it failed to write
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder)) from error


class FitCallback(TrainerCallback):
    """Something that is done next to training."""

    def __init__(self, fit: SFTFit) -> None:
        self.fit = fit


class SFTProgressBar(FitCallback):
    """The bar, and the trackers of --report-to."""

    def on_log(
        self,
        args: Any,
        state: Any,
        control: Any,
        logs: Any = None,
        **_: Any,
    ) -> None:
        """Show the figures."""
        if logs and "loss" in logs:
            self.fit.figures["loss"] = logs["loss"]
            self.fit.log(logs, state.global_step)
            self.fit.bar.advance(0, **self.fit.figures)

    def on_step_end(
        self,
        args: Any,
        state: Any,
        control: Any,
        **_: Any,
    ) -> None:
        """Advance the bar."""
        self.fit.bar.advance(1, **self.fit.figures)


class Guard(FitCallback):
    """The end of a run that diverges, or that is to stop."""

    def on_log(
        self,
        args: Any,
        state: Any,
        control: Any,
        logs: Any = None,
        **_: Any,
    ) -> None:
        """Raises DivergedError for a loss that no working training comes near."""
        guessing = math.log(len(self.fit.training.player.tokenizer))
        if not logs or "loss" not in logs or logs["loss"] <= EXPLODED * guessing:
            return
        # NaN, too, which is not less than anything
        loss = f"the loss is {logs['loss']:.4g} nats per token"
        raise _diverged(f"{loss}, and that of guessing {guessing:.2g}", args, state)

    def on_step_end(
        self,
        args: Any,
        state: Any,
        control: Any,
        model: Any = None,
        **_: Any,
    ) -> None:
        """Raises DivergedError for a weight that is not finite."""
        is_finite = all_finite(weight for weight in model.parameters() if weight.requires_grad)
        # From all processes, as one that stopped or raised would let the others wait
        facts = self.fit.training.processes.gather((is_finite, bool(self.fit.stop)))
        if not all(is_finite for is_finite, _ in facts):
            raise _diverged("a weight became NaN or infinite", args, state)
        if any(stops for _, stops in facts):
            control.should_save = control.should_training_stop = True
            self.fit.is_stopping = True


def _diverged(
    what: str,
    args: Any,
    state: Any,
) -> DivergedError:
    """The error of a run that diverges. what: how that shows."""
    fix = f"lower --learning-rate, which is {args.learning_rate:g}"
    return DivergedError(f"training diverged at step {state.global_step} ({what}); {fix}")


class HeldOutLoss(FitCallback):
    """Measurements on held-out rows: the best checkpoint, and --patience."""

    def on_step_end(
        self,
        args: Any,
        state: Any,
        control: Any,
        **_: Any,
    ) -> None:
        """Measure where it is due. The figures are part of the trainer's log, and so of its
        checkpoints.
        """
        training, config = self.fit.training, self.fit.training.run.config
        every = config.validate_steps or -(-training.steps // MEASUREMENTS)
        is_due = state.global_step == args.max_steps or state.global_step % every == 0
        if not training.held_out or not is_due:
            return

        # 1. The figures of the first process, in all of them
        figures = training.processes.gather(self._figures(args.per_device_train_batch_size))[0]
        state.log_history.append({"epoch": state.epoch, "step": state.global_step, **figures})
        self.fit.figures["held-out loss"] = figures[LOSS]
        self.fit.figures["held-out accuracy"] = figures[ACCURACY]
        self.fit.bar.advance(0, **self.fit.figures)
        self.fit.log(figures, state.global_step)

        # 2. What follows from them
        measurements = [record for record in state.log_history if LOSS in record]
        if figures[PROBABILITY] == max(record[PROBABILITY] for record in measurements):
            self._keep_best(figures)
        patience = config.most_measurements
        if patience and since_gain(measurements) >= patience:
            control.should_training_stop = True
            control.should_save = False  # a run that is resumed would go on from there

    def _figures(self, batch_size: int) -> dict[str, float]:
        """A measurement of the model as it is."""
        rows, trainer = self.fit.training.held_out, self.fit.trainer
        if "options" in rows[0]:
            pad_id = trainer.processing_class.pad_token_id
            return measure_decisions(trainer.model, rows, batch_size, pad_id)
        return measure(trainer.model, rows, batch_size)

    def _keep_best(self, figures: Mapping[str, float]) -> None:
        """Save the model in place of the best one before."""
        target = self.fit.save(figures)
        if not self.fit.training.processes.first:
            return
        for checkpoint in checkpoints(self.fit.training.folder):
            if checkpoint != target:
                shutil.rmtree(checkpoint)


class SFTCheckpoints(FitCallback):
    """Checkpoints that are sealed once complete, and resume to the same bytes and figures."""

    def __init__(self, fit: SFTFit) -> None:
        super().__init__(fit)
        resume = fit.training.resume
        order = resume / ORDER if resume is not None else None
        self.order = order if order is not None and order.is_file() else None
        self.epoch_state = torch.get_rng_state()

    def on_train_begin(
        self,
        args: Any,
        state: Any,
        control: Any,
        **_: Any,
    ) -> None:
        """Restore what the trainer had summed since it last logged, which it begins anew.

        Each process has a sum of its own; another number of them gets the mean. Raises
        CheckpointError, and NoStepLeftError once model and log are those of the last step.
        """
        trainer, processes = self.fit.trainer, self.fit.training.processes
        resume = self.fit.training.resume
        if state.global_step >= state.max_steps:
            raise NoStepLeftError
        if resume is None or not (resume / FIGURES).is_file():
            return
        try:
            record = read_json(resume / FIGURES)
            losses = list(map(float, record["losses"]))
            loss = sum(losses) / len(losses)
            if len(losses) == processes.count:
                loss = losses[processes.rank]
            trainer._tr_loss = torch.tensor(loss, device=args.device)
            trainer._globalstep_last_logged = int(record["logged"])
            trainer._total_train_tokens = record["tokens"]
            trainer._metrics["train"].update(record["metrics"])
        except (DataError, ArithmeticError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{resume / FIGURES} is damaged ({error})") from None

    def on_epoch_begin(
        self,
        args: Any,
        state: Any,
        control: Any,
        **_: Any,
    ) -> None:
        """Restore the random state from which the epoch's order of rows is drawn.

        With `group_by_length` that is torch's own, and the trainer would read a later epoch's rows
        in the order of the first. Raises CheckpointError.
        """
        if self.order is not None:
            try:
                torch.set_rng_state(load_file(self.order)["state"])
            except (SafetensorError, KeyError, RuntimeError, TypeError) as error:
                raise CheckpointError(f"{self.order} is damaged ({error})") from None
            self.order = None
        # Dropout may have taken more numbers in one process than in another
        self.epoch_state = self.fit.training.processes.gather(torch.get_rng_state())[0]
        torch.set_rng_state(self.epoch_state)

    def on_save(
        self,
        args: Any,
        state: Any,
        control: Any,
        **_: Any,
    ) -> None:
        """Complete the checkpoint and seal it; only then are older ones removed."""
        trainer, processes = self.fit.trainer, self.fit.training.processes
        losses = processes.gather(trainer._tr_loss.item())  # by now, all have written their parts
        if processes.first:
            # 1. The random state, and the figures since the last row of the log
            folder = Path(args.output_dir)
            checkpoint = folder / f"checkpoint-{state.global_step}"
            is_at_end = state.epoch == int(state.epoch)  # a resumed run begins with the next epoch
            order = torch.get_rng_state() if is_at_end else self.epoch_state
            save_file({"state": order}, checkpoint / ORDER)
            record = {
                "losses": losses,
                "logged": trainer._globalstep_last_logged,
                "tokens": trainer._total_train_tokens,
                "metrics": trainer._metrics["train"],
            }
            (checkpoint / FIGURES).write_text(json.dumps(record), encoding="utf-8")  # NaN too

            # 2. The seal, and then the older ones
            (checkpoint / ARGUMENTS).unlink(missing_ok=True)
            share_files(checkpoint)
            seal(checkpoint)
            keep = self.fit.training.run.config.checkpoints.keep_checkpoints
            for old in checkpoints(folder)[:-keep]:
                shutil.rmtree(old, ignore_errors=True)
        processes.wait()
