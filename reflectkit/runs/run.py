"""One folder per run: `config.json` first, `report.json` last, so that a report means the stage is
complete.

A run is found again by its identity, its stage, settings and the contents of its inputs as
config.json records them, so the same command resumes its own unfinished run and skips its finished
one.

- Without `--name` a run gets the next number, `8_rlft`. A run that fails before it has made
  anything gives its number back.
- With `--name` it gets that folder. A run that is there with another identity is in the way: an
  error, unless `--force` replaces it or `--keep` puts the new one next to it, as NAME.2. `run`
  names its steps so, with `--keep`.
- A run that differs only in its limits, as in --max-steps, is continued if more is asked for, and
  skipped if it has done as much already. With `--keep` it is a run with other settings.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from pydantic import field_validator

from reflectkit.config import Config, flag, identifying, option
from reflectkit.console import Report, Table
from reflectkit.errors import NO_ROOM, CheckpointError, ConfigError, DataError
from reflectkit.files import missing, visible_files
from reflectkit.jsonl import (
    LOCK,
    PATIENCE_S,
    TEMPORARY_PREFIX,
    LockedError,
    dumps,
    is_locked,
    locked,
    read_json,
    refuse_device,
    sha256,
    sweep,
    write_json,
)
from reflectkit.seeding import use_threads
from reflectkit.types import from_json, to_json

CHECKPOINT = re.compile(r"checkpoint-(\d{1,9})")
"""The name of a checkpoint's folder, with its step."""
NUMBERED = re.compile(r"(\d+)_([a-z-]+)")
"""Folder name of a run without a name, e.g. 8_rlft."""
_NAME_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,99}")


class RunConfig(Config):
    """Every command."""

    data_dir: Path = option(Path("data"), help="Folder for data; each env has its own subfolder.")
    results_dir: Path = option(Path("results"), help="Folder for runs.", identity=False)
    name: str = option(
        "",
        help=(
            "Folder of the run in --results-dir, e.g. taxi/policy; default: numbered, e.g. 8_rlft."
        ),
        identity=False,
        essential=True,
    )
    seed: int = option(
        0,
        help="Random seed; the same seed gives the same result.",
        ge=0,
        le=2**32 - 1,
        essential=True,
    )  # as in numpy
    threads: int = option(
        1,
        help="CPU threads per process; other numbers change rounding and therefore the weights.",
        ge=1,
    )
    force: bool = option(
        False,
        help="Run again even if a finished run exists; with --name, replace its folder.",
        identity=False,
    )
    keep: bool = option(
        False,
        help="If --name has a run with other settings, keep it and use NAME.2, NAME.3, …",
        identity=False,
    )

    @field_validator("name")
    @classmethod
    def _usable_name(cls, name: str) -> str:
        for part in name.split("/") if name else ():
            if not _NAME_PART.fullmatch(part) or NUMBERED.fullmatch(part):
                raise ConfigError(
                    f"--name {name!r}: use letters, digits, _, -, . and @, and / between folders,"
                    " as in taxi/policy; folders like 8_rlft are for runs without a name"
                )
        return name


