"""The settings that sft and rlft have in common: optimizer, LoRA adapter and checkpoints."""

from __future__ import annotations

from typing import Literal

from reflectkit.config import Config, option
from reflectkit.train.estimate import PLAN_HELP
from reflectkit.train.trackers import REPORT_TO_HELP, Tracker

LEARNING_RATE = 2.5e-4
"""Peak learning rate of a model that was trained before."""
RATE_FROM_SCRATCH = 1e-3
"""Of one with random weights, which has nothing to forget."""


class OptimizerConfig(Config):
    """Optimizer: how weights change."""

    learning_rate: float | None = option(
        None, help="Peak learning rate; default: 2.5e-4, with rlft --model tiny 1e-3.", gt=0, essential=True
    )
    warmup_steps: int | None = option(
        0, help="Steps in which the learning rate rises to its peak; none (default in sft): 5 % of the steps.", ge=0
    )
    schedule: Literal["linear", "cosine", "constant"] = option(
        "linear", help="Learning rate after warm-up: linear or cosine (down to 0 at the last step), or constant."
    )
    optimizer: Literal["adamw", "adafactor", "sgd"] = option(
        "adamw", help="adamw, adafactor (less memory) or sgd (with momentum 0.9); the last two need other rates."
    )
    weight_decay: float = option(0.0, help="Weight decay, of all trained weights but biases and norms.", ge=0)
    max_grad_norm: float = option(0.3, help="Gradients are clipped to this norm.", gt=0)

    @property
    def rate(self) -> float:
        """The peak learning rate; the settings of each command set one."""
        assert self.learning_rate is not None
        return self.learning_rate


class LoraConfig(Config):
    """LoRA adapter: a new one on frozen weights."""

    r: int = option(
        0,
        name="lora_r",
        help="Rank of a new LoRA adapter; 0 trains all weights, or the existing adapter.",
        ge=0,
        essential=True,
    )
    alpha: int = option(16, name="lora_alpha", help="Scale of the LoRA adapter.", ge=1)
    targets: str = option(
        "",
        name="lora_targets",
        help="Layers that a new LoRA adapter changes: all-linear, or names like q_proj,v_proj; default: peft's.",
    )


class CheckpointConfig(Config):
    """Checkpoints: what is kept of training, and where its figures go."""

    save_steps: int = option(20, help="Steps between checkpoints; a killed run resumes from the latest.", ge=1)
    keep_checkpoints: int = option(
        2, help="Checkpoints to keep, the latest; with 1, a damaged one means a new start.", ge=1, identity=False
    )
    report_to: tuple[Tracker, ...] = option((), help=REPORT_TO_HELP)
    plan: bool = option(False, help=PLAN_HELP, identity=False)
