"""export: a folder that transformers opens, whose model says the same as the checkpoint; and packaged models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, LoraModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from reflectkit.cli.main import main
from reflectkit.data.problems import Problems
from reflectkit.envs.setup import EnvSetup
from reflectkit.errors import ConfigError
from reflectkit.eventloop import result_of
from reflectkit.integrations.agent import load_agent
from reflectkit.jsonl import read_json, write_json
from reflectkit.models.labels import label_ids, prompt_ids
from reflectkit.models.load import LoadedModel, load_player, save_player, with_adapter
from reflectkit.models.scoring import choice_logprobs
from reflectkit.prompts import policy_prompt
from reflectkit.types import Observation
from tests.examples import run_page


@pytest.fixture
def adapter(checkpoints: dict[str, Path], tmp_path: Path) -> Path:
    """A checkpoint of a LoRA adapter that changes its base."""
    base = load_player(checkpoints["policy"], device="cpu")
    adapted = with_adapter(LoadedModel(base.model, base.tokenizer, "policy"), 4, 8, seed=0)
    with torch.no_grad():
        for name, weight in adapted.model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.1, generator=torch.Generator().manual_seed(0))
    save_player(tmp_path / "run" / "checkpoint-1", adapted, {"env": "taxi", "step": 1})
    return tmp_path / "run" / "checkpoint-1"


def test_a_merged_adapter_says_the_same(
    adapter: Path, checkpoints: dict[str, Path], observations: list[Observation], tmp_path: Path
) -> None:
    assert main(["export", "--policy", str(adapter), "--out-dir", "out"]) == 0
    model, tokenizer = AutoModelForCausalLM.from_pretrained("out"), AutoTokenizer.from_pretrained("out")
    before, base = load_player(adapter, "policy", device="cpu"), load_player(checkpoints["policy"], device="cpu")
    prompts = [prompt_ids(tokenizer, policy_prompt(seen)) for seen in observations]
    labels = [label_ids(tokenizer, 6)] * len(prompts)
    found, expected, without = (
        choice_logprobs(one, prompts, labels, pad_id=0)[0] for one in (model, before.model, base.model)
    )
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert not torch.allclose(found, without, atol=1e-2)
    assert not (tmp_path / "out" / "adapter_config.json").exists()
    assert read_json(tmp_path / "out" / "reflectkit.json")["role"] == "policy"
    assert load_player(tmp_path / "out", "policy", device="cpu").role == "policy"


ADAPTERS: dict[str, dict[str, Any]] = {
    "head": {"target_modules": ["lm_head"]},
    "embeddings": {"target_modules": ["wte", "c_attn"]},
    "head and embeddings": {"target_modules": ["wte", "lm_head"]},
    "whole head": {"target_modules": ["c_attn"], "modules_to_save": ["lm_head"]},
    "some tokens": {"target_modules": ["c_attn"], "trainable_token_indices": [3, 7]},
    "new tokens in whole layers": {"added": 3, "target_modules": ["c_attn"], "modules_to_save": ["wte", "lm_head"]},
    "new tokens": {"added": 3, "target_modules": ["c_attn"]},
    "new tokens in LoRA": {"added": 3, "target_modules": ["wte", "lm_head"]},
    "new tokens alone": {"added": 3, "target_modules": ["c_attn"], "trainable_token_indices": "added"},
    "new tokens, and some others alone": {"added": 3, "target_modules": ["c_attn"], "trainable_token_indices": [3, 7]},
}
"""As users of peft make them, on a model with tied embeddings."""


def logits(model: Any) -> torch.Tensor:
    last = model.get_input_embeddings().weight.shape[0] - 1
    with torch.no_grad():
        return model.eval()(torch.tensor([[5, 3, 7, last - 2, last - 1, last]])).logits


def made_by_peft(base: Path, folder: Path, added: int = 0, **settings: Any) -> torch.Tensor:
    """The logits of a LoRA adapter, which is written to `folder`. added: tokens that the base does not have."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(base), AutoTokenizer.from_pretrained(base)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if added:
            tokenizer.add_tokens([f"<tool_{number}>" for number in range(added)])
            model.resize_token_embeddings(len(tokenizer))
        if settings.get("trainable_token_indices") == "added":
            settings["trainable_token_indices"] = list(range(len(tokenizer) - added, len(tokenizer)))
        adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8, **settings))
        with torch.no_grad():
            for weight in adapted.parameters():
                if weight.requires_grad:
                    weight.add_(torch.randn_like(weight) * 0.05)
    adapted.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return logits(adapted)


@pytest.mark.parametrize("kind", ADAPTERS)
def test_adapters_of_tied_embeddings_and_new_tokens(kind: str, checkpoints: dict[str, Path], tmp_path: Path) -> None:
    """They load as peft loads them, are saved and loaded again, and merge exactly."""
    expected = made_by_peft(checkpoints["plain"], tmp_path / "adapter", **ADAPTERS[kind])
    loaded = load_player(tmp_path / "adapter", device="cpu")
    torch.testing.assert_close(logits(loaded.model), expected)
    save_player(tmp_path / "again", loaded)
    torch.testing.assert_close(logits(load_player(tmp_path / "again", device="cpu").model), expected)
    assert main(["export", "--policy", str(tmp_path / "adapter"), "--out-dir", "out"]) == 0
    exported = AutoModelForCausalLM.from_pretrained("out")
    torch.testing.assert_close(logits(exported), expected, atol=1e-4, rtol=0)


