"""What was read is kept and not read again: texts are those of a fresh read, and only new tokens are read."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
)

from reflectkit.sampling.base import ScoreMemo
from reflectkit.sampling.decoding import LONG, GeneratedText, PrefixCache, Read, decode, serves

WORDS = 60
SMALL = {
    "vocab_size": WORDS, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0,
}  # fmt: skip


def gpt2() -> Any:
    return GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, n_positions=512, n_embd=16, n_layer=2, n_head=2,
                                      initializer_range=0.3, bos_token_id=0, eos_token_id=0))  # fmt: skip


def lfm2() -> Any:
    """Its convolutions come before, between and behind attention."""
    layers = ["conv", "full_attention", "conv", "conv", "full_attention", "conv"]
    settings = SMALL | {"num_hidden_layers": 6, "layer_types": layers, "block_auto_adjust_ff_dim": False}
    return Lfm2ForCausalLM(Lfm2Config(**settings, num_key_value_heads=1, initializer_range=0.3))


def qwen() -> Any:
    """With a state after all tokens, in three of four layers."""
    sizes = {"num_key_value_heads": 1, "head_dim": 8, "num_hidden_layers": 4, "linear_num_value_heads": 4}
    heads = {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2}
    return Qwen3_5ForCausalLM(Qwen3_5TextConfig(**SMALL | sizes | heads, initializer_range=0.3))


def llama() -> Any:
    return LlamaForCausalLM(LlamaConfig(**SMALL, num_key_value_heads=1, initializer_range=0.3))


def made(make: Any) -> Any:
    torch.manual_seed(0)
    return make().eval()


@contextmanager
def tokens_read(model: Any) -> Iterator[list[int]]:
    """The size of each pass, padding included, while the context is open."""
    sizes: list[int] = []
    embeddings = model.get_input_embeddings()
    hook = embeddings.register_forward_hook(lambda _, given, __: sizes.append(given[0].numel()))
    try:
        yield sizes
    finally:
        hook.remove()


def written(
    model: Any, prompts: list[list[int]], kept: PrefixCache | None = None, **settings: Any
) -> list[GeneratedText]:
    options = {"max_new_tokens": 12, "temperature": 0.9, "seeds": range(len(prompts)), "width": 4} | settings
    return decode(model, prompts, pad_id=1, stop_ids=frozenset([3]), kept=kept, **options)


def check_same(rows: list[GeneratedText], fresh: list[GeneratedText], rounding: float = 1e-5) -> None:
    assert [row.token_ids for row in rows] == [row.token_ids for row in fresh]
    for row, other in zip(rows, fresh, strict=True):
        assert row.logprobs == pytest.approx(other.logprobs, abs=rounding)


@pytest.mark.parametrize("make", [gpt2, lfm2, llama, qwen])
def test_conversations_go_on_as_if_read_afresh(make: Any) -> None:
    """Six prompts of different lengths, three of them with one head, grow for three turns by what was written and more;
    every other one is first cut by two tokens, as the reflector's are. At most four are decoded at once.
    """
    model, kept, draw = made(make), PrefixCache(), random.Random(0)
    head = [draw.randrange(4, WORDS) for _ in range(40)]
    prompts = [[draw.randrange(4, WORDS) for _ in range(100 + 15 * row)] for row in range(3)]
    prompts += [head + prompt for prompt in prompts]
    for turn in range(3):
        with tokens_read(model) as afresh:
            fresh = written(model, prompts)
        with tokens_read(model) as sizes:
            rows = written(model, prompts, kept)
        check_same(rows, fresh, 1e-3 if make is qwen else 1e-5)  # its chunks of 64 tokens begin elsewhere
        if turn:
            assert sum(sizes) < 0.5 * sum(afresh)
        for number, (prompt, row) in enumerate(zip(prompts, rows, strict=True)):
            prompt[:] = prompt[:-2] if number % 2 and make is not qwen else prompt + row.token_ids
            prompt += [draw.randrange(4, WORDS) for _ in range(draw.randrange(3, 30))]
    assert len({tuple(row.token_ids) for row in rows}) > 4


@pytest.mark.parametrize("make", [gpt2, lfm2])
def test_only_new_tokens_are_read(make: Any) -> None:
    model, kept, draw = made(make), PrefixCache(), random.Random(1)
    start = [draw.randrange(4, WORDS) for _ in range(LONG)]
    one, other = [*start, 5, 6, 7], [*start[:-2], 8, 9, 10, 11]
    for prompt, new in ((start, LONG), (one, 3), (other, 4), (other, 1), (one, 5)):
        with tokens_read(model) as sizes:
            rows = written(model, [prompt], kept, max_new_tokens=1)
        assert sizes == [new]
        check_same(rows, written(model, [prompt], max_new_tokens=1))
    batch = [one + [row] * 3 for row in range(4, 8)]
    with tokens_read(model) as sizes:
        written(model, batch, kept, max_new_tokens=1)
    assert sizes == [4 * 3]


@pytest.mark.parametrize("make", [gpt2, lfm2])
def test_turns_of_a_conversation_in_one_batch_are_read_one_after_the_other(make: Any) -> None:
    model, draw = made(make), random.Random(3)
    story = [draw.randrange(4, WORDS) for _ in range(LONG + 4 * 40)]
    turns = [[*story[: LONG + 40 * number], 4 + number] for number in range(5)]
    shuffled = draw.sample([*turns, turns[2]], 6)  # as two episodes of a group ask in the same state
    small = PrefixCache(capacity=1)  # what one batch shares does not depend on what is kept for the next one
    with tokens_read(model) as sizes:
        rows = written(model, shuffled, small, max_new_tokens=1, width=6)
    assert sizes == [LONG + 1, 41, 41, 41, 1, 41]
    afresh = written(model, shuffled, None, max_new_tokens=1, width=6)
    assert [row.token_ids for row in rows] == [row.token_ids for row in afresh]
    for ours, theirs in zip(rows, afresh, strict=True):
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-5)


def test_a_state_is_gone_on_from_by_several_prompts_and_only_where_it_ends() -> None:
    """Four prompts continue one by equally many tokens, in one pass; one that leaves it earlier is read afresh."""
    model, kept, draw = made(qwen), PrefixCache(), random.Random(1)
    start = [draw.randrange(4, WORDS) for _ in range(LONG)]
    for batch, new in (([start], LONG), ([[*start, 5, row] for row in range(4, 8)], 8), ([[*start[:-2], 8]], LONG - 1)):
        with tokens_read(model) as sizes:
            rows = written(model, batch, kept, max_new_tokens=1)
        assert sizes == [new]
        check_same(rows, written(model, batch, max_new_tokens=1), 1e-3)


def test_models_that_forget_or_fold_their_past_are_read_afresh() -> None:
    """Sliding windows, recurrent states, logits that are changed after the head."""
    sliding = MistralConfig(**SMALL, num_key_value_heads=1, sliding_window=8)
    capped = Gemma2Config(**SMALL, num_key_value_heads=1, head_dim=8, final_logit_softcapping=30.0)
    mamba = MambaConfig(vocab_size=WORDS, hidden_size=16, num_hidden_layers=1, state_size=4)
    models = [MistralForCausalLM(sliding), Gemma2ForCausalLM(capped), MambaForCausalLM(mamba)]
    assert not any(map(serves, models))
    assert all(serves(made(make)) for make in (gpt2, lfm2, llama, qwen))
    kept = PrefixCache()
    prompt = [5] * (LONG + 5)
    assert written(models[0].eval(), [prompt], kept) == written(models[0], [prompt])
    assert kept.size == 0


def read(*tokens: int) -> Read:
    """A prompt of LONG tokens or more that ends with `tokens`; a byte a token."""
    row = (*range(LONG), *tokens)
    return Read(row, ((torch.zeros(1, len(row), dtype=torch.int8),),))


def test_a_longer_prompt_takes_the_place_of_the_one_it_goes_on_from() -> None:
    kept = PrefixCache()
    first = read(1)
    kept.keep(first, kept.longest(first.tokens))
    for other in (read(1, 2), read(1, 2, 3, 4)):
        prefix = kept.longest(other.tokens)
        assert prefix.length == len(prefix.read.tokens)
        kept.keep(other, prefix)
        assert kept.size == other.size
    far = Read((*range(60), *[7] * LONG), ((torch.zeros(1, 60 + LONG, dtype=torch.int8),),))
    prefix = kept.longest(far.tokens)
    assert prefix.length == 60  # half of it alike: both stay
    kept.keep(far, prefix)
    assert kept.size == read(1, 2, 3, 4).size + far.size


def test_what_was_used_least_recently_goes_first() -> None:
    kept = PrefixCache(capacity=3 * (LONG + 40))
    episodes = [read(*[number] * 40) for number in range(4)]
    for one in episodes[:3]:
        kept.keep(one, kept.longest(one.tokens))
    assert kept.longest((*episodes[0].tokens, 9)).length == LONG + 40
    kept.keep(episodes[3], kept.longest(episodes[3].tokens))
    kept.trim()
    lengths = [kept.longest((*one.tokens, 9)).length for one in episodes]
    assert lengths == [LONG + 40, LONG, LONG + 40, LONG + 40]
    assert kept.size == kept.capacity
    kept.clear()
    assert (kept.size, kept.longest(episodes[0].tokens).length) == (0, 0)


def test_beyond_its_capacity_it_starts_again() -> None:
    memo, labels = ScoreMemo(10_000), ((5,), (6,))
    most = 0
    for number in range(500):
        memo.trim()
        memo.keep(labels, [number] * 100, 1.0, (-0.5, -0.9))
        assert memo.get(labels, [number] * 100, 1.0) == (-0.5, -0.9)
        most = max(most, memo.size)
    assert 5_000 < most < 11_000
    assert memo.get(labels, [0] * 100, 1.0) is None
    assert memo.get(labels, [499] * 100, 0.7) is None
