"""Empty paths are refused on the command line: they would be taken for the current folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reflectkit.cli.main import main


@pytest.mark.parametrize(
    "flags", [["--repos-dir", ""], ["--repos-dir="], ["--data-dir", ""], ["--env", "memory", "--parquet", ""]]
)
def test_an_empty_flag_is_refused(
    flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["gen-task", *flags]) == 2
    assert "is empty" in capsys.readouterr().err
    assert main(["gen-task", "--repos-dir", "."]) == 2
    assert "has no repositories" in capsys.readouterr().err
