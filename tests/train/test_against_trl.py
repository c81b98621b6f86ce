"""Our grpo and TRL's GRPOTrainer on the same rows: the same loss, the same gradients."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM

from reflectkit.models.load import LoadedModel, Reference, save_player
from reflectkit.models.rows import left_pad
from reflectkit.models.tiny import build_tokenizer
from reflectkit.train.learner import LearnerSettings
from reflectkit.train.local_learner import LocalLearner
from reflectkit.types import Sample

CPU = torch.device("cpu")
ADVANTAGES = [1.2, -0.4, -1.5, 0.7, 0.3, -0.9]


def llama(vocabulary: int, seed: int) -> LlamaForCausalLM:
    """Rotary positions: TRL pads on the left and gives no positions, which shifts the learned ones of a GPT-2."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.1,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def rows(model: LlamaForCausalLM) -> list[Sample]:
    """Six single-turn rows of different lengths; the sampler's log-probs are a little off the model's, so that clips
    act.
    """
    chance = torch.Generator().manual_seed(0)
    samples = []
    for number, advantage in enumerate(ADVANTAGES):
        prompt = torch.randint(5, 200, (4 + 3 * (number % 3),), generator=chance).tolist()
        written = torch.randint(5, 200, (2 + number,), generator=chance).tolist()
        with torch.no_grad():
            logits = model(torch.tensor([prompt + written])).logits[0, len(prompt) - 1 : -1]
        logprobs = torch.log_softmax(logits, -1).gather(1, torch.tensor(written)[:, None])[:, 0]
        logprobs = logprobs + 0.4 * torch.randn(len(written), generator=chance)
        masked = (0.0,) * len(prompt)
        samples.append(
            Sample(
                tokens=(*prompt, *written),
                loss_mask=(0,) * len(prompt) + (1,) * len(written),
                decisions=(-1,) * len(prompt) + (0,) * len(written),
                logprobs=(*masked, *logprobs.tolist()),
                advantages=masked + (advantage,) * len(written),
                returns=masked + (1.0,) * len(written),
                values=(),
                choices=(),
                group_id=str(number // 2),
            )
        )
    return samples


@pytest.mark.parametrize("beta", [0.0, 0.3])
@pytest.mark.parametrize(("mean", "loss_type"), [("row", "grpo"), ("token", "bnpo")])
def test_loss_and_gradients_are_trls(tmp_path: Path, mean: str, loss_type: str, beta: float) -> None:
    compare(tmp_path, mean, loss_type, beta)


def test_a_wider_clip_and_the_geometric_mask_are_trls(tmp_path: Path) -> None:
    """The mask leaves out the last row alone: its log-ratios have a mean of -0.0023, and its advantage is negative."""
    masked = compare(tmp_path, "token", "bnpo", 0.0, clip_high=0.5, mask="geometric", mask_ratio=1.002)
    assert masked == pytest.approx(7 / 27)


def compare(tmp_path: Path, mean: str, loss_type: str, beta: float, **corrections: Any) -> float:
    """Compare the two on the same rows. Returns the share of the tokens that the mask leaves out."""
    from trl import GRPOConfig, GRPOTrainer  # takes seconds

    tokenizer = build_tokenizer(["some words to merge"], [], vocabulary=300)
    model, start = llama(len(tokenizer), 0), llama(len(tokenizer), 1)
    samples = rows(model)
    settings = LearnerSettings(
        learning_rate=0.0, clip=0.2, entropy=0.0, kl=beta, max_grad_norm=1e9, mean=mean, **corrections
    )
    player = LoadedModel(model, tokenizer, "policy")
    learner = LocalLearner(player, settings, reference=Reference(player, copy=start) if beta else None)
    figures = learner.update(samples, random.Random(0)).figures
    ours = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    our_loss = figures["loss"] + beta * figures.get("kl_to_start", 0.0)

    save_player(tmp_path / "start", LoadedModel(start, tokenizer, None))  # from where the trainer loads its reference
    model.config.name_or_path = str(tmp_path / "start")
    config = GRPOConfig(
        output_dir=str(tmp_path), use_cpu=True, bf16=False, beta=beta, epsilon=0.2, loss_type=loss_type,
        report_to="none", per_device_train_batch_size=2, num_generations=2, temperature=1.0, scale_rewards=False,
        activation_checkpointing=False, epsilon_high=corrections.get("clip_high"),
        off_policy_mask_threshold=math.log(corrections["mask_ratio"]) if corrections else None,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=config,
        train_dataset=Dataset.from_list([{"prompt": "a"}] * 2),
        processing_class=tokenizer,
    )
    model.eval()
    prompts = [[token for token, one in zip(s.tokens, s.loss_mask, strict=True) if not one] for s in samples]
    written = [[token for token, one in zip(s.tokens, s.loss_mask, strict=True) if one] for s in samples]
    prompt_ids, prompt_mask = left_pad(prompts, 0, CPU)
    width = max(map(len, written))
    completion_ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in written])
    completion_mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in written])
    old = torch.zeros(len(samples), width)
    for row, (sample, prompt) in enumerate(zip(samples, prompts, strict=True)):
        old[row, : len(sample.tokens) - len(prompt)] = torch.tensor(sample.logprobs[len(prompt) :])
    inputs = {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask,
        "completion_ids": completion_ids,
        "completion_mask": completion_mask,
        "advantages": torch.tensor(ADVANTAGES),
        "old_per_token_logps": old,
        "num_items_in_batch": completion_mask.sum(),
    }
    if beta:
        with torch.no_grad():
            logits = trainer.ref_model(
                input_ids=torch.cat([prompt_ids, completion_ids], 1),
                attention_mask=torch.cat([prompt_mask, completion_mask], 1),
            ).logits[:, -width - 1 : -1]
        inputs["ref_per_token_logps"] = logits.log_softmax(-1).gather(2, completion_ids[:, :, None]).squeeze(2)
    model.zero_grad()
    theirs = trainer.compute_loss(model, inputs)
    theirs.backward()
    assert our_loss == pytest.approx(theirs.item(), abs=1e-5)
    assert max(float(gradient.abs().max()) for gradient in ours.values()) > 1e-2
    for name, weight in model.named_parameters():
        if weight.grad is not None:
            torch.testing.assert_close(ours[name], weight.grad, atol=1e-5, rtol=1e-4)
    return figures.get("masked", 0.0)
