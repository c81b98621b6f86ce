"""One folder per run: `config.json` first, `report.json` last, so that a report means the stage is complete.

A run is found again by its identity (see `runs.identity`), so the same command resumes its own unfinished run and skips
its finished one. `runs.folders` says where a new one goes.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reflectkit.config import identifying
from reflectkit.console import Report, Table
from reflectkit.errors import DataError
from reflectkit.jsonl import read_json, sweep, write_json
from reflectkit.runs.folders import find_run, named_runs, new_folder, remove_if_empty, runs_of
from reflectkit.runs.identity import Identity, digest, read_record
from reflectkit.runs.locks import locked
from reflectkit.seeding import use_threads
from reflectkit.types import to_json


@dataclass
class Run:
    """A run in progress, or a finished one (`done` holds its report)."""

    stage: str
    folder: Path
    done: Report | None = None
    tables: list[Table] = field(default_factory=list)

    def finish(self, figures: Mapping[str, Any], outputs: Sequence[Path] = ()) -> Report:
        """Write `report.json`, which marks the run as complete."""
        record = {
            "stage": self.stage,
            "figures": dict(figures),
            "tables": [to_json(table) for table in self.tables],
            "outputs": {str(path): digest(path) for path in outputs},
        }
        write_json(self.folder / "report.json", record)
        return Report(self.stage, self.folder, dict(figures), tuple(outputs), tuple(self.tables))


@contextlib.contextmanager
def open_run(stage: str, config: Any, inputs: Sequence[Path] = (), *, again: bool = False) -> Iterator[Run]:
    """The run of `stage` with these settings and inputs: the finished one, the unfinished one, or a new one.

    config: the settings of the stage, a `Config` with a `run: RunConfig`. again: always a new one. A run whose body
    raises before it has written a file leaves no folder, and what it was to replace is restored. Otherwise what a run
    replaces is removed when it ends.

    Raises
    ------
    DataError: an input is missing. ConfigError: the results folder cannot be written to, another process holds the run,
    or a run with another identity has its name.
    """
    use_threads(config.run.threads)
    identity = Identity(stage, identifying(config), {str(path): digest(path) for path in inputs}, config)
    while True:
        existing = None if config.run.force or again else find_run(config.run, identity)
        with contextlib.ExitStack() as stack:
            folder, replaced = (existing, None) if existing else new_folder(config.run, identity, again, stack)
            try:
                stack.enter_context(locked(folder))
            except FileNotFoundError:
                continue  # a failed run has just removed it
            if existing and not identity.fits(read_record(existing)):
                continue  # another process has just replaced it
            sweep(folder)
            report = _finished(stage, folder)
            if report is None:
                with contextlib.suppress(FileNotFoundError):
                    (folder / "report.json").unlink()
            try:
                yield Run(stage, folder, report)
            except BaseException:
                remove_if_empty(folder, config.run.results_dir, replaced)
                raise
            finally:
                if replaced:
                    shutil.rmtree(replaced, ignore_errors=True)
            return


def finished_as(stage: str, config: Any) -> Report | None:
    """The finished run of `stage` with the name and settings of `config`, if no file that it read or made has changed.

    Read from the run's own record, without importing the stage's libraries. None does not mean that there is none: a
    stage may record other settings than it was given.
    """
    if config.run.force or not config.run.name:
        return None
    for folder in named_runs(config.run):
        try:
            record = read_record(folder)
            inputs = {path: digest(Path(path)) for path in record["inputs"]}
        except (DataError, KeyError, TypeError):
            continue
        if Identity(stage, identifying(config), inputs, config).fits(record):
            return _finished(stage, folder)
    return None


def finished(results_dir: Path, stage: str, settings: Mapping[str, Any], content: str) -> list[Report]:
    """The finished runs of `stage` that have these settings, among others, and an input whose digest is `content`.

    The numbered ones come first, the newest first.
    """
    reports = []
    for folder in runs_of(results_dir, stage):
        record = read_record(folder)
        try:
            fits = settings.items() <= record["settings"].items() and content in record["inputs"].values()
        except (KeyError, AttributeError):  # a damaged config.json
            continue
        if fits and (report := _finished(stage, folder)):
            reports.append(report)
    return reports


def _finished(stage: str, folder: Path) -> Report | None:
    """The report of a finished run whose outputs have not changed; otherwise None."""
    if not (folder / "report.json").is_file():
        return None
    try:
        record = read_json(folder / "report.json")
        outputs = {Path(path): recorded for path, recorded in record["outputs"].items()}
        if any(digest(path) != recorded for path, recorded in outputs.items()):
            return None
        tables = tuple(
            Table(table["title"], tuple(table["columns"]), tuple(tuple(row) for row in table["rows"]))
            for table in record["tables"]
        )
        return Report(stage, folder, record["figures"], tuple(outputs), tables, skipped=True)
    except (DataError, KeyError, TypeError, AttributeError):
        return None
