"""One numbered folder a run: `config.json` first, `report.json` last, so that a report means the stage is complete.

A run is found again by what it is: its stage, its settings and the contents of its input files. The same command
therefore finds its own unfinished run and goes on, or its finished one and skips; other settings get the next number.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from reflectkit.core.config import StageConfig
from reflectkit.core.errors import ConfigError, DataError
from reflectkit.core.jsonl import TEMPORARY_PREFIX, read_json, sha256, sweep, write_json
from reflectkit.core.threads import use_threads
from reflectkit.core.types import to_json

NOT_IDENTITY = frozenset(
    {
        "force", "results_dir", "width", "concurrency", "max_cost_usd", "price_in", "price_out", "dry_run", "timeout_s",
        "max_tokens_per_batch",
    }
)  # fmt: skip
"""Settings that do not change what a run makes, but for the order in which floats are added up."""

RECORDED_PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "tokenizers", "gymnasium")
STAGING_PREFIX = f"{TEMPORARY_PREFIX}run-"
HASHED_WHOLE = 256 * 2**20  # bytes; a larger file is known by its size and time


@dataclass(frozen=True)
class Table:
    """Rows for a person. columns: headings; rows: cells as text, one for each column."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def figures_table(title: str, heading: str, figures: Mapping[str, Any]) -> Table:
    """Figures by name as a table of two columns."""
    rows = [
        (name.replace("_", " "), f"{value:.4g}" if isinstance(value, float) else str(value)) for name, value in figures.items()
    ]
    return Table(title, ("what", heading), tuple(rows))


@dataclass(frozen=True)
class Report:
    """What a stage did. figures: JSON values by name. outputs: files and folders it made. skipped: found finished."""

    stage: str
    folder: Path
    figures: dict[str, Any]
    outputs: tuple[Path, ...] = ()
    tables: tuple[Table, ...] = ()
    skipped: bool = False


@dataclass
class Run:
    """A run in progress, or a finished one (`done` holds its report)."""

    stage: str
    folder: Path
    done: Report | None = None
    tables: list[Table] = field(default_factory=list)

    def finish(self, figures: Mapping[str, Any], outputs: Sequence[Path] = ()) -> Report:
        """Write `report.json`, after which the run counts as complete."""
        record = {
            "stage": self.stage,
            "figures": dict(figures),
            "tables": [to_json(table) for table in self.tables],
            "outputs": {str(path): digest(path) for path in outputs},
        }
        write_json(self.folder / "report.json", record)
        return Report(self.stage, self.folder, dict(figures), tuple(outputs), tuple(self.tables))


@contextlib.contextmanager
def open_run(stage: str, config: StageConfig, inputs: Sequence[Path] = ()) -> Iterator[Run]:
    """The run of `stage` with these settings and inputs: the finished one, the unfinished one, or a new one.

    Raises
    ------
    DataError: an input is missing. ConfigError: the results folder cannot be written, or another process holds the run.
    """
    use_threads(config.threads)
    settings = plain_settings(config)
    identity = {"stage": stage, "settings": settings, "inputs": {str(path): digest(path) for path in inputs}}
    folder = None if config.force else _find(config.results_dir, stage, identity)
    if folder is None:
        folder = _allocate(config.results_dir, stage, identity | _circumstances(config))
    with held(folder):
        sweep(folder)
        report = _finished(stage, folder)
        if report is None:
            with contextlib.suppress(FileNotFoundError):
                (folder / "report.json").unlink()
        yield Run(stage, folder, report)


def digest(path: Path) -> str:
    """What the contents of `path` (a file, or a folder of files) are known by.

    Raises DataError where it is missing or cannot be read.
    """
    try:
        if path.is_dir():
            parts = [f"{file.relative_to(path)} {_digest_if_readable(file)}" for file in _visible_files(path)]
            return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogateescape")).hexdigest()
        return _file_digest(path)
    except FileNotFoundError:
        raise DataError(path, "no such file or folder; run the stage that makes it, or name another") from None
    except PermissionError:
        raise DataError(path, "may not be read; change its permissions") from None


def finished(results_dir: Path, stage: str, settings: Mapping[str, Any], content: str) -> list[Report]:
    """The finished runs of `stage` with these settings, among others, and an input whose digest is `content`; newest first."""
    runs = [folder for _, name, folder in sorted(_numbered(results_dir), reverse=True) if name == stage]
    reports = (_finished(stage, folder) for folder in runs if _made_of(folder, settings, content))
    return [report for report in reports if report]


def latest_number(results_dir: Path) -> int:
    """The highest number of a run in `results_dir`; 0 without one."""
    return max((number for number, _, _ in _numbered(results_dir)), default=0)


def _visible_files(folder: Path) -> Iterator[Path]:
    """The regular files in and below `folder`, in order; hidden ones and links are no part of what it holds."""
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            path = Path(here, name)
            if not name.startswith(".") and not path.is_symlink() and path.is_file():
                yield path


