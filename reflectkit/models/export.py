"""A checkpoint as a plain Hugging Face folder: adapter merged, nothing of the training left, a model card beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reflectkit.core.jsonl import read_json, write_text
from reflectkit.models.load import ROLE_FILE, Player, load_player, save_player


def export(source: Path, target: Path, dtype: str, card: str, facts: Mapping[str, Any]) -> Player:
    """Write the model of checkpoint `source` to `target`, its adapter merged into unquantised weights of `dtype`.

    card: text of the model card. facts: kept beside the role. Raises CheckpointError; see `load_player`.
    """
    player = load_player(source, device="cpu", dtype=dtype, quantize="none")
    model = player.model
    if hasattr(model, "merge_and_unload"):
        model = model.merge_and_unload()
    whole = Player(model, player.tokenizer, player.role, dtype)
    save_player(target, whole, dict(facts), beside=lambda staging: write_text(staging / "README.md", card))
    return whole


def base_of(source: Path) -> str | None:
    """The model below the adapter in `source`, as its config names it; None without an adapter."""
    path = source / "adapter_config.json"
    return str(read_json(path).get("base_model_name_or_path")) if path.is_file() else None


def told_by(source: Path) -> dict[str, Any]:
    """What a checkpoint says of itself: role, env, reflector, …; empty where it says nothing."""
    path = source / ROLE_FILE
    return dict(read_json(path)) if path.is_file() else {}
