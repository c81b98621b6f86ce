"""What sft trains and with what: its rows as token ids, the model, TRL's trainer, and its checkpoints."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reflectkit.config import identifying, with_values
from reflectkit.console import Bar, Progress, Quiet
from reflectkit.data.sft_rows import FILE_OF_ROLE, Row, read_rows
from reflectkit.errors import CheckpointError, ConfigError, DataError, DivergedError
from reflectkit.jsonl import disk_full, read_json
from reflectkit.models.hub import TINY
from reflectkit.prompts import ACTION_MARKER, CALLS_MARKER, LABELS, listed_answers
from reflectkit.runs.checksums import CHECKSUMS, seal, verify
from reflectkit.runs.folders import checkpoints
from reflectkit.text import pluralize
from reflectkit.train.trackers import Log, tracking
from reflectkit.types import AGENT_MARKER

if TYPE_CHECKING:
    from reflectkit.models.chat import Dialogue
    from reflectkit.models.load import LoadedModel
    from reflectkit.train.sft_config import SFTConfig


def encode(
    source: Path, rows: Sequence[Row], player: LoadedModel, *, role: str, prompt_loss: bool, max_length: int
) -> list[dict[str, list[int]]]:
    """input_ids and labels of each row; the prompt's labels are -100 unless it is trained on too, and the first one is.

    Text ends with the end token, the answer for a choice only where another one goes on from it. source: the rows'
    file. role: whose rows they are. Raises DataError for a row of more than `max_length` tokens, or than the model
    reads, and for an answer of several tokens that is not listed.
    """
    limit = min(max_length, player.context)
    encoded = []
    for row, input_ids, labels in tokenised(source, rows, player.tokenizer, role=role, prompt_loss=prompt_loss):
        if len(input_ids) > limit:
            raise DataError(
                source,
                f"the row has {len(input_ids)} tokens and {limit} fit; raise --max-length"
                f"{' and use a model with a longer context' if limit == player.context else ''}",
                line=row.line,
            )
        encoded.append({"input_ids": input_ids, "labels": labels})
    return encoded


def tokenised(
    source: Path, rows: Sequence[Row], tokenizer: Any, *, role: str, prompt_loss: bool
) -> Iterator[tuple[Row, list[int], list[int]]]:
    """(row, input_ids, labels) of each row, as in `encode`. Raises DataError for an answer of several tokens that is
    not listed.
    """
    from reflectkit.models.chat import Dialogue
    from reflectkit.models.tokens import completion_ids, prompt_ids

    dialogue = Dialogue(tokenizer, plain=True)
    for row in rows:
        input_ids: list[int] = []
        labels: list[int] = []
        for prompt, completion in row.parts:
            text = _as_read(dialogue, prompt)
            before = completion_ids(tokenizer, text) if input_ids else prompt_ids(tokenizer, text)
            if role == "reflection" or _in_words(prompt):
                after = [*completion_ids(tokenizer, completion), tokenizer.eos_token_id]
            else:
                after = _choice_ids(source, row, prompt, completion, tokenizer)
            input_ids += before + after
            labels += (before if prompt_loss else [-100] * len(before)) + after
        labels[0] = -100  # nothing comes before it
        yield row, input_ids, labels


def _in_words(prompt: str) -> bool:
    """Whether a policy answers `prompt` with calls or in words, since it lists no actions."""
    return prompt.endswith((CALLS_MARKER, AGENT_MARKER)) or (
        prompt.endswith(ACTION_MARKER) and "\nActions:\n" not in prompt
    )


def _as_read(dialogue: Dialogue, prompt: str) -> str:
    """The row's prompt as the agent reads it."""
    if prompt.endswith(AGENT_MARKER):
        return dialogue.conversation(prompt)
    return dialogue.harmless(prompt) if prompt.endswith(CALLS_MARKER) else prompt


def _choice_ids(source: Path, row: Row, prompt: str, completion: str, tokenizer: Any) -> list[int]:
    """The tokens of an answer among those that `prompt` lists: its path in their trie. A prompt that lists none, as of
    other programs, has answers of one token. Raises DataError.
    """
    from reflectkit.models.tokens import answer_ids, completion_ids

    legal = listed_answers(prompt, row.form)
    if completion in legal:
        return list(answer_ids(tokenizer, legal)[legal.index(completion)])
    tokens = completion_ids(tokenizer, completion)
    if len(tokens) != 1:
        raise DataError(
            source,
            f"the answer {completion!r} is {len(tokens)} tokens of this tokenizer, and the prompt does not list it",
            line=row.line,
            field="completion",
        )
    return tokens


