"""One folder a run: `config.json` first, `report.json` last, so that a report means the stage is complete.

A run is found again by its identity: its stage, its settings and the contents of its input files. The same command
therefore resumes its own unfinished run, and skips its finished one. Where a new run goes depends on its name:

- Without `--name` it gets the next number, `8_rlft`. A run that fails before it has made anything gives its number
back.
- With `--name` it gets that folder. A run that is there with another identity is in the way: an error, unless `--force`
  replaces it or `--keep` puts the new one beside it, as NAME.2. `run` names its steps so, with `--keep`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import itertools
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

from reflectkit.core.config import NUMBERED, StageConfig, as_plain, flag
from reflectkit.core.errors import NO_ROOM, ConfigError, DataError
from reflectkit.core.jsonl import TEMPORARY_PREFIX, dumps, read_json, sha256, sweep, write_json
from reflectkit.core.threads import use_threads
from reflectkit.core.tree import visible_files
from reflectkit.core.types import to_json

NOT_IDENTITY = frozenset(
    {
        "force", "results_dir", "width", "concurrency", "max_cost_usd", "price_in", "price_out", "dry_run", "timeout_s",
        "max_tokens_per_batch", "name", "keep", "jobs",
    }
)  # fmt: skip
"""Settings that do not change what a run makes, but for the order in which floats are added up."""

RECORDED_PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "tokenizers", "gymnasium")
STAGING_PREFIX = f"{TEMPORARY_PREFIX}run-"
CHECKSUM = "sha256"  # of the other entries of a config.json
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
        (name.replace("_", " "), f"{value:.4g}" if isinstance(value, float) else str(value))
        for name, value in figures.items()
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


@dataclass(frozen=True)
class Identity:
    """What a run is found again by. inputs: digests by path. config: the settings' class, which tells how an earlier
    version recorded them.
    """

    stage: str
    settings: Mapping[str, Any]
    inputs: Mapping[str, str]
    config: StageConfig

    def as_json(self) -> dict[str, Any]:
        """For config.json."""
        return {"stage": self.stage, "settings": dict(self.settings), "inputs": dict(self.inputs)}

    def fits(self, record: Mapping[str, Any]) -> bool:
        """Whether `record`, a run's config.json, has this identity."""
        settings = record.get("settings")
        return (
            record.get("stage") == self.stage
            and record.get("inputs") == self.inputs
            and isinstance(settings, dict)
            and as_recorded(self.config, settings) == self.settings
        )

    def difference(self, record: Mapping[str, Any]) -> str:
        """The first setting, or else input, in which `record` differs."""
        settings, inputs = record.get("settings"), record.get("inputs")
        if not isinstance(settings, dict) or not isinstance(inputs, dict):
            return "its config.json is damaged"
        there = as_recorded(self.config, settings)
        for name in sorted({*there, *self.settings}):
            if there.get(name) != self.settings.get(name):
                return f"{flag(name)} {_shown(there.get(name))} there, {_shown(self.settings.get(name))} here"
        changed = [path for path in {**self.inputs, **inputs} if self.inputs.get(path) != inputs.get(path)]
        return f"{changed[0]} was different" if changed else "another process made it just now"


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
def open_run(stage: str, config: StageConfig, inputs: Sequence[Path] = (), *, again: bool = False) -> Iterator[Run]:
    """The run of `stage` with these settings and inputs: the finished one, the unfinished one, or a new one.

    again: always a new one. A run whose body raises before it has written a file leaves no folder; what it was to
    replace is there again. What a run replaces is removed when it ends otherwise.

    Raises
    ------
    DataError: an input is missing. ConfigError: the results folder cannot be written, another process holds the run, or
    a run with another identity has its name.
    """
    use_threads(config.threads)
    identity = Identity(stage, plain_settings(config), {str(path): digest(path) for path in inputs}, config)
    while True:
        there = None if config.force or again else _find(config, identity)
        folder, replaced = (there, None) if there else _allocate(config, identity, again)
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(held(folder))
            except FileNotFoundError:
                continue  # a run that failed has just removed it
            if there and not identity.fits(_record(there)):
                continue  # another process has just replaced it
            sweep(folder)
            report = _finished(stage, folder)
            if report is None:
                with contextlib.suppress(FileNotFoundError):
                    (folder / "report.json").unlink()
            try:
                yield Run(stage, folder, report)
            except BaseException:
                _remove_if_empty(folder, config.results_dir, replaced)
                raise
            finally:
                if replaced:
                    shutil.rmtree(replaced, ignore_errors=True)
            return


