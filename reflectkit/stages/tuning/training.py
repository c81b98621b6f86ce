"""The settings that sft and rlft train with alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from reflectkit.core.config import OPTIMIZERS, SCHEDULES, StageConfig, one_of, option, within
from reflectkit.stages.tuning.estimate import PLAN_HELP
from reflectkit.stages.tuning.trackers import REPORT_TO_HELP, check_trackers

TRAINING_LIMITS = {
    "weight_decay": (0, 1000),
    "warmup_steps": (0, 10**9),
    "keep_checkpoints": (1, 10**6),
    "max_grad_norm": (0, 10**9),
}
"""The range of each of these settings."""


@dataclass(frozen=True)
class TrainingConfig(StageConfig):
    """Settings of a stage that trains."""

    PANEL: ClassVar = "Training"
    optimizer: str = option(
        OPTIMIZERS[0], help="adamw, adafactor (less memory) or sgd (with momentum 0.9); the last two need other rates."
    )
    weight_decay: float = option(0.0, help="Weight decay, of all trained weights but biases and norms.")
    schedule: str = option(
        "linear", help="Learning rate after warm-up: linear or cosine (down to 0 at the last step), or constant."
    )
    keep_checkpoints: int = option(
        2, help="Checkpoints to keep, the latest; with 1, a damaged one means a new start.", identity=False
    )
    plan: bool = option(False, help=PLAN_HELP, identity=False)
    report_to: tuple[str, ...] = option((), help=REPORT_TO_HELP)

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("optimizer", self.optimizer, OPTIMIZERS)
        one_of("schedule", self.schedule, SCHEDULES)
        for name, (low, high) in TRAINING_LIMITS.items():
            if getattr(self, name) is not None:
                within(name, getattr(self, name), low, high)
        check_trackers(self.report_to)
