"""Models with a recurrent state, of each architecture of transformers, tiny and with random weights.

A row is read as if it were alone, whatever is padded next to it: when it is sampled, in RL and in SFT.
"""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoModelForCausalLM,
    DynamicCache,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
)
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from benchmarks.sft import open_training
from reflectkit.cli.main import main
from reflectkit.console import Quiet
from reflectkit.jsonl import read_json
from reflectkit.models.checkpoint_metadata import STATE_ELSEWHERE
from reflectkit.models.load import ALL_LINEAR, LoadedModel, load_player, save_player, with_adapter
from reflectkit.models.scoring import can_share, choice_logprobs
from reflectkit.models.tiny import build_tokenizer
from reflectkit.sampling.decoding import GeneratedText, decode
from reflectkit.train.sft.packing import can_pack
from reflectkit.train.sft.tokens import NOT_TRAINED
from reflectkit.types import Sample
from tests.sft_runs import config, write_rows
from tests.train.training import gradients_after

WORDS, END, PAD = 300, 0, 1
ATTENTION = {"intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
DELTA = ATTENTION | {
    "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
}  # fmt: skip
QWEN_MOE = DELTA | EXPERTS | {"shared_expert_intermediate_size": 16}
KIMI = DELTA | EXPERTS | {
    "kv_lora_rank": 16, "q_lora_rank": None, "qk_rope_head_dim": 4, "v_head_dim": 8, "qk_nope_head_dim": 8,
    "num_local_experts": 4, "n_group": 1, "topk_group": 1, "num_key_value_heads": 4,
}  # fmt: skip
MAMBA2 = ATTENTION | {
    "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 8, "mamba_chunk_size": 8,
    "num_hidden_layers": 3,
}  # fmt: skip
INKLING = ATTENTION | {
    "num_hidden_layers": 3, "local_layer_ids": [0], "sliding_window_size": 8, "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 2, "swa_head_dim": 8, "d_rel": 4, "rel_extent": 32, "moe_intermediate_size": 16,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "mlp_layer_types": ["dense", "sparse", "dense"],
    "unpadded_vocab_size": WORDS,
}  # fmt: skip
ZAMBA = ATTENTION | {
    "num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid"] * 2, "mamba_d_state": 8, "num_key_value_heads": 4,
}  # fmt: skip
CONVOLUTIONS = {"num_hidden_layers": 4, "layer_types": ["conv", "full_attention", "conv", "conv"]}
PURE = {"num_hidden_layers": 2, "state_size": 8}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "bailing_hybrid": KIMI,
    "bamba": MAMBA2 | {"attn_layer_indices": [1]},
    "falcon_h1": MAMBA2 | {"mamba_d_ssm": 64},
    "falcon_mamba": PURE,
    "granitemoehybrid": MAMBA2 | {
        "layer_types": ["mamba", "attention", "mamba"], "num_local_experts": 4, "shared_intermediate_size": 16,
    },
    "inkling2_loop_text": INKLING,
    "inkling2_text": INKLING,
    "inkling_text": INKLING,
    "jamba": ATTENTION | {
        "num_hidden_layers": 4, "attn_layer_period": 4, "attn_layer_offset": 2, "num_experts": 4, "mamba_d_state": 8,
    },
    "kimi_linear": KIMI | {"linear_head_dim": 8, "linear_num_heads": 4},
    "lara_mini": QWEN_MOE | {
        "sliding_window": 8,
        "layer_types": ["linear_attention", "sliding_attention", "full_attention", "linear_attention"],
    },
    "lfm2": ATTENTION | CONVOLUTIONS | {"block_auto_adjust_ff_dim": False},
    "lfm2_moe": ATTENTION | EXPERTS | CONVOLUTIONS | {"num_dense_layers": 1},
    "lfm3": ATTENTION | CONVOLUTIONS | {
        "layer_types": ["conv", "full_attention", "conv", "sliding_attention"], "sliding_window": 8,
    },
    "mamba": PURE,
    "mamba2": PURE | {"num_heads": 4, "head_dim": 16, "n_groups": 2, "chunk_size": 8},
    "nemotron_h": ATTENTION | {
        "layers_block_type": ["mamba", "attention", "mlp", "mamba", "moe"], "num_hidden_layers": 5, "ssm_state_size": 8,
        "mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 2, "chunk_size": 8, "n_routed_experts": 4,
        "moe_intermediate_size": 16, "moe_shared_expert_intermediate_size": 16,
    },
    "olmo_hybrid": DELTA | {"linear_num_key_heads": 4},
    "qwen3_5_moe_text": QWEN_MOE,
    "qwen3_5_text": DELTA,
    "qwen3_next": QWEN_MOE,
    "qwen4_exp_text": QWEN_MOE | {
        "layer_types": ["linear_attention", "linear_attention", "indexed_attention", "linear_attention"],
        "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 64,
        "indexer_compress_ratio": 1, "hc_count": 2, "hc_lowrank": 8,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 0],
        },
    },
    "zamba": ZAMBA | {"n_mamba_heads": 2},
    "zamba2": ZAMBA | {"n_mamba_heads": 4, "mamba_headdim": 16, "chunk_size": 8, "adapter_rank": 4},
    "zaya": ATTENTION | EXPERTS | {"num_experts_per_tok": 1, "num_hidden_layers": 4, "router_hidden_size": 16},
}  # fmt: skip
QUICK = ("lfm2", "mamba2", "qwen3_5_text")
"""One of each kind of state; the tests of the others are slow."""
LIMITS = (5, 8, 3, 7, 8, 6)
LABELS = ((5,), (6, 7), (6, 9))


