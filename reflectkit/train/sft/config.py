"""The settings of sft. Contradictory ones raise errors before anything is loaded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from typing_extensions import override

from reflectkit.config import Config, Rule, flag, non_default, option
from reflectkit.console import Quiet
from reflectkit.data.sft_rows import FILE_OF_ROLE, TYPED
from reflectkit.envs import ENV_HELP, ENVS, env_class
from reflectkit.envs.setup import EnvSetup, problem_settings
from reflectkit.models.checkpoint_metadata import SERVICE
from reflectkit.models.hub import PASSAGE
from reflectkit.models.hub import TINY as TINY_OF_RL
from reflectkit.models.refs import ModelRef
from reflectkit.runs.run import RunConfig
from reflectkit.sampling.engine import EngineConfig
from reflectkit.train.settings import CheckpointConfig, LoraConfig, OptimizerConfig
from reflectkit.types import DType, Quantize

LEARNED_POSITIONS = "tiny-gpt2"
TINY = (*TINY_OF_RL, LEARNED_POSITIONS)
"""Models from scratch."""
PATIENCE = 5
"""Measurements in a row without a gain that end training, by default."""


class TinyConfig(Config):
    """Tiny models: how they start from scratch."""

    vocabulary: int = option(
        640, help="Vocabulary size of a tiny model's tokenizer, including 256 bytes.", ge=300
    )
    token_pattern: str = option(
        "",
        help="Regular expression of the pieces of text that a tiny model's tokens may not cross;"
        " default: words,"
        " numbers and signs, as in GPT-2.",
    )
    copy_steps: int = option(
        0, help="Steps in which a tiny model first learns to copy passages.", ge=0
    )
    init_range: float | None = option(
        None,
        help=(
            "Standard deviation of a tiny model's initial weights; default: 0.06 for tiny, 0.04"
            " for the others."
        ),
        gt=0,
        le=1,
    )


class SFTConfig(Config):
    """Settings of sft."""

    # Who learns, from which rows
    env: str = option(help=ENV_HELP)
    settings: Any = problem_settings("env")
    role: Literal["reflection", "policy", "plain", "think"] = option(
        help="Which player: reflection, policy (acts on comments), plain (acts without), or think"
        " (comments, then"
        " acts)."
    )
    typed: bool = option(
        False,
        help="With --role reflection: a reflector that answers the environment's questions with"
        " probabilities, on the"
        " rows of gen-sft --questions.",
        essential=True,
    )
    task_file: Path | None = option(
        None,
        help="JSONL rows with prompt and completion; default: the role's file from gen-sft.",
        essential=True,
    )
    model: str = option(
        "tiny",
        help=(
            "tiny, tiny-hybrid or tiny-gpt2 (from scratch), smollm2-135m, a model folder, or a"
            " Hugging Face id."
        ),
        essential=True,
    )
    # How long
    max_steps: int = option(
        0,
        help=(
            "Gradient steps; 0: as many as the number of rows asks for, and fewer once held-out"
            " rows gain nothing."
        ),
        ge=0,
        essential=True,
    )
    epochs: int = option(
        0,
        help="Passes over the rows, instead of --max-steps; 0: --max-steps counts.",
        ge=0,
        essential=True,
    )
    # What is measured, and when that ends training
    validate_file: Path | None = option(
        None,
        help="Held-out rows to measure on; default without --max-steps and --epochs: the file of the"
        " same name in the"
        " folder held-out next to the rows, if there is one.",
    )
    hold_out: float | None = option(
        None,
        help="Share of the rows to hold out and measure on; default: 0.1 without --max-steps,"
        " --epochs and other"
        " held-out rows, else 0.",
        ge=0,
        le=0.5,
    )
    validate_steps: int = option(
        0,
        help="Gradient steps between measurements on held-out rows; 0: a twentieth of all steps.",
        ge=0,
    )
    patience: int | None = option(
        None,
        help="Measurements in a row without a gain in the probability of held-out answers, or in"
        " accuracy, that end"
        " training; 0: none do; default: 5 without --max-steps and --epochs, else 0.",
        ge=0,
    )
    # A gradient step
    batch_size: int = option(
        16, help="Rows per gradient step, over all processes.", ge=1, essential=True
    )
    gradient_accumulation: int = option(
        1, help="Parts in which a batch is read, one after the other, to save memory.", ge=1
    )
    dropout: float | None = option(
        None, help="Dropout of the model in training; default: its own.", ge=0, le=1
    )
    max_length: int = option(
        0,
        help=(
            "Maximum tokens per row, and the context length of a tiny model; 0: what the longest"
            " row needs."
        ),
        ge=0,
        essential=True,
    )
    prompt_loss: bool = option(
        False, help="Train on the prompts too, for a model that starts from scratch."
    )
    group_by_length: bool = option(False, help="Batch rows of similar lengths, for less padding.")
    share_prefixes: bool = option(
        False,
        help=(
            "Train on rows that begin alike together, and read what they share once;"
            " --batch-size counts such groups."
        ),
    )
    # Memory, speed and cost
    gradient_checkpointing: bool = option(
        False, help="Save memory by recomputing activations; about a third slower."
    )
    processes: int = option(
        1,
        help="Processes on this machine that share the work; changes rounding alone.",
        ge=1,
        identity=False,
    )
    device: str = option("auto", help="auto, cpu, cuda, …")
    dtype: DType = option(
        "float32",
        help="float32; bfloat16, faster on GPUs and CPUs with AMX or AVX-512 BF16; or float16.",
    )
    quantize: Quantize = option(
        "none",
        help="Quantise the base weights to 8bit or 4bit, for training a LoRA adapter; or none.",
    )
    lora_dropout: float = option(0.0, help="Dropout of what a new LoRA adapter reads.", ge=0, le=1)
    max_cost_usd: float | None = option(
        None,
        help="Stop before what the training service is asked for would exceed this budget.",
        gt=0,
        identity=False,
    )
    tiny: TinyConfig = TinyConfig()
    engine: EngineConfig = EngineConfig()
    optim: OptimizerConfig = OptimizerConfig(
        learning_rate=2e-3, warmup_steps=None, weight_decay=0.01, max_grad_norm=1.0
    )
    lora: LoraConfig = LoraConfig()
    checkpoints: CheckpointConfig = CheckpointConfig(save_steps=250)
    run: RunConfig = RunConfig()

    @classmethod
    @override
    def implied(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """The role and the environment that the file of the rows is named for:
        `data/taxi/sft_policy.jsonl`.
        """
        file = values.get("task_file")
        if not isinstance(file, str | Path):
            return {}
        # Rows of good episodes alone (…_positive) are of the same role
        path, result = Path(file), {}
        all_rows = path.name.replace("_positive", "")
        for role, file_of_role in FILE_OF_ROLE.items():
            if all_rows == file_of_role:
                result["role"] = role
        # The env's folder may be anywhere above
        for folder in path.parts[:-1]:
            if folder in ENVS:
                result.setdefault("env", folder)
        return result

    @property
    def setup(self) -> EnvSetup:
        """The environment."""
        return EnvSetup(self.env, self.run.data_dir, self.settings)

    @property
    def rows_file(self) -> Path:
        """The rows to train on."""
        by_role = TYPED if self.typed else FILE_OF_ROLE[self.role]
        return self.task_file or self.setup.folder / by_role

    @property
    def chooses(self) -> bool:
        """Whether the player chooses among options: a policy, or a typed reflector."""
        return self.typed or self.role != "reflection"

    @property
    def start(self) -> ModelRef:
        """The model to start from, if it is not from scratch."""
        return ModelRef.parse(self.model)

    @property
    def is_from_scratch(self) -> bool:
        """Whether the model starts from random weights."""
        return self.model in TINY

    @property
    def follows_rows(self) -> bool:
        """Whether the number of steps follows from the number of rows, as nobody sets it."""
        return not self.max_steps and not self.epochs

    @property
    def memory_advice(self) -> str:
        """What to try where memory runs out."""
        smaller = "use --lora-r, --quantize or a smaller model"
        other = "--max-length" if self.is_from_scratch else smaller
        return f"lower --batch-size, which is {self.batch_size}, or {other}"

    @property
    def most_measurements(self) -> int:
        """Measurements in a row without a gain that end training; 0: none do."""
        if self.patience is not None:
            return self.patience
        return PATIENCE if self.follows_rows else 0

    @override
    def contradictions(self) -> Iterator[Rule]:
        # 1. The player
        env_class(self.env)
        other_role = self.role != "reflection"
        yield self.typed and other_role, f"--typed is for --role reflection, not {self.role}"

        # 2. The adapter
        frozen = f"--quantize {self.quantize} needs --lora-r: quantised weights cannot be trained"
        yield self.quantize != "none" and not self.lora.r, frozen
        dropout = "--lora-dropout is a setting of a new adapter; add --lora-r, or leave it out"
        yield self.lora_dropout and not self.lora.r, dropout

        # 3. The batch
        uneven = (
            f"--gradient-accumulation {self.gradient_accumulation} does not divide --batch-size"
        )
        yield self.batch_size % self.gradient_accumulation, f"{uneven} {self.batch_size}"

        # 4. Copying
        names, copy_steps = ", ".join(TINY), self.tiny.copy_steps
        pretrained = (
            f"--copy-steps is for a model that starts from scratch ({names}), not {self.model}"
        )
        yield copy_steps and not self.is_from_scratch, pretrained
        passages = f"--copy-steps trains on passages of {PASSAGE} tokens"
        short = f"{passages}; --max-length must be at least as large"
        yield copy_steps and 0 < self.max_length < PASSAGE, short

        # 5. Held-out rows
        twice = "--hold-out is for rows without a --validate-file; leave one out"
        yield self.validate_file and self.hold_out, twice
        by_default = self.follows_rows and self.hold_out is None
        is_measured = by_default or self.validate_file or self.hold_out
        for name in non_default(self, "validate_steps", "patience"):
            needs_rows = f"{flag(name)} needs held-out rows: --validate-file or --hold-out 0.1"
            yield not is_measured, needs_rows

        # 6. A training service
        budget = "--max-cost-usd is for --engine tinker, with --price-read and --price-trained"
        has_prices = self.engine.remote and any(self.engine.settings.prices.values())
        yield self.max_cost_usd is not None and not has_prices, budget
        if self.engine.remote:
            yield from self._contradictions_of_engine()

        # 7. Models from scratch, and others
        pattern = self.tiny.token_pattern
        not_tiny = f"--token-pattern is for a model that starts from scratch, not {self.model}"
        yield pattern and not self.is_from_scratch, not_tiny
        if pattern:
            mistake = _mistake_in(pattern)
            yield mistake, f"--token-pattern {pattern}: {mistake}"
        scratch = f"--lora-r needs a pretrained model; --model {self.model} starts from scratch"
        yield self.lora.r and self.is_from_scratch, scratch

    def _contradictions_of_engine(self) -> Iterator[Rule]:
        """What a training service cannot do."""
        adapter_there = self.start.checkpoint(Quiet()).facts.get(SERVICE)
        scratch = f"has no random weights; replace --model {self.model} by a base of the service"
        refused = {
            scratch: self.is_from_scratch,
            "trains a LoRA adapter, not all weights; add --lora-r 16": not self.lora.r
            and not adapter_there,
            "goes on with the adapter of --model; leave out --lora-r": self.lora.r
            and adapter_there,
            "is asked by one process; leave out --processes": self.processes > 1,
            "answers no question with probabilities; leave out --typed": self.typed,
        }
        for reason, applies in refused.items():
            yield applies, f"--engine {self.engine.name} {reason}"
        of_this_machine = (
            "quantize", "dtype", "device", "dropout", "lora_dropout", "lora_alpha", "lora_targets",
            "gradient_accumulation", "gradient_checkpointing", "share_prefixes", "group_by_length",
        )  # fmt: skip
        for name in non_default(self, *of_this_machine):
            yield (
                True,
                (
                    f"{flag(name)} is for training on this machine; leave it out with --engine"
                    f" {self.engine.name}"
                ),
            )


def _mistake_in(pattern: str) -> str:
    """Why `pattern` is no regular expression; empty if it is one."""
    try:
        re.compile(pattern)
    except re.error as error:
        return str(error)
    return ""
