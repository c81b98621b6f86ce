"""Rows that begin alike, read as one: the same loss, gradients and metrics as TRL's own pass over the rows."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM
from trl import SFTTrainer

from reflectkit.models.architecture import unwrapped
from reflectkit.models.load import checkpoint_gradients
from reflectkit.train.sft.packing import can_pack, collate, pack
from reflectkit.train.sft.tokens import NOT_TRAINED
from reflectkit.train.sft.trainers import PackTrainer
from tests.sft_runs import learnt, open_trainer

SMALL = {"vocab_size": 60, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
WIDTH, LIMIT, PAD = 128, 200, 1


def transcripts() -> list[dict[str, list[int]]]:
    """Two conversations whose rows grow, each with a comment of four tokens at its end, of which the first is not
    trained on; one row twice, one that begins another, and one in which every token is trained on."""
    draw = random.Random(0)
    rows = []
    for _ in range(2):
        history = [draw.randrange(5, 250) for _ in range(9)]
        for _ in range(4):
            history += [draw.randrange(5, 250) for _ in range(draw.randrange(2, 9))]
            comment = [draw.randrange(5, 250) for _ in range(4)]
            rows.append({"input_ids": history + comment, "labels": [NOT_TRAINED] * (len(history) + 1) + comment[1:]})
    begun = rows[2]["input_ids"][:7]
    whole = [3, 3, 4]
    rows += [rows[5], {"input_ids": begun, "labels": [NOT_TRAINED] * 6 + begun[-1:]}]
    rows.append({"input_ids": whole, "labels": whole})
    draw.shuffle(rows)
    return rows


def trainer(folder: Path, kind: str) -> Any:
    """The trainer of `sft --share-prefixes`."""
    own = {} if kind == "adapter" else {"init_range": 0.1}
    return open_trainer(folder, kind, max_length=256, share_prefixes=True, **own)


def padded(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """The rows one by one."""
    width = max(len(row["input_ids"]) for row in rows)
    return {
        "input_ids": torch.tensor([row["input_ids"] + [PAD] * (width - len(row["input_ids"])) for row in rows]),
        "labels": torch.tensor([row["labels"] + [NOT_TRAINED] * (width - len(row["labels"])) for row in rows]),
        "attention_mask": torch.tensor(
            [[1] * len(row["input_ids"]) + [0] * (width - len(row["input_ids"])) for row in rows]
        ),
    }


def test_a_pack_by_hand() -> None:
    """Two rows share three tokens; the third shares nothing, and starts a pack of its own."""
    rows = [
        {"input_ids": [7, 8, 9, 2, 3], "labels": [-100, -100, -100, 2, 3]},
        {"input_ids": [5, 6], "labels": [5, 6]},
        {"input_ids": [7, 8, 9, 1], "labels": [-100, -100, -100, 1]},
    ]
    first, second = pack(rows, 20, WIDTH)
    assert first == {"input_ids": [5, 6], "parents": [-1, 0], "sources": [0], "targets": [6]}
    assert second == {
        "input_ids": [7, 8, 9, 1, 2, 3], "parents": [-1, 0, 1, 2, 2, 4], "sources": [2, 2, 4], "targets": [1, 2, 3],
    }  # fmt: skip
    batch = collate([first, second], PAD)
    assert batch["position_ids"].tolist() == [[0, 1, 0, 0, 0, 0], [0, 1, 2, 3, 3, 4]]
    assert batch["sources"].tolist() == [[0, 8, 8, 10]]


def test_every_row_lies_in_a_pack_and_none_is_too_long() -> None:
    rows = transcripts()
    packs = pack(rows, 60, WIDTH)
    assert max(len(one["input_ids"]) for one in packs) <= 60
    before, now = (sum(len(row["input_ids"]) for row in several) for several in (rows, packs))
    assert now < 0.5 * before
    read = []
    for one in packs:
        for end in range(len(one["input_ids"])):
            path = [end]
            while one["parents"][path[0]] >= 0:
                path.insert(0, one["parents"][path[0]])
            read.append([one["input_ids"][number] for number in path])
    assert all(row["input_ids"] in read for row in rows)
    trained = sum(label != NOT_TRAINED for row in rows for label in row["labels"][1:])
    assert sum(len(one["targets"]) for one in packs) == trained


@pytest.mark.parametrize(("kind", "count"), [("tiny-gpt2", 11), ("tiny-hybrid", None), ("adapter", 11)])
def test_loss_and_gradients_and_metrics_are_those_of_the_rows(tmp_path: Path, kind: str, count: int | None) -> None:
    ours, rows = trainer(tmp_path, kind), transcripts()
    packs = pack(rows, LIMIT, WIDTH)
    assert 1 < len(packs) < len(rows) / 2
    loss, gradients = learnt(ours, PackTrainer, collate(packs, PAD), count)
    expected_loss, expected = learnt(ours, SFTTrainer, padded(rows), count)
    assert float(loss) == pytest.approx(float(expected_loss), abs=1e-5)
    torch.testing.assert_close(gradients, expected, rtol=1e-5, atol=1e-5)
    assert any(gradient.abs().max() > 1e-2 for gradient in gradients.values())
    for name in ("entropy", "mean_token_accuracy"):
        packed, plain = ours._metrics["train"][name]
        assert packed == pytest.approx(plain, abs=1e-5)


def test_other_attention_and_recomputed_activations_give_the_same(tmp_path: Path) -> None:
    ours, rows = trainer(tmp_path, "tiny-gpt2"), transcripts()
    batch = collate(pack(rows, LIMIT, WIDTH), PAD)
    _, expected = learnt(ours, PackTrainer, batch, None)
    ours.model.config._attn_implementation = "eager"
    checkpoint_gradients(ours.model)
    ours.model.train()
    assert can_pack(ours.model)
    _, gradients = learnt(ours, PackTrainer, batch, None)
    torch.testing.assert_close(gradients, expected, rtol=1e-5, atol=1e-5)


def test_what_cannot_read_packs_is_known(tmp_path: Path) -> None:
    llama = LlamaForCausalLM(LlamaConfig(**SMALL))
    assert can_pack(llama)
    llama.config._attn_implementation = "flash_attention_2"
    assert not can_pack(llama)
    assert not can_pack(MistralForCausalLM(MistralConfig(**SMALL, sliding_window=8)))
    hybrid = unwrapped(trainer(tmp_path, "tiny-hybrid").model)
    checkpoint_gradients(hybrid)
    assert not can_pack(hybrid)
