"""Model folders: code that is never run, bases elsewhere, a hub that does not answer, and the bytes of a copy."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from reflectkit.errors import CheckpointError
from reflectkit.jsonl import read_json, write_json
from reflectkit.models.checkpoint_metadata import base_of, context_of
from reflectkit.models.load import LoadedModel, load_player, save_player, with_adapter
from reflectkit.runs.run import seal


def test_a_config_of_another_size_is_refused(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(checkpoints["policy"], tmp_path / "model"))
    write_json(folder / "config.json", read_json(folder / "config.json") | {"n_layer": 1})
    with pytest.raises(CheckpointError, match=r"has no place for 1\d of the saved tensors"):
        load_player(folder, device="cpu")


@pytest.mark.parametrize(
    "entry",
    [
        {"attn_implementation": "kernels-community/flash-attn"},
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


@pytest.mark.parametrize("name", ["reflectkit.json", "generation_config.json", "tokenizer_config.json"])
def test_a_file_that_defaults_would_stand_in_for_is_missed(
    checkpoints: dict[str, Path], tmp_path: Path, name: str
) -> None:
    folder = Path(shutil.copytree(checkpoints["policy"], tmp_path / "model"))
    (folder / name).touch()  # a GPT-2 without a role has not all of them
    seal(folder)
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=rf"{name} is missing, although checksums\.json lists it"):
        load_player(folder, device="cpu")
    (folder / "checksums.json").unlink()
    load_player(folder, device="cpu")


BASE, ADAPTER = Path("results/base/checkpoint-1"), Path("results/adapter/checkpoint-2")


@pytest.fixture
def project(checkpoints: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: a folder with an adapter that was trained in it, on a base named by a relative path."""
    folder = tmp_path / "project"
    shutil.copytree(checkpoints["plain"], folder / BASE)
    monkeypatch.chdir(folder)
    save_player(ADAPTER, with_adapter(load_player(BASE, device="cpu"), 4, 8, seed=0))
    return folder


def forget(checkpoint: Path) -> None:
    """Make `checkpoint` what the version before wrote."""
    facts = read_json(checkpoint / "reflectkit.json")
    assert facts.pop("base_folder") == {"name": str(BASE), "path": "../../base/checkpoint-1"}
    write_json(checkpoint / "reflectkit.json", facts)


def lora(player: LoadedModel) -> dict[str, torch.Tensor]:
    return {name: weight for name, weight in player.model.named_parameters() if "lora" in name}


@pytest.mark.parametrize("older", [False, True])
def test_an_adapter_loads_from_any_folder(
    project: Path, tmp_path: Path, older: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = load_player(ADAPTER, device="cpu")
    assert base_of(ADAPTER) == str(BASE)  # the same words as before
    if older:
        forget(project / ADAPTER)
    monkeypatch.chdir(tmp_path)
    for folder in (Path("project") / ADAPTER, project / ADAPTER):
        assert base_of(folder) == str(project / BASE)
        assert context_of(folder) == here.context
        there = load_player(folder, device="cpu")
        assert all(torch.equal(weight, lora(here)[name]) for name, weight in lora(there).items())
    os.rename(project, tmp_path / "moved")
    adapter = tmp_path / "moved" / ADAPTER
    load_player(adapter, device="cpu")
    for file in adapter.glob("tokenizer*"):
        file.unlink()
    assert load_player(adapter, device="cpu").tokenizer.get_vocab() == here.tokenizer.get_vocab()  # its base's


def test_an_adapter_is_refused_on_a_base_with_other_weights(project: Path, tmp_path: Path) -> None:
    file = BASE / "model.safetensors"
    weights = load_file(file)
    other = dict(weights)
    name = next(iter(other))
    other[name] = other[name] + 0.001

    # 1. The same weights in other files, and a state of training beside them
    names = sorted(weights)
    parts = names[::2], names[1::2]
    file.unlink()
    index = {}
    for number, part in enumerate(parts, 1):
        place = f"model-{number:05}-of-00002.safetensors"
        save_file({name: weights[name] for name in part}, BASE / place, {"format": "pt", "more": "text"})
        index |= dict.fromkeys(part, place)
    write_json(BASE / "model.safetensors.index.json", {"metadata": {}, "weight_map": index})
    save_file({"step": torch.zeros(1)}, BASE / "training_state.safetensors")
    seal(BASE)
    player = load_player(ADAPTER, device="cpu")

    # 2. Other weights, also where they changed while the adapter was trained
    for number in (1, 2):
        (BASE / f"model-{number:05}-of-00002.safetensors").unlink()
    (BASE / "model.safetensors.index.json").unlink()
    save_file(other, file, {"format": "pt"})
    seal(BASE)
    later = ADAPTER.with_name("checkpoint-3")
    save_player(later, player)
    for adapter in (ADAPTER, later):
        with pytest.raises(CheckpointError, match="has other weights now than in training; restore that model"):
            load_player(adapter, device="cpu")
    file.write_bytes(b"no weights")
    (BASE / "checksums.json").unlink()
    with pytest.raises(CheckpointError, match="damaged weights"):
        load_player(ADAPTER, device="cpu")
    save_file(weights, file, {"format": "pt"})
    load_player(later, device="cpu")