def digest(path: Path) -> str:
    """What the contents of `path` (a file, or a folder of files) are known by.

    Raises DataError where it is missing or cannot be read.
    """
    try:
        if path.is_dir():
            parts = [f"{file.relative_to(path)} {_digest_if_readable(file)}" for file in visible_files(path)]
            return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogateescape")).hexdigest()
        return _file_digest(path)
    except FileNotFoundError:
        raise DataError(path, "no such file or folder; run the stage that makes it, or name another") from None
    except PermissionError:
        raise DataError(path, "may not be read; change its permissions") from None


def finished(results_dir: Path, stage: str, settings: Mapping[str, Any], content: str) -> list[Report]:
    """The finished runs of `stage` with these settings, among others, and an input whose digest is `content`.

    The numbered ones come first, the newest of them before the others.
    """
    reports = (_finished(stage, folder) for folder in _runs(results_dir, stage) if _made_of(folder, settings, content))
    return [report for report in reports if report]


def latest_number(results_dir: Path) -> int:
    """The highest number of a run in `results_dir`; 0 without one."""
    return max((number for number, _, _ in _numbered(results_dir)), default=0)


def _digest_if_readable(path: Path) -> str:
    try:
        return _file_digest(path)
    except OSError:
        return "unreadable"


def _file_digest(path: Path) -> str:
    facts = path.stat()
    return sha256(path) if facts.st_size <= HASHED_WHOLE else f"{facts.st_size} bytes, {facts.st_mtime_ns} ns"


def plain_settings(config: StageConfig) -> dict[str, Any]:
    """The settings that make a run what it is, as JSON values."""
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    kept = {name: value for name, value in values.items() if name not in NOT_IDENTITY}
    return {name: as_plain(value) for name, value in sorted(kept.items())}


def default_settings(config: StageConfig) -> dict[str, Any]:
    """The settings of `config` that have a default, at it."""
    fields = [item for item in dataclasses.fields(config) if item.name not in NOT_IDENTITY]
    return {item.name: as_plain(item.default) for item in fields if item.default is not dataclasses.MISSING}


def foreign_defaults(config: StageConfig) -> dict[str, Any]:
    """The settings that the stage has with other choices only (another env), at their defaults."""
    return {name: as_plain(other.default) for name, other in config.elsewhere().items()}


def as_recorded(config: StageConfig, settings: Mapping[str, Any]) -> dict[str, Any]:
    """`settings`, of a config.json, as this version would have recorded them.

    Defaults stand in for those that an earlier version did not know. It recorded the settings of other envs too, which
    are left out where they are at their defaults.
    """
    known = {**default_settings(config), **settings}
    foreign = known.keys() - {item.name for item in dataclasses.fields(config)}
    defaults = foreign_defaults(config) if foreign else {}
    return {name: value for name, value in known.items() if name not in foreign or defaults.get(name, ...) != value}