@pytest.fixture(
    params=[kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in ARCHITECTURES]
)
def model(request: pytest.FixtureRequest) -> Any:
    return build(request.param)


def build(kind: str) -> Any:
    sizes = {"vocab_size": WORDS, "hidden_size": 32, "initializer_range": 0.3}
    special = {"bos_token_id": END, "eos_token_id": END, "pad_token_id": PAD}
    torch.manual_seed(0)
    built = AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**sizes, **special, **ARCHITECTURES[kind])).eval()
    with torch.no_grad():
        for name, weight in built.named_parameters():
            if weight.ndim == 1 and "bias" in name:  # zero where nothing was learnt, which hides padding
                weight.normal_(std=0.3)
    return built


def prompts() -> list[list[int]]:
    draw = random.Random(0)
    return [[draw.randrange(10, WORDS) for _ in range(length)] for length in (3, 40, 17, 9, 2, 25)]


def written(model: Any, rows: list[list[int]], limits: Any, seeds: Any, width: int = 64) -> list[GeneratedText]:
    return decode(model, rows, pad_id=PAD, stop_ids=frozenset(), max_new_tokens=limits, temperature=0.9, seeds=seeds,
                  width=width)  # fmt: skip


def after(model: Any, tokens: list[int]) -> torch.Tensor:
    """Log-probabilities behind `tokens`, read alone by the model's own forward."""
    with torch.no_grad():
        return torch.log_softmax(model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1], dim=-1)


def close(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    """Whether two gradients are the same up to the rounding of their largest entry."""
    largest = max(float(gradient.abs().max()) for gradient in theirs.values())
    assert largest > 1e-3
    assert ours.keys() == theirs.keys()
    for name, gradient in ours.items():
        torch.testing.assert_close(gradient, theirs[name], rtol=0, atol=1e-3 * largest)


@pytest.mark.slow
def test_every_architecture_is_here_or_refused() -> None:
    """What transformers calls stateful, and what has a layer with such a state in its cache."""
    found = {"lfm2", "lfm2_moe"}  # whose default has no convolutions
    for kind in CONFIG_MAPPING:
        if CONFIG_MAPPING[kind] not in MODEL_FOR_CAUSAL_LM_MAPPING or kind == "gemma4_assistant":  # has no default
            continue
        made = MODEL_FOR_CAUSAL_LM_MAPPING[CONFIG_MAPPING[kind]]
        text = CONFIG_MAPPING[kind]().get_text_config(decoder=True)
        layers = DynamicCache(config=text).layers if hasattr(text, "num_hidden_layers") else []
        if made._is_stateful or any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in layers):
            found.add(text.model_type)
    assert found == {*ARCHITECTURES, *STATE_ELSEWHERE}


def test_a_row_is_sampled_and_learnt_from_as_alone(model: Any) -> None:
    asked = zip(prompts(), LIMITS, range(6), strict=True)
    alone = [written(model, [row], limit, [seed])[0] for row, limit, seed in asked]
    for width in (64, 2):
        for row, other in zip(written(model, prompts(), LIMITS, range(6), width), alone, strict=True):
            assert row.token_ids == other.token_ids
            assert row.logprobs == pytest.approx(other.logprobs, abs=1e-3)
    samples = []
    for prompt, row in zip(prompts(), alone, strict=True):
        mask, zeros = (0,) * len(prompt) + (1,) * len(row.token_ids), (0.0,) * len(prompt)
        logprobs, advantages = (*zeros, *row.logprobs), tuple(float(one) for one in mask)
        tokens, decisions = (*prompt, *row.token_ids), tuple(one - 1 for one in mask)
        samples.append(Sample(tokens, mask, decisions, logprobs, advantages, advantages, (), (), "g"))
    player = LoadedModel(model, SimpleNamespace(pad_token_id=PAD, eos_token_id=END), "policy")
    settings: dict[str, Any] = {"temperature": 0.9, "agrees_with": "the sampler", "mismatch": True}
    padded, apart = (gradients_after(player, samples, max_tokens=most, **settings) for most in (16384, 1))
    close(padded, apart)


