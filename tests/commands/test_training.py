"""The settings that sft and rlft share: optimizer, weight decay, schedule, warm-up, and how many checkpoints stay."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from reflectkit.errors import ConfigError
from reflectkit.models.load import LoadedModel, with_adapter
from reflectkit.runs.run import Run
from reflectkit.train.optimizers import make_optimizer, set_dropout
from reflectkit.train.processes import Processes
from reflectkit.train.sft import fit as sft_fit
from reflectkit.train.sft.fit import SFTFit
from reflectkit.train.trainer import schedule_factor
from tests.kill import hashes
from tests.sft_runs import Interrupting, train, write_rows

LLAMA = LlamaConfig(
    vocab_size=300, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
    attention_bias=True,
)  # fmt: skip


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("rows"))


def test_sft_resumes_to_the_same_bytes_with_one_checkpoint_kept(rows: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"warmup_steps": 2, "dropout": 0.3, "max_grad_norm": 0.2, "gradient_checkpointing": True}
    settings |= {"keep_checkpoints": 1, "learning_rate": 1e-3, "model": "tiny-gpt2"}
    straight = hashes(train(rows, tmp_path / "straight", **settings))
    with pytest.raises(KeyboardInterrupt):
        train(rows, tmp_path / "results", Interrupting(at=5), **settings)
    assert [path.name for path in tmp_path.glob("results/1_sft/trainer/checkpoint-*")] == ["checkpoint-4"]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    with pytest.raises(KeyboardInterrupt):
        train(rows, tmp_path / "results", Interrupting(at=5, signals=True), **settings)
    signal.signal(signal.SIGINT, before)
    assert [path.name for path in tmp_path.glob("results/1_sft/trainer/checkpoint-*")] == ["checkpoint-5"]
    progress = Interrupting()
    assert hashes(train(rows, tmp_path / "results", progress, **settings)) == straight
    assert progress.step == 7


def test_sft_that_was_killed_after_its_last_step_takes_no_other(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took an eighth step of seven, and its model was called checkpoint-8."""

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    straight = train(rows, tmp_path / "straight")
    for method in (SFTFit, "save"), (Run, "finish"):
        with monkeypatch.context() as patch:
            patch.setattr(*method, killed)
            with pytest.raises(KeyboardInterrupt):
                train(rows, tmp_path / "cut")
    resumed = train(rows, tmp_path / "cut")
    assert resumed.name == "checkpoint-7"
    assert hashes(resumed) == hashes(straight)
    (here, there) = ((path.parent / "metrics.jsonl").read_text() for path in (resumed, straight))
    assert here == there
    assert [path.name for path in resumed.parent.iterdir() if path.is_dir()] == ["checkpoint-7"]


def test_the_checkpoint_before_stays_until_the_new_one_can_be_resumed_from(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(folder: Path) -> None:
        if folder.name == "checkpoint-4":
            raise KeyboardInterrupt
        seal(folder)

    seal = sft_fit.seal
    monkeypatch.setattr(sft_fit, "seal", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(rows, tmp_path, keep_checkpoints=1)
    assert [path.name for path in tmp_path.glob("1_sft/trainer/checkpoint-*")] == ["checkpoint-2"]


def test_weight_decay_shrinks_matrices_alone(policy: LoadedModel) -> None:
    """Without gradients nothing else moves a weight: one step of rate 0.5 and decay 0.2 leaves 0.9 of it."""
    before = {name: weight.detach().clone() for name, weight in policy.model.named_parameters()}
    made = make_optimizer(policy.model, Processes(), rate=0.5, max_norm=1.0, decay=0.2)
    for weight in policy.model.parameters():
        weight.grad = torch.zeros_like(weight)
    made.step()
    shrunk = set()
    for name, weight in policy.model.named_parameters():
        factor = 0.9 if before[name].ndim > 1 else 1.0
        torch.testing.assert_close(weight.detach(), before[name] * factor)
        shrunk |= {name} if factor < 1 else set()
    assert "transformer.wte.weight" in shrunk
    assert "transformer.ln_f.weight" not in shrunk
    assert "transformer.h.0.attn.c_attn.bias" not in shrunk


def test_learning_rate_factors_by_hand() -> None:
    def factors(schedule: str, warmup: int) -> list[float]:
        return [round(schedule_factor(schedule, step, 6, warmup), 4) for step in range(6)]

    assert factors("linear", 0) == [1.0, 0.8333, 0.6667, 0.5, 0.3333, 0.1667]
    assert factors("linear", 2) == [0.3333, 0.6667, 1.0, 0.75, 0.5, 0.25]
    assert factors("cosine", 2) == [0.3333, 0.6667, 1.0, 0.8536, 0.5, 0.1464]  # (1 + cos(πk/4)) / 2
    assert factors("constant", 1) == [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert factors("linear", 6) == [round((step + 1) / 7, 4) for step in range(6)]


def test_dropout_is_set_everywhere_but_in_the_adapter_and_not_in_the_config(policy: LoadedModel) -> None:
    model = with_adapter(LoadedModel(LlamaForCausalLM(LLAMA), policy.tokenizer, None), 2, 4, 0, dropout=0.5).model
    set_dropout(model, 0.25)
    attention = model.base_model.model.model.layers[0].self_attn
    assert attention.attention_dropout == 0.25
    assert attention.q_proj.lora_dropout["default"].p == 0.5
    assert model.config.attention_dropout == 0.0
    set_dropout(policy.model, 0.25)
    dropouts = [module.p for module in policy.model.modules() if isinstance(module, torch.nn.Dropout)]
    assert set(dropouts) == {0.25}
    with pytest.raises(ConfigError, match="has no dropout"):
        set_dropout(torch.nn.Linear(2, 2), 0.1)
