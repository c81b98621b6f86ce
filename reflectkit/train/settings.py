"""What sft and rlft have in common: settings of optimizer, LoRA adapter and checkpoints, and
--report-to.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from typing_extensions import override

from reflectkit.config import Config, Rule, flag, non_default, option
from reflectkit.errors import ConfigError
from reflectkit.keys import masked

Tracker = Literal["tensorboard", "wandb", "trackio"]
Log = Callable[[Mapping[str, Any], int], None]
"""Called with figures by name and the step; only those that are numbers are logged."""


def require_trackers(names: Sequence[str]) -> None:
    """Raises ConfigError if the package of one of `names` is not installed. Imports nothing."""
    for name in names:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:  # a folder of logs called wandb is no package
            raise ConfigError(
                f"--report-to {name}: the package is not installed; pip install {name}"
            )


@contextlib.contextmanager
def tracking(
    names: Sequence[str],
    folder: Path,
    settings: Mapping[str, Any],
) -> Iterator[Log]:
    """A function that logs figures to the trackers, in the first process only. Call it after
    accelerate has started.

    folder: the run's, for TensorBoard's files. settings: what the others show next to the figures.
    """
    if not names:
        yield lambda figures, step: None
        return
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    plain = {
        name: value for name, value in settings.items() if isinstance(value, str | int | float)
    }
    trackers: list[Any] = []
    for name in dict.fromkeys(names):
        kind = LOGGER_TYPE_TO_CLASS[name]
        in_folder = kind.requires_logging_directory
        tracker = kind("", str(folder)) if in_folder else kind("reflectkit")
        try:
            tracker.start()
        except Exception as error:  # the packages raise many types without a login or a network
            reason = (masked(str(error)).strip() or type(error).__name__).splitlines()[0][:200]
            raise ConfigError(
                f"--report-to {name}: {reason}; see its own settings for working offline, or"
                " leave it out"
            ) from None
        # TensorBoard would put the settings into a run of their own; config.json has them
        if not in_folder:
            tracker.store_init_configuration(plain)
        trackers.append(tracker)

    def log(figures: Mapping[str, Any], step: int) -> None:
        numbers = {name: value for name, value in figures.items() if isinstance(value, int | float)}
        for tracker in trackers:
            tracker.log(numbers, step=step)

    try:
        yield log
    finally:
        for tracker in trackers:
            tracker.finish()


LEARNING_RATE = 2.5e-4
"""Peak learning rate of a model that was trained before."""
RATE_FROM_SCRATCH = 5e-4
"""Of one with random weights, which has nothing to forget."""


class OptimizerConfig(Config):
    """Optimizer: how weights change."""

    # The learning rate, from warm-up to the last step
    learning_rate: float | None = option(
        None,
        help=(
            "Peak learning rate; in rlft 2.5e-4, or 5e-4 for --model tiny and choices with a new"
            " adapter."
        ),
        gt=0,
        essential=True,
    )
    warmup_steps: int | None = option(
        0,
        help=(
            "Steps in which the learning rate rises to its peak; none (default in sft): 5 % of the"
            " steps."
        ),
        ge=0,
    )
    schedule: Literal["linear", "cosine", "constant"] = option(
        "linear",
        help=(
            "Learning rate after warm-up: linear or cosine (down to 0 at the last step), or"
            " constant."
        ),
    )
    # Each step
    weight_decay: float = option(
        0.0, help="Weight decay, of all trained weights but biases and norms.", ge=0
    )
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
        help=(
            "Layers that a new LoRA adapter changes: all-linear, or names like q_proj,v_proj;"
            " default: peft's."
        ),
    )

    @override
    def contradictions(self) -> Iterator[Rule]:
        for name in non_default(self):
            yield (
                not self.r,
                f"{flag(name)} is a setting of a new adapter; add --lora-r, or leave it out",
            )


class CheckpointConfig(Config):
    """Checkpoints: what is kept of training, and where its figures go."""

    # What is kept
    save_steps: int = option(
        20, help="Steps between checkpoints; a killed run resumes from the latest.", ge=1
    )
    keep_checkpoints: int = option(
        2,
        help="Checkpoints to keep, the latest; with 1, a damaged one means a new start.",
        ge=1,
        identity=False,
    )
    # What is told
    report_to: tuple[Tracker, ...] = option(
        (), help="Also log to tensorboard, wandb or trackio (repeat the flag)."
    )
    plan: bool = option(
        False,
        help="Only estimate parameters, memory and tokens; trains nothing and writes nothing.",
        identity=False,
    )
