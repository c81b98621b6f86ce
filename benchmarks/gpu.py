"""`benchmarks.bench gpu`: whether everything that trains and samples works on one GPU, how fast, in how much memory.

Each part runs in a process of its own with a time limit, so one that fails or runs out of memory does not end the
others. The table is written after each part; a check that was stopped keeps it, and goes on with what is missing.
"""

from __future__ import annotations

import contextlib
import importlib.util
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from reflectkit.console import Bar, Table
from reflectkit.errors import ConfigError, ReflectkitError
from reflectkit.jsonl import read_json, write_json, write_text
from reflectkit.registry import resolve
from reflectkit.seeding import use_threads

DEVICES = ("auto", "cpu", "cuda")
MINUTES = 9.0
LEAST_S = 15.0
"""With less time than this left, no part is started."""
FASTEST_S = 300.0
"""Most seconds for a part whose shapes are tiny, which may run on a slow CPU."""
COLUMNS = ("part", "tokens/s", "peak GiB", "of bare passes", "seconds", "note")
LORA, TRAINER = ("peft",), ("trl", "datasets", "peft")
NO_GPU = "bench gpu: torch sees no GPU on this machine; --device cpu tests the check itself"
TIME_IS_UP = "the time is up; the same command continues from here"


@dataclass(frozen=True)
class Bench:
    """What every part is told."""

    folder: Path
    """Where parts keep what they make: data, models, runs."""
    device: str
    """"cuda" or "cpu"; "auto" until `machine` knows."""
    fast: bool
    """Whether shapes are tiny."""
    seed: int
    """Random seed."""
    threads: int
    """CPU threads of each process."""


@dataclass(frozen=True)
class Measured:
    """What a part found."""

    tokens_per_second: float | None = None
    """Tokens of the rows, including prompts but not padding; of decoding, only those written."""
    share: float | None = None
    """Speed as a share of the model's bare passes over the same tokens."""
    note: str = ""
    """What was run, or what else was measured."""
    peak_gib: float | None = None
    """Peak memory of one process in GiB; None: the part's own process knows it."""


class NotPossibleError(ReflectkitError):
    """This machine cannot run the part; the text is the reason."""


@dataclass(frozen=True)
class Part:
    """One row of the table."""

    name: str
    """As in --only."""
    run: str
    """The function `module:name`; it is given the Bench, then `settings`, and returns a Measured."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Its other arguments."""
    needs: tuple[str, ...] = ()
    """Modules without which the part is skipped."""
    limit_s: float = 150.0
    """Most seconds."""
    not_on_cpu: str = ""
    """Why it is skipped on a CPU."""
    shows_memory: bool = True
    """Whether the peak memory of its process is that of what it runs."""


HERE = "benchmarks.gpu_parts"
PASSES = "benchmarks.gpu_passes"
SHARDED = "accelerate shards on GPUs only"
PARTS = (
    Part("setup", f"{HERE}:setup", limit_s=150.0),
    Part("rlft", f"{HERE}:learn", {"lora_r": 16}, LORA),
    Part("half-billion-lora", f"{PASSES}:half_update", {"lora_r": 16}, LORA),
    Part("half-billion", f"{PASSES}:half_update"),
    Part("half-billion-decoding", f"{PASSES}:half_decoding"),
    Part("decoding", f"{PASSES}:decoding"),
    Part("bench-rl", f"{PASSES}:bench_rl"),
    Part("rlft-all-weights", f"{HERE}:learn"),
    Part("sft", f"{HERE}:train", needs=TRAINER),
    Part("two-processes", f"{HERE}:launched", {"config": "multi_gpu", "processes": 2}),
    Part("rlft-checkpointing", f"{HERE}:learn", {"lora_r": 16, "gradient_checkpointing": True}, LORA),
    Part("rlft-8bit", f"{HERE}:learn", {"lora_r": 16, "quantize": "8bit"}, (*LORA, "bitsandbytes")),
    Part("rlft-4bit", f"{HERE}:learn", {"lora_r": 16, "quantize": "4bit"}, (*LORA, "bitsandbytes")),
    Part("share-base", f"{HERE}:share_base", needs=LORA),
    Part("sft-8bit", f"{HERE}:train", {"quantize": "8bit"}, (*TRAINER, "bitsandbytes")),
    Part("sft-4bit", f"{HERE}:train", {"quantize": "4bit"}, (*TRAINER, "bitsandbytes")),
    Part("fsdp2-one", f"{HERE}:launched", {"config": "fsdp2", "processes": 1}, not_on_cpu=SHARDED),
    Part("fsdp2-two", f"{HERE}:launched", {"config": "fsdp2", "processes": 2}, not_on_cpu=SHARDED),
    Part(
        "other-versions",
        f"{HERE}:other_versions",
        limit_s=180.0,
        not_on_cpu="on a CPU, make versions-check is the same",
        shows_memory=False,
    ),
    Part("pipeline", f"{HERE}:pipeline", needs=TRAINER, limit_s=60 * MINUTES, shows_memory=False),
)
"""In this order, the most important first; `setup` makes the data and the model of most others."""


