"""Several processes of one stage on this machine, as torchrun would start them, but with bars, Ctrl-C and errors of one
process. They are forks of one that has imported torch (see `recipes.forking`), so this one imports nothing heavy.
"""

from __future__ import annotations

import os
import queue
import socket
import time
from collections.abc import Mapping
from multiprocessing.process import BaseProcess
from typing import Any

from reflectkit.core.config import flat
from reflectkit.core.console import Progress
from reflectkit.core.errors import ConfigError, ReflectkitError
from reflectkit.core.reports import Report
from reflectkit.core.runs import finished_as
from reflectkit.core.threads import use_threads
from reflectkit.stages.recipes.forking import Source
from reflectkit.stages.recipes.workers import Relay, Work, ended, start, stop

PATIENCE_S = 10.0
"""How long the others may go on once a process has failed: the first one writes down why an update diverged."""


def check_launch(count: int) -> None:
    """Raises ConfigError if `count` processes are to be started by one that a launcher has started."""
    if count > 1 and "RANK" in os.environ:
        raise ConfigError(
            "--processes starts the processes itself; leave out torchrun or accelerate, which have started this one"
        )


def launched(stage: str, config: Any, count: int, progress: Progress) -> Report:
    """Run `stage` with the settings of `config`, but for `processes`, in `count` processes; the report of the first.

    Raises what the stage raises, and ReflectkitError if a process was killed.
    """
    if report := finished_as(stage, config):
        return report
    use_threads(config.run.threads)  # before the server is started, which keeps what the libraries read once
    values = flat(config) | {"processes": 1}
    context = Source(trains=True).context_of(True, progress)
    events = context.Queue()
    names = [f"{stage}: process {rank}" for rank in range(count)]
    shared = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    workers: dict[str, BaseProcess] = {}
    try:
        for rank, name in enumerate(names):
            more = shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            start(context, Work(name, name, stage, values, None if rank else "", more), events, workers)
        return _reports(workers, events, progress)[names[0]]
    finally:
        stop(workers)


def _reports(workers: Mapping[str, BaseProcess], events: Any, progress: Progress) -> dict[str, Report]:
    """The reports of all workers. Raises the error of one that failed."""
    reports: dict[str, Report] = {}
    errors: dict[str, Exception] = {}
    ends = float("inf")
    relay = Relay(progress)
    try:
        while len(reports) + len(errors) < len(workers) and time.monotonic() < ends:
            try:
                name, kind, *details = events.get(timeout=0.2)
            except queue.Empty:
                for one, worker in workers.items():
                    if one not in reports and one not in errors and not worker.is_alive() and events.empty():
                        errors[one] = ended(one, worker.exitcode)
            else:
                if kind == "done":
                    reports[name] = details[0]
                elif kind == "error":
                    errors[name] = details[0]
                else:
                    relay.shows(name, kind, *details)
            if errors:
                ends = min(ends, time.monotonic() + PATIENCE_S)
    finally:
        relay.close()
    if errors:
        raise _cause([errors[name] for name in workers if name in errors])
    return reports


def _cause(errors: list[Exception]) -> Exception:
    """The error that the user should see: the others may only say that a process is gone."""
    return next((one for one in errors if isinstance(one, ReflectkitError)), errors[0])


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
