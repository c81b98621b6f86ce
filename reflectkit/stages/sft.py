"""sft: supervised fine-tuning of one player with TRL's SFTTrainer, with the loss on the completions only.

Rows are tokenised by the same functions as prompts at inference; a row that is too long is an error rather than cut
off. A killed run resumes from its last trainer checkpoint with valid checksums.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from reflectkit.core.checksums import seal
from reflectkit.core.config import DTYPES, PASSAGE, QUANTIZE, TINY, above, fraction, one_of, option, within
from reflectkit.core.console import Progress
from reflectkit.core.errors import ConfigError
from reflectkit.core.jsonl import write_jsonl
from reflectkit.core.memory import memory_explained
from reflectkit.core.reports import Report, figures_table
from reflectkit.core.runs import has_finished, open_run
from reflectkit.core.text import counted
from reflectkit.data.sft import FILE_OF_ROLE, Row, form_of, read_rows
from reflectkit.models.hub import hub_options
from reflectkit.stages.shared.environments import EnvConfig, model_source
from reflectkit.stages.shared.players import newest_name
from reflectkit.stages.tuning.encoding import tokenised
from reflectkit.stages.tuning.estimate import plan_report
from reflectkit.stages.tuning.sft_player import encoded_rows, inputs_of, player_of, tiny_tokenizer, with_steps
from reflectkit.stages.tuning.sft_trainer import train
from reflectkit.stages.tuning.trackers import require_trackers
from reflectkit.stages.tuning.trainer_checkpoints import last_whole
from reflectkit.stages.tuning.training import TrainingConfig

if TYPE_CHECKING:
    from reflectkit.models.load import Player

EXAMPLES = (
    "reflectkit sft --env taxi --role reflection --max-steps 700",
    "reflectkit sft --env taxi --role policy --model results/taxi-tiny/reflector/checkpoint-700 --task-file"
    " data/taxi/both/sft_policy.jsonl",
    "reflectkit sft --env taxi --role plain --model smollm2-135m --lora-r 16 --learning-rate 5e-4 --max-length 512",
    "reflectkit sft --env taxi --role policy --model gpt2-xl --lora-r 16 --learning-rate 2e-4 --dtype bfloat16",
)
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
        if self.departed(("lora_alpha",)) and not self.lora_r:
            raise ConfigError("--lora-alpha is that of a new adapter; add --lora-r")
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
    with open_run("sft", config, inputs_of(config, source)) as current:
        if current.done:
            return current.done
        progress.news(f"sft ({config.role}): {counted(len(rows), 'row')} of {source} → {current.folder}")
        if config.model not in TINY:
            hub_options(config.model)  # whether it can be fetched is known before torch is imported
        from reflectkit.models.load import checkpoint_gradients, save_player

        resume = last_whole(current.folder / "trainer", progress)
        smaller = "--max-length" if config.model in TINY else "use --lora-r, --quantize or a smaller model"
        with memory_explained(f"lower --batch-size, which is {config.batch_size}, or {smaller}"):
            player = replace(player_of(config, source, rows), answer=form)
            if config.gradient_checkpointing:
                checkpoint_gradients(player.model)
            encoded = encoded_rows(config, source, rows, player, progress)  # first, since some rows may not fit
            config = with_steps(config, len(encoded))
            if config.copy_steps and not resume:
                _teach_copying(config, player, progress)
            log = train(config, current.folder / "trainer", resume, player, encoded, progress)

        target = current.folder / f"checkpoint-{config.max_steps}"
        save_player(target, player, {"env": config.env, "model": config.model, "step": config.max_steps}, seal)
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


def _plan(config: Config, source: Path, rows: Sequence[Row], progress: Progress) -> Report:
    """What training takes, by arithmetic."""
    player = player_of(config, source, rows)
    lengths = [len(row["input_ids"]) for row in encoded_rows(config, source, rows, player, progress)]
    steps = with_steps(config, len(lengths)).max_steps
    mean = sum(lengths) / len(lengths)
    return plan_report(
        "sft",
        config.results_dir,
        [player.model],
        config.optimizer,
        config.batch_size // config.gradient_accumulation * max(lengths),
        recompute=config.gradient_checkpointing,
        tokens={
            "longest_row": max(lengths),
            "tokens_an_update": round(config.batch_size * mean),
            "steps": steps,
            "tokens": round(steps * config.batch_size * mean),
        },
    )


def is_finished(config: Config) -> bool:
    """Whether the run with these settings is finished. Raises DataError if its rows are missing."""
    source = config.rows_file
    return has_finished("sft", config, inputs_of(config, source))


def reader(config: Config) -> tuple[Any, int]:
    """The tokenizer of the model that `run` trains, and how many tokens it reads, without its weights.

    Raises DataError, CheckpointError.
    """
    from reflectkit.models.silence import silence_libraries

    silence_libraries()
    if config.model in TINY:
        source = config.rows_file
        return tiny_tokenizer(config, source, read_rows(source)), config.max_length
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
