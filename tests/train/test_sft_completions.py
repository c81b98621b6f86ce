"""The LM head reads only the trained positions: the same loss, gradients and metrics as TRL's own pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from trl import SFTTrainer
from trl.trainer import utils

from reflectkit.train.sft import trainers
from reflectkit.train.sft.trainers import CompletionTrainer
from tests.sft_runs import learnt, open_trainer

ROWS = [([5, 6, 7, 8, 9, 10], 2), ([11, 12, 13], 1), ([7, 7, 9, 5], 4)]
"""Token ids of a row, and how many of them, at its end, are trained on; nothing predicts the last row's first."""
TRAINED, POSITIONS = 2 + 1 + 3, 3 * 5


@pytest.fixture(autouse=True)
def any_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainers, "SMALL_VOCABULARY", 0)


@pytest.fixture(params=["tiny-gpt2", "tiny-hybrid", "adapter"])
def trainer(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    return open_trainer(tmp_path, request.param)


def batch(trainer: Any) -> dict[str, torch.Tensor]:
    encoded = [{"input_ids": ids, "labels": [-100] * (len(ids) - last) + ids[-last:]} for ids, last in ROWS]
    return dict(trainer.data_collator(encoded))


@pytest.mark.parametrize("count", [None, 11])
def test_loss_and_gradients_and_metrics_are_those_of_trl(trainer: Any, count: int | None) -> None:
    loss, gradients = learnt(trainer, CompletionTrainer, batch(trainer), count)
    expected_loss, expected = learnt(trainer, SFTTrainer, batch(trainer), count)
    torch.testing.assert_close(loss, expected_loss, rtol=0, atol=1e-6)
    torch.testing.assert_close(gradients, expected, rtol=0, atol=1e-6)
    assert any(gradient.abs().max() > 1e-3 for gradient in gradients.values())
    for name in ("entropy", "mean_token_accuracy"):
        ours, theirs = trainer._metrics["train"][name]
        assert ours == pytest.approx(theirs, abs=1e-6)


def test_the_head_reads_what_is_trained_on_unless_the_vocabulary_is_small(
    trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    head = utils._ChunkedLogProbFunction.apply
    monkeypatch.setattr(
        utils._ChunkedLogProbFunction, "apply", lambda hidden, *rest: read.append(len(hidden)) or head(hidden, *rest)
    )
    learnt(trainer, CompletionTrainer, batch(trainer), None)
    monkeypatch.setattr(trainers, "SMALL_VOCABULARY", 300)
    learnt(trainer, CompletionTrainer, batch(trainer), None)
    assert read == [TRAINED, POSITIONS]