def inputs_of(config: SFTConfig, source: Path) -> list[Path]:
    """The rows and the model folder to start from; for a tiny reflector also the policy's rows next to its own, if any.

    With their words in its tokenizer, a tiny policy can start from its weights (`--model REFLECTOR`).
    """
    policy_rows = source.with_name(FILE_OF_ROLE["policy"])
    if config.model in TINY:
        return [source, policy_rows] if config.role == "reflection" and policy_rows.is_file() else [source]
    return [source, Path(config.model)] if Path(config.model).is_dir() else [source]


def player_of(config: SFTConfig, source: Path, rows: Sequence[Row]) -> LoadedModel:
    """The model to train. Raises CheckpointError."""
    from reflectkit.models.hub import silence_libraries
    from reflectkit.models.load import LoadedModel, load_player, pick_device, with_adapter
    from reflectkit.train.optimizers import set_dropout

    silence_libraries()
    if config.model in TINY:
        from reflectkit.models.tiny import build_model

        tokenizer = tiny_tokenizer(config, source, rows)
        model = build_model(
            tokenizer, config.max_length, config.run.seed, config.tiny.init_range, hybrid=config.model == "tiny-hybrid"
        )
        if config.dropout is not None:
            set_dropout(model, config.dropout)
        return LoadedModel(model.to(pick_device(config.device)), tokenizer, config.role)
    loaded = load_player(config.model, device=config.device, dtype=config.dtype, quantize=config.quantize)
    if config.lora.r:
        loaded = with_adapter(
            loaded, config.lora.r, config.lora.alpha, config.run.seed, config.lora_dropout, config.lora.targets
        )
    if config.dropout is not None:
        set_dropout(loaded.model, config.dropout)
    return replace(loaded, role=config.role)


def tiny_tokenizer(config: SFTConfig, source: Path, rows: Sequence[Row]) -> Any:
    """The tokenizer of a tiny model, trained on the rows."""
    from reflectkit.models.tiny import build_tokenizer

    texts = [row.text for row in (*rows, *(row for other in inputs_of(config, source)[1:] for row in read_rows(other)))]
    used = {completion for row in rows for _, completion in row.parts}
    return build_tokenizer(texts, _labels(texts, used), config.tiny.vocabulary)


def _labels(texts: list[str], used: set[str]) -> list[str]:
    """The labels that become single tokens of a tiny model: all that the rows list or answer with.

    If rows list different numbers of actions, other states may list more, so twice as many labels are used.
    """
    listed = "\n".join(set(texts))
    labels = [f" {label}" for label in LABELS if f" {label}" in used or f"\n {label} " in listed]
    behind = {text.rpartition("\nActions:\n")[2].count("\n") for text in texts if "\nActions:\n" in text}
    return [f" {label}" for label in LABELS[: 2 * len(labels)]] if len(behind) > 1 else labels


def encoded_rows(
    config: SFTConfig, source: Path, rows: Sequence[Row], player: LoadedModel, progress: Progress
) -> list[dict[str, list[int]]]:
    """What to train on: the rows, or with --share-prefixes packs of them.

    Raises DataError, and ConfigError if the model cannot read packs.
    """
    encoded = encode(
        source, rows, player, role=config.role, prompt_loss=config.prompt_loss, max_length=config.max_length
    )
    if not config.share_prefixes:
        return encoded
    from reflectkit.train.sft_trainers import can_pack, pack

    if not can_pack(player.model):
        how = " with --gradient-checkpointing" if config.gradient_checkpointing else ""
        raise ConfigError(f"--share-prefixes: {config.model} cannot read several rows at once{how}; leave it out")
    packs = pack(encoded, min(config.max_length, player.context), player.model.config.get_text_config().hidden_size)
    before, now = (sum(len(row["input_ids"]) for row in rows) for rows in (encoded, packs))
    read = f"{pluralize(before, 'token')} in {pluralize(len(encoded), 'row')}"
    progress.news(f"--share-prefixes: {read}, {now:,} in {pluralize(len(packs), 'group')}")
    return packs


