"""From the settings of sft to TRL's trainer, with its checkpoints and its end if training diverges."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reflectkit.core.checksums import CHECKSUMS, seal
from reflectkit.core.config import identifying
from reflectkit.core.console import Bar, Progress, Quiet
from reflectkit.core.errors import CheckpointError, DataError, DivergedError
from reflectkit.core.folders import checkpoints
from reflectkit.core.jsonl import disk_full, read_json
from reflectkit.data.sft import read_rows
from reflectkit.stages.tuning.sft_player import encoded_rows, player_of
from reflectkit.stages.tuning.trackers import Log, tracking
from reflectkit.stages.tuning.trainer_checkpoints import ARGUMENTS

if TYPE_CHECKING:
    from reflectkit.models.load import Player
    from reflectkit.stages.tuning.sft_config import SFTConfig

ORDER = "epoch_order.safetensors"  # torch's random state at the start of the epoch
FIGURES = "figures.json"  # what the next row of the log is made of: sums since the last one, and the tokens so far
EXPLODED = 10  # times the loss of guessing; no working training comes near it


def train(
    config: SFTConfig,
    folder: Path,
    resume: Path | None,
    player: Player,
    encoded: list[dict[str, list[int]]],
    progress: Progress,
) -> list[dict[str, Any]]:
    """Train `player.model` in place, resuming from trainer checkpoint `resume` if any; returns the log, a record every
    20 steps.

    folder: for trainer checkpoints. Raises DivergedError; incomplete checkpoints are removed.
    """
    done = int(resume.name.rpartition("-")[2]) if resume else 0
    with progress.bar(f"SFT {config.role}", config.max_steps, done) as bar:
        trainer = trainer_of(config, folder, player, encoded)
        try:
            with tracking(config.checkpoints.report_to, folder.parent, identifying(config)) as log:
                trainer.add_callback(_order(resume))  # before the one that seals a checkpoint
                trainer.add_callback(_figures(trainer, resume))
                trainer.add_callback(
                    _callback(bar, math.log(len(player.tokenizer)), log, config.checkpoints.keep_checkpoints)
                )
                trainer.train(resume_from_checkpoint=str(resume) if resume else None)
        except BaseException as error:
            full = disk_full(folder)
            for unfinished in [path for path in checkpoints(folder) if not (path / CHECKSUMS).is_file()]:
                shutil.rmtree(unfinished, ignore_errors=True)  # or a full disk would stay full
            if isinstance(error, DivergedError) and (good := checkpoints(folder)):
                raise DivergedError(f"{error}; its last checkpoint is {good[-1]}") from None
            if full and isinstance(error, RuntimeError):  # torch does not say why it failed to write
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder)) from error
            raise
    return [
        {
            name: value if math.isfinite(value) else None for name, value in sorted(record.items())
        }  # a norm that overflows 16 bits
        for record in trainer.state.log_history
        if "loss" in record
    ]


def open_training(config: SFTConfig, folder: Path, bar: Bar) -> Any:
    """The trainer that `run` has for these settings, with all that it does in a step, to be measured. It saves nothing.

    folder: for what it may write nevertheless. Raises DataError, CheckpointError.
    """
    source = config.rows_file
    rows = read_rows(source)
    player = player_of(config, source, rows)
    encoded = encoded_rows(config, source, rows, player, Quiet())
    trainer = trainer_of(config, folder, player, encoded)
    trainer.args.save_strategy = "no"
    trainer.add_callback(
        _callback(bar, math.log(len(player.tokenizer)), lambda figures, step: None, config.checkpoints.keep_checkpoints)
    )
    return trainer


def trainer_of(config: SFTConfig, folder: Path, player: Player, encoded: list[dict[str, list[int]]]) -> Any:
    """TRL's trainer of `player.model`. folder: for its checkpoints."""
    from datasets import Dataset
    from trl import SFTConfig

    from reflectkit.models.completions import CompletionTrainer
    from reflectkit.models.packing import PackTrainer, collate

    on_cpu = next(player.model.parameters()).device.type == "cpu"
    if player.tokenizer.pad_token_id is None:
        player.tokenizer.pad_token = player.tokenizer.eos_token
    arguments = SFTConfig(
        output_dir=str(folder),
        max_steps=config.max_steps,
        per_device_train_batch_size=config.batch_size // config.gradient_accumulation,
        gradient_accumulation_steps=config.gradient_accumulation,
        learning_rate=config.optim.learning_rate,
        lr_scheduler_type="constant_with_warmup" if config.optim.schedule == "constant" else config.optim.schedule,
        warmup_steps=max(1, config.max_steps // 20) if config.optim.warmup_steps is None else config.optim.warmup_steps,
        weight_decay=config.optim.weight_decay,
        max_grad_norm=config.optim.max_grad_norm,
        logging_steps=min(20, config.max_steps),
        logging_nan_inf_filter=False,
        save_steps=config.checkpoints.save_steps,
        seed=config.run.seed % 2**32,
        use_cpu=on_cpu,
        bf16=not on_cpu and config.dtype == "bfloat16",
        fp16=not on_cpu and config.dtype == "float16",
        max_length=None,
        train_sampling_strategy="group_by_length" if config.group_by_length else "random",
        activation_checkpointing=False,
        report_to="none",
        disable_tqdm=True,
        dataset_num_proc=None,
        remove_unused_columns=not config.share_prefixes,
        dataset_kwargs={"skip_prepare_dataset": True} if config.share_prefixes else None,
    )
    kind, collator = CompletionTrainer, None
    if config.share_prefixes:
        kind, collator = PackTrainer, partial(collate, pad_id=player.tokenizer.pad_token_id)
    trainer = kind(
        model=player.model,
        args=arguments,
        train_dataset=Dataset.from_list(encoded),
        data_collator=collator,
        processing_class=player.tokenizer,
        optimizer_cls_and_kwargs=_optimizer(config),
    )
    trainer.pop_callback(_printer())
    return trainer


def _optimizer(config: SFTConfig) -> tuple[Any, dict[str, Any]] | None:
    """The class of the optimizer and its settings; None for the trainer's own AdamW."""
    if config.optim.optimizer == "adamw":
        return None
    from reflectkit.models.training import optimizer_class

    kind, settings = optimizer_class(config.optim.optimizer)
    return kind, settings | {"lr": config.optim.learning_rate}


def _callback(bar: Bar, guessing: float, log: Log, keep: int) -> Any:
    """guessing: the loss of the uniform distribution over tokens, in nats per token. log: for the figures. keep: how
    many checkpoints.
    """
    from transformers import TrainerCallback

    from reflectkit.models.checks import all_finite

    class Show(TrainerCallback):  # type: ignore[misc]
        """Advances the bar, stops if training diverges, and seals each checkpoint once it is complete."""

        def __init__(self) -> None:
            self.figures: dict[str, float] = {}

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if logs and "loss" in logs:
                self.figures["loss"] = logs["loss"]
                log(logs, state.global_step)
                if not logs["loss"] <= EXPLODED * guessing:  # NaN too
                    what = f"the loss is {logs['loss']:.4g} nats per token, and that of guessing {guessing:.2g}"
                    raise _diverged(what, args, state)

        def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            if not all_finite(weight for weight in model.parameters() if weight.requires_grad):
                raise _diverged("a weight became NaN or infinite", args, state)
            bar.advance(1, **self.figures)

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            (checkpoint / ARGUMENTS).unlink(missing_ok=True)
            seal(checkpoint)
            for old in checkpoints(Path(args.output_dir))[:-keep]:  # only now can this one be resumed from
                shutil.rmtree(old, ignore_errors=True)

    return Show()


def _order(resume: Path | None) -> Any:
    """Keeps the random state from which an epoch's order of rows is drawn. With `group_by_length` that is torch's own,
    and the trainer only skips what has been read: a run resumed within a later epoch would read the rows in the order
    of the first. resume: the checkpoint, whose state is used once.

    Raises CheckpointError if that state is damaged.
    """
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file, save_file
    from transformers import TrainerCallback

    class Order(TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.kept = resume / ORDER if resume is not None and (resume / ORDER).is_file() else None
            self.begun = torch.get_rng_state()

        def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if self.kept is not None:
                try:
                    torch.set_rng_state(load_file(self.kept)["state"])
                except (SafetensorError, KeyError, RuntimeError, TypeError) as error:
                    raise CheckpointError(f"{self.kept} is damaged ({error})") from None
                self.kept = None
            self.begun = torch.get_rng_state()

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            ended = state.epoch == int(state.epoch)  # a resumed run begins with the next epoch
            if state.is_world_process_zero:
                begun = torch.get_rng_state() if ended else self.begun
                save_file({"state": begun}, Path(args.output_dir) / f"checkpoint-{state.global_step}" / ORDER)

    return Order()


def _figures(trainer: Any, resume: Path | None) -> Any:
    """Keeps what the trainer has summed since it last logged, which it would begin anew after a resume. resume: the
    checkpoint; one of an earlier version does not have it.

    Raises CheckpointError if it is damaged.
    """
    import torch
    from transformers import TrainerCallback

    class Figures(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if resume is None or not (resume / FIGURES).is_file():
                return
            try:
                kept = read_json(resume / FIGURES)
                trainer._tr_loss = torch.tensor(float(kept["loss"]), device=args.device)
                trainer._globalstep_last_logged = int(kept["logged"])
                trainer._total_train_tokens = kept["tokens"]
                trainer._metrics["train"].update(kept["metrics"])
            except (DataError, KeyError, TypeError, ValueError) as error:
                raise CheckpointError(f"{resume / FIGURES} is damaged ({error})") from None

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.is_world_process_zero:
                kept = {
                    "loss": trainer._tr_loss.item(),
                    "logged": trainer._globalstep_last_logged,
                    "tokens": trainer._total_train_tokens,
                    "metrics": trainer._metrics["train"],
                }
                path = Path(args.output_dir) / f"checkpoint-{state.global_step}" / FIGURES
                path.write_text(json.dumps(kept), encoding="utf-8")  # NaN too

    return Figures()


def _printer() -> Any:
    from transformers import PrinterCallback

    return PrinterCallback


def _diverged(what: str, args: Any, state: Any) -> DivergedError:
    return DivergedError(
        f"training diverged at step {state.global_step} ({what}); lower --learning-rate, which is"
        f" {args.learning_rate:g}"
    )
