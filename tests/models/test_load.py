"""Model folders whose config.json was damaged or asks for too much, and what is saved of one that was loaded."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from reflectkit.errors import CheckpointError
from reflectkit.jsonl import read_json, write_json
from reflectkit.models.checkpoint_metadata import context_of
from reflectkit.models.load import load_player, save_player
from reflectkit.runs.identity import digest


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


@pytest.mark.parametrize(
    "entry",
    [
        {"attn_implementation": "kernels-community/flash-attn"},
        {"_attn_implementation": "owner/repo:function"},
        {"attn_implementation": {"": "owner/repo@main"}},
        {"experts_implementation": "owner/repo"},
        {"text_config": {"_attn_implementation": "owner/repo"}},
    ],
)
def test_code_on_a_hub_that_a_config_names_is_refused(
    checkpoints: dict[str, Path], tmp_path: Path, entry: dict[str, Any]
) -> None:
    folder = Path(shutil.copytree(checkpoints["policy"], tmp_path / "model"))
    write_json(folder / "config.json", read_json(folder / "config.json") | entry)
    with pytest.raises(CheckpointError, match="code from a hub, which is never run") as caught:
        load_player(folder, device="cpu")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("bits", ["4bit", "8bit"])
def test_weights_that_are_not_quantised_as_the_config_says_are_refused(
    checkpoints: dict[str, Path], tmp_path: Path, bits: str
) -> None:
    pytest.importorskip("bitsandbytes")
    folder = Path(shutil.copytree(checkpoints["policy"], tmp_path / "model"))
    said = {"quantization_config": {"quant_method": "bitsandbytes", f"load_in_{bits}": True}}
    write_json(folder / "config.json", read_json(folder / "config.json") | said)
    with pytest.raises(CheckpointError, match="the weights are not quantised") as caught:
        load_player(folder, device="cpu")
    assert "\n" not in str(caught.value)
    player = load_player(checkpoints["policy"], device="cpu", quantize=bits)
    player.model.save_pretrained(tmp_path / "quantised")
    player.tokenizer.save_pretrained(tmp_path / "quantised")
    load_player(tmp_path / "quantised", device="cpu")


def test_a_copy_has_the_same_bytes_without_the_hub(
    checkpoints: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, offline in (("with", False), ("without", True)):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
        save_player(tmp_path / name, load_player(checkpoints["policy"], device="cpu"))
    assert digest(tmp_path / "with") == digest(tmp_path / "without")


def test_a_missing_checkpoint_is_answered_with_the_latest_one(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for name in ("checkpoint-9", "checkpoint-100", "checkpoint-last", "checkpoint-20"):
        (run / name).mkdir(parents=True)
    (run / "checkpoint-500").write_text("no folder")
    with pytest.raises(CheckpointError, match=r"there is .*checkpoint-100$"):
        load_player(run / "checkpoint-10")
    with pytest.raises(CheckpointError, match=r"name a checkpoint in it, e\.g\. .*checkpoint-100$"):
        load_player(run)