@dataclass(frozen=True)
class Row:
    """A part's outcome."""

    part: str
    """The part's name."""
    status: str
    """"ok", "skipped" or "failed"."""
    note: str = ""
    """What was run; of other rows, the reason."""
    tokens_per_second: float | None = None
    """See `Measured`."""
    share: float | None = None
    """See `Measured`."""
    peak_gib: float | None = None
    """Peak memory of one process, in GiB: of the GPU, or resident on a CPU."""
    seconds: float | None = None
    """Of the whole part, including imports and loading."""

    @property
    def cells(self) -> tuple[str, ...]:
        """The row as text, under COLUMNS."""
        return (
            self.part,
            "-" if self.tokens_per_second is None else f"{self.tokens_per_second:,.0f}",
            "-" if self.peak_gib is None else f"{self.peak_gib:.2f}",
            "-" if self.share is None else f"{self.share:.2f}",
            "-" if self.seconds is None else f"{self.seconds:.0f}",
            self.note if self.status == "ok" else f"{self.status}: {self.note}",
        )


def names_of_parts() -> tuple[str, ...]:
    """The names of all parts, in their order."""
    return tuple(part.name for part in PARTS)


def machine(device: str, threads: int) -> dict[str, Any]:
    """What the figures depend on: device, memory, versions, date; asked in another process, as all that needs torch.

    Raises
    ------
    ConfigError: `device` is "cuda", and torch sees no GPU. ReflectkitError: torch cannot be imported.
    """
    use_threads(threads)
    with tempfile.TemporaryDirectory(prefix="reflectkit-gpu-") as folder:
        bench = Bench(Path(folder), device, False, 0, threads)
        row = perform(Part("machine", f"{HERE}:machine"), bench, 120.0)
        if row.status == "skipped":
            raise ConfigError(NO_GPU)
        if row.status == "failed":
            raise ReflectkitError(f"bench gpu: torch does not start here: {row.note}")
        return dict(read_json(bench.folder / "facts.json"))


def check(chosen: Sequence[str], bench: Bench, facts: dict[str, Any], minutes: float, bar: Bar) -> list[Row]:
    """The rows of the parts named in `chosen`. Those that `table.json` in the folder has with figures, from the same
    machine, are not run again.
    """
    ends = time.perf_counter() + 60 * minutes
    parts = [part for part in PARTS if part.name in chosen]
    rows = _earlier(bench.folder / "table.json", facts)
    for part in parts:
        if part.name not in rows:
            rows[part.name] = perform_or_skip(part, bench, ends - time.perf_counter())
        write(bench, facts, [rows[one.name] for one in parts if one.name in rows])
        bar.advance()
    return [rows[part.name] for part in parts]


def _earlier(path: Path, facts: dict[str, Any]) -> dict[str, Row]:
    """The finished rows of an earlier start on the same machine, by part."""
    if not path.is_file():
        return {}
    record = read_json(path)
    here, there = ({name: one for name, one in each.items() if name != "date"} for each in (facts, record["machine"]))
    rows = [Row(**row) for row in record["rows"]] if here == there else []
    return {row.part: row for row in rows if row.status == "ok"}


def perform_or_skip(part: Part, bench: Bench, left_s: float) -> Row:
    """Skip the part if it cannot run here; otherwise perform it."""
    missing = [name for name in part.needs if importlib.util.find_spec(name) is None]
    if missing:
        return Row(part.name, "skipped", f"not installed: {', '.join(missing)}")
    if part.not_on_cpu and bench.device == "cpu":
        return Row(part.name, "skipped", part.not_on_cpu)
    if left_s < LEAST_S:
        return Row(part.name, "skipped", TIME_IS_UP)
    limit_s = FASTEST_S if bench.fast else part.limit_s
    row = perform(part, bench, min(left_s, limit_s))
    stopped = row.status == "failed" and row.seconds is not None and left_s < min(row.seconds, limit_s)
    return Row(part.name, "skipped", TIME_IS_UP) if stopped else row


