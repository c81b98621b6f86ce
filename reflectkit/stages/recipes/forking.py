"""Where the processes of a `run`'s steps come from: forks of a server that has imported torch once, for all of them.

Forking is safe there because the server has no thread of Python's. While it imports, steps that need no torch run in
fresh interpreters, so the first step starts at once.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from reflectkit.core.console import Progress, Quiet
from reflectkit.core.threads import VARIABLES

PRELOADED = "reflectkit.stages.recipes.preload"
STOPPING = ("SIGINT", "SIGTERM", "SIGHUP")
READ_ONCE = (*VARIABLES, "HF_", "HUGGINGFACE_", "TRANSFORMERS_", "TORCH", "PYTORCH_")
"""Prefixes of the environment variables that libraries read when they are imported."""
_served: dict[str, str] | None = None  # these variables in the server that forks the steps
_ready = False  # whether it has imported everything


class Source:
    """Starts the server unless it runs, and does not wait for it.

    Processes are fresh interpreters if forking is unsafe (macOS) or unavailable, or if the libraries would read other
    variables than in the server. trains: the server imports the training libraries.
    """

    def __init__(self, *, trains: bool) -> None:
        self.context: Any = multiprocessing.get_context("spawn")
        if sys.platform != "linux":
            return
        served = multiprocessing.get_context("forkserver")
        if trains:
            served.set_forkserver_preload([PRELOADED])
        _start_server()
        if _served == _read_once():
            self.context = served
            if not trains:
                _wait_for_server(served)  # it imports nothing, unless it is one that an earlier run started

    def context_of(self, needs_torch: bool, progress: Progress) -> Any:
        """The context to start a process from, which waits for the server only if the process needs torch."""
        if self.context.get_start_method() == "forkserver" and not _ready:
            if not needs_torch:
                return multiprocessing.get_context("spawn")
            with progress.bar("Loading torch, once for all steps", 1) as bar:
                _wait_for_server(self.context)
                bar.advance()
        return self.context


def forked() -> Any:
    """The context of processes that train, ready to start them."""
    return Source(trains=True).context_of(True, Quiet())


def _start_server() -> None:
    """Start the server unless it is running. It finds modules where this process does, not in the working directory,
    and leaves Ctrl-C to this process, as the steps do.
    """
    from multiprocessing import forkserver, resource_tracker

    global _served
    before, served = dict(os.environ), _read_once()
    resource_tracker.ensure_running()  # starting it would unblock the signal
    try:
        os.environ |= {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        with stop_later():
            forkserver.ensure_running()
    finally:
        for name in ("PYTHONSAFEPATH", "PYTHONPATH"):
            os.environ.pop(name, None)
        os.environ |= before
    if _served is None:
        _served = served


def _wait_for_server(context: Any) -> None:
    """Wait until the server has imported everything: only then does it fork."""
    global _ready
    if _ready:
        return
    first = context.Process(target=os.getpid)
    first.start()
    first.join()
    _ready = True


@contextlib.contextmanager
def stop_later() -> Iterator[None]:
    """Delay Ctrl-C, and the other signals that stop a command, until the context ends. Processes that are started in it
    never receive Ctrl-C.
    """
    main = threading.current_thread() is threading.main_thread()  # others have no handlers
    every = [getattr(signal, name) for name in STOPPING if main and hasattr(signal, name)]
    handlers = {number: handler for number in every if callable(handler := signal.getsignal(number))}
    received: list[tuple[int, Any]] = []
    for number in handlers:
        signal.signal(number, lambda *signalled: received.append(signalled))
    masks = hasattr(signal, "pthread_sigmask")  # not on Windows
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if masks else None
    try:
        yield
    finally:
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number, frame in received[:1]:
            handlers[number](number, frame)


def _read_once() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(READ_ONCE)}


def end_with(parent: int, *, group: bool = False) -> None:
    """From now on, end this forked process once process `parent`, which waits for it, or its server is gone. group:
    with its whole process group.
    """
    threading.Thread(target=_exit_with, args=(parent, os.getppid(), group), daemon=True).start()


def _exit_with(scheduler: int, server: int, group: bool) -> None:
    """End this process once `scheduler`, which waits for it, or `server`, which forked it, is gone."""
    while os.getppid() == server and _alive(scheduler):
        time.sleep(0.2)
    if group:
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
