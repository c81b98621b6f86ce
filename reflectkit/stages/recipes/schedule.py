"""Runs jobs in their own processes as soon as their dependencies are done; progress comes back through a queue.

A worker whose parent is gone exits, so a killed `run` leaves no process that writes into its folders.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import queue
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Any

from reflectkit.core.config import from_mapping
from reflectkit.core.console import Bar, Progress
from reflectkit.core.errors import ConfigError, ReflectkitError, user_code_line
from reflectkit.core.reports import Report
from reflectkit.core.runs import finished_as
from reflectkit.stages import STAGES, config_class
from reflectkit.stages.recipes.forking import Source, ctrl_c_later, end_with

CHECKS = "checks"
"""A job that is no command's stage: it checks the data before the first training."""


@dataclass(frozen=True)
class Job:
    """One step. values: its settings, in which `{step}` stands for that step's first output. after: the names of the
    jobs it waits for. prefix: put before a name in braces if several seeds run at once.
    """

    name: str
    stage: str
    values: Mapping[str, Any]
    after: frozenset[str]
    prefix: str = ""


def perform(jobs: Sequence[Job], side_by_side: int, progress: Progress) -> dict[str, Report]:
    """Run every job; returns reports by name in the order of `jobs`. The first error stops the others and is raised."""
    reports = _finished(jobs, progress)
    if len(reports) == len(jobs):
        return reports
    progress.news("starting the steps")
    unfinished = [job for job in jobs if job.name not in reports and job.stage != CHECKS]
    source = Source(trains=any(config_class(job.stage).TRAINS for job in unfinished))
    events: Any = source.context.Queue()
    workers: dict[str, BaseProcess] = {}
    open_bars: dict[tuple[str, int], tuple[Bar, contextlib.ExitStack]] = {}

    def start_ready() -> None:
        for job in jobs:
            free = len(workers) < side_by_side
            if free and job.name not in reports and job.name not in workers and job.after <= reports.keys():
                values = {key: resolved(value, job, reports) for key, value in job.values.items()}
                work = (job.name, job.stage, values, events, os.getpid(), dict(os.environ))
                context = source.context_of(_needs_torch(job), progress)
                worker = context.Process(target=_work, args=work, daemon=True)
                with ctrl_c_later():  # otherwise a worker could start without being registered
                    worker.start()
                    workers[job.name] = worker

    def handle(name: str, kind: str, *details: Any) -> None:
        if kind == "bar":
            number, title, total, done = details
            holder = contextlib.ExitStack()
            open_bars[name, number] = (holder.enter_context(progress.bar(f"{name}: {title}", total, done)), holder)
        elif kind == "advance":
            number, amount, figures = details
            open_bars[name, number][0].advance(amount, **figures)
        elif kind == "close":
            open_bars.pop((name, details[0]))[1].close()
        elif kind == "news":
            progress.news(details[0])
        elif kind == "error":
            raise details[0]
        else:
            reports[name] = details[0]
            workers.pop(name).join()
            if details[0].stage != CHECKS:
                _say_done(name, details[0], progress)

    try:
        while len(reports) < len(jobs):
            start_ready()
            try:
                handle(*events.get(timeout=0.5))
            except queue.Empty:
                _check_alive(workers, events)
    finally:
        for _, holder in open_bars.values():
            holder.close()
        for worker in workers.values():
            worker.terminate()
        for worker in workers.values():
            worker.join()
    return {job.name: reports[job.name] for job in jobs}


def _finished(jobs: Sequence[Job], progress: Progress) -> dict[str, Report]:
    """The reports of the jobs that need no process to see that they are finished, since their records say so."""
    reports: dict[str, Report] = {}
    checks: dict[str, Report] = {}
    for job in jobs:
        if not job.after <= reports.keys() | checks.keys():
            continue
        if job.stage == CHECKS:
            checks[job.name] = Report(CHECKS, job.values["results_dir"], {}, skipped=True)
            continue
        values = {key: resolved(value, job, reports) for key, value in job.values.items()}
        config = from_mapping(config_class(job.stage), values, f"step '{job.name}'")
        if report := finished_as(job.stage, config):
            reports[job.name] = report
            _say_done(job.name, report, progress)
    waiting = {name for job in jobs if job.name not in reports for name in job.after}
    return reports | {name: report for name, report in checks.items() if name not in waiting}


