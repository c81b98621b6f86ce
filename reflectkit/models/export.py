"""A checkpoint as a plain Hugging Face folder: adapter merged, nothing of the training left, a model card beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reflectkit.core.errors import DataError
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


def told_by(source: Path) -> dict[str, Any]:
    """What a model folder says of itself: role, env, reflector, …; empty where it says nothing that can be read."""
    try:
        found = read_json(source / ROLE_FILE)
    except DataError:
        return {}
    return dict(found) if isinstance(found, dict) else {}
