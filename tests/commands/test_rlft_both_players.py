"""rlft --train-reflector: killed and resumed, on one base, evaluated, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reflectkit.jsonl import read_jsonl
from reflectkit.models.load import load_player
from reflectkit.runs.run import verify
from tests.kill import fork_killed_at, forked, hashes
from tests.rlft_runs import command, same, train

BOTH: dict[str, Any] = {
    "train_reflector": 1,
    "reflector_states": 3,
    "reflector_comments": 3,
    "reflector_rate": 1e-3,
    "reflector_temperature": 1.5,
    "reflector_length_cost": 0.01,  # so that comments on a state differ in reward
    "horizon": 8,
    "kl_coef": 0.1,
    "max_steps": 2,
    "episodes": 4,
}
FLAGS = [f"--{name.replace('_', '-')}={value}" for name, value in BOTH.items()]
FLAGS += ["--algo=ppo", "--save-steps=1", "--learning-rate=1e-3", "--share-base"]


def test_killed_and_resumed_both_players_end_with_the_same_bytes(corridor_folder: Path, tmp_path: Path) -> None:
    """After a turn of the reflector; both players are adapters on one base."""
    arguments = command(corridor_folder, *FLAGS)
    for role in ("policy", "reflection"):
        arguments[arguments.index(str(corridor_folder / role))] += "-adapter"
    for name in ("straight", "killed"):
        (tmp_path / name).mkdir()
    assert forked(arguments, tmp_path / "straight") == 0, (tmp_path / "straight/output.txt").read_text()
    fork_killed_at(("checkpoint-2$:1",), arguments, tmp_path / "killed")
    ends = [next((tmp_path / name / "results").glob("*_rlft")) for name in ("straight", "killed")]
    assert hashes(ends[0] / "checkpoint-2") == hashes(ends[1] / "checkpoint-2")
    rows = [row for _, row in read_jsonl(ends[0] / "metrics.jsonl")]
    assert [row["step"] for row in rows if "reflector_states" in row] == [1, 2]
    assert any(row.get("reflector_rows") for row in rows)  # it did learn


def test_two_adapters_on_one_base_learn_as_two_models_do(corridor_folder: Path, tmp_path: Path) -> None:
    """Each has its own frozen start on the base too. The reflector's adapter is a checkpoint by itself."""
    players = {"policy": corridor_folder / "policy-adapter", "reflector": corridor_folder / "reflection-adapter"}
    apart = train(corridor_folder, tmp_path, **BOTH, **players)
    shared = train(corridor_folder, tmp_path, **BOTH, **players, share_base=True)
    assert same(apart, shared)
    assert same(apart / "reflector", shared / "reflector")
    assert not same(apart / "reflector", corridor_folder / "reflection-adapter")
    assert load_player(shared / "reflector", "reflection", device="cpu").role == "reflection"
    rows = [row for _, row in read_jsonl(shared.parent / "metrics.jsonl")]
    first, *later = [row["reflector_kl_to_start"] for row in rows if "reflector_kl_to_start" in row]
    assert first == pytest.approx(0, abs=1e-6)
    assert max(later) > 0
    verify(shared)