def test_an_adapter_that_does_not_merge_exactly_is_refused(
    adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(LoraModel, "merge_and_unload", LoraModel.unload)  # a merge that drops the adapter
    assert main(["export", "--policy", str(adapter), "--out-dir", "out"]) == 2
    assert "merging this adapter changes what the model says" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_adapter_that_cannot_be_merged_is_refused(
    checkpoints: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made_by_peft(checkpoints["plain"], tmp_path / "adapter", target_modules=["lm_head"], alora_invocation_tokens=[5])
    assert main(["export", "--policy", "adapter", "--out-dir", "out"]) == 2
    assert "cannot be merged" in capsys.readouterr().err


@pytest.mark.parametrize("temperature", [None, 0.6])
def test_an_exported_folder_lists_the_tokens_that_end_answers(
    temperature: float | None, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    """Also the one that the chat template writes, for programs that read the folder alone. temperature: as Llama 2 has
    one without sampling, which transformers reads and does not write.
    """
    chat = load_player(checkpoints["plain"], device="cpu")
    chat.tokenizer.add_tokens(["<|im_end|>"], special_tokens=True)
    chat.model.resize_token_embeddings(len(chat.tokenizer))
    chat.tokenizer.chat_template = "{% for message in messages %}{{ message.content }}<|im_end|>{% endfor %}"
    save_player(tmp_path / "chat", LoadedModel(chat.model, chat.tokenizer, None))
    if temperature:
        write_json(tmp_path / "chat" / "generation_config.json", {"do_sample": False, "temperature": temperature})
    assert main(["export", "--policy", "chat", "--out-dir", "out"]) == 0
    ends = [chat.tokenizer.eos_token_id, chat.tokenizer.convert_tokens_to_ids("<|im_end|>")]
    assert AutoModelForCausalLM.from_pretrained("out").generation_config.eos_token_id == ends


def test_a_policy_that_chooses_says_so_and_asks_for_choices(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    policy = load_player(checkpoints["policy"], device="cpu")
    save_player(tmp_path / "run" / "checkpoint-1", policy, {"env": "not_here.py:Game", "acts": "choice"})
    assert main(["export", "--policy", "run/checkpoint-1", "--out-dir", "out"]) == 0
    assert "numbered actions and `Action:`; it answers with a number" in (tmp_path / "out" / "README.md").read_text()
    with load_agent("out") as agent, pytest.raises(ConfigError, match="trained to choose"):
        agent.act("a state")
    save_player(tmp_path / "run" / "checkpoint-2", policy, {"env": "taxi"})  # by an earlier version
    write_json(tmp_path / "run" / "report.json", {"figures": {"held_out": None}})
    assert main(["export", "--policy", "run/checkpoint-2", "--out-dir", "older"]) == 0
    card = (tmp_path / "older" / "README.md").read_text()
    assert "it answers with a number" in card
    setup = EnvSetup("taxi", Path("data"))
    held_out = Problems(setup).tasks("test", "full")[0]
    assert policy_prompt(result_of(setup.make(None).reset(held_out, 0)), "…") in card


def test_the_lines_of_the_card_act(
    checkpoints: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = load_player(checkpoints["policy"], device="cpu")
    save_player(
        tmp_path / "run" / "checkpoint-1",
        policy,
        {"env": "taxi", "acts": "choice", "reflector": str(checkpoints["reflection"])},
    )
    assert main(["export", "--policy", "run/checkpoint-1", "--out-dir", "models/taxi"]) == 0
    capsys.readouterr()
    names = run_page(tmp_path / "models" / "taxi" / "README.md")
    names["agent"].close()
    assert capsys.readouterr().out.split()[:1] in (["one"], ["another"])


def test_nothing_of_a_persons_is_overwritten(adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    for more in ([], ["--force"]):
        assert main(["export", "--policy", str(adapter), "--out-dir", "mine", *more]) == 2
        assert "already exists" in capsys.readouterr().err
    assert main(["export", "--policy", str(adapter), "--out-dir", str(adapter), "--force"]) == 2  # it is no export
    assert (adapter / "adapter_model.safetensors").is_file()
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"
    assert main(["export", "--policy", str(adapter), "--out-dir", "out"]) == 0
    assert main(["export", "--policy", str(adapter), "--out-dir", "out", "--dtype", "bfloat16"]) == 0
    other = adapter.rename(adapter.with_name("checkpoint-2"))
    assert main(["export", "--policy", str(other), "--out-dir", "out", "--dtype", "bfloat16"]) == 2
    assert main(["export", "--policy", str(other), "--out-dir", "out", "--dtype", "bfloat16", "--force"]) == 0
    assert AutoModelForCausalLM.from_pretrained("out").dtype == torch.bfloat16
