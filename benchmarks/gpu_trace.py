"""The part `trace` of `make gpu-report`: where the time of an `rlft` update goes, on the host and on the GPU.

Two instruments watch the same updates. `torch.profiler` records kernels, copies and calls of the CUDA runtime. A thread
looks at Python's stacks every few milliseconds, which shows what the host does between these calls.
"""

from __future__ import annotations

import collections
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu import Bench, Measured
from benchmarks.gpu_parts import RANK, compile_at_once, need_setup, rlft_settings
from reflectkit.console import Bar, Quiet
from reflectkit.jsonl import read_jsonl, write_text

WARM_UP = 2
"""Updates before the instruments start."""
LOOK_EVERY_S = 0.005
ROWS = 20
"""Of each table, at most."""
WAITING = ("threading.py", "selectors.py", "queue.py", "thread.py", "base_events.py")
"""Files in which a thread that has nothing to do waits."""
TRANSFERS = ("Memcpy", "Memset")
SYNCHRONISING = ("Synchronize", "cudaMemcpy")
"""Parts of the names of runtime calls that can wait for the GPU."""


def trace(bench: Bench, updates: int) -> Measured:
    """Updates of `rlft` with LoRA on AutoExplore under both instruments. trace.md in the folder gets the tables."""
    from reflectkit.commands import rlft

    need_setup(bench)
    compile_at_once()
    watch = WatchedUpdates(bench.device == "cuda", updates)
    settings = rlft_settings(bench, "trace") | {"max_steps": WARM_UP + updates + 1}
    config = rlft.RLConfig.from_flat(model=str(bench.folder / "model"), answer="text", lora_r=RANK, **settings)
    folder = rlft.run(config, watch).folder

    rows = [row for _, row in read_jsonl(folder / "metrics.jsonl")][WARM_UP : WARM_UP + updates]
    times = Times.of(rows)
    device = DeviceTimes.of(watch.events(), bench.device == "cuda")
    write_text(bench.folder / "trace.md", tables(times, device, watch.stacks))
    busy = f", GPU busy {device.busy_s / times.wall_s:.0%}" if bench.device == "cuda" else ""
    note = (
        f"{updates} updates, {times.wall_s / updates:.2f} s each, {times.rollout_s / updates:.2f} of it rollouts{busy}"
    )
    return Measured(times.tokens / times.wall_s, note=f"{note}; see trace.md")


class WatchedUpdates(Quiet):
    """Progress of a run that starts the instruments after WARM_UP updates, and stops them after `updates` more."""

    def __init__(self, on_gpu: bool, updates: int) -> None:
        self.stacks = Stacks()
        self.updates = updates
        self._profiler = profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU])
        self._updates_done = 0

    @contextmanager
    def bar(self, title: str, total: int, done: int = 0) -> Iterator[Bar]:
        """Only the bar of the updates counts."""
        yield self if title == "RL" else Bar()

    def advance(self, amount: int = 1, **figures: float) -> None:
        """An update is done."""
        self._updates_done += amount
        if self._updates_done == WARM_UP:
            self._profiler.start()
            self.stacks.start()
        elif self._updates_done == WARM_UP + self.updates:
            self.stacks.stop()
            self._profiler.stop()

    def events(self) -> Iterable[Any]:
        """The profiler's events as it recorded them: its own tables take minutes for a million of them."""
        profiler: Any = self._profiler.profiler
        events: Iterable[Any] = profiler.kineto_results.events()
        return events


class Stacks:
    """Counts what this process's threads execute. looks: how often it looked."""

    def __init__(self) -> None:
        self.looks = 0
        self.leaves: collections.Counter[str] = collections.Counter()
        """By the innermost function."""
        self.package: collections.Counter[str] = collections.Counter()
        """By the innermost function of this package."""
        self.inclusive: collections.Counter[str] = collections.Counter()
        """By each function of this package that has not returned."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(LOOK_EVERY_S):
            self.looks += 1
            for number, frame in sys._current_frames().items():
                if number != self._thread.ident:
                    self._count(frame)

    def _count(self, frame: FrameType) -> None:
        if frame.f_code.co_filename.endswith(WAITING):
            return
        functions = [_function(each) for each in _outwards(frame)]
        package = [name for name in functions if name.startswith("reflectkit/")]
        if package:
            self.leaves[functions[0]] += 1
            self.package[package[0]] += 1
            self.inclusive.update(set(package))


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _function(frame: FrameType) -> str:
    """FOLDER/FILE:NAME of a frame's function; the path is short: from the package on."""
    path = frame.f_code.co_filename
    for root in ("/reflectkit/", "/site-packages/", "/dist-packages/"):
        if root in path:
            path = path.rpartition(root)[2]
            break
    package = "reflectkit/" if "/reflectkit/" in frame.f_code.co_filename else ""
    return f"{package}{path}:{frame.f_code.co_name}"


