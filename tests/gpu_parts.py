"""Parts of `bench gpu` that a test needs: quick, broken, killed, endless."""

from __future__ import annotations

import os
import signal

from benchmarks.gpu import Bench, Measured, NotPossibleError


def quick(bench: Bench, rate: float) -> Measured:
    """Also counts its calls."""
    with (bench.folder / "calls").open("a") as calls:
        calls.write(f"{rate:g}\n")
    return Measured(rate, 0.5, "quick")


def broken(bench: Bench) -> Measured:
    raise ValueError("this part is broken\nin two lines")


def impossible(bench: Bench) -> Measured:
    raise NotPossibleError("this machine has no wheels")


def killed(bench: Bench) -> Measured:
    os.kill(os.getpid(), signal.SIGKILL)
    return Measured()
