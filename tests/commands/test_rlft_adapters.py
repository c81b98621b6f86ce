"""rlft with LoRA adapters: fresh, trained, and two on one base."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from reflectkit.errors import CheckpointError
from reflectkit.jsonl import read_jsonl
from reflectkit.models.load import load_player
from tests.rlft_runs import train


@pytest.mark.parametrize("fresh", [True, False])
def test_an_adapter_trains_alone_and_its_reference_is_where_it_started(
    corridor_folder: Path, tmp_path: Path, fresh: bool
) -> None:
    """That of a trained one is a copy of it, which is not saved: its base alone would be another policy."""
    start: dict[str, Any] = {"policy": corridor_folder / "policy-adapter"}
    if fresh:
        start = {"policy": None, "model": str(corridor_folder / "base"), "lora_r": 4}
    made = train(corridor_folder, tmp_path, **start, kl_coef=0.1)
    assert (made / "adapter_model.safetensors").is_file()
    assert not (made / "model.safetensors").exists()
    assert [path for path in made.iterdir() if path.is_dir()] == []
    rows = [row for _, row in read_jsonl(made.parent / "metrics.jsonl")]
    assert abs(rows[0]["kl_to_start"]) < 1e-6
    assert rows[-1]["kl_to_start"] > 0


def test_two_adapters_on_one_base_hold_it_once(corridor_folder: Path) -> None:
    from reflectkit.models.load import load_pair

    policy, reflector = load_pair(
        corridor_folder / "policy-adapter", corridor_folder / "reflection-adapter", device="cpu"
    )
    assert policy.model is reflector.model
    base = sum(weight.numel() for weight in load_player(corridor_folder / "base", device="cpu").model.parameters())
    both = sum(weight.numel() for weight in policy.model.parameters())
    assert both < 1.1 * base
    policy.activate()
    trained = [name for name, weight in policy.model.named_parameters() if weight.requires_grad]
    assert trained
    assert all(".default." in name for name in trained)


def test_pickles_are_not_opened(corridor_folder: Path, tmp_path: Path) -> None:
    for source, name in (("policy-adapter", "adapter_model"), ("policy", "model")):
        shutil.copytree(corridor_folder / source, tmp_path / source)
        torch.save({}, tmp_path / source / ("adapter_model.bin" if "adapter" in name else "pytorch_model.bin"))
        (tmp_path / source / f"{name}.safetensors").unlink()
        with pytest.raises(CheckpointError):
            train(corridor_folder, tmp_path / "results", policy=tmp_path / source)