@dataclass(frozen=True)
class Times:
    """Sums over the watched updates: of their seconds and of their tokens, read, written and trained on."""

    updates: int
    rollout_s: float
    update_s: float
    tokens: int

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]]) -> Times:
        """Of rows of metrics.jsonl."""
        return cls(
            len(rows),
            sum(row["rollout_seconds"] for row in rows),
            sum(row["update_seconds"] for row in rows),
            sum(row["tokens"] for row in rows),
        )

    @property
    def wall_s(self) -> float:
        """Seconds of rollouts and learning."""
        return self.rollout_s + self.update_s


@dataclass(frozen=True)
class DeviceTimes:
    """What the profiler recorded: (number, seconds) by name."""

    kernels: Mapping[str, tuple[int, float]]
    transfers: Mapping[str, tuple[int, float]]
    calls: Mapping[str, tuple[int, float]]
    """Of the CUDA runtime; on a CPU, torch's operators."""
    busy_s: float
    """In which at least one kernel or copy ran."""

    @classmethod
    def of(cls, events: Iterable[Any], on_gpu: bool) -> DeviceTimes:
        """Of the profiler's events."""
        kernels, transfers, calls = (collections.defaultdict[str, list[float]](lambda: [0, 0.0]) for _ in range(3))
        spans: list[tuple[int, int]] = []
        for event in events:
            name, nanoseconds = event.name(), event.duration_ns()
            table = calls
            if on_gpu and event.device_type().name == "CUDA":
                table = transfers if name.startswith(TRANSFERS) else kernels
                spans.append((event.start_ns(), event.start_ns() + nanoseconds))
            table[name][0] += 1
            table[name][1] += nanoseconds / 1e9
        return cls(
            kernels=_frozen(kernels),
            transfers=_frozen(transfers),
            calls=_frozen(calls),
            busy_s=_covered(spans) / 1e9,
        )


def _frozen(table: Mapping[str, Sequence[float]]) -> Mapping[str, tuple[int, float]]:
    """(number, seconds) by name, of a table of such lists."""
    return {name: (int(count), seconds) for name, (count, seconds) in table.items()}


def _covered(spans: list[tuple[int, int]]) -> int:
    """The length of the union of the spans.

    >>> _covered([(0, 2), (1, 3), (5, 6)])
    4
    """
    total = end = 0
    for start, stop in sorted(spans):
        total += max(0, stop - max(start, end))
        end = max(end, stop)
    return total


def tables(times: Times, device: DeviceTimes, stacks: Stacks) -> str:
    """All tables as Markdown; times are of one update."""
    synchronising = {name: value for name, value in device.calls.items() if any(part in name for part in SYNCHRONISING)}
    launches = {name: value for name, value in device.calls.items() if "Launch" in name}
    sums = {
        "rollout": (1, times.rollout_s / times.updates),
        "learning": (1, times.update_s / times.updates),
        "GPU busy": (1, device.busy_s / times.updates),
        "kernels": _sum(device.kernels, times.updates),
        "copies": _sum(device.transfers, times.updates),
        "launches (host)": _sum(launches, times.updates),
        "calls that can wait for the GPU (host)": _sum(synchronising, times.updates),
    }
    blocks = [_table("An update", sums)]
    for title, values in (
        ("Kernels", device.kernels),
        ("Copies", device.transfers),
        ("Calls of the CUDA runtime, or operators on a CPU", device.calls),
    ):
        each = {name: _sum({name: value}, times.updates) for name, value in values.items()}
        blocks.append(_table(title, each))
    for title, counts in (
        ("Python: innermost function", stacks.leaves),
        ("Python: innermost function of the package", stacks.package),
        ("Python: functions of the package that have not returned", stacks.inclusive),
    ):
        seconds = times.wall_s / times.updates / max(1, stacks.looks)
        blocks.append(_table(f"{title} ({stacks.looks} looks)", {name: (n, n * seconds) for name, n in counts.items()}))
    return "\n".join(blocks)


def _sum(values: Mapping[str, tuple[int, float]], updates: int) -> tuple[float, float]:
    """(number, seconds) of an update."""
    number = sum(number for number, _ in values.values())
    seconds = sum(seconds for _, seconds in values.values())
    return number / updates, seconds / updates


def _table(title: str, values: Mapping[str, tuple[float, float]]) -> str:
    """The rows with most seconds, in their order if there are few."""
    rows = list(values.items())
    if len(rows) > ROWS // 2:
        rows = sorted(rows, key=lambda row: -row[1][1])[:ROWS]
    lines = [f"| {title} | number | seconds |", "|---|---|---|"]
    lines += [f"| {name[:110].replace('|', '/')} | {number:,.1f} | {seconds:.4f} |" for name, (number, seconds) in rows]
    return "\n".join(lines) + "\n"