def _numbered(results_dir: Path) -> list[tuple[int, str, Path]]:
    """(number, stage, folder) of the runs without a name, the newest first."""
    if not results_dir.is_dir():
        return []
    runs = []
    for path in results_dir.iterdir():
        match = NUMBERED.fullmatch(path.name)
        if match and path.is_dir():
            runs.append((int(match[1]), match[2], path))
    return sorted(runs, reverse=True)


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in `folder`, by step; none if it is not a folder that can be read."""
    path_of: dict[int, Path] = {}
    try:
        for path in folder.iterdir():
            match = CHECKPOINT.fullmatch(path.name)
            if match and path.is_dir():
                path_of[int(match[1])] = path
    except (OSError, ValueError):  # ValueError: a name with a null byte
        return []
    return [path_of[step] for step in sorted(path_of)]


def runs_of(results_dir: Path, stage: str) -> Iterator[Path]:
    """The runs of `stage` in `results_dir`: numbered ones, newest first, then named ones.

    Runs of other results folders inside it (`results/seed0`) are not among them.
    """
    # 1. Numbered runs
    for _, run_stage, folder in _numbered(results_dir):
        if run_stage == stage:
            yield folder

    # 2. Named ones, also in folders of folders; runs have no runs in them
    for place, inside, files in os.walk(results_dir):
        folder = Path(place)
        is_run = folder != results_dir and "config.json" in files
        if not is_run:
            visible = [name for name in inside if not name.startswith(".")]
            inside[:] = sorted(name for name in visible if not NUMBERED.fullmatch(name))
            continue
        inside.clear()
        record = read_record(folder)
        name = folder.relative_to(results_dir).as_posix()
        if record.get("name") == name and record.get("stage") == stage:
            yield folder


def find_run(run: RunConfig, identity: Identity) -> Path | None:
    """The run with this identity: in any folder, or with `--name` in its folder and those that
    `--keep` put next to it. Otherwise the longest of those that have it but for their limits, and
    can be continued or skipped.

    Raises DataError if there is none and one is damaged, which would otherwise silently start
    again.
    """
    # 1. The run with this identity
    runs = named_runs(run) if run.name else list(runs_of(run.results_dir, identity.stage))
    same = next((folder for folder in runs if identity.fits(read_record(folder))), None)
    if same is not None:
        return same

    # 2. Or one that differs in its limits; a damaged one might be it
    records = [(folder, intact_record(folder)) for folder in runs]
    if run.keep:
        return None
    similar = [(folder, record) for folder, record in records if identity.extends(folder, record)]
    longest = max(similar, key=lambda entry: int(entry[1]["settings"][STEPS]), default=None)
    return longest[0] if longest else None


def named_runs(run: RunConfig) -> list[Path]:
    """The folders that a run named by `run` may be in."""
    first = run.results_dir / run.name
    return [first, *_beside(first)] if run.keep else [first]


def new_folder(
    run: RunConfig, identity: Identity, again: bool, holding: contextlib.ExitStack
) -> Path:
    """A new folder with its config.json, whose lock `holding` keeps. A run that it replaces is
    removed.
    """
    try:
        run.results_dir.mkdir(parents=True, exist_ok=True)
        # Another process may take the place at the same time: then again
        while True:
            folder = (
                _place(run, identity, again)
                if run.name
                else _next_number(run.results_dir, identity.stage)
            )
            replaces = (folder / "config.json").exists()
            folder.mkdir(parents=True, exist_ok=True)
            with contextlib.ExitStack() as attempt:
                try:
                    attempt.enter_context(locked(folder, PATIENCE_S if run.name else 0.0))
                except FileNotFoundError:
                    continue  # a failed run has just removed it
                except LockedError:
                    if run.name:
                        raise
                    continue  # another process has just taken the number
                if (folder / "config.json").exists() and not replaces:
                    continue
                _empty(folder)
                name = folder.relative_to(run.results_dir).as_posix() if run.name else ""
                record: dict[str, Any] = {
                    "stage": identity.stage,
                    "settings": dict(identity.settings),
                    "inputs": dict(identity.inputs),
                    "name": name,
                    "seed": run.seed,
                    **circumstances(),
                }
                write_json(folder / "config.json", record | {CHECKSUM: record_checksum(record)})
                holding.push(attempt.pop_all())
                return folder
    except OSError as error:
        if error.errno in NO_ROOM:
            raise
        raise ConfigError(
            f"cannot write to {error.filename or run.results_dir} ({error.strerror}); choose"
            " another folder with --results-dir"
        ) from None


def _next_number(results_dir: Path, stage: str) -> Path:
    """The folder after the last one that is a run, or that another process is making a run.

    A folder that a kill left empty is neither.
    """
    last = 0
    for number, _, folder in _numbered(results_dir):
        if (folder / "config.json").exists() or is_locked(folder):
            last = max(last, number)
    return results_dir / f"{last + 1}_{stage}"


def _empty(folder: Path) -> None:
    """Remove what a replaced run made. Its report goes first: after a kill it is an unfinished
    run.
    """
    (folder / "report.json").unlink(missing_ok=True)
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name not in ("config.json", LOCK):
            path.unlink()


def _place(run: RunConfig, identity: Identity, again: bool) -> Path:
    """The folder of a new named run. A run that is there will be replaced.

    Raises ConfigError if that is not allowed.
    """
    # 1. No run is inside of another one
    first = run.results_dir / run.name
    for above in list(first.parents)[: run.name.count("/")]:
        if (above / "config.json").exists():
            raise ConfigError(f"--name {run.name}: {above} is a run; choose a name outside it")

    # 2. With --keep the next free place, unless the run is there already
    if run.keep:
        folders = [first, *_beside(first)] if run.force else []
        same = [folder for folder in folders if identity.fits(intact_record(folder))]
        if not same:
            folder = first
            number = 1
            while not _is_free(folder):
                number += 1
                folder = first.with_name(f"{first.name}.{number}")
            return folder
        first = same[0]

    # 3. The place itself
    if _is_free(first):
        return first
    if not (first / "config.json").is_file():
        raise ConfigError(
            f"--name {run.name}: {first} already exists and is not a run; choose another name"
        )

    # 4. What is in the way, and what to do
    record = read_record(first)
    if record.get("stage", identity.stage) != identity.stage:
        raise ConfigError(
            f"--name {run.name}: {first} is a run of {record['stage']}; choose another name"
        )
    if not run.force:
        conflict = "already a run"
        if not again:
            conflict = f"a run with other settings or inputs ({identity.difference(record)})"
        fixes = f"use --force to replace it or --keep to make {run.name}.2, or choose another name"
        raise ConfigError(f"--name {run.name}: {first} is {conflict}; {fixes}")
    for path in identity.inputs:
        if Path(path).resolve().is_relative_to(first.resolve()):
            raise ConfigError(
                f"--name {run.name}: --force would remove {path}, which this run reads;"
                " choose another name"
            )
    return first


def _beside(first: Path) -> list[Path]:
    """The existing folders among NAME.2, NAME.3, …"""
    pattern = re.compile(re.escape(first.name) + r"\.(\d{1,9})")
    folders = []
    for path in first.parent.glob("*"):
        match = pattern.fullmatch(path.name)
        if match:
            folders.append((int(match[1]), path))
    return [path for _, path in sorted(folders)]


def _is_free(folder: Path) -> bool:
    """Whether `folder` does not exist, or has only what a kill leaves before there is a
    config.json.
    """
    if not folder.is_dir():
        return not folder.exists() and not folder.is_symlink()
    names = [path.name for path in folder.iterdir()]
    return all(name == LOCK or name.startswith(TEMPORARY_PREFIX) for name in names)


def write_permission(folder: Path) -> None:
    """Raises ConfigError if files cannot be written to `folder`, which is created if it is missing."""
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"cannot write to {folder}; choose another folder with --data-dir")


RECORDED_PACKAGES = (
    "torch",
    "transformers",
    "trl",
    "peft",
    "accelerate",
    "datasets",
    "tokenizers",
    "gymnasium",
)
"""The packages whose versions config.json records."""
CHECKSUM = "sha256"
"""Key of the checksum over the other entries of a config.json."""
HASHED_WHOLE = 256 * 2**20
"""Bytes; a larger file is identified by its size and modification time."""
STEPS = "max_steps"
"""The limit that is a number of steps."""
EARLIER = "earlier_max_steps"
"""Key in config.json of the numbers of steps that were asked for before a run was continued."""


@dataclass(frozen=True)
class Identity:
    """What identifies a run."""

    stage: str
    settings: Mapping[str, Any]
    inputs: Mapping[str, str]
    """Digests by path."""
    limits: Collection[str] = ()
    """Names of settings that only say when a run ends, STEPS among them."""

    def fits(self, record: Mapping[str, Any], *, but_for_limits: bool = False) -> bool:
        """Whether `record`, the config.json of a run, has this identity, perhaps `but_for_limits`."""
        settings = record.get("settings")
        if not isinstance(settings, dict):
            return False
        if record.get("stage") != self.stage or record.get("inputs") != self.inputs:
            return False
        settings = dict(settings)
        if but_for_limits:
            settings |= {name: self.settings[name] for name in self.limits}
        return settings == dict(self.settings)

    def extends(self, folder: Path, record: Mapping[str, Any]) -> bool:
        """Whether `record`, of the run in `folder`, has this identity with other limits, and that
        run can be continued to these, or has reached them.
        """
        if not self.limits or not self.fits(record, but_for_limits=True):
            return False
        if self.settings[STEPS] >= record["settings"][STEPS]:
            return True
        report = _finished(self.stage, folder)
        return report is not None and report.figures["steps"] >= self.settings[STEPS]

    def difference(self, record: Mapping[str, Any]) -> str:
        """What differs in `record`: the seed, or the first setting, or else input, or else limit."""
        # 1. Settings; the seed first, since models depend on it
        settings = record["settings"]
        names = sorted({*settings, *self.settings}, key=lambda name: (name != "seed", name))
        differing = [name for name in names if settings.get(name) != self.settings.get(name)]
        for name in differing:
            if name not in self.limits:
                return self._shown_difference(name, settings)

        # 2. Inputs
        inputs = record["inputs"]
        for path in {**self.inputs, **inputs}:
            if self.inputs.get(path) != inputs.get(path):
                return f"{path} was different"

        # 3. Limits, which alone are often no reason to refuse a run
        if differing:
            return self._shown_difference(differing[0], settings)
        return "another process made it just now"

    def _shown_difference(self, name: str, there: Mapping[str, Any]) -> str:
        """A setting as it is `there`, and here."""
        is_variable = name.isupper() or name.startswith("$")
        setting = name if is_variable else flag(name)
        return f"{setting} {_shown(there.get(name))} there, {_shown(self.settings.get(name))} here"


def digest(path: Path) -> str:
    """A digest of the contents of `path`, a file or a folder of files.

    Raises DataError if it is missing or cannot be read.
    """
    try:
        if path.is_dir():
            lines = []
            for file in visible_files(path):
                lines.append(f"{file.relative_to(path)} {digest(file)}")
            text = "\n".join(lines)
            return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
        facts = path.stat()
        if facts.st_size > HASHED_WHOLE:
            return f"{facts.st_size} bytes, {facts.st_mtime_ns} ns"
        return sha256(path)
    except FileNotFoundError:
        raise missing(path) from None
    except PermissionError as error:
        raise DataError(str(error.filename), "cannot be read; change its permissions") from None


def _shown(value: Any) -> str:
    """A setting's value in at most 61 characters."""
    text = "not set" if value in (None, "", []) else str(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def circumstances() -> dict[str, Any]:
    """Package versions and the commit, for config.json."""
    versions = {}
    for package in ("reflectkit", *RECORDED_PACKAGES):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    commit = ""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
        commit = result.stdout.strip()
    return {"versions": versions, "commit": commit}


def intact_record(folder: Path) -> dict[str, Any]:
    """The content of `config.json` in `folder`; empty if it is missing. Raises DataError if it is
    damaged.
    """
    if not (folder / "config.json").exists():
        return {}
    record = read_record(folder)
    has_settings = isinstance(record.get("settings"), dict)
    if not has_settings or record.get(CHECKSUM) not in (None, record_checksum(record)):
        fixes = f"restore it to resume that run, or remove {folder}; --force starts a new run"
        raise DataError(
            folder / "config.json", f"is damaged and may belong to this command; {fixes}"
        )
    return record


def read_record(folder: Path) -> dict[str, Any]:
    """The content of `config.json` in `folder`; empty if it is missing or damaged."""
    try:
        record = read_json(folder / "config.json")
    except (DataError, NotADirectoryError):
        return {}
    if not isinstance(record, dict):
        return {}
    for name in ("settings", "inputs"):
        if not isinstance(record.get(name, {}), dict):
            return {}
    return record


def differing_settings(folders: Iterable[Path]) -> list[str]:
    """The settings that are not the same in the runs in `folders`, without the seed, and paths."""
    # 1. The settings of the runs, and their names in the order of first occurrence
    records = [read_record(folder) for folder in folders]
    settings = [record.get("settings", {}) for record in records if record]
    names: dict[str, None] = {}
    for run_settings in settings:
        names |= dict.fromkeys(run_settings)
    names.pop("seed", None)

    # 2. Those with several values; paths differ between runs that are otherwise alike
    result = []
    for name in names:
        values = {dumps(run_settings.get(name)) for run_settings in settings}
        is_path = any("/" in value for value in values)
        if len(values) > 1 and not is_path:
            result.append(name)
    return result


def record_checksum(record: Mapping[str, Any]) -> str:
    """SHA-256 of the other entries of a config.json or a report.json."""
    text = dumps({name: value for name, value in record.items() if name != CHECKSUM})
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()


@dataclass
class Run:
    """A run in progress, or a finished one (`done` holds its report)."""

    stage: str
    folder: Path
    done: Report | None = None
    earlier_steps: tuple[int, ...] = ()
    """The numbers of steps that were asked for before it was continued."""
    tables: list[Table] = field(default_factory=list)

    def finish(self, figures: Mapping[str, Any], outputs: Sequence[Path] = ()) -> Report:
        """Write `report.json`, which marks the run as complete."""
        record = {
            "stage": self.stage,
            "folder": str(self.folder),
            "figures": dict(figures),
            "tables": [to_json(table) for table in self.tables],
            "outputs": {str(path): digest(path) for path in outputs},
        }
        record[CHECKSUM] = record_checksum(record)
        write_json(self.folder / "report.json", record)
        return Report(self.stage, self.folder, dict(figures), tuple(outputs), tuple(self.tables))


@contextlib.contextmanager
def open_run(
    stage: str,
    config: Any,
    inputs: Sequence[Path] = (),
    *,
    again: bool = False,
    limits: Collection[str] = (),
) -> Iterator[Run]:
    """The run of `stage` with these settings and inputs: the finished one, the unfinished one, or a
    new one.

    config: the settings of the stage, a `Config` with a `run: RunConfig`. again: always a new one.
    limits: settings in which an earlier run may differ, see `Identity`. A run whose body raises
    before it has written anything leaves no folder.

    Raises DataError: an input is missing. ConfigError: the results folder cannot be written to,
    another process holds the run, or a run with another identity has its name.
    """
    use_threads(config.run.threads)
    digests = {str(path): digest(path) for path in inputs}
    identity = Identity(stage, identifying(config), digests, limits)

    with contextlib.ExitStack() as holding:
        # 1. Its folder, locked for this process
        folder = _locked_folder(config.run, identity, again, holding)
        sweep(folder)

        # 2. The report of a finished run; any other goes on, and gets a new report
        report = _sufficient_report(folder, identity)
        if report is None:
            (folder / "report.json").unlink(missing_ok=True)
            _continue(folder, identity)

        # 3. The body
        earlier_steps = tuple(read_record(folder).get(EARLIER, ()))
        try:
            yield Run(stage, folder, report, earlier_steps)
        except BaseException:
            _remove_if_unused(folder)
            raise


def _locked_folder(
    run: RunConfig, identity: Identity, again: bool, holding: contextlib.ExitStack
) -> Path:
    """The folder of an earlier run with this identity, or a new one; `holding` keeps its lock.

    again: always a new one.
    """
    while True:
        earlier = None if run.force or again else find_run(run, identity)
        if earlier is None:
            return new_folder(run, identity, again, holding)
        if _lock_earlier(earlier, identity, holding):
            return earlier


def _lock_earlier(folder: Path, identity: Identity, holding: contextlib.ExitStack) -> bool:
    """Lock `folder`, in which a run with this identity was found, for as long as `holding` says.

    False, without a lock, if another process has removed or replaced the run meanwhile.
    """
    with contextlib.ExitStack() as attempt:
        try:
            attempt.enter_context(locked(folder))
        except FileNotFoundError:
            return False
        record = read_record(folder)
        if not (identity.fits(record) or identity.extends(folder, record)):
            return False
        holding.push(attempt.pop_all())
        return True


def _sufficient_report(folder: Path, identity: Identity) -> Report | None:
    """The report of the run in `folder`, if it has finished and done as much as is asked for."""
    report = _finished(identity.stage, folder)
    if report is None or identity.fits(read_record(folder)):
        return report
    # Its limits are others
    has_enough = report.figures["steps"] >= identity.settings[STEPS]
    return report if has_enough else None


def _remove_if_unused(folder: Path) -> None:
    """Remove the folder of a run that has written nothing but its config.json."""
    with contextlib.suppress(OSError):
        sweep(folder)
        files = [path for path in folder.rglob("*") if path.is_file()]
        names = {path.name for path in files if path.stat().st_size}
        if names <= {"config.json"}:
            shutil.rmtree(folder, ignore_errors=True)


def _continue(folder: Path, identity: Identity) -> None:
    """Give the unfinished run in `folder` the limits of `identity`."""
    # An earlier number of steps stays on record: training had ended there
    record = read_record(folder)
    if identity.fits(record):
        return
    earlier, planned = record.get(EARLIER, []), record["settings"][STEPS]
    if planned < identity.settings[STEPS]:
        earlier = [*earlier, planned]
    record |= {"settings": dict(identity.settings), EARLIER: earlier}
    write_json(folder / "config.json", record | {CHECKSUM: record_checksum(record)})


def finished_as(stage: str, config: Any) -> Report | None:
    """The finished run of `stage` with the name and settings of `config`, if no file that it read
    or made has changed.

    Read from the run's own record, without importing the stage's libraries. None does not mean that
    there is none: a stage may record other settings than it was given.
    """
    # A numbered run has no place where to look for it
    if config.run.force or not config.run.name:
        return None
    for folder in named_runs(config.run):
        try:
            record = read_record(folder)
            inputs = {path: digest(Path(path)) for path in record["inputs"]}
        except (DataError, KeyError, TypeError):
            continue
        if Identity(stage, identifying(config), inputs).fits(record):
            return _finished(stage, folder)
    return None


def _finished(stage: str, folder: Path) -> Report | None:
    """The report of a finished run, if neither it nor an output has changed; otherwise None."""
    if not (folder / "report.json").is_file():
        return None
    try:
        record = read_json(folder / "report.json")
        if record[CHECKSUM] != record_checksum(record):
            return None
        # Of a folder that was copied or moved, its own files count, and not the original's
        original = Path(record["folder"])
        outputs = {}
        for text, recorded in record["outputs"].items():
            path = Path(text)
            if path.is_relative_to(original):
                path = folder / path.relative_to(original)
            outputs[path] = recorded
        if any(digest(path) != recorded for path, recorded in outputs.items()):
            return None
        tables = tuple(from_json(Table, table) for table in record["tables"])
        return Report(stage, folder, record["figures"], tuple(outputs), tables, skipped=True)
    except (DataError, KeyError, TypeError, AttributeError):
        return None


CHECKSUMS = "checksums.json"


def seal(folder: Path) -> None:
    """Write the SHA-256 of every file in and below `folder` to its checksums.json, as the last step
    of writing it.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != CHECKSUMS)
    write_json(
        folder / CHECKSUMS, {path.relative_to(folder).as_posix(): sha256(path) for path in files}
    )


def verify(folder: Path) -> None:
    """Raises CheckpointError, naming the file, unless `folder` holds exactly the files that were
    sealed.
    """
    checksums = _recorded(folder)
    present = {
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    } - {CHECKSUMS}
    for name in sorted({*checksums, *present}):
        if name not in checksums:
            raise CheckpointError(
                f"{folder / name} is not listed in {CHECKSUMS}; move it out of the checkpoint"
            )
        if name not in present:
            raise CheckpointError(f"{folder / name} is missing, although {CHECKSUMS} lists it")
        if sha256(folder / name) != checksums[name]:
            raise CheckpointError(
                f"{folder / name} is damaged: its checksum differs from the one in {CHECKSUMS}"
            )


def damage_told(error: CheckpointError, *, has_earlier: bool) -> str:
    """What is told of a damaged checkpoint, and what happens instead."""
    return f"{error}; {'resuming from an earlier state' if has_earlier else 'training starts anew'}"


def refuse_damage(folder: Path) -> None:
    """Raises CheckpointError, naming the file, if one of `folder` has another checksum than the one
    it was sealed with, there or as a part of the folder above. Files that are missing, or were
    never sealed, are not looked at. Raises DataError for a pipe or a device in the folder, which
    would be read without an end.
    """
    for path in folder.iterdir() if folder.is_dir() else ():
        refuse_device(path)
    for place in (folder, folder.parent):
        for name, expected in _recorded(place).items() if (place / CHECKSUMS).is_file() else ():
            path = place / name
            if path.is_relative_to(folder) and path.is_file() and sha256(path) != expected:
                # The newest other checkpoint that is intact
                others = reversed(
                    [other for other in checkpoints(folder.parent) if other != folder]
                )
                intact = next((other for other in others if _is_intact(other)), None)
                another = f" use {intact}," if intact else ""
                raise CheckpointError(
                    f"{path} is damaged: its checksum differs from the one in {place / CHECKSUMS};"
                    f"{another} train it again, or delete {CHECKSUMS} if you changed the file"
                    " yourself"
                )


def _is_intact(folder: Path) -> bool:
    """Whether no sealed file of `folder` is missing or damaged."""
    try:
        verify(folder)
    except CheckpointError:
        return False
    return True


def refuse_missing(folder: Path, names: Iterable[str]) -> None:
    """Raises CheckpointError if one of the files `names` was sealed in `folder` and is missing."""
    recorded = _recorded(folder) if (folder / CHECKSUMS).is_file() else {}
    for name in names:
        if name in recorded and not (folder / name).is_file():
            raise CheckpointError(
                f"{folder / name} is missing, although {CHECKSUMS} lists it; restore it, or train"
                " the model again"
            )


def _recorded(folder: Path) -> dict[str, str]:
    """The checksums in `folder`. Raises CheckpointError."""
    try:
        recorded = dict(read_json(folder / CHECKSUMS))
        if not recorded:
            raise ValueError("it is empty")
        return recorded
    except (DataError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{folder} has no readable {CHECKSUMS}, so it is incomplete ({error})"
        ) from None
