"""The settings of env `memory`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import field_validator

from reflectkit.config import Config, option
from reflectkit.envs.memory.reader import EXTRACTIVE
from reflectkit.envs.memory.retrieval import BM25, check_retrieval

RULE = "rule"


class MemorySettings(Config):
    """The env's settings."""

    chat_models: ClassVar[Mapping[str, str]] = {
        "reader": "reflectkit.chat.env_models:ChatReader",
        "judge": "reflectkit.chat.env_models:ChatJudge",
    }
    reader: str = option(
        EXTRACTIVE, help="The reader that answers at the end: extractive, openai:MODEL, azure:… or local:MODEL."
    )
    reader_url: str | None = option(None, help="The reader's server; for local: http://localhost:1234/v1.")
    judge: str = option(RULE, help="Who judges answers that have a rubric: rule, openai:MODEL, azure:… or local:MODEL.")
    judge_url: str | None = option(None, help="The judge's server; for local: http://localhost:1234/v1.")
    retrieval: str = option(BM25, help="How related items are found: bm25, or embedding:MODEL (sentence-transformers).")
    recent: int = option(5, help="Number of most recent items shown of each list.", ge=0)
    related: int = option(5, help="Number of items most similar to the chunk shown of each list.", ge=0)
    brief: bool = option(False, help="Leave out the instructions in the prompt, for a model trained without them.")
    compression_weight: float = option(0.05, help="Weight of compression in the reward (the paper's β).", ge=0)
    content_weight: float = option(0.1, help="Weight of correct content in the reward (the paper's γ).", ge=0)

    @field_validator("retrieval")
    @classmethod
    def _known_retrieval(cls, retrieval: str) -> str:
        check_retrieval(retrieval)
        return retrieval
