"""An adapter on 8- and 4-bit weights: trained, saved, opened again as it was, and played with."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from reflectkit.commands import sft
from reflectkit.console import Quiet
from reflectkit.jsonl import read_json, write_jsonl
from reflectkit.models.labels import label_ids, prompt_ids
from reflectkit.models.load import REPACKS, load_player
from reflectkit.models.scoring import choice_logprobs
from reflectkit.prompts import label, policy_prompt
from reflectkit.types import Observation


@pytest.mark.parametrize("quantize", [pytest.param("8bit", marks=pytest.mark.slow), "4bit"])
def test_an_adapter_on_quantised_weights(
    checkpoints: dict[str, Path], observations: list[Observation], tmp_path: Path, quantize: str
) -> None:
    rows = [
        {"prompt": policy_prompt(seen), "completion": label(number % 6)} for number, seen in enumerate(observations)
    ]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    config = sft.SFTConfig.from_flat(
        env="taxi",
        role="plain",
        task_file=tmp_path / "rows.jsonl",
        model=str(checkpoints["plain"]),
        quantize=quantize,
        lora_r=4,
        lora_alpha=8,
        dtype="bfloat16",
        max_steps=2,
        batch_size=2,
        results_dir=tmp_path / "results",
    )
    (folder,) = sft.run(config, Quiet()).outputs
    assert (folder / "adapter_config.json").is_file()
    told = read_json(folder / "reflectkit.json")
    assert (told["dtype"], told["quantize"], told["role"]) == ("bfloat16", quantize, "plain")
    player = load_player(folder, "policy")
    kinds = {type(module).__name__ for module in player.model.modules()}
    assert {"8bit": "Linear8bitLt", "4bit": "Linear4bit"}[quantize] in kinds
    assert not any(getattr(module, REPACKS, False) for module in player.model.modules()), "needs widths divisible by 32"
    trained = [name for name, weight in player.model.named_parameters() if weight.requires_grad]
    assert trained
    assert all("lora" in name for name in trained)
    logprobs, _ = choice_logprobs(
        player.model,
        [prompt_ids(player.tokenizer, row["prompt"]) for row in rows],
        [label_ids(player.tokenizer, 6)] * len(rows),
        pad_id=player.pad_id,
    )
    torch.testing.assert_close(logprobs.exp().sum(dim=-1), torch.ones(len(rows)), atol=1e-3, rtol=0)
    (-logprobs[:, 0].mean()).backward()
    assert any(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in player.model.parameters())
