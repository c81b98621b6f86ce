"""Parts of `bench gpu` that a test needs: quick, broken, killed, endless."""

from __future__ import annotations

from benchmarks.gpu import Bench, Measured


def broken(bench: Bench) -> Measured:
    raise ValueError("this part is broken\nin two lines")


def timed(bench: Bench, tokens_per_second: float) -> Measured:
    return Measured(tokens_per_second, note="quick")
