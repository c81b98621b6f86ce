"""`bench gpu` on a CPU: every part has figures or a reason, one that fails does not end the others, and a check that
was stopped goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import gpu
from benchmarks.gpu import Part, Row
from reflectkit.cli.main import main
from reflectkit.jsonl import read_json

HERE = "tests.gpu_parts"
BROKEN = Part("broken", f"{HERE}:broken")


def use(parts: Sequence[Part], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "PARTS", tuple(parts))


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
