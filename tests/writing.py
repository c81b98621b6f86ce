"""A model with random weights that writes text, for environments with tools or prompts."""

from __future__ import annotations

from pathlib import Path

from reflectkit.models.load import LoadedModel, save_player
from reflectkit.models.tiny import build_model, build_tokenizer

TEXTS = [
    "What is 12 * 30 + 4? Use the tools, and give the result to answer.",
    "guess word apple bread: GYX {} add(a, b)",
]


def writing_model(folder: Path) -> Path:
    """`folder`, with the model."""
    tokenizer = build_tokenizer(TEXTS, [" 0"], 300)
    save_player(folder, LoadedModel(build_model(tokenizer, 2048, 0), tokenizer, "plain", answer="label"), {})
    return folder
