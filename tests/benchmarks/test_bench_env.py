"""`bench env` counts CPU time, of the processes that an environment has started too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.bench import CpuClock, play_round
from benchmarks.problems import problems_of
from reflectkit.console import Quiet
from reflectkit.envs.corridor import Corridor
from reflectkit.envs.support.env import Support

BURN = """
import time
for line in iter(input, "end"):
    before = time.process_time()
    sum(range(2_000_000))
    print(time.process_time() - before, flush=True)
"""


def test_the_work_of_other_processes_of_the_environment_counts() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        clock = CpuClock()
        before = clock.now()
        child.stdin.write("go\n")
        child.stdin.flush()
        spent = float(child.stdout.readline())
        assert clock.now() - before >= spent > 0
        child.communicate("end\n")
    gone = clock.now()  # what it had spent stays
    assert gone - before >= spent


def test_waiting_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    wall, cpu = iter(range(0, 10**6, 1000)), iter([0.0, 0.0, 0.25, 2.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(wall))
    monkeypatch.setattr("time.process_time", lambda: next(cpu))
    rate, resets = play_round(Corridor(), Corridor.taskset.tasks("long")[-1:], 2, 0)
    assert (rate, resets) == (pytest.approx(1.0), [0.25])  # two steps in two seconds


def test_an_environment_with_a_generator_is_measured_on_generated_problems() -> None:
    tasks, settings = problems_of(Support, Path(), 1, 3, Quiet())
    assert len({task.id for task in tasks}) == len(tasks) > 1
    assert play_round(Support(horizon=20, **settings), tasks, 30, 0)[0] > 0
