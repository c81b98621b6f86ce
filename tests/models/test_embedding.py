"""Embeddings of a sentence-transformers folder: unit vectors, each text once, and folders that are none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sentence_transformers", reason="needs sentence-transformers: pip install 'reflectkit[memory]'")

from sentence_transformers import SentenceTransformer, models
from transformers import BertConfig, BertModel, BertTokenizerFast

from reflectkit.models.embedding import Embedder

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cat", "dog", "city", "rome"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model of random weights with its pooling, as sentence-transformers saves them."""
    plain, made = tmp_path_factory.mktemp("plain"), tmp_path_factory.mktemp("made")
    (plain / "vocab.txt").write_text("\n".join(WORDS))
    BertTokenizerFast(vocab_file=str(plain / "vocab.txt")).save_pretrained(plain)
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=len(WORDS), **size)).save_pretrained(plain)
    trunk = models.Transformer(str(plain))
    SentenceTransformer(modules=[trunk, models.Pooling(16)], device="cpu").save(str(made))
    return made


def test_texts_are_unit_vectors_and_embedded_once(folder: Path) -> None:
    embed = Embedder(str(folder))
    vectors = embed(["cat", "dog city", "cat"])
    assert vectors.shape == (3, 16)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert np.array_equal(vectors[0], vectors[2])
    assert np.array_equal(embed(["dog city"])[0], vectors[1])
    assert not np.allclose(vectors[0], vectors[1])
