"""`bench sft` compares the trainer's steps with bare passes over the same batches, which change nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import sft as bench_sft
from benchmarks.sft import open_training
from reflectkit.commands import sft
from reflectkit.console import Quiet
from tests.sft_runs import config, write_rows


@pytest.fixture
def settings(tmp_path: Path) -> sft.SFTConfig:
    return config(write_rows(tmp_path), tmp_path / "results", max_steps=6)


def test_the_floor_has_the_loss_and_gradients_of_the_step(settings: sft.SFTConfig, tmp_path: Path) -> None:
    with Quiet().bar("sft", 1) as bar:
        trainer = open_training(settings, tmp_path, bar)
    rows = [{"input_ids": [5, 6, 7, 8], "labels": [-100, -100, 7, 8]}, {"input_ids": [9, 5], "labels": [-100, 5]}]
    batch = dict(trainer.data_collator(rows))
    weight = trainer.model.get_output_embeddings().weight
    loss = trainer.compute_loss(trainer.model, dict(batch))
    loss.backward()
    expected = weight.grad.clone()
    trainer.model.zero_grad()
    torch.testing.assert_close(bench_sft.bare_pass(trainer.model, batch), loss.detach(), rtol=0, atol=1e-6)
    torch.testing.assert_close(weight.grad, expected, rtol=0, atol=1e-5)
