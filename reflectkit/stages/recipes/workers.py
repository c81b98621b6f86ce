"""What a process does that runs a stage for another one, and how that one shows its bars and news.

A worker sends tuples through a queue: its name, a kind of event, and details. It ends with the process it works for.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from typing import Any

from reflectkit.core.config import build, variables
from reflectkit.core.console import Bar, Progress, Quiet
from reflectkit.core.errors import ReflectkitError, user_code_line
from reflectkit.stages import config_class, stage_module
from reflectkit.stages.recipes.forking import end_with, stop_later

CHECKS = "checks"
"""A job that is no command's stage: it checks the data before the first training."""


class _Wire:
    """A Progress that sends its bars and news to the parent. label: what comes before each."""

    def __init__(self, name: str, events: Any, label: str = "") -> None:
        self.name, self.events, self.label, self.opened = name, events, label, 0

    @contextlib.contextmanager
    def bar(self, title: str, total: int, done: int = 0) -> Iterator[Bar]:
        self.opened += 1
        wire = _WireBar(self, self.opened)
        self.events.put((self.name, "bar", self.opened, f"{self.label}{title}", total, done))
        try:
            yield wire
        finally:
            wire.flush()
            self.events.put((self.name, "close", wire.number))

    def news(self, text: str) -> None:
        self.events.put((self.name, "news", f"{self.label}{text}"))

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


class Relay:
    """Shows what workers send about their bars and news."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self._bars: dict[tuple[str, int], tuple[Bar, contextlib.ExitStack]] = {}

    def close(self) -> None:
        """Close the bars that are open."""
        for _, holder in self._bars.values():
            holder.close()

    def shows(self, name: str, kind: str, *details: Any) -> bool:
        """Show the event, unless it is not about bars and news."""
        if kind == "bar":
            number, title, total, done = details
            holder = contextlib.ExitStack()
            self._bars[name, number] = (holder.enter_context(self.progress.bar(title, total, done)), holder)
        elif kind == "advance":
            number, amount, figures = details
            self._bars[name, number][0].advance(amount, **figures)
        elif kind == "close":
            self._bars.pop((name, details[0]))[1].close()
        elif kind == "news":
            self.progress.news(details[0])
        else:
            return False
        return True


@dataclass(frozen=True)
class Work:
    """What a worker is told."""

    name: str
    """Of the worker, in its events."""
    place: str
    """What errors call it."""
    stage: str
    """The stage to run, or CHECKS."""
    values: Mapping[str, Any]
    """The stage's settings."""
    label: str | None = ""
    """What comes before each bar and news; None: nothing is shown."""
    more: Mapping[str, str] = field(default_factory=dict)
    """Environment variables, in addition to those of the process that waits for it."""


def start(context: Any, given: Work, events: Any, workers: dict[str, BaseProcess], *, daemon: bool = True) -> None:
    """Start a worker from `context` and add it to `workers`. daemon: it starts no workers itself."""
    arguments = (given, events, os.getpid(), {**os.environ, **given.more})
    worker = context.Process(target=_work, args=arguments, daemon=daemon)
    with stop_later():  # otherwise it could start without being registered
        worker.start()
        workers[given.name] = worker


def stop(workers: Mapping[str, BaseProcess]) -> None:
    """End all workers and wait for them."""
    for worker in workers.values():
        worker.terminate()
    for worker in workers.values():
        worker.join()


def _work(given: Work, events: Any, parent: int, environment: Mapping[str, str]) -> None:
    """Run a stage; the last event is "done" with its report, or "error". environment: the server may have an older
    one.
    """
    name, place, stage = given.name, given.place, given.stage
    os.environ.clear()
    os.environ.update(environment)
    end_with(parent)
    try:
        module = importlib.import_module(f"{__package__}.{CHECKS}") if stage == CHECKS else stage_module(stage)
        config = build(module.ChecksConfig if stage == CHECKS else config_class(stage), given.values, place)
        progress = Quiet() if given.label is None else _Wire(name, events, given.label)
        for variable, value in variables(config).items():
            progress.news(f"{variable}: {value}")
        report = module.run(config, progress)
        events.put((name, "done", report))
    except ReflectkitError as error:
        events.put((name, "error", error))
    except OSError as error:
        events.put((name, "error", OSError(error.errno, error.strerror, error.filename)))
    except Exception as error:
        import traceback

        message = f"{type(error).__name__}: {error}"
        if line := user_code_line(error):
            events.put((name, "error", ReflectkitError(f"{place}: {line}: {message}")))
            return
        note = "".join(traceback.format_exception(error))
        events.put((name, "error", RuntimeError(f"{place}: {message}\n{note}")))


def ended(place: str, exit_code: int | None) -> ReflectkitError:
    """The error for a worker that ended without a report."""
    code = exit_code or 0
    how = f"was killed (signal {-code}; out of memory?)" if code < 0 else f"ended with exit code {code}; see above"
    return ReflectkitError(f"{place} {how}; run the same command again to resume")
