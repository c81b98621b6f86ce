"""`bench env` counts CPU time, of the processes that an environment has started too."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.bench import CpuClock, play_round
from reflectkit.envs.corridor import Corridor

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
