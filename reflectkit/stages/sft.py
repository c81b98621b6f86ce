"""sft: supervised fine-tuning of one player with TRL's SFTTrainer, with the loss on the completions only.

Rows are tokenised by the same functions as prompts at inference; a row that is too long is an error rather than cut
off. A killed run resumes from its last trainer checkpoint with valid checksums.
"""

from __future__ import annotations

import errno
import math
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar

from reflectkit.core.checksums import CHECKSUMS, seal
from reflectkit.core.config import DTYPES, PASSAGE, QUANTIZE, TINY, above, fraction, one_of, option, within
from reflectkit.core.console import Bar, Progress, Quiet
from reflectkit.core.errors import ConfigError, DivergedError
from reflectkit.core.folders import checkpoints
from reflectkit.core.identity import plain_settings
from reflectkit.core.jsonl import disk_full, write_jsonl
from reflectkit.core.memory import memory_explained
from reflectkit.core.prompts import LABELS
from reflectkit.core.reports import Report, figures_table
from reflectkit.core.runs import has_finished, open_run
from reflectkit.core.seeding import generator
from reflectkit.core.text import counted
from reflectkit.core.threads import use_threads
from reflectkit.data.sft import FILE_OF_ROLE, Row, form_of, read_rows
from reflectkit.models.hub import hub_options
from reflectkit.stages.shared.encoding import encode, tokenised
from reflectkit.stages.shared.environments import EnvConfig, model_source
from reflectkit.stages.shared.plan import Estimate, Stopwatch, plan_report, shown_bytes, sizes
from reflectkit.stages.shared.players import newest_name
from reflectkit.stages.shared.trackers import Log, require_trackers, tracking
from reflectkit.stages.shared.trainer_checkpoints import ARGUMENTS, last_whole
from reflectkit.stages.shared.training import TrainingConfig

if TYPE_CHECKING:
    from reflectkit.models.load import Player

EXAMPLES = (
    "reflectkit sft --env taxi --role reflection --max-steps 700",
    "reflectkit sft --env taxi --role policy --model results/taxi-tiny/reflector/checkpoint-700 --task-file"
    " data/taxi/both/sft_policy.jsonl",
    "reflectkit sft --env taxi --role plain --model smollm2-135m --lora-r 16 --learning-rate 5e-4 --max-length 512",
    "reflectkit sft --env taxi --role policy --model gpt2-xl --lora-r 16 --learning-rate 2e-4 --dtype bfloat16",
)
EXPLODED = 10  # times the loss of guessing; no working training comes near it
SAFE = 0.8  # of the free memory, which a calibration may take
LIMITS = {
    "max_steps": (1, 10**9),
    "epochs": (0, 10**6),
    "gradient_accumulation": (1, 2**16),
    "batch_size": (1, 2**16),
    "max_length": (1, 2**20),
    "learning_rate": (0, 1000),
    "init_range": (0, 1),
    "save_steps": (1, 10**9),
    "vocabulary": (300, 2**20),
    "copy_steps": (0, 10**9),
    "lora_r": (0, 2**16),
    "lora_alpha": (1, 2**16),
}
"""The range of each of these settings."""


