"""rlft resumed from a checkpoint: the same run, another, an earlier version's, or one of other settings."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from reflectkit.cli.main import main
from reflectkit.errors import CheckpointError, ConfigError
from reflectkit.jsonl import read_json, read_jsonl, write_json
from tests.rlft_runs import command, same, train


def test_going_on_from_another_run_is_as_if_never_stopped(corridor_folder: Path, tmp_path: Path) -> None:
    settings = {"schedule": "constant", "save_steps": 1, "algo": "ppo"}
    whole = train(corridor_folder, tmp_path / "whole", **settings, max_steps=6)
    half = train(corridor_folder, tmp_path / "half", **settings, max_steps=3)
    gone_on = train(corridor_folder, tmp_path / "half", **settings, max_steps=6, resume_from=half)
    assert same(whole, gone_on)
    assert gone_on.parent != half.parent
    assert [row["step"] for _, row in read_jsonl(gone_on.parent / "metrics.jsonl")] == [4, 5, 6]


def test_a_checkpoint_of_other_settings_is_refused_with_the_difference(corridor_folder: Path, tmp_path: Path) -> None:
    made = train(corridor_folder, tmp_path, algo="ppo")
    with pytest.raises(CheckpointError, match=r"clip is 0.2 there and 0.3 here; gamma is 1.0 there and 0.9 here"):
        train(corridor_folder, tmp_path, algo="ppo", resume_from=made, gamma=0.9, clip=0.3)
    with pytest.raises(CheckpointError, match="max_steps is 3 there and 6 here"):  # the linear schedule depends on it
        train(corridor_folder, tmp_path, algo="ppo", resume_from=made, max_steps=6)
    other = tmp_path / "other.json"
    write_json(other, read_json(corridor_folder / "train.json")[4:])
    with pytest.raises(CheckpointError, match="problems is"):
        train(corridor_folder, tmp_path, algo="ppo", resume_from=made, task_file=other)
    with pytest.raises(CheckpointError, match="is not a checkpoint of rlft"):
        train(corridor_folder, tmp_path, algo="ppo", resume_from=corridor_folder / "policy")
    with pytest.raises(ConfigError, match="raise --max-steps"):
        train(corridor_folder, tmp_path, algo="ppo", resume_from=made)


def swap_a_digit(lines: list[bytes]) -> list[bytes]:
    return [
        lines[0].replace(b'"success": false', b'"success": true').replace(b'"return": ', b'"return": 1'),
        *lines[1:],
    ]


@pytest.mark.parametrize(("name", "change", "damaged", "lost"), [("metrics.jsonl", swap_a_digit, 1, 1)])
def test_a_line_of_an_unfinished_run_that_was_not_written_so_is_not_trusted(
    corridor_folder: Path,
    tmp_path: Path,
    name: str,
    change: Any,
    damaged: int,
    lost: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = command(corridor_folder, "--max-steps", "3", "--episodes", "8", "--save-steps", "1",
                        "--keep-episodes", "1")  # fmt: skip
    assert main(arguments) == 0
    (run,) = (tmp_path / "results").glob("*_rlft")
    (run / "report.json").unlink()
    shutil.rmtree(run / "checkpoint-3")
    before = (run / name).read_bytes().splitlines(keepends=True)
    (run / name).write_bytes(b"".join(change(before)))
    capsys.readouterr()
    assert main(arguments) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert (f"damaged lines dropped: {damaged}" in shown) is (damaged > 0 or name == "episodes.jsonl")
    assert ("are lost" in shown or f"lines lost: {lost}" in shown) is (lost > 0 or name == "episodes.jsonl")
    after = (run / name).read_bytes().splitlines(keepends=True)
    assert after[:-1] == before[lost:2]
    assert b'"step": 3' in after[-1]
