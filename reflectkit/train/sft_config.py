"""The settings of sft."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import model_validator

from reflectkit.config import Config, flag, non_default, option
from reflectkit.data.sft_rows import FILE_OF_ROLE
from reflectkit.envs import ENV_HELP, env_class
from reflectkit.envs.setup import EnvSetup, problem_settings
from reflectkit.errors import ConfigError
from reflectkit.models.checkpoint_metadata import DType, Quantize
from reflectkit.models.hub import PASSAGE, TINY
from reflectkit.runs.run import RunConfig
from reflectkit.train.settings import CheckpointConfig, LoraConfig, OptimizerConfig


class TinyConfig(Config):
    """Tiny models: how they start from scratch."""

    vocabulary: int = option(640, help="Vocabulary size of a tiny model's tokenizer, including 256 bytes.", ge=300)
    copy_steps: int = option(0, help="Steps in which a tiny model first learns to copy passages.", ge=0)
    init_range: float = option(0.04, help="Standard deviation of a tiny model's initial weights.", gt=0, le=1)


class SFTConfig(Config):
    """Settings of sft."""

    env: str = option(help=ENV_HELP)
    settings: Any = problem_settings("env")
    role: Literal["reflection", "policy", "plain", "think"] = option(
        help="Which player: reflection, policy (acts on comments), plain (acts without), or think (comments, then"
        " acts)."
    )
    task_file: Path | None = option(
        None, help="JSONL rows with prompt and completion; default: the role's file from gen-sft.", essential=True
    )
    model: str = option(
        "tiny",
        help="tiny or tiny-hybrid (from scratch), smollm2-135m, a model folder, or a Hugging Face id.",
        essential=True,
    )
    max_steps: int = option(1500, help="Gradient steps.", ge=1, essential=True)
    epochs: int = option(
        0, help="Passes over the rows, instead of --max-steps; 0: --max-steps counts.", ge=0, essential=True
    )
    batch_size: int = option(16, help="Rows per gradient step.", ge=1, essential=True)
    gradient_accumulation: int = option(
        1, help="Parts in which a batch is read, one after the other, to save memory.", ge=1
    )
    dropout: float | None = option(None, help="Dropout of the model in training; default: its own.", ge=0, le=1)
    max_length: int = option(
        0,
        help="Maximum tokens per row, and the context length of a tiny model; 0: what the longest row needs.",
        ge=0,
        essential=True,
    )
    prompt_loss: bool = option(False, help="Train on the prompts too, for a model that starts from scratch.")
    group_by_length: bool = option(False, help="Batch rows of similar lengths, for less padding.")
    share_prefixes: bool = option(
        False,
        help="Train on rows that begin alike together, and read what they share once; --batch-size counts such groups.",
    )
    gradient_checkpointing: bool = option(False, help="Save memory by recomputing activations; about a third slower.")
    device: str = option("auto", help="auto, cpu, cuda, …")
    dtype: DType = option("float32", help="float32, bfloat16 or float16.")
    quantize: Quantize = option(
        "none", help="Quantise the base weights to 8bit or 4bit, for training a LoRA adapter; or none."
    )
    lora_dropout: float = option(0.0, help="Dropout of what a new LoRA adapter reads.", ge=0, le=1)
    tiny: TinyConfig = TinyConfig()
    optim: OptimizerConfig = OptimizerConfig(
        learning_rate=2e-3, warmup_steps=None, weight_decay=0.01, max_grad_norm=1.0
    )
    lora: LoraConfig = LoraConfig()
    checkpoints: CheckpointConfig = CheckpointConfig(save_steps=250)
    run: RunConfig = RunConfig()

    @property
    def setup(self) -> EnvSetup:
        """The environment."""
        return EnvSetup(self.env, self.run.data_dir, self.settings)

    @property
    def rows_file(self) -> Path:
        """The rows to train on."""
        return self.task_file or self.setup.folder / FILE_OF_ROLE[self.role]

    @model_validator(mode="after")
    def _check(self) -> Self:
        env_class(self.env)
        if self.quantize != "none" and not self.lora.r:
            raise ConfigError(f"--quantize {self.quantize} needs --lora-r: quantised weights cannot be trained")
        if not self.lora.r and (given := non_default(self, "lora_dropout", "lora_targets", "lora_alpha")):
            raise ConfigError(f"{flag(given[0])} is a setting of a new adapter; add --lora-r, or leave it out")
        if self.batch_size % self.gradient_accumulation:
            raise ConfigError(
                f"--gradient-accumulation {self.gradient_accumulation} does not divide --batch-size {self.batch_size}"
            )
        if self.tiny.copy_steps and self.model not in TINY:
            raise ConfigError(
                f"--copy-steps is for a model that starts from scratch (tiny, tiny-hybrid), not {self.model}"
            )
        if self.tiny.copy_steps and 0 < self.max_length < PASSAGE:
            raise ConfigError(
                f"--copy-steps trains on passages of {PASSAGE} tokens; --max-length must be at least as large"
            )
        if self.lora.r and self.model in TINY:
            raise ConfigError(f"--lora-r needs a pretrained model; --model {self.model} starts from scratch")
        return self