def _digest_if_readable(path: Path) -> str:
    try:
        return _file_digest(path)
    except PermissionError:
        return "unreadable"


def _file_digest(path: Path) -> str:
    facts = path.stat()
    return sha256(path) if facts.st_size <= HASHED_WHOLE else f"{facts.st_size} bytes, {facts.st_mtime_ns} ns"


def plain_settings(config: StageConfig) -> dict[str, Any]:
    """The settings that make a run what it is, as JSON values."""
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    kept = {name: value for name, value in values.items() if name not in NOT_IDENTITY}
    return {name: _plain(value) for name, value in sorted(kept.items())}


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return [_plain(part) for part in value] if isinstance(value, tuple | list) else value


def _circumstances(config: StageConfig) -> dict[str, Any]:
    versions = {}
    for package in ("reflectkit", *RECORDED_PACKAGES):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    commit = ""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        here = Path(__file__).parent
        command = ["git", "-C", str(here), "rev-parse", "HEAD"]
        commit = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    return {"seed": config.seed, "versions": versions, "commit": commit}


def _numbered(results_dir: Path) -> Iterator[tuple[int, str, Path]]:
    if not results_dir.is_dir():
        return
    for folder in results_dir.iterdir():
        if (match := re.fullmatch(r"(\d+)_([a-z-]+)", folder.name)) and folder.is_dir():
            yield int(match[1]), match[2], folder


def _find(results_dir: Path, stage: str, identity: Mapping[str, Any]) -> Path | None:
    for _, name, folder in sorted(_numbered(results_dir), reverse=True):
        if name != stage or not (folder / "config.json").is_file():
            continue
        with contextlib.suppress(DataError):  # a config that a person broke is simply not ours
            known = read_json(folder / "config.json")
            if isinstance(known, dict) and all(known.get(key) == value for key, value in identity.items()):
                return folder
    return None


def _made_of(folder: Path, settings: Mapping[str, Any], content: str) -> bool:
    try:
        known = read_json(folder / "config.json")
        return settings.items() <= known["settings"].items() and content in known["inputs"].values()
    except (DataError, KeyError, TypeError, AttributeError):  # a config that a person broke
        return False


def _allocate(results_dir: Path, stage: str, record: Mapping[str, Any]) -> Path:
    """A new numbered folder that holds `record` as its config.json: made aside and renamed, so it never lacks one."""
    try:
        results_dir.mkdir(parents=True, exist_ok=True)
        _sweep_dead(results_dir)
        staging = results_dir / f"{STAGING_PREFIX}{os.getpid()}"
        staging.mkdir(exist_ok=True)
        write_json(staging / "config.json", record)
        while True:
            folder = results_dir / f"{latest_number(results_dir) + 1}_{stage}"
            try:
                staging.rename(folder)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
                continue  # another process took the number first
            return folder
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise ConfigError(
            f"cannot write in {results_dir} ({error.strerror}); choose another folder with --results-dir"
        ) from None


def _sweep_dead(results_dir: Path) -> None:
    """Remove the staging folders of processes that are gone."""
    for leftover in results_dir.glob(f"{STAGING_PREFIX}*"):
        number = leftover.name.removeprefix(STAGING_PREFIX)
        try:
            os.kill(int(number), 0)
        except (ProcessLookupError, ValueError):
            shutil.rmtree(leftover, ignore_errors=True)
        except PermissionError:
            continue  # another user's, alive


def _finished(stage: str, folder: Path) -> Report | None:
    """The report of a finished run whose outputs are all still as they were made; else None."""
    if not (folder / "report.json").is_file():
        return None
    try:
        record = read_json(folder / "report.json")
        outputs = {Path(path): known for path, known in record["outputs"].items()}
        if any(digest(path) != known for path, known in outputs.items()):
            return None
        tables = tuple(
            Table(table["title"], tuple(table["columns"]), tuple(tuple(row) for row in table["rows"]))
            for table in record["tables"]
        )
        return Report(stage, folder, record["figures"], tuple(outputs), tables, skipped=True)
    except (DataError, KeyError, TypeError, AttributeError):
        return None


@contextlib.contextmanager
def held(folder: Path, patience_s: float = 10.0) -> Iterator[None]:
    """Hold `folder` for this process; the system lets go of it when the process ends, however it ends.

    A holder that was just killed may take a moment to go, hence the patience.
    """
    try:
        import fcntl
    except ImportError:  # Windows: runs are not guarded against a second process
        yield
        return
    with (folder / ".lock").open("w") as file:
        deadline = time.monotonic() + patience_s
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ConfigError(f"another process is working on {folder}; wait for it, or stop it") from None
                time.sleep(0.2)
        yield


def worked_on(folder: Path) -> bool:
    """Whether a process of this machine holds `folder`; True where that cannot be told."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        with (folder / ".lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def write_permission(folder: Path) -> None:
    """Raises ConfigError where files cannot be written into `folder` (made if it is missing)."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make {folder} ({error.strerror}); choose another with --data-dir") from None
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"cannot write in {folder}; choose another folder with --data-dir")
