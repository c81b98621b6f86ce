"""An end for what would wait for ever."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def alarm(seconds: int) -> Iterator[None]:
    """Ends what is in the context after so many seconds, and fails then, whatever becomes of the TimeoutError."""
    rang = []

    def ring(*_: Any) -> None:
        rang.append(True)
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        assert not rang, f"not done after {seconds} s"
