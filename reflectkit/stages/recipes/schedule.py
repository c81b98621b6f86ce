"""Runs jobs in their own processes as soon as their dependencies are done; progress comes back through a queue.

A worker whose parent is gone exits, so a killed `run` leaves no process that writes into its folders.
"""

from __future__ import annotations

import multiprocessing
import queue
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Any

from reflectkit.core.config import build
from reflectkit.core.console import Progress
from reflectkit.core.errors import ConfigError
from reflectkit.core.reports import Report
from reflectkit.core.runs import finished_as
from reflectkit.stages import config_class, traits
from reflectkit.stages.recipes.forking import Source
from reflectkit.stages.recipes.workers import CHECKS, Relay, Work, ended, start, stop


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
    source = Source(trains=any(traits(job.stage).trains for job in unfinished))
    events: Any = source.context.Queue()
    workers: dict[str, BaseProcess] = {}
    relay = Relay(progress)

    def start_ready() -> None:
        for job in jobs:
            free = len(workers) < side_by_side
            if free and job.name not in reports and job.name not in workers and job.after <= reports.keys():
                values = {key: resolved(value, job, reports) for key, value in job.values.items()}
                given = Work(job.name, f"step '{job.name}'", job.stage, values, f"{job.name}: ")
                alone = values.get("processes", 1) == 1
                start(source.context_of(_needs_torch(job), progress), given, events, workers, daemon=alone)

    def handle(name: str, kind: str, *details: Any) -> None:
        if relay.shows(name, kind, *details):
            return
        if kind == "error":
            raise details[0]
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
        relay.close()
        stop(workers)
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
        config = build(config_class(job.stage), values, f"step '{job.name}'")
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
    return job.stage == CHECKS or not traits(job.stage).writes_data


def _check_alive(workers: Mapping[str, BaseProcess], events: Any) -> None:
    for name, worker in workers.items():
        if not worker.is_alive() and events.empty():
            raise ended(f"step '{name}'", worker.exitcode)


def resolved(value: Any, job: Job, reports: Mapping[str, Report]) -> Any:
    """`value` with `{step}` replaced by that step's first output, or by its folder if it has none."""
    if isinstance(value, str):
        names = {
            name.removeprefix(job.prefix): report for name, report in reports.items() if name.startswith(job.prefix)
        }
        places = {name: str(report.outputs[0] if report.outputs else report.folder) for name, report in names.items()}
        return value.format(**places, data=job.values["data_dir"], results=job.values["results_dir"])
    return [resolved(part, job, reports) for part in value] if isinstance(value, list | tuple) else value
