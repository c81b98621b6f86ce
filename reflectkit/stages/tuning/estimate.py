"""--plan: what a training run will take, from the sizes of its weights and a short calibration of the real thing."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reflectkit.core.reports import Report, Table
from reflectkit.core.text import counted

PROCESSES = (1, 2, 4, 8)
PLAN_HELP = "Only estimate memory and time, from a few steps that change nothing on disk."


@dataclass(frozen=True)
class Estimate:
    """What a run takes in one process."""

    trained: int
    """Parameters that are trained."""
    frozen: int
    """Parameters that are not, reflector and reference included."""
    weights: int
    """Bytes of all weights."""
    gradients: int
    """Bytes of the gradients."""
    optimizer: int
    """Bytes of the optimizer's state."""
    activations: int
    """Bytes of what else exists at once at most, at the given batch."""
    tokens: float
    """Tokens of an update: its rows with padding in sft; its rows and what rollouts read in rlft."""
    seconds: float
    """Of an update, with its rollouts."""
    steps: int
    """Updates."""
    calibration: str
    """What was measured."""

    @property
    def memory(self) -> int:
        """Bytes, without what Python and the libraries take."""
        return self.weights + self.gradients + self.optimizer + self.activations

    def sharded(self, processes: int) -> int:
        """Bytes of each of several processes that share weights, gradients and optimizer (FSDP2, ZeRO 3)."""
        return (self.weights + self.gradients + self.optimizer) // processes + self.activations


def plan_report(stage: str, results: Path, plan: Estimate, *, processes: bool) -> Report:
    """The plan as tables. processes: whether the stage runs in several."""
    rows = {
        "trainable parameters": f"{plan.trained:,}",
        "frozen parameters": f"{plan.frozen:,}",
        "weights": shown_bytes(plan.weights),
        "gradients": shown_bytes(plan.gradients),
        "optimizer": shown_bytes(plan.optimizer),
        "activations, at most": shown_bytes(plan.activations),
        "together": shown_bytes(plan.memory),
        "tokens an update": f"{plan.tokens:,.0f}",
        "time of an update": shown_seconds(plan.seconds),
        f"time of {counted(plan.steps, 'update')}": shown_seconds(plan.seconds * plan.steps),
        "calibrated on": plan.calibration,
    }
    tables = [Table(f"Plan of {stage}, estimated", ("what", "value"), tuple(rows.items()))]
    if processes:
        several = tuple(
            (
                str(count),
                shown_bytes(plan.memory),
                shown_bytes(plan.sharded(count)),
                shown_seconds(plan.seconds * plan.steps / count),
            )
            for count in PROCESSES
        )
        columns = ("processes", "memory of each", "memory of each, sharded", "time, at best")
        tables.append(Table("In several processes", columns, several))
    figures = {name: getattr(plan, name) for name in Estimate.__dataclass_fields__} | {"memory": plan.memory}
    return Report(stage, results, figures, tables=tuple(tables))


def shown_bytes(count: float) -> str:
    """Bytes in MiB or GiB.

    >>> shown_bytes(3 * 2**20), shown_bytes(5 * 2**31)
    ('3.0 MiB', '10.0 GiB')
    """
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def shown_seconds(seconds: float) -> str:
    """A time in a unit that fits.

    >>> shown_seconds(0.25), shown_seconds(200), shown_seconds(9000)
    ('0.25 s', '3.3 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def sizes(models: Iterable[Any], optimizer: str) -> dict[str, int]:
    """The fields of `Estimate` that do not need a calibration. optimizer: its name."""
    from reflectkit.models.measure import count, optimizer_size, size, split_parameters

    trained, frozen = split_parameters(models)
    return {
        "trained": count(trained),
        "frozen": count(frozen),
        "weights": size([*trained, *frozen]),
        "gradients": size(trained),
        "optimizer": optimizer_size(optimizer, trained),
    }


class Stopwatch:
    """Seconds of the second of three steps, and the peak memory of the third."""

    def __init__(self) -> None:
        from reflectkit.models.measure import PeakMemory

        self.seconds, self.step, self._started = 0.0, 0, 0.0
        self.memory = PeakMemory()

    def begin(self) -> None:
        """A step begins."""
        self.step += 1
        self._started = time.perf_counter()
        if self.step == 3:
            self.memory.__enter__()  # type: ignore[no-untyped-call]

    def gradients_done(self) -> None:
        """The optimizer is about to step."""
        if self.step == 3:
            self.memory.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def end(self) -> None:
        """The step is done."""
        if self.step == 2:
            self.seconds = time.perf_counter() - self._started