def with_steps(config: SFTConfig, rows: int) -> SFTConfig:
    """`config` with --epochs as a number of steps. rows: how many there are, or groups of them."""
    return with_values(config, max_steps=config.epochs * -(-rows // config.batch_size)) if config.epochs else config


PICKLED = (".pt", ".pth", ".bin")
WHOLE = "whole"  # marks a complete trainer checkpoint of an earlier version, which has no checksums
NEEDED = ("optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json")
ARGUMENTS = (
    "training_args.bin"  # the one pickle of a trainer checkpoint with more than tensors; it is not needed to resume
)


def last_whole(folder: Path, progress: Progress) -> Path | None:
    """The latest undamaged trainer checkpoint; damaged ones after it are removed."""
    for checkpoint in reversed(checkpoints(folder)):
        earlier = (checkpoint / WHOLE).is_file() and not (checkpoint / CHECKSUMS).exists()
        try:
            if earlier:
                _seal_earlier(checkpoint, progress)
            verify(checkpoint)
            _open_pickles(checkpoint)
            return checkpoint
        except CheckpointError as error:
            if earlier or (checkpoint / CHECKSUMS).exists():
                progress.news(f"{error}; resuming from an earlier state")
            shutil.rmtree(checkpoint)
    return None


def _seal_earlier(checkpoint: Path, progress: Progress) -> None:
    """Add checksums to a trainer checkpoint of an earlier version. Raises CheckpointError if a file is missing or cut
    off.
    """
    from safetensors import SafetensorError, safe_open

    for name in NEEDED:
        if not (checkpoint / name).is_file():
            raise CheckpointError(f"{checkpoint / name} is missing")
    (checkpoint / ARGUMENTS).unlink(missing_ok=True)
    _open_pickles(checkpoint)
    try:
        for path in sorted(checkpoint.rglob("*.safetensors")):
            with safe_open(path, "pt"):
                pass
        for path in sorted(checkpoint.rglob("*.json")):
            read_json(path)
    except (SafetensorError, OSError, DataError) as error:
        raise CheckpointError(f"{checkpoint} is damaged ({error})") from None
    (checkpoint / WHOLE).unlink()
    seal(checkpoint)
    progress.news(f"{checkpoint} is from an earlier version and has no checksums; resuming from it as it is")


def _open_pickles(checkpoint: Path) -> None:
    """Raises CheckpointError if a pickle contains anything but tensors and plain values, since it might run code.

    The trainer reads them with weights_only too; this makes sure of it before training starts.
    """
    import torch
    from transformers.trainer_pt_utils import safe_globals

    for path in sorted(checkpoint.rglob("*")):
        if path.suffix in PICKLED:
            try:
                with safe_globals():
                    torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            except Exception as error:  # damaged pickles raise many types
                raise CheckpointError(f"{path} cannot be read safely ({str(error).splitlines()[0][:200]})") from None


ORDER = "epoch_order.safetensors"  # torch's random state at the start of the epoch
FIGURES = "figures.json"  # what the next row of the log is made of: sums since the last one, and the tokens so far
EXPLODED = 10  # times the loss of guessing; no working training comes near it


def train(
    config: SFTConfig,
    folder: Path,
    resume: Path | None,
    player: LoadedModel,
    encoded: list[dict[str, list[int]]],
    progress: Progress,
) -> list[dict[str, Any]]:
    """Train `player.model` in place, resuming from trainer checkpoint `resume` if any; returns the log, a record every
    20 steps.

    folder: for trainer checkpoints. Raises DivergedError; incomplete checkpoints are removed.
    """
    done = int(resume.name.rpartition("-")[2]) if resume else 0
    with progress.bar(f"SFT {config.role}", config.max_steps, done) as bar:
        trainer = build_trainer(config, folder, player, encoded)
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
    trainer = build_trainer(config, folder, player, encoded)
    trainer.args.save_strategy = "no"
    trainer.add_callback(
        _callback(bar, math.log(len(player.tokenizer)), lambda figures, step: None, config.checkpoints.keep_checkpoints)
    )
    return trainer


def build_trainer(config: SFTConfig, folder: Path, player: LoadedModel, encoded: list[dict[str, list[int]]]) -> Any:
    """TRL's trainer of `player.model`. folder: for its checkpoints."""
    from datasets import Dataset
    from trl import SFTConfig

    from reflectkit.train.sft_trainers import CompletionTrainer, PackTrainer, collate

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
    from reflectkit.train.optimizers import optimizer_class

    kind, settings = optimizer_class(config.optim.optimizer)
    return kind, settings | {"lr": config.optim.learning_rate}


def _callback(bar: Bar, guessing: float, log: Log, keep: int) -> Any:
    """guessing: the loss of the uniform distribution over tokens, in nats per token. log: for the figures. keep: how
    many checkpoints.
    """
    from transformers import TrainerCallback

    from reflectkit.models.load import all_finite

    class Show(TrainerCallback):
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

    class Order(TrainerCallback):
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

    class Figures(TrainerCallback):
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
