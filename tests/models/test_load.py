"""Model folders that name code on a hub, the bytes of a copy, and no telemetry."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import _telemetry

from reflectkit.errors import CheckpointError
from reflectkit.jsonl import read_json, write_json
from reflectkit.models.hub import silence_libraries
from reflectkit.models.load import load_player, save_player
from reflectkit.runs.identity import digest


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"n_layer": -1}, "num_hidden_layers is -1, expected a whole number from 1"),
        ({"n_layer": 3}, "has no place for 1\\d of the saved tensors"),
    ],
)
def test_a_config_of_another_size_is_refused(
    checkpoints: dict[str, Path], tmp_path: Path, entry: dict[str, int], message: str
) -> None:
    folder = Path(shutil.copytree(checkpoints["policy"], tmp_path / "model"))
    write_json(folder / "config.json", read_json(folder / "config.json") | entry)
    with pytest.raises(CheckpointError, match=message):
        load_player(folder, device="cpu")


@pytest.mark.parametrize(
    "entry",
    [
        {"attn_implementation": "kernels-community/flash-attn"},
        {"attn_implementation": {"": "owner/repo@main"}},
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


def test_a_copy_has_the_same_bytes_without_the_hub(
    checkpoints: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, offline in (("with", False), ("without", True)):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
        save_player(tmp_path / name, load_player(checkpoints["policy"], device="cpu"))
    assert digest(tmp_path / "with") == digest(tmp_path / "without")


def test_no_library_reports_to_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    silence_libraries()
    _telemetry.send_telemetry("trl/SFTTrainer", library_name="trl")
    assert constants.HF_HUB_DISABLE_TELEMETRY
    assert _telemetry._TELEMETRY_THREAD is None