def test_choices_are_scored_as_alone(model: Any) -> None:
    expected = []
    for prompt in prompts():
        first, second = (torch.log_softmax(after(model, row)[ids], dim=-1)
                         for row, ids in ((prompt, [5, 6]), ([*prompt, 6], [7, 9])))  # fmt: skip
        expected.append([float(first[0]), float(first[1] + second[0]), float(first[1] + second[1])])
    for share in (False, True):
        logprobs_BK, _ = choice_logprobs(model, prompts(), [LABELS] * 6, pad_id=PAD, share=share)
        torch.testing.assert_close(logprobs_BK.detach(), torch.tensor(expected), rtol=0, atol=1e-3)


def test_padded_rows_are_trained_on_as_alone(model: Any, tmp_path: Path) -> None:
    """By TRL, from a saved model, with all of its tokens."""
    kind = model.config.model_type
    player = LoadedModel(model, build_tokenizer(["cell 1 of 9"], [" 0", " 1"], WORDS), "plain")
    save_player(tmp_path / "base", player)
    with Quiet().bar("sft", 1) as bar:
        settings = {"model": str(tmp_path / "base"), "max_length": 64}
        trainer = open_training(config(write_rows(tmp_path), tmp_path, **settings), tmp_path / "scratch", bar)
    sums: dict[str, torch.Tensor] = {}
    for row in prompts():
        for name, gradient in learnt(trainer, [row]).items():
            sums[name] = sums.get(name, 0) + gradient
    close(learnt(trainer, prompts()), sums)
    assert can_pack(trainer.model) == (kind == "lfm2")
    assert not can_share(trainer.model)


def learnt(trainer: Any, rows: list[list[int]]) -> dict[str, torch.Tensor]:
    width = max(map(len, rows))
    batch = {
        "input_ids": torch.tensor([row + [PAD] * (width - len(row)) for row in rows]),
        "labels": torch.tensor([row + [NOT_TRAINED] * (width - len(row)) for row in rows]),
        "attention_mask": torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows]),
    }
    trainer.model.zero_grad()
    trainer.compute_loss(trainer.model, batch, num_items_in_batch=100).backward()
    return {name: weight.grad.clone() for name, weight in trainer.model.named_parameters() if weight.grad is not None}


def test_an_adapter_of_all_linear_layers_has_those_of_the_recurrence() -> None:
    recurrent = {"in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"}
    for targets in ("", ALL_LINEAR):
        adapted = with_adapter(LoadedModel(build("qwen3_5_text"), None, "policy"), 2, 4, seed=0, targets=targets)
        layers = {name.split(".")[-4] for name, _ in adapted.model.named_parameters() if "lora_A" in name}
        assert layers >= recurrent | {"q_proj", "o_proj", "down_proj"}


@pytest.fixture
def qwen() -> Any:
    """A checkpoint with images in the folder `qwen`, as Qwen publishes it."""
    sizes = {"vocab_size": WORDS, "hidden_size": 32, "initializer_range": 0.3, "tie_word_embeddings": True}
    pictures = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32}
    torch.manual_seed(0)
    config = Qwen3_5Config(text_config=sizes | DELTA, vision_config=pictures, tie_word_embeddings=True)
    whole = Qwen3_5ForConditionalGeneration(config).eval()
    whole.save_pretrained("qwen")
    build_tokenizer(["cell 1 of 9"], [" 0", " 1"], WORDS).save_pretrained("qwen")
    return whole


def test_the_language_model_of_a_checkpoint_with_images_is_loaded_and_exported(qwen: Any) -> None:
    assert main(["export", "--policy", "qwen", "--out-dir", "text"]) == 0
    for folder in ("qwen", "text"):
        loaded = load_player(folder, device="cpu").model
        assert torch.equal(after(loaded, prompts()[1]), after(qwen, prompts()[1]))
    assert read_json(Path("text/config.json"))["architectures"] == ["Qwen3_5ForCausalLM"]
