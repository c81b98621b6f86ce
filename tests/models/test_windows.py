"""GPT-Neo's window counts columns of the cache: its rows are read whole, without a gap before a token or behind it."""

from __future__ import annotations

import random

import pytest
import torch
from transformers import FalconConfig, FalconForCausalLM, GPTNeoConfig, GPTNeoForCausalLM

from reflectkit.models.scoring import can_share, choice_logprobs, token_logprobs
from reflectkit.sampling.decoding import PrefixCache, decode
from reflectkit.train.sft.packing import can_pack

WINDOW, VOCABULARY, PAD = 8, 60, 0
LABELS = ((5,), (6, 7), (6, 9))


@pytest.fixture
def model() -> GPTNeoForCausalLM:
    torch.manual_seed(0)
    config = GPTNeoConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_layers=2, num_heads=2, intermediate_size=64, window_size=WINDOW,
        attention_types=[[["global", "local"], 1]], max_position_embeddings=256, initializer_range=0.4,
    )  # fmt: skip
    return GPTNeoForCausalLM(config).eval()


def prompts() -> list[list[int]]:
    """Two begin with 10 and with 25 tokens of the longest, so that behind these the gaps are wider than the window."""
    draw = random.Random(0)
    longest = [draw.randrange(10, VOCABULARY) for _ in range(40)]
    return [longest[:shared] + [draw.randrange(10, VOCABULARY) for _ in range(4)] for shared in (10, 25)] + [longest]


def after(model: GPTNeoForCausalLM, tokens: list[int]) -> torch.Tensor:
    """Log-probabilities behind `tokens`, read alone."""
    with torch.no_grad():
        return torch.log_softmax(model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1], dim=-1)


@pytest.mark.parametrize("share", [False, True])
def test_labels_and_texts_are_scored_as_alone(model: GPTNeoForCausalLM, share: bool) -> None:
    expected = []
    for prompt in prompts():
        first = torch.log_softmax(after(model, prompt)[[5, 6]], dim=-1)
        second = torch.log_softmax(after(model, [*prompt, 6])[[7, 9]], dim=-1)
        expected.append([float(first[0]), float(first[1] + second[0]), float(first[1] + second[1])])
    for context in (torch.no_grad(), torch.enable_grad()):
        with context:
            logprobs_BK, _ = choice_logprobs(model, prompts(), [LABELS] * 3, pad_id=PAD, share=share)
        torch.testing.assert_close(logprobs_BK.detach(), torch.tensor(expected), rtol=0, atol=1e-4)
    masks = [[0] * (len(row) - 1) + [1] for row in prompts()]
    logprobs_N, *_ = token_logprobs(model, prompts(), masks, pad_id=PAD, share=share)
    last = [float(after(model, row[:-1])[row[-1]]) for row in prompts()]
    assert logprobs_N.tolist() == pytest.approx(last, abs=1e-4)


@pytest.mark.parametrize("longer", [0, 150])
def test_texts_are_written_as_alone(model: GPTNeoForCausalLM, longer: int) -> None:
    """Also where prompts are long enough to be kept."""
    draw = random.Random(2)
    rows = [[draw.randrange(10, VOCABULARY) for _ in range(longer)] + prompt for prompt in prompts()]
    kept = PrefixCache()
    decode(
        model,
        [row[: longer + 5] for row in rows],
        pad_id=PAD,
        stop_ids=frozenset(),
        max_new_tokens=1,
        prefix_cache=kept,
    )
    written = decode(model, rows, pad_id=PAD, stop_ids=frozenset(), max_new_tokens=12, prefix_cache=kept)
    for prompt, line in zip(rows, written, strict=True):
        for place, token in enumerate(line.token_ids):
            expected = after(model, [*prompt, *line.token_ids[:place]])
            assert int(expected.argmax()) == token
            assert line.logprobs[place] == pytest.approx(float(expected[token]), abs=1e-4)


def test_rows_are_not_packed(model: GPTNeoForCausalLM) -> None:
    """Nor for Falcon with ALiBi, which is made of a mask of tokens."""
    assert not can_pack(model)
    assert not can_share(model)
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    assert not can_pack(FalconForCausalLM(FalconConfig(**sizes, alibi=True)))
    assert can_pack(FalconForCausalLM(FalconConfig(**sizes, alibi=False)))
