"""--help of every command, and list."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from reflectkit.cli.command import stage_flags
from reflectkit.cli.main import main


def test_every_command_has_help_with_an_example(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name, flags in stage_flags().items():
        assert main([name, "--help"]) == 0
        told = capsys.readouterr().out
        assert f"$ reflectkit {name}" in told
        whole = {line.split()[1] for line in told.splitlines() if line.startswith("│ --")}
        assert flags <= whole  # none is cut off
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    places = [text.index(f"│ {name} ") for name in stage_flags()]
    assert places == sorted(places)


def test_reading_gymnasium_without_other_side_effects(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "reflectkit", "list"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "levels: pickup, dropoff, full" in done.stdout
    assert "taxi-tiny" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_help_of_a_recipe_tells_its_ablations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)
    assert main(["run", "taxi-tiny", "--help"]) == 0
    told = capsys.readouterr().out
    assert "Ablations of taxi-tiny, for --ablate:" in told
    assert "reflection: no comments, in SFT and in RL" in told
    Path("mine.yaml").write_text("""
description: one arm
steps: [{name: bars, stage: evaluate, policy: ["A=oracle"]}]
ablations: {some: {of: A, arm: B, description: "with [bold] words"}, other: {of: A, arm: C}}
""")
    assert main(["run", "mine.yaml", "--help"]) == 0
    told = capsys.readouterr().out
    assert "some: with [bold] words" in told
    assert "  other" in told
    for arguments in (["run", "memory-agent-bench", "--help"], ["run", "--help"]):
        assert main(arguments) == 0
        assert "for --ablate:" not in capsys.readouterr().out
