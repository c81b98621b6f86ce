"""`make gpu-report` on a CPU: figures are kept by code and machine, and only what has none is measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import gpu_report
from benchmarks.gpu import Bench, Part
from benchmarks.gpu_trace import DeviceTimes, Stacks, Times, tables
from reflectkit.jsonl import read_json

HERE = "tests.gpu_parts"
FACTS = {"kind": "cpu", "device": "CPU", "torch": "2", "transformers": "5", "date": "2026-11-27"}
FIRST = Part("first", f"{HERE}:timed", {"tokens_per_second": 7.0})
SECOND = Part("decoding-second", f"{HERE}:timed", {"tokens_per_second": 9.0})
BROKEN = Part("broken", f"{HERE}:broken")


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(gpu_report, "SETUP", Part("setup", f"{HERE}:timed", {"tokens_per_second": 0.0}))
    (tmp_path / "bench").mkdir()
    return Bench(tmp_path / "bench", "cpu", True, 0, 1)


def test_a_figure_is_measured_again_only_for_other_code_or_another_machine(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    record = tmp_path / "record"
    assert gpu_report.report(bench, FACTS, record, 5.0, [FIRST, BROKEN]) == ["broken"]
    figures = read_json(record / "report.json")
    assert list(figures) == ["first"]
    assert figures["first"]["tokens_per_second"] == 7.0

    # only what has no figure is run
    changed = Part("first", f"{HERE}:broken")
    assert gpu_report.report(bench, FACTS, record, 5.0, [changed, SECOND]) == []
    assert list(read_json(record / "report.json")) == ["first", "decoding-second"]
    assert "| first | 7 |" in (record / "report.md").read_text()

    # another card
    assert gpu_report.report(bench, FACTS | {"device": "H100"}, record, 5.0, [changed]) == ["first"]

    # other code of training, which decoding does not run
    monkeypatch.setattr(gpu_report, "LEARNING", ("tests/benchmarks",))
    assert gpu_report.report(bench, FACTS, record, 5.0, [changed, Part(SECOND.name, f"{HERE}:broken")]) == ["first"]
    assert read_json(record / "report.json")["first"]["tokens_per_second"] == 7.0


class Event:
    """What the profiler records of a kernel or a call."""

    def __init__(self, name: str, start: int, duration: int, device: str) -> None:
        self._values = name, start, duration, device

    def name(self) -> str:
        return self._values[0]

    def start_ns(self) -> int:
        return self._values[1]

    def duration_ns(self) -> int:
        return self._values[2]

    def device_type(self) -> object:
        from torch.autograd import DeviceType

        return getattr(DeviceType, self._values[3])


def test_the_trace_tells_kernels_copies_and_calls_apart_and_counts_overlapping_ones_once() -> None:
    second = 10**9
    events = [
        Event("gemm", 0, 4 * second, "CUDA"),
        Event("gemm", 2 * second, 4 * second, "CUDA"),
        Event("Memcpy DtoH", 8 * second, second, "CUDA"),
        Event("cudaLaunchKernel", 0, second, "CPU"),
        Event("cudaStreamSynchronize", second, 3 * second, "CPU"),
    ]
    device = DeviceTimes.of(events, on_gpu=True)
    assert device.busy_s == 7
    assert device.kernels == {"gemm": (2, 8.0)}
    assert device.transfers == {"Memcpy DtoH": (1, 1.0)}
    text = tables(Times.of([{"rollout_seconds": 6, "update_seconds": 4, "tokens": 10}] * 2), device, Stacks())
    assert "| GPU busy | 1.0 | 3.5000 |" in text
    assert "| calls that can wait for the GPU (host) | 0.5 | 1.5000 |" in text
    assert "| launches (host) | 0.5 | 0.5000 |" in text
