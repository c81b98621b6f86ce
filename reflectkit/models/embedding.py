"""Embeddings of texts by a sentence-transformers model, for retrieval by meaning."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from reflectkit.errors import CheckpointError, ConfigError
from reflectkit.models.hub import hub_options, silence_libraries

MOST_VECTORS = 100_000  # vectors, of the texts embedded last


class Embedder:
    """Embeds with `model`, a folder or a Hugging Face id; each text once, while it is kept."""

    def __init__(self, model: str) -> None:
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError:
            raise ConfigError(
                "--retrieval embedding:… needs sentence-transformers: pip install"
                " 'reflectkit[memory]'"
            ) from None
        silence_libraries()
        options = hub_options(model)
        try:
            self.model = SentenceTransformer(model, **options)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{model} is no sentence-transformers model ({str(error).splitlines()[0][:120]});"
                " give its folder or its Hugging Face id"
            ) from None
        self._vectors: dict[str, Any] = {}

    def __call__(self, texts: Sequence[str]) -> Any:
        """Unit vectors of N texts, float32, shape N, D."""
        new = [text for text in dict.fromkeys(texts) if text not in self._vectors]
        if new:
            made_ND = self.model.encode(
                new, normalize_embeddings=True, show_progress_bar=False, convert_to_numpy=True
            )
            self._vectors |= dict(zip(new, np.asarray(made_ND, dtype=np.float32), strict=True))
        vectors_ND = np.stack([self._vectors[text] for text in texts])
        for text in list(self._vectors)[: max(0, len(self._vectors) - MOST_VECTORS)]:
            del self._vectors[text]
        return vectors_ND


@lru_cache(maxsize=4)
def open_embedder(model: str) -> Embedder:
    """The embedder of `model`, loaded once a process. Raises ConfigError, CheckpointError."""
    return Embedder(model)
