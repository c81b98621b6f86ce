"""--report-to: a training run's figures in TensorBoard, Weights & Biases or Trackio as well, by accelerate's trackers.

TensorBoard's files go into the run's folder, so `tensorboard --logdir results` shows each run under its name.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from reflectkit.errors import ConfigError
from reflectkit.keys import masked

Tracker = Literal["tensorboard", "wandb", "trackio"]
REPORT_TO_HELP = "Also log to tensorboard, wandb or trackio (repeat the flag)."
PROJECT = "reflectkit"

Log = Callable[[Mapping[str, Any], int], None]
"""Called with figures by name and the step; only those that are numbers are logged."""


def require_trackers(names: Sequence[str]) -> None:
    """Raises ConfigError if the package of one of `names` is not installed. Imports nothing."""
    for name in names:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:  # a folder of logs called wandb is no package
            raise ConfigError(f"--report-to {name}: the package is not installed; pip install {name}")


@contextlib.contextmanager
def tracking(names: Sequence[str], folder: Path, settings: Mapping[str, Any]) -> Iterator[Log]:
    """A function that logs figures to the trackers, in the first process only. Call it after accelerate has started.

    folder: the run's, for TensorBoard's files. settings: what the others show next to the figures.
    """
    if not names:
        yield lambda figures, step: None
        return
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    shown = {name: value for name, value in settings.items() if isinstance(value, str | int | float)}
    trackers: list[Any] = []
    for name in dict.fromkeys(names):
        kind = LOGGER_TYPE_TO_CLASS[name]
        in_folder = kind.requires_logging_directory
        tracker = kind("", str(folder)) if in_folder else kind(PROJECT)
        try:
            tracker.start()
        except Exception as error:  # the packages raise many types without a login or a network
            reason = (masked(str(error)).strip() or type(error).__name__).splitlines()[0][:200]
            raise ConfigError(
                f"--report-to {name}: {reason}; see its own settings for working offline, or leave it out"
            ) from None
        if not in_folder:  # TensorBoard would put the settings into a run of their own; config.json has them
            tracker.store_init_configuration(shown)
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
