"""`bench gpu` on a CPU: every part has figures or a reason, one that fails does not end the others, and a check that
was stopped goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import gpu
from benchmarks.gpu import Bench, Part, Row
from reflectkit.cli.main import main
from reflectkit.console import Quiet
from reflectkit.jsonl import read_json

HERE = "tests.gpu_parts"
FACTS = {"device": "CPU", "torch": "2", "transformers": "5", "date": "2026-11-22"}
BROKEN = Part("broken", f"{HERE}:broken")


def place(folder: Path) -> Bench:
    return Bench(folder, "cpu", True, 0, 1)


def use(parts: Sequence[Part], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "PARTS", tuple(parts))


def quick(name: str, rate: float) -> Part:
    return Part(name, f"{HERE}:quick", {"rate": rate})


def test_every_part_has_figures_or_a_reason_and_a_broken_one_ends_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["benchmarks.bench", "gpu", "--device", "cpu", "--name", "check", "--results-dir", str(tmp_path)]
    parts = gpu.PARTS
    use([parts[0], BROKEN, *parts[1:]], monkeypatch)
    assert main(command) == 1
    assert "failed: broken; see" in capsys.readouterr().out
    rows = {row["part"]: Row(**row) for row in read_json(tmp_path / "check/table.json")["rows"]}
    assert list(rows) == ["setup", "broken", *(part.name for part in parts[1:])]
    failed = [(row.part, row.note) for row in rows.values() if row.status == "failed"]
    assert failed == [("broken", "ValueError: this part is broken")], failed
    for part in parts:
        row = rows[part.name]
        assert row.note
        if row.status == "skipped":
            assert part.needs or part.not_on_cpu
            continue
        assert row.seconds is not None
        assert (row.peak_gib is not None) == part.shows_memory
        if part.name not in ("setup", "pipeline"):
            assert row.tokens_per_second is not None
            assert row.tokens_per_second > 0
        if part.name.startswith(("sft", "decoding", "bench-rl", "half")):
            assert row.share is not None
            assert row.share > 0
    assert "this part is broken" in (tmp_path / "check/broken.log").read_text()

    use(parts, monkeypatch)  # mended
    assert main(command) == 0
    again = [Row(**row) for row in read_json(tmp_path / "check/table.json")["rows"]]
    assert again == [rows[part.name] for part in parts]  # to the last digit: nothing was measured again
    assert "tiny shapes" in (tmp_path / "check/table.md").read_text()
    assert not (tmp_path / "check/model").exists()


class Stops(Quiet):
    """Ctrl-C after the second part."""

    def __init__(self) -> None:
        self.count = 0

    def advance(self, amount: int = 1, **figures: float) -> None:
        self.count += 1
        if self.count == 2:
            raise KeyboardInterrupt


def test_a_stopped_check_keeps_its_rows_on_the_same_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use([quick("one", 1), quick("two", 2), quick("three", 3)], monkeypatch)
    names = gpu.names_of_parts()
    with pytest.raises(KeyboardInterrupt):
        gpu.check(names, place(tmp_path), FACTS, 10, Stops())
    assert [row["part"] for row in read_json(tmp_path / "table.json")["rows"]] == ["one", "two"]
    rows = gpu.check(names, place(tmp_path), FACTS | {"date": "2026-11-23"}, 10, Quiet())
    assert [row.tokens_per_second for row in rows] == [1, 2, 3]
    assert (tmp_path / "calls").read_text().split() == ["1", "2", "3"]
    gpu.check(names, place(tmp_path), FACTS | {"torch": "3"}, 10, Quiet())
    assert (tmp_path / "calls").read_text().split() == ["1", "2", "3"] * 2


@pytest.mark.parametrize(
    ("part", "status", "note"),
    [
        (Part("part", f"{HERE}:quick", {"rate": 1}, ("no_such_package",)), "skipped", "not installed: no_such_package"),
        (Part("part", f"{HERE}:quick", {"rate": 1}, not_on_cpu="it has wings"), "skipped", "it has wings"),
        (Part("part", f"{HERE}:impossible"), "skipped", "this machine has no wheels"),
        (Part("part", f"{HERE}:killed"), "failed", "killed by signal 9; out of memory?"),
        (Part("part", f"{HERE}:broken"), "failed", "ValueError: this part is broken"),
    ],
)
def test_why_a_part_has_no_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: Part, status: str, note: str
) -> None:
    use([part], monkeypatch)
    (row,) = gpu.check(["part"], place(tmp_path), FACTS, 10, Quiet())
    assert row.status == status
    assert row.note == note
    assert row.cells[1:4] == ("-", "-", "-")
    assert row.cells[5].startswith(f"{status}: ")