@dataclass(frozen=True)
class Config(EnvConfig, TrainingConfig):
    """Settings of sft."""

    TRAINS: ClassVar[bool] = True
    MAKES_ARM: ClassVar[bool] = True
    role: str = option(help="Which player: reflection, policy (acts on comments), or plain (acts without).")
    task_file: Path | None = option(
        None, help="JSONL rows with prompt and completion; default: the role's file from gen-sft."
    )
    model: str = option(
        "tiny", help="tiny or tiny-hybrid (from scratch), smollm2-135m, a model folder, or a Hugging Face id."
    )
    max_steps: int = option(1500, help="Gradient steps.")
    epochs: int = option(0, help="Passes over the rows, instead of --max-steps; 0: --max-steps counts.")
    batch_size: int = option(16, help="Rows per gradient step.")
    gradient_accumulation: int = option(1, help="Parts in which a batch is read, one after the other, to save memory.")
    learning_rate: float = option(2e-3, help="Peak learning rate.")
    warmup_steps: int | None = option(
        None, help="Steps in which the learning rate rises to its peak; default: 5 % of the steps."
    )
    weight_decay: float = option(0.01, help="Weight decay, of all trained weights but biases and norms.")
    max_grad_norm: float = option(1.0, help="Gradients are clipped to this norm.")
    dropout: float | None = option(None, help="Dropout of the model in training; default: its own.")
    max_length: int = option(256, help="Maximum tokens per row; also the context length of a tiny model.")
    prompt_loss: bool = option(False, help="Train on the prompts too, for a model that starts from scratch.")
    group_by_length: bool = option(False, help="Batch rows of similar lengths, for less padding.")
    share_prefixes: bool = option(
        False,
        help="Train on rows that begin alike together, and read what they share once; --batch-size counts such groups.",
    )
    vocabulary: int = option(640, help="Vocabulary size of a tiny model's tokenizer, including 256 bytes.")
    copy_steps: int = option(0, help="Steps in which a tiny model first learns to copy passages.")
    init_range: float = option(0.04, help="Standard deviation of a tiny model's initial weights.")
    lora_r: int = option(0, help="Rank of a LoRA adapter; 0 trains all weights.")
    lora_alpha: int = option(16, help="Scale of the LoRA adapter.")
    lora_targets: str = option(
        "", help="Layers that a new LoRA adapter changes: all-linear, or names like q_proj,v_proj; default: peft's."
    )
    lora_dropout: float = option(0.0, help="Dropout of what a new LoRA adapter reads.")
    gradient_checkpointing: bool = option(False, help="Save memory by recomputing activations; about a third slower.")
    save_steps: int = option(250, help="Steps between the checkpoints from which a killed run resumes.")
    device: str = option("auto", help="auto, cpu, cuda, …")
    dtype: str = option("float32", help="float32, bfloat16 or float16.")
    quantize: str = option(
        "none", help="Quantise the base weights to 8bit or 4bit, for training a LoRA adapter; or none."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("role", self.role, FILE_OF_ROLE)
        one_of("dtype", self.dtype, DTYPES)
        one_of("quantize", self.quantize, QUANTIZE)
        if self.quantize != "none" and not self.lora_r:
            raise ConfigError(f"--quantize {self.quantize} needs --lora-r: quantised weights cannot be trained")
        for name, (low, high) in LIMITS.items():
            within(name, getattr(self, name), low, high)
        above("learning_rate", self.learning_rate, 0)
        above("init_range", self.init_range, 0)
        for name in ("dropout", "lora_dropout"):
            if getattr(self, name) is not None:
                fraction(name, getattr(self, name))
        above("max_grad_norm", self.max_grad_norm, 0)
        if self.lora_dropout and not self.lora_r:
            raise ConfigError("--lora-dropout is that of a new adapter; add --lora-r, or use --dropout")
        if self.lora_targets and not self.lora_r:
            raise ConfigError("--lora-targets are those of a new adapter; add --lora-r")
        if self.batch_size % self.gradient_accumulation:
            raise ConfigError(
                f"--gradient-accumulation {self.gradient_accumulation} does not divide --batch-size {self.batch_size}"
            )
        if self.copy_steps and self.model not in TINY:
            raise ConfigError(
                f"--copy-steps is for a model that starts from scratch (tiny, tiny-hybrid), not {self.model}"
            )
        if self.copy_steps and self.max_length < PASSAGE:
            raise ConfigError(
                f"--copy-steps trains on passages of {PASSAGE} tokens; --max-length must be at least as large"
            )
        if self.lora_r and self.model in TINY:
            raise ConfigError(f"--lora-r needs a pretrained model; --model {self.model} starts from scratch")

    @property
    def rows_file(self) -> Path:
        """The rows to train on."""
        return self.task_file or self.folder / FILE_OF_ROLE[self.role]


def run(config: Config, progress: Progress) -> Report:
    """Train and write `checkpoint-<steps>/`.

    Raises
    ------
    DataError: a row is too long. CheckpointError: the model cannot be loaded. DivergedError: a loss or a weight became
    NaN or infinite. ReflectkitError: out of memory.
    """
    require_trackers(config.report_to)
    source = config.rows_file
    rows = read_rows(source)
    form = "" if config.role == "reflection" else form_of(source, rows)
    start = config.model if config.model in TINY else newest_name(config.model)
    config = replace(config, model=model_source(start, config.data_dir, progress))
    if config.plan:
        return _plan(config, source, rows, progress)
    with open_run("sft", config, _inputs(config, source)) as current:
        if current.done:
            return current.done
        progress.news(f"sft ({config.role}): {counted(len(rows), 'row')} of {source} → {current.folder}")
        if config.model not in TINY:
            hub_options(config.model)  # whether it can be fetched is known before torch is imported
        from reflectkit.models.load import checkpoint_gradients, save_player

        resume = last_whole(current.folder / "trainer", progress)
        smaller = "--max-length" if config.model in TINY else "use --lora-r, --quantize or a smaller model"
        with memory_explained(f"lower --batch-size, which is {config.batch_size}, or {smaller}"):
            player = replace(_player(config, source, rows), answer=form)
            if config.gradient_checkpointing:
                checkpoint_gradients(player.model)
            encoded = _encoded(config, source, rows, player, progress)  # first, since some rows may not fit
            config = _with_steps(config, len(encoded))
            if config.copy_steps and not resume:
                _teach_copying(config, player, progress)
            log = _train(config, current.folder / "trainer", resume, player, encoded, progress)

        target = current.folder / f"checkpoint-{config.max_steps}"
        save_player(target, player, {"env": config.env, "model": config.model, "step": config.max_steps})
        write_jsonl(current.folder / "metrics.jsonl", log)
        shutil.rmtree(current.folder / "trainer", ignore_errors=True)
        figures = {
            "rows": len(rows),
            "parameters": sum(weight.numel() for weight in player.model.parameters()),
            "longest_group" if config.share_prefixes else "longest_row": max(len(row["input_ids"]) for row in encoded),
            "loss": log[-1]["loss"] if log else None,
        }
        current.tables.append(figures_table(f"SFT ({config.role}) in {target}", "value", figures))
        return current.finish(figures, [target])


def _encoded(
    config: Config, source: Path, rows: Sequence[Row], player: Player, progress: Progress
) -> list[dict[str, list[int]]]:
    """What to train on: the rows, or with --share-prefixes packs of them.

    Raises DataError, and ConfigError if the model cannot read packs.
    """
    encoded = encode(
        source, rows, player, role=config.role, prompt_loss=config.prompt_loss, max_length=config.max_length
    )
    if not config.share_prefixes:
        return encoded
    from reflectkit.models.packing import can_pack, pack

    if not can_pack(player.model):
        how = " with --gradient-checkpointing" if config.gradient_checkpointing else ""
        raise ConfigError(f"--share-prefixes: {config.model} cannot read several rows at once{how}; leave it out")
    packs = pack(encoded, min(config.max_length, player.context), player.model.config.get_text_config().hidden_size)
    before, now = (sum(len(row["input_ids"]) for row in rows) for rows in (encoded, packs))
    read = f"{counted(before, 'token')} in {counted(len(encoded), 'row')}"
    progress.news(f"--share-prefixes: {read}, {now:,} in {counted(len(packs), 'group')}")
    return packs


def _with_steps(config: Config, rows: int) -> Config:
    """`config` with --epochs as a number of steps. rows: how many there are, or groups of them."""
    return replace(config, max_steps=config.epochs * -(-rows // config.batch_size)) if config.epochs else config


def _plan(config: Config, source: Path, rows: Sequence[Row], progress: Progress) -> Report:
    """What training would take: three steps on batches of the longest row are the calibration. Where a batch would not
    fit into memory, which would end this process without a word, they have as many rows as do.
    """
    use_threads(config.threads)
    progress.news(f"sft --plan: {counted(len(rows), 'row')} of {source}; loading torch")
    if config.model not in TINY:
        hub_options(config.model)
    from reflectkit.models.load import checkpoint_gradients
    from reflectkit.models.measure import free_memory

    player = _player(config, source, rows)
    if config.gradient_checkpointing:
        checkpoint_gradients(player.model)
    encoded = _encoded(config, source, rows, player, progress)
    config = _with_steps(config, len(encoded))
    lengths = [len(row["input_ids"]) for row in encoded]
    longest = max(encoded, key=lambda row: len(row["input_ids"]))
    part = config.batch_size // config.gradient_accumulation
    known = sizes([player.model], config.optimizer)
    free = free_memory(next(player.model.parameters()).device)
    measured, watch = 1, _calibrated(config, player, longest, 1, progress)
    activations = each = max(0, watch.memory.peak - known["gradients"])
    fitting = int(SAFE * (free - known["gradients"] - known["optimizer"]) / max(1, each))
    if part > 1 and fitting > 1:
        measured = min(part, fitting)
        watch = _calibrated(config, player, longest, measured, progress)
        activations = max(0, watch.memory.peak - known["gradients"])
        each = max(0, activations - each) // (measured - 1)  # without what is there once
    tokens = _padded(lengths, config)
    what = counted(measured, "group" if config.share_prefixes else "row")
    calibration = f"three steps of {what} of {max(lengths):,} tokens, the longest"
    if measured < part:
        calibration += f"; {part} would not fit into the {shown_bytes(free)} that were free"
    plan = Estimate(
        **known,
        activations=activations + (part - measured) * each,
        tokens=tokens,
        seconds=watch.seconds * tokens / (measured * max(lengths)),
        steps=config.max_steps,
        calibration=calibration,
    )
    return plan_report("sft", config.results_dir, plan, processes=False)


def _calibrated(config: Config, player: Player, row: dict[str, list[int]], count: int, progress: Progress) -> Stopwatch:
    """The time and memory of a step on `count` times `row`. Raises ReflectkitError if a GPU has no memory for it."""
    short = replace(config, batch_size=count, gradient_accumulation=1, max_steps=3, group_by_length=False)
    with tempfile.TemporaryDirectory() as scratch, progress.bar("Calibrating", 3) as bar:
        trainer = _trainer(short, Path(scratch), player, [row] * (3 * count))
        trainer.args.save_strategy = "no"
        trainer.add_callback(_timer(watch := Stopwatch(), bar))
        with memory_explained(f"lower --batch-size, which is {config.batch_size}, or raise --gradient-accumulation"):
            trainer.train()
    return watch


def open_training(config: Config, folder: Path, bar: Bar) -> Any:
    """The trainer that `run` has for these settings, with all that it does in a step, to be measured. It saves nothing.

    folder: for what it may write nevertheless. Raises DataError, CheckpointError.
    """
    source = config.rows_file
    rows = read_rows(source)
    player = _player(config, source, rows)
    encoded = _encoded(config, source, rows, player, Quiet())
    trainer = _trainer(config, folder, player, encoded)
    trainer.args.save_strategy = "no"
    trainer.add_callback(
        _callback(bar, math.log(len(player.tokenizer)), lambda figures, step: None, config.keep_checkpoints)
    )
    return trainer


def _timer(watch: Stopwatch, bar: Bar) -> Any:
    """The callback that tells `watch` where steps begin and end."""
    from transformers import TrainerCallback

    class Timer(TrainerCallback):  # type: ignore[misc]
        """Starts and stops the watch."""

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            watch.begin()

        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            watch.gradients_done()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            watch.end()
            bar.advance(1)

    return Timer()


def _padded(lengths: Sequence[int], config: Config) -> float:
    """Mean tokens of an update, padding included, over random batches of rows of these lengths."""
    if config.group_by_length:
        return config.batch_size * fmean(lengths)
    part = config.batch_size // config.gradient_accumulation
    chance = generator(config.seed, "plan")
    widest = fmean(max(chance.choices(lengths, k=part)) for _ in range(256))
    return config.batch_size * widest


def _player(config: Config, source: Path, rows: Sequence[Row]) -> Player:
    """The model to train. Raises CheckpointError."""
    from reflectkit.models.load import Player, load_player, pick_device, with_adapter
    from reflectkit.models.silence import silence_libraries
    from reflectkit.models.training import set_dropout

    silence_libraries()
    if config.model in TINY:
        from reflectkit.models.tiny import build_model

        tokenizer = _tiny_tokenizer(config, source, rows)
        model = build_model(
            tokenizer, config.max_length, config.seed, config.init_range, hybrid=config.model == "tiny-hybrid"
        )
        if config.dropout is not None:
            set_dropout(model, config.dropout)
        return Player(model.to(pick_device(config.device)), tokenizer, config.role)
    loaded = load_player(config.model, device=config.device, dtype=config.dtype, quantize=config.quantize)
    if config.lora_r:
        loaded = with_adapter(
            loaded, config.lora_r, config.lora_alpha, config.seed, config.lora_dropout, config.lora_targets
        )
    if config.dropout is not None:
        set_dropout(loaded.model, config.dropout)
    return replace(loaded, role=config.role)


def _tiny_tokenizer(config: Config, source: Path, rows: Sequence[Row]) -> Any:
    """The tokenizer of a tiny model, trained on the rows."""
    from reflectkit.models.tiny import build_tokenizer

    texts = [row.text for row in (*rows, *(row for other in _inputs(config, source)[1:] for row in read_rows(other)))]
    used = {completion for row in rows for _, completion in row.parts}
    return build_tokenizer(texts, _labels(texts, used), config.vocabulary)


def is_finished(config: Config) -> bool:
    """Whether the run with these settings is finished. Raises DataError if its rows are missing."""
    source = config.rows_file
    return has_finished("sft", config, _inputs(config, source))


def reader(config: Config) -> tuple[Any, int]:
    """The tokenizer of the model that `run` trains, and how many tokens it reads, without its weights.

    Raises DataError, CheckpointError.
    """
    from reflectkit.models.silence import silence_libraries

    silence_libraries()
    if config.model in TINY:
        source = config.rows_file
        return _tiny_tokenizer(config, source, read_rows(source)), config.max_length
    from reflectkit.models.facts import context_of, load_tokenizer

    hub_options(config.model)
    return load_tokenizer(config.model), context_of(config.model) or config.max_length


def answer_form(config: Config) -> str:
    """What the rows answer a choice with. Raises DataError."""
    source = config.rows_file
    return form_of(source, read_rows(source))


def longest_row(config: Config, tokenizer: Any) -> tuple[int, int, Path]:
    """(tokens, line, file) of the longest of the rows. Raises DataError for an answer that cannot be trained."""
    source = config.rows_file
    rows = read_rows(source)
    encoded = tokenised(source, rows, tokenizer, role=config.role, prompt_loss=config.prompt_loss)
    lengths = ((len(input_ids), -row.line) for row, input_ids, _ in encoded)
    tokens, line = max(lengths)
    return tokens, -line, source


def _teach_copying(config: Config, player: Player, progress: Progress) -> None:
    from reflectkit.models.tiny import teach_copying

    with progress.bar("Copying", config.copy_steps) as bar:
        teach_copying(player.model, config.copy_steps, config.seed, lambda loss: bar.advance(1, loss=loss))


def _labels(texts: list[str], used: set[str]) -> list[str]:
    """The labels that become single tokens of a tiny model: all that the rows list or answer with.

    If rows list different numbers of actions, other states may list more, so twice as many labels are used.
    """
    listed = "\n".join(set(texts))
    labels = [f" {label}" for label in LABELS if f" {label}" in used or f"\n {label} " in listed]
    behind = {text.rpartition("\nActions:\n")[2].count("\n") for text in texts if "\nActions:\n" in text}
    return [f" {label}" for label in LABELS[: 2 * len(labels)]] if len(behind) > 1 else labels


def _inputs(config: Config, source: Path) -> list[Path]:
    """The rows and the model folder to start from; for a tiny reflector also the policy's rows next to its own, if any.

    With their words in its tokenizer, a tiny policy can start from its weights (`--model REFLECTOR`).
    """
    policy_rows = source.with_name(FILE_OF_ROLE["policy"])
    if config.model in TINY:
        return [source, policy_rows] if config.role == "reflection" and policy_rows.is_file() else [source]
    return [source, Path(config.model)] if Path(config.model).is_dir() else [source]


def _train(
    config: Config,
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
        trainer = _trainer(config, folder, player, encoded)
        try:
            with tracking(config.report_to, folder.parent, plain_settings(config)) as log:
                trainer.add_callback(_callback(bar, math.log(len(player.tokenizer)), log, config.keep_checkpoints))
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
            name: value if math.isfinite(value) else None for name, value in record.items()
        }  # a norm that overflows 16 bits
        for record in trainer.state.log_history
        if "loss" in record
    ]


def _trainer(config: Config, folder: Path, player: Player, encoded: list[dict[str, list[int]]]) -> Any:
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
        learning_rate=config.learning_rate,
        lr_scheduler_type="constant_with_warmup" if config.schedule == "constant" else config.schedule,
        warmup_steps=max(1, config.max_steps // 20) if config.warmup_steps is None else config.warmup_steps,
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        logging_steps=min(20, config.max_steps),
        logging_nan_inf_filter=False,
        save_steps=config.save_steps,
        seed=config.seed % 2**32,
        use_cpu=on_cpu,
        bf16=not on_cpu and config.dtype == "bfloat16",
        fp16=not on_cpu and config.dtype == "float16",
        max_length=None,
        train_sampling_strategy="group_by_length" if config.group_by_length else "random",
        gradient_checkpointing=False,
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


def _optimizer(config: Config) -> tuple[Any, dict[str, Any]] | None:
    """The class of the optimizer and its settings; None for the trainer's own AdamW."""
    if config.optimizer == "adamw":
        return None
    from reflectkit.models.training import optimizer_class

    kind, settings = optimizer_class(config.optimizer)
    return kind, settings | {"lr": config.learning_rate}


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


def _printer() -> Any:
    from transformers import PrinterCallback

    return PrinterCallback


def _diverged(what: str, args: Any, state: Any) -> DivergedError:
    return DivergedError(
        f"training diverged at step {state.global_step} ({what}); lower --learning-rate, which is"
        f" {args.learning_rate:g}"
    )
