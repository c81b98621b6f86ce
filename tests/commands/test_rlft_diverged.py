"""rlft whose update diverges."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from reflectkit.cli.main import main
from reflectkit.jsonl import read_jsonl
from tests.kill import hashes
from tests.rlft_runs import command

DIVERGING = """
from dataclasses import replace
from pathlib import Path
from reflectkit.train.algorithms import ALGORITHMS

third_update = False

def estimate(rollouts, settings):
    global third_update
    third_update = rollouts.groups[0].startswith("2/")
    return ALGORITHMS["reinforce"].estimate(rollouts, settings)

def loss(tokens, settings):
    factor = float("nan") if third_update and Path("diverge").exists() else 1.0
    return ALGORITHMS["reinforce"].loss(tokens, settings) * factor

ALGORITHM = replace(ALGORITHMS["reinforce"], estimate=estimate, loss=loss)
"""


def test_a_diverged_update_leaves_its_rows_and_a_good_checkpoint(
    corridor_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "diverging.py").write_text(DIVERGING, encoding="utf-8")
    (tmp_path / "diverge").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = ("--algo", "diverging:ALGORITHM", "--max-steps", "4", "--episodes", "8", "--save-steps", "1")
    assert main(command(corridor_folder, *settings)) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "diverged-3.jsonl" in said
    (run,) = (tmp_path / "results").glob("*_rlft")
    rows = [row for _, row in read_jsonl(run / "diverged-3.jsonl")]
    assert "Actions:" in rows[0]["text"]
    (tmp_path / "diverge").unlink()
    assert main(command(corridor_folder, *settings)) == 0  # goes on from update 2
    assert [row["step"] for _, row in read_jsonl(run / "metrics.jsonl")] == [1, 2, 3, 4]


def test_a_last_update_that_diverges_is_noticed(
    corridor_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = ("--episodes", "8", "--schedule", "constant", "--save-steps", "1")
    assert main(command(corridor_folder, *settings, "--max-steps", "1")) == 0
    (good,) = (tmp_path / "results").glob("*/checkpoint-1")
    before = hashes(good)
    capsys.readouterr()
    learn = torch.optim.AdamW.step

    def overflow(optimizer: torch.optim.AdamW) -> None:
        learn(optimizer)
        optimizer.param_groups[0]["params"][0].data[0, 0] = float("inf")

    monkeypatch.setattr(torch.optim.AdamW, "step", overflow)
    resume = ("--max-steps", "2", "--resume-from", str(good), "--learning-rate", "1000")
    assert main(command(corridor_folder, *settings, *resume)) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "the update diverged" in error
    assert "lower --learning-rate" in error
    assert sorted((tmp_path / "results").glob("*/checkpoint-*")) == [good]
    assert hashes(good) == before
