"""Parts of `bench gpu` that a test needs: quick, broken, killed, endless."""

from __future__ import annotations

from benchmarks.gpu import Bench, Measured


def broken(bench: Bench) -> Measured:
    raise ValueError("this part is broken\nin two lines")
