"""A checkpoint as a plain Hugging Face folder: adapter merged, no training state, with a model card."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reflectkit.core.jsonl import write_text
from reflectkit.models.load import Player, load_player, save_player


def export(source: Path, target: Path, dtype: str, card: str, facts: Mapping[str, Any]) -> Player:
    """Write the model of checkpoint `source` to `target`, its adapter merged into unquantised weights of `dtype`.

    card: text of the model card. facts: saved with the role. Raises CheckpointError; see `load_player`.
    """
    player = load_player(source, device="cpu", dtype=dtype, quantize="none")
    model = player.model
    if hasattr(model, "merge_and_unload"):
        model = model.merge_and_unload()
    whole = Player(model, player.tokenizer, player.role, dtype, answer=player.answer)
    save_player(target, whole, dict(facts), beside=lambda staging: write_text(staging / "README.md", card))
    return whole
