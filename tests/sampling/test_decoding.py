"""What is written behind a prompt is what the bare model writes there, alone and without a cache, whoever comes and
goes; and what was read is kept and not read again.
"""

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
    PreTrainedTokenizerFast,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
)

from reflectkit.models.architecture import continues_prefixes
from reflectkit.models.rows import CachedPrompt
from reflectkit.models.tiny import PAIRS, build_model, build_tokenizer
from reflectkit.sampling.decoding import LONG, GeneratedText, PrefixCache, decode, sample_tokens
from reflectkit.seeding import uniform

PROMPTS, LONGEST = 10, 14
KINDS = ["gpt2", "lfm2"]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer(["a few words to be merged, and a few others"], [], vocabulary=290)


@pytest.fixture(scope="module")
def models(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """Random models whose weights are large, so that no two rows say the same."""
    return {
        kind: build_model(tokenizer, 96, 3, init_range=0.2, layers=PAIRS if kind == "lfm2" else ()).eval()
        for kind in KINDS
    }


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
    again = decode(models["gpt2"], rows, pad_id=1, stop_ids=frozenset(), max_new_tokens=most, width=3)
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
    return decode(model, prompts, pad_id=1, stop_ids=frozenset([3]), prefix_cache=kept, **options)


def check_same(rows: list[GeneratedText], fresh: list[GeneratedText], rounding: float = 1e-5) -> None:
    assert [row.token_ids for row in rows] == [row.token_ids for row in fresh]
    for row, other in zip(rows, fresh, strict=True):
        assert row.logprobs == pytest.approx(other.logprobs, abs=rounding)


@pytest.mark.parametrize("make", [gpt2, lfm2, llama, qwen])
def test_conversations_go_on_as_if_read_afresh(make: Any) -> None:
    """Six prompts of different lengths, three of them with one head, grow for a turn by what was written and more;
    every other one is first cut by two tokens, as the reflector's are. At most four are decoded at once.
    """
    model, kept, draw = made(make), PrefixCache(), random.Random(0)
    head = [draw.randrange(4, WORDS) for _ in range(40)]
    prompts = [[draw.randrange(4, WORDS) for _ in range(100 + 15 * row)] for row in range(3)]
    prompts += [head + prompt for prompt in prompts]
    for turn in range(2):
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


@pytest.mark.parametrize("make", [gpt2, lfm2, llama, qwen])
@pytest.mark.parametrize("cut", [0, 5])
def test_a_prompt_in_the_cache_is_no_part_of_a_longer_one_in_the_batch(make: Any, cut: int) -> None:
    """An episode begins while another one of its group is at a later turn, so that both prompts begin alike and what
    they share is in the cache, all of the shorter one or more.
    """
    model, kept, draw = made(make), PrefixCache(), random.Random(5)
    story = [draw.randrange(4, WORDS) for _ in range(LONG + 60)]
    written(model, [story[: LONG + 30]], kept)
    batch = [story[: LONG + 30 - cut], story]
    rows = written(model, batch, kept)
    check_same(rows, written(model, batch), 1e-3 if make is qwen else 1e-5)
    assert rows[0].token_ids != rows[1].token_ids


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
def test_turns_of_a_conversation_in_one_batch_are_read_once(make: Any) -> None:
    model, draw = made(make), random.Random(3)
    story = [draw.randrange(4, WORDS) for _ in range(LONG + 4 * 40)]
    turns = [[*story[: LONG + 40 * number], 4 + number] for number in range(5)]
    shuffled = draw.sample([*turns, turns[2]], 6)  # as two episodes of a group ask in the same state
    small = PrefixCache(capacity=1)  # what one batch shares does not depend on what is kept for the next one
    with tokens_read(model) as sizes:
        rows = written(model, shuffled, small, max_new_tokens=1, width=6)
    assert sizes == [LONG + 4 * 40 + 1, 4]  # the last turn, and the ends of the others
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
    assert not any(map(continues_prefixes, models))
    assert all(continues_prefixes(made(make)) for make in (gpt2, lfm2, llama, qwen))
    kept = PrefixCache()
    prompt = [5] * (LONG + 5)
    assert written(models[0].eval(), [prompt], kept) == written(models[0], [prompt])
    assert kept.size == 0


def read(*tokens: int) -> CachedPrompt:
    """A prompt of LONG tokens or more that ends with `tokens`; a byte a token."""
    row = (*range(LONG), *tokens)
    return CachedPrompt(row, ((torch.zeros(1, len(row), dtype=torch.int8),),))


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
