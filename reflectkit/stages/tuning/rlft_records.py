"""What rlft keeps of its updates: their figures, some episodes, and the rows of one that diverged."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reflectkit.core.appended import append, intact, rewrite
from reflectkit.core.console import Progress
from reflectkit.core.errors import DivergedError, ReflectkitError
from reflectkit.core.folders import checkpoints
from reflectkit.core.jsonl import write_jsonl
from reflectkit.core.types import to_json
from reflectkit.data.episodes import episode_to_json
from reflectkit.envs import cluster_of

if TYPE_CHECKING:
    from reflectkit.rl.loop import Trainer
    from reflectkit.stages.tuning.rl_config import RLConfig


def history_of(path: Path, step: int, progress: Progress) -> list[dict[str, Any]]:
    """The figures in `path` of the updates up to `step`, as they were written."""
    rows, damaged, _ = intact(path, step, {"success_rate": int | float, "return": int | float})
    if damaged:
        progress.news(f"{path}: damaged lines dropped: {damaged}; training itself is not affected")
    return rows


def restore_episodes(path: Path, step: int, progress: Progress) -> None:
    """Remove the kept episodes of lost updates, after `step`, and those that were changed."""
    if not path.is_file():
        return
    rows, damaged, missing = intact(path, step, {})
    if damaged or missing:
        progress.news(f"{path}: damaged lines dropped: {damaged}, lines lost: {missing}")
    rewrite(path, rows)


def keep_episodes(config: RLConfig, trainer: Trainer, path: Path) -> None:
    """Append this update's first episodes to those of earlier updates."""
    new = [
        episode_to_json(f"update {trainer.step}", trajectory, advantages, cluster_of(config.env.name, trajectory.task))
        | {"step": trainer.step}
        for trajectory, advantages in trainer.latest[: config.keep_episodes]
    ]
    append(path, new, sync=True)


def with_rows(error: ReflectkitError, folder: Path, trainer: Trainer) -> ReflectkitError:
    """`error`; if an update diverged, its rows are written to a file that the error names."""

    if not isinstance(error, DivergedError):
        return error
    path = folder / f"diverged-{trainer.step + 1}.jsonl"
    if trainer.processes.first:
        write_jsonl(path, _readable(error, trainer))
    last = checkpoints(folder)
    fix = f"resume with --resume-from {last[-1]} and a lower --learning-rate" if last else "lower --learning-rate"
    return DivergedError(f"{error}; {fix} (the rows are in {path})")


def _readable(error: DivergedError, trainer: Trainer) -> Iterator[dict[str, Any]]:
    """The rows with their text; NaN and infinity become text, since JSON does not have them."""
    for sample in error.samples:
        row = to_json(sample) | {"text": trainer.agent.policy.tokenizer.decode(sample.tokens)}
        yield {
            name: [value if not isinstance(value, float) or math.isfinite(value) else str(value) for value in column]
            if isinstance(column, list)
            else column
            for name, column in row.items()
        }