def perform(part: Part, bench: Bench, limit_s: float) -> Row:
    """Run the part in a process of its own, for `limit_s` seconds at most."""
    result = bench.folder / f"{part.name}.json"
    result.unlink(missing_ok=True)
    started = time.perf_counter()
    process = multiprocessing.get_context("spawn").Process(
        target=_work, args=(part, bench, os.getpid(), _environment(bench))
    )
    process.start()
    try:
        process.join(limit_s)
        late = process.is_alive()
    finally:
        _end(process)
    seconds = time.perf_counter() - started
    if result.is_file():
        return replace(Row(**read_json(result)), seconds=seconds)
    code = process.exitcode or 0
    how = f"killed by signal {-code}; out of memory?" if code < 0 else f"ended with exit code {code}"
    return Row(part.name, "failed", f"stopped after {round(limit_s, 1):g} s" if late else how, seconds=seconds)


def _environment(bench: Bench) -> dict[str, str]:
    """The part's environment: one GPU or none, and no hub."""
    package = str(Path(__file__).parents[1])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    visible = "" if bench.device == "cpu" else os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    ours = {"CUDA_VISIBLE_DEVICES": visible, "HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join(paths)}
    return {**os.environ, **ours}


def _end(process: Any) -> None:
    """Kill the process and all that it started, and wait for it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.is_alive():  # it has no group of its own yet
        process.kill()
    process.join()


def _end_with(parent: int) -> None:
    """End this process and all that it started once `parent`, which started it, is gone."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os.killpg(0, signal.SIGKILL)


def _work(part: Part, bench: Bench, parent: int, environment: dict[str, str]) -> None:
    """Run the part in this process, and write its row; what it prints goes to a log beside that."""
    os.setpgid(0, 0)
    os.environ.clear()
    os.environ.update(environment)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    with _printing_to(bench.folder / f"{part.name}.log"):
        try:
            use_threads(bench.threads)
            measured = resolve("part", part.run, {})(bench, **part.settings)
            peak = peak_gib() if part.shows_memory and measured.peak_gib is None else measured.peak_gib
            row = Row(part.name, "ok", measured.note, measured.tokens_per_second, measured.share, peak)
        except NotPossibleError as error:
            row = Row(part.name, "skipped", str(error))
        except BaseException as error:
            sys.stderr.write(traceback.format_exc())
            row = Row(part.name, "failed", _one_line(error))
        write_json(bench.folder / f"{part.name}.json", asdict(row))


@contextlib.contextmanager
def _printing_to(path: Path) -> Iterator[None]:
    """Standard output and standard error, also of processes that are started meanwhile, go to the file."""
    with path.open("w", encoding="utf-8") as log:
        for number in (1, 2):
            os.dup2(log.fileno(), number)
        yield
        sys.stdout.flush()
        sys.stderr.flush()


def _one_line(error: BaseException) -> str:
    text = str(error).strip().splitlines() or [""]
    name = "" if isinstance(error, ReflectkitError) else f"{type(error).__name__}: "
    return f"{name}{text[0]}"[:200].removesuffix(": ")


def peak_gib() -> float | None:
    """The most memory of this process so far in GiB: what torch held of the GPU, or resident memory if it used none."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return float(torch.cuda.max_memory_allocated()) / 2**30
    if sys.platform != "linux":
        return None
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def tidy(bench: Bench) -> None:
    """Remove what the parts made for each other: data, models and runs, but not the pipeline's."""
    for path in [
        *bench.folder.glob("*-adapter"),
        *(bench.folder / name for name in ("model", "data", "runs", "repositories", "generated")),
    ]:
        shutil.rmtree(path, ignore_errors=True)


def title(bench: Bench, facts: dict[str, Any]) -> str:
    """The machine and the date, in one line."""
    text = f"{facts['device']}, torch {facts['torch']}, transformers {facts['transformers']}, {facts['date']}"
    return f"{text} (tiny shapes: a test of the check, not a measurement)" if bench.fast else text


def table(bench: Bench, facts: dict[str, Any], rows: Sequence[Row]) -> Table:
    """The rows for a person."""
    return Table(f"bench gpu: {title(bench, facts)}", COLUMNS, tuple(row.cells for row in rows))


def write(bench: Bench, facts: dict[str, Any], rows: Sequence[Row]) -> None:
    """Write table.json and table.md."""
    write_json(bench.folder / "table.json", {"machine": facts, "rows": [asdict(row) for row in rows]})
    lines = [title(bench, facts), ""]
    for cells in (COLUMNS, ("---",) * len(COLUMNS), *(row.cells for row in rows)):
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    write_text(bench.folder / "table.md", "\n".join(lines) + "\n")