def _shown(value: Any) -> str:
    text = "not set" if value in (None, "", []) else str(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


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
        if (match := NUMBERED.fullmatch(folder.name)) and folder.is_dir():
            yield int(match[1]), match[2], folder


def _named(results_dir: Path) -> Iterator[Path]:
    """The runs with a name in `results_dir`, in order; not those of another results folder in it (`results/seed0`)."""
    waiting = [results_dir]
    while waiting:
        folder = waiting.pop()
        if folder != results_dir and (folder / "config.json").exists():
            if _record(folder).get("name") == folder.relative_to(results_dir).as_posix():
                yield folder
            continue
        try:
            names = [entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
        except OSError:  # not there, or not ours to read
            continue
        names = [name for name in names if not name.startswith(".") and not NUMBERED.fullmatch(name)]
        waiting += [folder / name for name in sorted(names, reverse=True)]


def _runs(results_dir: Path, stage: str) -> Iterator[Path]:
    """The runs of `stage` in `results_dir`: the numbered ones, newest first, then the named ones."""
    yield from (folder for _, name, folder in sorted(_numbered(results_dir), reverse=True) if name == stage)
    yield from (folder for folder in _named(results_dir) if _record(folder).get("stage") == stage)


def _record(folder: Path) -> dict[str, Any]:
    """What `config.json` in `folder` holds; nothing where it is missing or a person broke it."""
    try:
        known = read_json(folder / "config.json")
    except (DataError, NotADirectoryError):
        return {}
    return known if isinstance(known, dict) else {}


def _intact_record(folder: Path) -> dict[str, Any]:
    """What `config.json` in `folder` holds; nothing where it is missing. Raises DataError where it is damaged."""
    record = _record(folder)
    whole = isinstance(record.get("settings"), dict) and record.get(CHECKSUM) in (None, _checksum(record))
    if not whole and (folder / "config.json").exists():
        fixes = f"restore it to resume that run, or remove {folder}; --force starts a new run"
        raise DataError(folder / "config.json", f"is damaged, and may be this command's; {fixes}")
    return record


def _checksum(record: Mapping[str, Any]) -> str:
    """SHA-256 of what a config.json holds beside it."""
    text = dumps({name: value for name, value in record.items() if name != CHECKSUM})
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()


def _find(config: StageConfig, identity: Identity) -> Path | None:
    """The run with this identity: in any folder, or with `--name` in its folder and those that `--keep` put beside it.

    A run with a name is also looked for among the numbered ones of versions that had no names.
    """
    results_dir = config.results_dir
    if not config.name:
        runs = list(_runs(results_dir, identity.stage))
        same = next((folder for folder in runs if identity.fits(_record(folder))), None)
        for folder in runs if same is None else ():
            _intact_record(folder)  # or a run that was damaged would silently begin again
        return same
    first = results_dir / config.name
    for folder in [first, *_beside(first)] if config.keep else [first]:
        if identity.fits(_intact_record(folder)):
            return folder
    for _, stage, folder in sorted(_numbered(results_dir), reverse=True):
        if stage == identity.stage and "name" not in (known := _record(folder)) and identity.fits(known):
            return folder
    return None


def _made_of(folder: Path, settings: Mapping[str, Any], content: str) -> bool:
    try:
        known = _record(folder)
        return settings.items() <= known["settings"].items() and content in known["inputs"].values()
    except (KeyError, TypeError, AttributeError):  # a config that a person broke
        return False


def _allocate(config: StageConfig, identity: Identity, again: bool) -> tuple[Path, Path | None]:
    """(a new folder, where the run that it replaces is now). Made aside and renamed, it never lacks its config.json."""
    results_dir = config.results_dir
    try:
        results_dir.mkdir(parents=True, exist_ok=True)
        _sweep_dead(results_dir)
        while True:
            folder = _place(config, identity, again) if config.name else _next_number(results_dir, identity.stage)
            staging = results_dir / f"{STAGING_PREFIX}{os.getpid()}"
            staging.mkdir(exist_ok=True)
            name = folder.relative_to(results_dir).as_posix() if config.name else ""
            record = identity.as_json() | {"name": name} | _circumstances(config)
            write_json(staging / "config.json", record | {CHECKSUM: _checksum(record)})
            folder.parent.mkdir(parents=True, exist_ok=True)
            replaced = None
            if not _is_free(folder):
                with held(folder):
                    replaced = _put_aside(folder, results_dir)
            try:
                staging.rename(folder)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    if replaced:
                        replaced.rename(folder)
                    raise
                if replaced:
                    shutil.rmtree(replaced, ignore_errors=True)
                continue  # another process took it first
            return folder, replaced
    except OSError as error:
        if error.errno in NO_ROOM:
            raise
        raise ConfigError(
            f"cannot write in {error.filename or results_dir} ({error.strerror}); choose another folder with"
            " --results-dir"
        ) from None


def _next_number(results_dir: Path, stage: str) -> Path:
    return results_dir / f"{latest_number(results_dir) + 1}_{stage}"


def _place(config: StageConfig, identity: Identity, again: bool) -> Path:
    """Where a new run with a name goes; what is there is to be replaced. Raises ConfigError where it may not be."""
    first = config.results_dir / config.name
    for above in list(first.parents)[: config.name.count("/")]:
        if (above / "config.json").exists():
            raise ConfigError(f"--name {config.name}: {above} is a run itself; choose a name that does not lie in it")
    if config.keep:
        same = [folder for folder in [first, *_beside(first)] if config.force and identity.fits(_intact_record(folder))]
        if not same:
            return next(folder for folder in _candidates(first) if _is_free(folder))
        first = same[0]
    if _is_free(first):
        return first
    if not (first / "config.json").is_file():
        raise ConfigError(f"--name {config.name}: {first} is there already and is not a run; choose another name")
    known = _record(first)
    if known.get("stage", identity.stage) != identity.stage:
        raise ConfigError(f"--name {config.name}: {first} holds a run of {known['stage']}; choose another name")
    if not config.force:
        what = "a run already" if again else f"a run with other settings or inputs ({identity.difference(known)})"
        fixes = f"--force replaces it, --keep leaves it and makes {config.name}.2, or choose another name"
        raise ConfigError(f"--name {config.name}: {first} holds {what}; {fixes}")
    if inside := [path for path in identity.inputs if Path(path).resolve().is_relative_to(first.resolve())]:
        raise ConfigError(
            f"--name {config.name}: --force would remove {inside[0]}, which this run reads; choose another name"
        )
    return first


def _candidates(first: Path) -> Iterator[Path]:
    """`first`, and the folders that runs with its name get where it is taken: NAME.2, NAME.3, …"""
    yield first
    yield from (first.with_name(f"{first.name}.{number}") for number in itertools.count(2))


def _beside(first: Path) -> list[Path]:
    """The folders that there are of NAME.2, NAME.3, …"""
    numbered = re.compile(re.escape(first.name) + r"\.(\d{1,9})")
    found = [(int(match[1]), path) for path in first.parent.glob("*") if (match := numbered.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def _is_free(folder: Path) -> bool:
    """Whether nothing is at `folder`, or an empty folder."""
    if folder.is_dir():
        return not any(folder.iterdir())
    return not folder.exists() and not folder.is_symlink()


def _put_aside(folder: Path, results_dir: Path) -> Path:
    """Move `folder` out of the way in one step; returns where it is now, until this process ends."""
    places = (results_dir / f"{STAGING_PREFIX}{os.getpid()}-{number}" for number in itertools.count())
    return folder.rename(next(place for place in places if not place.exists()))


def _remove_if_empty(folder: Path, results_dir: Path, replaced: Path | None) -> None:
    """Remove the folder of a run that failed before it made anything, and put `replaced` back."""
    with contextlib.suppress(OSError):
        sweep(folder)
        if {path.name for path in folder.iterdir()} <= {"config.json", ".lock"}:
            aside = _put_aside(folder, results_dir)
            if replaced:
                replaced.rename(folder)
            shutil.rmtree(aside, ignore_errors=True)


def _sweep_dead(results_dir: Path) -> None:
    """Remove the staging folders of processes that are gone."""
    for leftover in results_dir.glob(f"{STAGING_PREFIX}*"):
        number = leftover.name.removeprefix(STAGING_PREFIX).partition("-")[0]
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
    deadline = time.monotonic() + patience_s
    while True:
        with (folder / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ConfigError(f"another process is working on {folder}; wait for it, or stop it") from None
                time.sleep(0.2)
                continue
            if not os.path.samestat(os.fstat(file.fileno()), (folder / ".lock").stat()):
                continue  # the folder was replaced meanwhile
            yield
            return


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
