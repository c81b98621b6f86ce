"""sft --plan: three steps on the longest rows, without a file, tell what training will take."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from reflectkit.core.config import with_values
from reflectkit.core.console import Bar, Progress
from reflectkit.core.memory import memory_explained
from reflectkit.core.reports import Report
from reflectkit.core.seeding import generator
from reflectkit.core.text import counted
from reflectkit.core.threads import use_threads
from reflectkit.data.sft import Row
from reflectkit.models.hub import TINY, hub_options
from reflectkit.stages.tuning.estimate import Estimate, Stopwatch, plan_report, shown_bytes, sizes
from reflectkit.stages.tuning.sft_player import encoded_rows, player_of, with_steps
from reflectkit.stages.tuning.sft_trainer import trainer_of

if TYPE_CHECKING:
    from reflectkit.models.load import Player
    from reflectkit.stages.tuning.sft_config import SFTConfig

SAFE = 0.8  # of the free memory, which a calibration may take


def plan_of(config: SFTConfig, source: Path, rows: Sequence[Row], progress: Progress) -> Report:
    """What training would take: three steps on batches of the longest row are the calibration. Where a batch would not
    fit into memory, which would end this process without a word, they have as many rows as do.
    """
    use_threads(config.run.threads)
    progress.news(f"sft --plan: {counted(len(rows), 'row')} of {source}; loading torch")
    if config.model not in TINY:
        hub_options(config.model)
    from reflectkit.models.load import checkpoint_gradients
    from reflectkit.models.measure import free_memory

    player = player_of(config, source, rows)
    if config.gradient_checkpointing:
        checkpoint_gradients(player.model)
    encoded = encoded_rows(config, source, rows, player, progress)
    config = with_steps(config, len(encoded))
    lengths = [len(row["input_ids"]) for row in encoded]
    longest = max(encoded, key=lambda row: len(row["input_ids"]))
    part = config.batch_size // config.gradient_accumulation
    known = sizes([player.model], config.optim.optimizer)
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
    return plan_report("sft", config.run.results_dir, plan, processes=False)


def _calibrated(
    config: SFTConfig, player: Player, row: dict[str, list[int]], count: int, progress: Progress
) -> Stopwatch:
    """The time and memory of a step on `count` times `row`. Raises ReflectkitError if a GPU has no memory for it."""
    short = with_values(config, batch_size=count, gradient_accumulation=1, max_steps=3, group_by_length=False)
    with tempfile.TemporaryDirectory() as scratch, progress.bar("Calibrating", 3) as bar:
        trainer = trainer_of(short, Path(scratch), player, [row] * (3 * count))
        trainer.args.save_strategy = "no"
        trainer.add_callback(_timer(watch := Stopwatch(), bar))
        with memory_explained(f"lower --batch-size, which is {config.batch_size}, or raise --gradient-accumulation"):
            trainer.train()
    return watch


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


def _padded(lengths: Sequence[int], config: SFTConfig) -> float:
    """Mean tokens of an update, padding included, over random batches of rows of these lengths."""
    if config.group_by_length:
        return config.batch_size * fmean(lengths)
    part = config.batch_size // config.gradient_accumulation
    chance = generator(config.run.seed, "plan")
    widest = fmean(max(chance.choices(lengths, k=part)) for _ in range(256))
    return config.batch_size * widest
