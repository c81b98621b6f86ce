"""sft: the loss is on the completions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from reflectkit.commands import sft
from reflectkit.console import Quiet
from reflectkit.data.sft_rows import read_rows
from reflectkit.errors import DataError
from reflectkit.jsonl import write_jsonl
from reflectkit.models.load import load_player


def test_sft_loss_is_on_the_completion_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The labels that reach the model through TRL's collator: the prompt and the padding are -100, the label is not."""
    from trl import SFTTrainer

    rows = [("a longer prompt of words", " 0"), ("short", " 1")]
    path = tmp_path / "rows.jsonl"
    write_jsonl(path, [{"prompt": prompt, "completion": completion} for prompt, completion in rows])
    config = sft.SFTConfig.from_flat(
        env="taxi", role="policy", task_file=path, results_dir=tmp_path, max_steps=2, batch_size=2, max_length=32
    )
    seen: list[dict[str, list[list[int]]]] = []
    compute_loss = SFTTrainer.compute_loss

    def watching(trainer: SFTTrainer, model: object, inputs: dict[str, torch.Tensor], *more: Any, **named: Any) -> Any:
        seen.append({name: inputs[name].tolist() for name in ("input_ids", "labels")})
        return compute_loss(trainer, model, inputs, *more, **named)

    monkeypatch.setattr(SFTTrainer, "compute_loss", watching)
    player = load_player(sft.run(config, Quiet()).outputs[0], device="cpu")
    assert seen
    for batch in seen:
        for ids, labels in zip(batch["input_ids"], batch["labels"], strict=True):
            trained = [token for token in labels if token != -100]
            assert len(trained) == 1
            assert player.tokenizer.decode(trained) in (" 0", " 1")
            assert (
                labels.index(trained[0]) == len([token for token in ids if token != player.tokenizer.pad_token_id]) - 1
            )


def test_rows_of_the_original_are_read(tmp_path: Path) -> None:
    """Its loss begins behind the last marker: the action's where there is one, else the comment's."""
    path = tmp_path / "rows.jsonl"
    action, comment = "Task: a\n # Analyze:\nI see.\n0 cd b # Action:\n0", "Task: a # Analyze:\nI see\nit all."
    write_jsonl(path, [{"text": action}, {"text": comment}, {"text": "old # Action:\n1 # Action:\n2"}])
    assert [row.parts for row in read_rows(path)] == [
        (("Task: a\n # Analyze:\nI see.\n0 cd b # Action:\n", "0"),),
        (("Task: a # Analyze:\n", "I see\nit all."),),
        (("old # Action:\n1 # Action:\n", "2"),),
    ]
    for role, text in (("policy", action), ("reflection", comment)):
        write_jsonl(path, [{"text": text}] * 2)
        config = sft.SFTConfig.from_flat(
            env="auto_explore", role=role, task_file=path, results_dir=tmp_path, max_steps=1, batch_size=2
        )
        assert load_player(sft.run(config, Quiet()).outputs[0], device="cpu").role == role
    for text in ("no marker", "ends # Action:\n", 3):
        write_jsonl(path, [{"text": text}])
        with pytest.raises(DataError, match=r"rows\.jsonl:1"):
            read_rows(path)
