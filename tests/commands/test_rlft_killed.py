"""rlft killed at any point, or with damaged checkpoints, ends with the same bytes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from reflectkit.cli.main import main
from reflectkit.jsonl import read_jsonl
from reflectkit.train.rl import Trainer
from tests.kill import fork_killed_at, forked
from tests.rlft_runs import HARD, change_a_digit, command, cut_in_half, final


@pytest.fixture(scope="module")
def straight(corridor_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run of HARD."""
    folder = tmp_path_factory.mktemp("straight")
    assert forked(command(corridor_folder, *HARD), folder) == 0, (folder / "output.txt").read_text()
    return folder


KILLED_AT = (
    ("config.json:1", "checkpoint-1$:1", "metrics.jsonl:1", "checkpoint-4$:1", "report.json:1"),
    ("metrics.jsonl:2", "checkpoint-[0-9]$:3", "metrics.jsonl:2", "checkpoint-8$:1"),
)


@pytest.mark.parametrize("points", KILLED_AT)
def test_killed_at_any_point_it_ends_with_the_same_bytes(
    corridor_folder: Path, straight: Path, tmp_path: Path, points: tuple[str, ...]
) -> None:
    """Weights, optimizer, critic, replay buffer, curriculum, memo, all bit for bit; and the same metrics but for the
    clock.
    """
    fork_killed_at(points, command(corridor_folder, *HARD), tmp_path)
    assert final(tmp_path) == final(straight)
    (there,), (here,) = ((folder / "results").glob("*_rlft/metrics.jsonl") for folder in (straight, tmp_path))
    timed = ("tokens_per_second", "episodes_per_second", "rollout_seconds", "update_seconds")
    rows = [
        [{key: row[key] for key in row if key not in timed} for _, row in read_jsonl(path)] for path in (there, here)
    ]
    assert rows[0] == rows[1]
    assert [row["step"] for row in rows[0]] == list(range(1, 9))
    assert {row["level"] for row in rows[0]} == {"short", "long"}
    assert any(row["replayed_episodes"] for row in rows[0])


def test_only_the_last_two_checkpoints_are_kept(straight: Path) -> None:
    names = sorted(path.name for path in (straight / "results").glob("*_rlft/checkpoint-*"))
    assert names == ["checkpoint-7", "checkpoint-8"]


@pytest.mark.parametrize("damage", [change_a_digit, cut_in_half, Path.unlink])
@pytest.mark.parametrize("name", ["model.safetensors", "training_state.json", "checksums.json"])
def test_a_damaged_last_checkpoint_gives_way_to_the_one_before(
    corridor_folder: Path,
    straight: Path,
    tmp_path: Path,
    name: str,
    damage: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    shutil.copytree(straight, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    (run,) = (tmp_path / "copy" / "results").glob("*_rlft")
    (run / "report.json").unlink()
    damage(run / "checkpoint-8" / name)
    assert main(command(corridor_folder, *HARD)) == 0
    assert "resuming from an earlier state" in capsys.readouterr().out
    assert final(tmp_path / "copy") == final(straight)


def test_flipped_bytes_in_the_weights_are_noticed_and_new_checkpoints_stay(
    corridor_folder: Path,
    straight: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With both checkpoints damaged it begins again, and what it then saves is not swept away for being earlier."""
    shutil.copytree(straight, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    (run,) = (tmp_path / "copy" / "results").glob("*_rlft")
    (run / "report.json").unlink()
    for name in ("checkpoint-7", "checkpoint-8"):
        weights = run / name / "model.safetensors"
        held = bytearray(weights.read_bytes())
        held[-400:] = bytes(byte ^ 1 for byte in held[-400:])
        weights.write_bytes(held)
    kept: list[set[str]] = []
    step = Trainer.train_step

    def looking(trainer: Trainer) -> object:
        kept.append({path.name for path in run.glob("checkpoint-*")})
        return step(trainer)

    monkeypatch.setattr(Trainer, "train_step", looking)
    assert main(command(corridor_folder, *HARD)) == 0
    assert capsys.readouterr().out.count("model.safetensors is damaged") == 2
    assert len(kept) == 8
    assert kept[4] >= {"checkpoint-3", "checkpoint-4"}
    assert final(tmp_path / "copy") == final(straight)