def _say_done(name: str, report: Report, progress: Progress) -> None:
    progress.news(f"{name}: {'already finished' if report.skipped else 'done'} ({report.folder})")


def check_script() -> None:
    """Raises ConfigError in a step's process if it is importing the script that started it and would run it again."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise ConfigError(
            "run starts its steps in processes that import this script; call it under `if __name__ == '__main__':`"
        )


def _needs_torch(job: Job) -> bool:
    """Whether the step reads or trains a model, as far as its stage says."""
    return job.stage == CHECKS or not config_class(job.stage).WRITES_DATA


def _check_alive(workers: Mapping[str, BaseProcess], events: Any) -> None:
    for name, worker in workers.items():
        if not worker.is_alive() and events.empty():
            code = worker.exitcode or 0
            how = (
                f"was killed (signal {-code}; out of memory?)"
                if code < 0
                else f"ended with exit code {code}; see above"
            )
            raise ReflectkitError(f"step '{name}' {how}; run the same command again to resume")


def resolved(value: Any, job: Job, reports: Mapping[str, Report]) -> Any:
    """`value` with `{step}` replaced by that step's first output, or by its folder if it has none."""
    if isinstance(value, str):
        names = {
            name.removeprefix(job.prefix): report for name, report in reports.items() if name.startswith(job.prefix)
        }
        places = {name: str(report.outputs[0] if report.outputs else report.folder) for name, report in names.items()}
        return value.format(**places, data=job.values["data_dir"], results=job.values["results_dir"])
    return [resolved(part, job, reports) for part in value] if isinstance(value, list | tuple) else value


class _Wire:
    """A Progress that sends its bars and news to the parent."""

    def __init__(self, name: str, events: Any) -> None:
        self.name, self.events, self.opened = name, events, 0

    @contextlib.contextmanager
    def bar(self, title: str, total: int, done: int = 0) -> Iterator[Bar]:
        self.opened += 1
        wire = _WireBar(self, self.opened)
        self.events.put((self.name, "bar", self.opened, title, total, done))
        try:
            yield wire
        finally:
            wire.flush()
            self.events.put((self.name, "close", wire.number))

    def news(self, text: str) -> None:
        self.events.put((self.name, "news", f"{self.name}: {text}"))

    show = news
    attended = False

    def ask(self, question: str) -> str | None:
        return None  # many steps may be running, and there is one keyboard


class _WireBar:
    """Sends its progress at most five times a second."""

    def __init__(self, wire: _Wire, number: int) -> None:
        self.wire, self.number, self.pending, self.sent = wire, number, 0, 0.0
        self.figures: dict[str, float] = {}

    def advance(self, amount: int = 1, **figures: float) -> None:
        self.pending += amount
        self.figures = figures
        if time.monotonic() - self.sent > 0.2:
            self.flush()

    def flush(self) -> None:
        self.wire.events.put((self.wire.name, "advance", self.number, self.pending, self.figures))
        self.pending, self.sent = 0, time.monotonic()


def _work(
    name: str, stage: str, values: Mapping[str, Any], events: Any, parent: int, environment: Mapping[str, str]
) -> None:
    """Run a job in a worker. environment: that of the process that waits for it; the server may have an older one."""
    os.environ.clear()
    os.environ.update(environment)
    end_with(parent)
    try:
        module = importlib.import_module(f"{__package__}.{CHECKS}" if stage == CHECKS else STAGES[stage])
        config = from_mapping(module.Config, values, f"step '{name}'")
        report = module.run(config, _Wire(name, events))
        events.put((name, "done", report))
    except ReflectkitError as error:
        events.put((name, "error", error))
    except OSError as error:
        events.put((name, "error", OSError(error.errno, error.strerror, error.filename)))
    except Exception as error:
        import traceback

        message = f"{type(error).__name__}: {error}"
        if line := user_code_line(error):
            events.put((name, "error", ReflectkitError(f"step '{name}': {line}: {message}")))
            return
        note = "".join(traceback.format_exception(error))
        events.put((name, "error", RuntimeError(f"step '{name}': {message}\n{note}")))
