"""rlft, evaluate and play with a policy behind a server: the same learning, and nothing lost when the server fails."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reflectkit.jsonl import read_jsonl
from reflectkit.models.load import load_player
from tests.fakes.inference import Inference, serve_model
from tests.rlft_runs import train

QUICK = {"server_timeout_s": 60.0, "server_patience_s": 60.0}


@pytest.fixture(scope="module")
def server_of_base(corridor_folder: Path) -> Iterator[Inference]:
    player = load_player(corridor_folder / "base", device="cpu")
    with serve_model(player, str(corridor_folder / "base"), context=448) as running:
        yield running


@pytest.fixture
def server(server_of_base: Inference) -> Inference:
    for held in (server_of_base.faults, server_of_base.asked, server_of_base.loaded, server_of_base.bodies):
        held.clear()
    server_of_base.kills = 0
    return server_of_base


def metrics(checkpoint: Path) -> list[dict[str, Any]]:
    return [row for _, row in read_jsonl(checkpoint.parent / "metrics.jsonl")]


def trained(corridor_folder: Path, results: Path, sampler: str = "local", **settings: Any) -> list[dict[str, Any]]:
    chosen = {"policy": corridor_folder / "policy-adapter", "sampler": sampler, "max_steps": 3, **settings}
    more = QUICK if ":" in sampler else {}
    return metrics(train(corridor_folder, results, **chosen, **more))


def curve(rows: list[dict[str, Any]]) -> list[tuple[float, float]]:
    return [(row["success_rate"], row["return"]) for row in rows]


@pytest.fixture(scope="module")
def local(corridor_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The figures of a run in this process."""
    return trained(corridor_folder, tmp_path_factory.mktemp("local"))


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_it_learns_as_in_this_process(
    kind: str, corridor_folder: Path, server: Inference, local: list[dict[str, Any]], tmp_path: Path
) -> None:
    rows = trained(corridor_folder, tmp_path, f"{kind}:{server.url}")
    assert curve(rows) == curve(local)
    assert [row["loss"] for row in rows] == pytest.approx([row["loss"] for row in local], abs=1e-4)
    assert all(row["logprob_difference_max"] < 1e-4 < 0.999 < row["effective_sample_size"] for row in rows)
    assert [name.rpartition("-v")[2] for name in server.loaded] == ["0", "1", "2"]
    own = {"logprob_difference_mean", "logprob_difference_max", "effective_sample_size"}
    assert rows[0].keys() - local[0].keys() == own  # what a run without a server writes is unchanged


def test_killing_the_server_in_an_update_loses_no_episode_and_no_update(
    corridor_folder: Path, server: Inference, local: list[dict[str, Any]], tmp_path: Path
) -> None:
    server.faults = [None] * 9 + ["kill"] + [None] * 3 + [500, "drop", 429]  # how often a dead server is asked varies
    rows = trained(corridor_folder, tmp_path, f"vllm:{server.url}")
    assert server.kills == 1
    assert server.faults == []
    assert curve(rows) == curve(local)
    assert [row["aborted"] for row in rows] == [0, 0, 0]
    assert len(server.loaded) == 4  # one of the three was given again
    assert server.root not in server.asked


def test_play_goes_on_while_the_policy_learns(corridor_folder: Path, server: Inference, tmp_path: Path) -> None:
    """With faults, and with a second start from the checkpoint before the last."""
    server.faults = [None, 500, None, "drop", None, "kill"]
    settings: dict[str, Any] = {
        "max_staleness": 2, "max_steps": 4, "algo": "grpo", "group_size": 2, "name": "ahead",
        "episode_timeout_s": 60.0, "save_steps": 1, "table_coef": 1.0,
    }  # fmt: skip
    for _ in range(2):
        rows = trained(corridor_folder, tmp_path, f"vllm:{server.url}", **settings)
        assert [row["episodes"] for row in rows] == [8, 16, 24, 32]
        assert all(0 <= row["staleness"] <= row["staleness_max"] <= 2 for row in rows)
        assert [row["aborted"] for row in rows] == [0] * 4
        assert all(row["table_divergence"] > 0 for row in rows)
        shutil.rmtree(tmp_path / "ahead" / "checkpoint-4")
        (tmp_path / "ahead" / "report.json").unlink()
    assert server.kills == 1
