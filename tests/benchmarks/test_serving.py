"""Every program and every request of the measurements of `serve` is answered."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import serving


def test_every_program_is_accounted_for() -> None:
    programs, episodes, memory = serving.play(12)
    assert (programs, episodes) == ("12", "12 completed with 3 answers")
    assert memory.endswith(" MB")


def test_a_served_pair_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "ONE", 1)
    monkeypatch.setattr(serving, "AT_ONCE", 2)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    model, reflector, *figures = serving.serve("tiny", reflects=True)
    assert (model, reflector) == ("tiny", "yes")
    assert all(float(figure.split()[0]) > 0 for figure in figures)
