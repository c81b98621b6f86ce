"""Model folders whose config.json was damaged."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from reflectkit.core.errors import CheckpointError
from reflectkit.core.jsonl import read_json, write_json
from reflectkit.models.facts import context_of
from reflectkit.models.load import load_player


@pytest.mark.parametrize(
    ("entry", "value", "message"),
    [
        ("n_layer", -1, "num_hidden_layers is -1, expected a whole number from 1"),
        ("num_hidden_layers", -1, "num_hidden_layers is -1, expected a whole number from 1"),
        ("n_layer", 10**12, "num_hidden_layers is 1000000000000, expected"),
        ("n_head", -4, "num_attention_heads is -4, expected"),
        ("n_embd", 0, "hidden_size is 0, expected"),
        ("vocab_size", 2**63, "vocab_size is 9223372036854775808, expected"),
        ("n_positions", -5, "max_position_embeddings is -5, expected"),
    ],
)
def test_a_config_that_describes_no_model_is_refused(
    checkpoints: dict[str, Path], tmp_path: Path, entry: str, value: int, message: str
) -> None:
    folder = Path(shutil.copytree(checkpoints["policy"], tmp_path / "model"))
    write_json(folder / "config.json", read_json(folder / "config.json") | {entry: value})
    for opened in (load_player, context_of):
        with pytest.raises(CheckpointError, match=message) as caught:
            opened(folder)
        assert str(folder) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_config_with_fewer_layers_than_were_saved_is_refused(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(checkpoints["policy"], tmp_path / "model"))
    write_json(folder / "config.json", read_json(folder / "config.json") | {"n_layer": 3})
    with pytest.raises(CheckpointError, match=r"has no place for 1\d of the saved tensors, e\.g\. transformer\.h\.3\."):
        load_player(folder, device="cpu")


def test_a_missing_checkpoint_is_answered_with_the_latest_one(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for name in ("checkpoint-9", "checkpoint-100", "checkpoint-last", "checkpoint-20"):
        (run / name).mkdir(parents=True)
    (run / "checkpoint-500").write_text("no folder")
    with pytest.raises(CheckpointError, match=r"there is .*checkpoint-100$"):
        load_player(run / "checkpoint-10")
    with pytest.raises(CheckpointError, match=r"name a checkpoint in it, e\.g\. .*checkpoint-100$"):
        load_player(run)
