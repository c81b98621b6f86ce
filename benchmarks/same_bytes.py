"""Whether a change keeps every byte of a recipe's data and weights: the same run at an earlier commit and here.

    python -m benchmarks.same_bytes --before main~3 --recipe taxi-tiny
    python -m benchmarks.same_bytes --before main~3 -- rlft --env corridor --model tiny --max-steps 3

Weights differ between types of CPU, so both runs are made on this machine, from the files of two commits. Runs are
kept in --cache and made once. Metrics and settings are compared without times and the package's own checksum. Ends
with 1 if a file differs, or only one of the runs has it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
COMPARED = (".jsonl", ".json", ".safetensors", ".csv", ".md")
TIMED = ("_seconds", "_per_second", "commit", "sha256", "outputs", "asked", "checksums", "metrics.jsonl")
"""Endings of the keys of JSON that differ between two runs of the same code; the last is an input of `plot`."""


def commit_of(revision: str) -> str:
    """The full name of commit `revision`."""
    command = ["git", "rev-parse", f"{revision}^{{commit}}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def source_at(commit: str, cache: Path) -> Path:
    """A folder with the files of `commit`."""
    folder = cache / f"source-{commit[:12]}"
    if not folder.is_dir():
        folder.mkdir(parents=True)
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)
    return folder


def run(source: Path, arguments: list[str], folder: Path) -> None:
    """Run the command line of the package in `source` in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-m", "reflectkit", *arguments]
    with (folder / "log.txt").open("w") as log:
        subprocess.run(command, cwd=folder, env=environment, stdout=log, stderr=log, check=True)


def without_times(value: Any) -> Any:
    """JSON `value` without the keys that differ between two runs of the same code."""
    if isinstance(value, list):
        return [without_times(part) for part in value]
    if not isinstance(value, dict):
        return value
    return {key: without_times(part) for key, part in value.items() if not key.endswith(TIMED)}


def content_of(path: Path) -> bytes:
    """What is compared of a file."""
    if path.suffix == ".safetensors" or path.suffix not in (".json", ".jsonl"):
        return path.read_bytes()
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines() if path.suffix == ".jsonl" else [text]
    return json.dumps([without_times(json.loads(line)) for line in lines]).encode()


def digests(folder: Path) -> dict[str, str]:
    """The checksums of the files of data and results below `folder`."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix in COMPARED)
    return {str(path.relative_to(folder)): hashlib.sha256(content_of(path)).hexdigest() for path in paths}


def main() -> int:
    """Print what differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", default="main", help="The earlier commit.")
    parser.add_argument("--after", default="HEAD", help="The later commit.")
    parser.add_argument("--recipe", default="", help="A recipe, run with --fast.")
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "same-bytes", help="Folder of the runs.")
    parser.add_argument("arguments", nargs="*", help="Instead of --recipe, a command line.")
    options = parser.parse_args()
    arguments = ["run", options.recipe, "--fast"] if options.recipe else options.arguments
    name = hashlib.sha256(" ".join(arguments).encode()).hexdigest()[:8]

    # 1. The two runs, unless they were made before
    folders = []
    for revision in (options.before, options.after):
        commit = commit_of(revision)
        folder = options.cache / f"{commit[:12]}-{name}"
        if not (folder / "done").is_file():
            run(source_at(commit, options.cache), arguments, folder)
            (folder / "done").touch()
        folders.append(folder)

    # 2. What differs
    earlier, now = map(digests, folders)
    differing = sorted(path for path in earlier.keys() | now.keys() if earlier.get(path) != now.get(path))
    for path in differing:
        print(f"{path}: {'differs' if path in earlier and path in now else 'only in one of the runs'}")
    weights = sum(path.endswith(".safetensors") for path in now)
    print(f"{len(now)} files, {weights} of them weights: {len(differing)} differ")
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main())
