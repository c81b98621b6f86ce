"""`make gpu-report`: what is most worth knowing of one GPU, the most telling first, in a few minutes at a time.

Each figure is written as it comes, with the GPU, the versions and a digest of the code that it measures. The same
command skips what has a figure for this code and goes on with the rest, also on a new machine that got the record.
Nothing is installed and nothing is fetched: torch ≥ 2.11, transformers ≥ 5.17, accelerate and peft are enough, and
parts that need TRL or bitsandbytes are skipped without them.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks import gpu
from benchmarks.gpu import Bench, Part, Row
from reflectkit.errors import ReflectkitError
from reflectkit.jsonl import read_json, write_json, write_text

MINUTES = 4.0
ROOT = Path(__file__).parents[1]
RECORD, BUILD = ROOT / "research/gpu", ROOT / "build/gpu-report"
MODEL = ("reflectkit/models", "reflectkit/sampling", "benchmarks")
LEARNING = (*MODEL, "reflectkit/train", "reflectkit/rollouts", "reflectkit/agents")
TRL = ("trl", "datasets", "peft")
TARGETS = ("rlft", "half-billion", "half-billion-lora", "half-billion-decoding")
"""The parts of `gpu-check` whose speed has a target."""
PEERS = "benchmarks.gpu_peers:peers"
FIRST = (
    *(part for part in gpu.PARTS if part.name in TARGETS),
    Part(
        "tests",
        f"{gpu.HERE}:tests",
        needs=("pytest",),
        limit_s=240.0,
        not_on_cpu="they need a GPU",
        shows_memory=False,
    ),
    Part("trace", "benchmarks.gpu_trace:trace", {"updates": 10}, ("peft",), limit_s=150.0),
    Part("peers-explore-group", PEERS, {"scene": "explore-group"}, TRL),
    Part("peers-answers", PEERS, {"scene": "answers"}, TRL, limit_s=150.0),
    Part("peers-taxi-group", PEERS, {"scene": "taxi-group"}, TRL),
    Part("peers-explore", PEERS, {"scene": "explore"}, TRL),
    Part("peers-taxi", PEERS, {"scene": "taxi"}, TRL),
    Part("peers-batching", PEERS, {"scene": "batching"}, TRL),
)
SETUP = gpu.PARTS[0]


def parts() -> tuple[Part, ...]:
    """What a report has, in order: the parts of this file, then the rest of `gpu-check`."""
    names = {part.name for part in FIRST}
    return (*FIRST, *(part for part in gpu.PARTS[1:] if part.name not in names))


def code_digest(folders: Sequence[str]) -> str:
    """A digest of the Python files in these folders of the checkout."""
    total = hashlib.sha256()
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            total.update(path.relative_to(ROOT).as_posix().encode())
            total.update(path.read_bytes())
    return total.hexdigest()[:12]


def code_of(part: Part) -> str:
    """The digest of the code that `part` measures."""
    return code_digest(MODEL if "decoding" in part.name else LEARNING)


def report(bench: Bench, facts: dict[str, Any], record: Path, minutes: float, chosen: Sequence[Part]) -> list[str]:
    """Measure the parts without a figure in the record, for `minutes` at most. Returns the names of those that failed.

    record: a folder, with report.json for programs, report.md for people and trace.md, the tables of `trace`.
    """
    ends = time.perf_counter() + 60 * minutes
    figures: dict[str, Any] = read_json(record / "report.json") if (record / "report.json").is_file() else {}
    machine = {name: value for name, value in facts.items() if name != "date"}
    left = []
    for part in chosen:
        earlier = figures.get(part.name, {})
        if (earlier.get("code"), earlier.get("machine")) != (code_of(part), machine):
            left.append(part)

    # 1. Data and the model, which a new machine does not have
    if left:
        say(f"{len(left)} parts without a figure for this code: {', '.join(part.name for part in left)}")
        row = gpu.perform_or_skip(SETUP, bench, ends - time.perf_counter())
        say(f"{row.part}: {row.status} in {row.seconds or 0:.0f} s, {row.note}")

    # 2. The parts, each written as it comes
    failed = []
    for part in left:
        row = gpu.perform_or_skip(part, bench, ends - time.perf_counter())
        say(" | ".join(row.cells))
        if row.status == "failed":
            failed.append(part.name)
            continue
        if row.status == "ok":
            figures[part.name] = asdict(row) | {"code": code_of(part), "machine": machine, "date": facts["date"]}
            write_record(record, figures)
        if part.name == "trace" and (bench.folder / "trace.md").is_file():
            shutil.copy(bench.folder / "trace.md", record / "trace.md")
    return failed


def write_record(record: Path, figures: dict[str, Any]) -> None:
    """Write report.json, and report.md with a row for each figure."""
    record.mkdir(parents=True, exist_ok=True)
    write_json(record / "report.json", figures)
    columns = (*gpu.COLUMNS, "device", "torch", "date", "code")
    lines = [
        "# On a GPU",
        "",
        "Written by `make gpu-report`.",
        "",
        f"| {' | '.join(columns)} |",
        "|---" * len(columns) + "|",
    ]
    for figure in figures.values():
        row = Row(**{name: figure[name] for name in Row.__dataclass_fields__})
        device = (figure["machine"]["device"], figure["machine"]["torch"], figure["date"], figure["code"])
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in (*row.cells, *device))} |")
    write_text(record / "report.md", "\n".join(lines) + "\n")


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the arguments, measure, and return the exit code: 1 if a part failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_report", description=__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES, help="time for this run; the same command goes on")
    parser.add_argument("--device", choices=gpu.DEVICES, default="auto", help="cpu tests the report with tiny shapes")
    parser.add_argument("--record", type=Path, help=f"folder of the figures; default: {RECORD.relative_to(ROOT)}, or"
                        f" {BUILD.relative_to(ROOT)}/record for tiny shapes")  # fmt: skip
    parser.add_argument("--only", nargs="*", choices=[part.name for part in parts()], help="parts to measure")
    settings = parser.parse_args(arguments)
    try:
        facts = gpu.machine(settings.device, 1)
    except ReflectkitError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    fast = facts["kind"] == "cpu"
    bench = Bench(BUILD, facts["kind"], fast, 0, 1)
    bench.folder.mkdir(parents=True, exist_ok=True)
    chosen = [part for part in parts() if not settings.only or part.name in settings.only]
    record = settings.record or (BUILD / "record" if fast else RECORD)
    say(gpu.title(bench, facts))
    failed = report(bench, facts, record, settings.minutes, [_as_shaped(part, fast) for part in chosen])
    if failed:
        say(f"failed: {', '.join(failed)}; see {bench.folder}/NAME.log")
    say(f"the record: {record}/report.md")
    return 1 if failed else 0


def _as_shaped(part: Part, fast: bool) -> Part:
    """`part`, with few updates if shapes are tiny."""
    return replace(part, settings={"updates": 2}) if fast and part.name == "trace" else part


if __name__ == "__main__":
    sys.exit(main())
