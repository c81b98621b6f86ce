"""What is written behind a prompt is what the bare model writes there, alone and without a cache, whoever comes and
goes.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM, PreTrainedTokenizerFast

from reflectkit.models.tiny import build_model, build_tokenizer
from reflectkit.sampling.decoding import GeneratedText, decode, sample_tokens
from reflectkit.seeding import uniform

PROMPTS, LONGEST = 10, 14
KINDS = ["gpt2", "lfm2"]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer(["a few words to be merged, and a few others"], [], vocabulary=290)


@pytest.fixture(scope="module")
def models(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """Random models whose weights are large, so that no two rows say the same."""
    return {kind: build_model(tokenizer, 96, 3, init_range=0.2, hybrid=kind == "lfm2").eval() for kind in KINDS}


def prompts(tokenizer: PreTrainedTokenizerFast, shared: int) -> list[list[int]]:
    """Ten prompts of 1 to 31 tokens behind `shared` common ones."""
    chance = random.Random(0)
    start = [chance.randrange(2, len(tokenizer)) for _ in range(shared)]
    return [start + [chance.randrange(2, len(tokenizer)) for _ in range(1 + 7 * row % 31)] for row in range(PROMPTS)]


def limits() -> list[int]:
    """Two rows write nothing, one a single token."""
    return [LONGEST, 0, 5, 1, 11, LONGEST, 9, 0, 12, 3]


@torch.no_grad()
def alone_without_cache(
    model: Any, prompt: list[int], limit: int, temperature: float, seed: int, stop_ids: frozenset[int]
) -> GeneratedText:
    """The rule: all that stands there is read again for each token."""
    line = GeneratedText()
    for step in range(limit):
        logits_V = model(torch.tensor([prompt + line.token_ids]), use_cache=False).logits[0, -1].double()
        logprobs_V = torch.log_softmax(logits_V / (temperature or 1.0), dim=-1)
        token = int(logprobs_V.argmax())
        if temperature:
            token = int((logprobs_V.exp().cumsum(0) <= uniform(seed, "token", step)).sum())
        line.token_ids.append(token)
        line.logprobs.append(float(logprobs_V[token]))
        if token in stop_ids:
            break
    return line


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("temperature", "shared"), [(0.0, 0), (0.8, 12)])
def test_every_width_writes_what_a_row_alone_without_cache_writes(
    kind: str, temperature: float, shared: int, models: dict[str, Any], tokenizer: PreTrainedTokenizerFast
) -> None:
    model, rows, seeds = models[kind], prompts(tokenizer, shared), list(range(100, 100 + PROMPTS))
    stop_ids = frozenset(range(2, len(tokenizer), 23))
    expected = [
        alone_without_cache(model, row, limit, temperature, seed, stop_ids)
        for row, limit, seed in zip(rows, limits(), seeds, strict=True)
    ]
    assert len({tuple(line.token_ids) for line in expected}) >= 8  # of ten, two are empty
    assert any(line.token_ids and line.token_ids[-1] in stop_ids for line in expected)
    assert any(len(line.token_ids) > 8 for line in expected)
    for width in (1, 3, 64):
        written = decode(
            model,
            rows,
            pad_id=1,
            stop_ids=stop_ids,
            max_new_tokens=limits(),
            temperature=temperature,
            seeds=seeds,
            width=width,
        )
        for line, right in zip(written, expected, strict=True):
            assert line.token_ids == right.token_ids
            assert line.logprobs == pytest.approx(right.logprobs, abs=1e-4)


def test_a_row_fills_its_context_beside_one_that_goes_on(
    models: dict[str, Any], tokenizer: PreTrainedTokenizerFast
) -> None:
    """GPT-2 has no position behind its last: a row that is done must not move on, nor may a late one's
    padding matter.
    """
    rows, most = [[2 + row, 3] for row in range(5)] + [[2 + token for token in range(90)]], [20] * 5 + [6]
    written = decode(models["gpt2"], rows, pad_id=1, stop_ids=frozenset(), max_new_tokens=most, width=64)
    assert [len(line.token_ids) for line in written] == most
    for width in (3,):
        again = decode(models["gpt2"], rows, pad_id=1, stop_ids=frozenset(), max_new_tokens=most, width=width)
        assert [line.token_ids for line in again] == [line.token_ids for line in written]


def test_rows_that_finish_make_room_at_once(models: dict[str, Any], tokenizer: PreTrainedTokenizerFast) -> None:
    """Eight rows, two at a time: seven of 2 tokens pass beside one of 20, which never waits and is never
    written again.
    """
    widths: list[int] = []
    hook = models["lfm2"].model.register_forward_hook(
        lambda _, __, output: widths.append(len(output.last_hidden_state))
    )
    try:
        decode(models["lfm2"], [[4, 5]] * 8, pad_id=1, stop_ids=frozenset(), max_new_tokens=[20, *[2] * 7], width=2)
    finally:
        hook.remove()
    # 1 pass reads two; then each of 7 short rows takes one step beside the long one, and 6 are read alone; the long
    # row's other 12 steps are alone
    assert sorted(widths) == [1] * (6 + 12) + [2] * (1 + 7)


def test_a_cache_that_rows_cannot_leave_is_written_in_batches(tokenizer: PreTrainedTokenizerFast) -> None:
    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=101, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, sliding_window=16, max_position_embeddings=128, initializer_range=0.3,
    )  # fmt: skip
    model = MistralForCausalLM(config).eval()
    rows = [[token % 101 for token in row] for row in prompts(tokenizer, 12)]
    written = decode(model, rows, pad_id=1, stop_ids=frozenset([3]), max_new_tokens=limits(), width=3)
    for row, limit, line in zip(rows, limits(), written, strict=True):
        right = alone_without_cache(model, row, limit, 0.0, 0, frozenset([3]))
        assert line.token_ids == right.token_ids
        assert line.logprobs == pytest.approx(right.logprobs, abs=1e-4)


def test_draws_invert_the_cumulative_distribution() -> None:
    logprobs_BV = torch.tensor([[0.25, 0.0, 0.75]]).log().expand(4, 3)
    assert sample_tokens(logprobs_BV, [0.0, 0.2, 0.3, 1 - 2**-53]).tolist() == [0, 0, 2, 2]
