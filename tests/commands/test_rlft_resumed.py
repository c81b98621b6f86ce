"""rlft resumed from a checkpoint: the same run, another, an earlier version's, or one of other settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from reflectkit.errors import CheckpointError
from reflectkit.jsonl import read_json, read_jsonl, write_json
from tests.rlft_runs import same, train


def test_going_on_from_another_run_is_as_if_never_stopped(corridor_folder: Path, tmp_path: Path) -> None:
    settings = {"schedule": "constant", "save_steps": 1, "algo": "ppo"}
    whole = train(corridor_folder, tmp_path / "whole", **settings, max_steps=4)
    half = train(corridor_folder, tmp_path / "half", **settings, max_steps=2)
    gone_on = train(corridor_folder, tmp_path / "half", **settings, max_steps=4, resume_from=half)
    assert same(whole, gone_on)
    assert gone_on.parent != half.parent
    assert [row["step"] for _, row in read_jsonl(gone_on.parent / "metrics.jsonl")] == [3, 4]


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
