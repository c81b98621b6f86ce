"""What is written behind a prompt is what the bare model writes there, alone and without a cache, whoever comes and
goes.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM, PreTrainedTokenizerFast

from reflectkit.core.seeding import uniform
from reflectkit.models import decoding
from reflectkit.models.decoding import Written, decode
from reflectkit.models.drafts import Drafts, Guide
from reflectkit.models.stop_strings import StopStrings
from reflectkit.models.tiny import build_model, build_tokenizer

PROMPTS, LONGEST = 10, 24
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
    return [LONGEST, 0, 5, 1, 17, LONGEST, 9, 0, 12, 3]


@torch.no_grad()
def alone_without_cache(
    model: Any,
    prompt: list[int],
    limit: int,
    temperature: float,
    seed: int,
    stop_ids: frozenset[int],
    tokenizer: Any,
    stop: str,
) -> Written:
    """The rule: all that stands there is read again for each token."""
    line = Written()
    for step in range(limit):
        logits_V = model(torch.tensor([prompt + line.token_ids]), use_cache=False).logits[0, -1].double()
        logprobs_V = torch.log_softmax(logits_V / (temperature or 1.0), dim=-1)
        token = int(logprobs_V.argmax())
        if temperature:
            token = int((logprobs_V.exp().cumsum(0) <= uniform(seed, "token", step)).sum())
        line.token_ids.append(token)
        line.logprobs.append(float(logprobs_V[token]))
        line.stop_token = token in stop_ids
        line.stopped = line.stop_token or bool(stop and stop in tokenizer.decode(line.token_ids))
        if line.stopped:
            break
    return line


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("shared", [0, 12])
def test_every_width_writes_what_a_row_alone_without_cache_writes(
    kind: str, temperature: float, shared: int, models: dict[str, Any], tokenizer: PreTrainedTokenizerFast
) -> None:
    model, rows, seeds = models[kind], prompts(tokenizer, shared), list(range(100, 100 + PROMPTS))
    stop_ids = frozenset(range(2, len(tokenizer), 23))
    expected = [
        alone_without_cache(model, row, limit, temperature, seed, stop_ids, None, "")
        for row, limit, seed in zip(rows, limits(), seeds, strict=True)
    ]
    assert len({tuple(line.token_ids) for line in expected}) >= 8  # of ten, two are empty
    assert any(line.stopped for line in expected)
    assert any(len(line.token_ids) > 15 for line in expected)
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
            assert (line.token_ids, line.stopped, line.stop_token) == (right.token_ids, right.stopped, right.stop_token)
            assert line.logprobs == pytest.approx(right.logprobs, abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stop_string_ends_a_row_with_the_token_that_completes_it(
    kind: str, models: dict[str, Any], tokenizer: PreTrainedTokenizerFast
) -> None:
    model, rows = models[kind], prompts(tokenizer, 0)
    options = {"pad_id": 1, "max_new_tokens": LONGEST, "temperature": 1.0, "seeds": list(range(PROMPTS)), "width": 3}
    free = decode(model, rows, stop_ids=frozenset(), **options)
    texts = [tokenizer.decode(line.token_ids) for line in free]
    stop = next(
        text[place : place + 3]
        for text in texts
        for place in range(8, len(text) - 3)
        if text[place : place + 3].isascii()
    )
    written = decode(
        model, rows, stop_ids=frozenset(), stop_strings=[stop, "never said"], tokenizer=tokenizer, **options
    )
    for row, line in enumerate(written):
        right = alone_without_cache(model, rows[row], LONGEST, 1.0, row, frozenset(), tokenizer, stop)
        assert (line.token_ids, line.stopped) == (right.token_ids, right.stopped)
        assert line.text_ids == line.token_ids  # what completes the string is text
        assert stop not in tokenizer.decode(line.token_ids[:-1])
    assert any(line.stopped for line in written)
    with pytest.raises(ValueError, match="tokenizer"):
        decode(model, rows, stop_ids=frozenset(), stop_strings=["x"], **options)


def test_stop_strings_of_many_bytes_are_found_whatever_tokens_they_are_cut_into(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    for stop, before in (
        ("€.", "a few é"),
        ("</call>\n", "words " * 9),
        ("é", ""),
        (" to ", "merged"),
        ("<|end|>", "a"),
    ):
        ends = StopStrings([stop], tokenizer)
        ids = tokenizer(before + stop + "!")["input_ids"]
        found = next(count for count in range(1, len(ids) + 1) if ends.end(ids[:count]))
        assert stop in tokenizer.decode(ids[:found])
        assert stop not in tokenizer.decode(ids[: found - 1])


def test_a_stop_token_is_dropped_from_the_text_and_a_limit_is_no_stop(
    models: dict[str, Any], tokenizer: PreTrainedTokenizerFast
) -> None:
    (row, *_) = prompts(tokenizer, 0)
    (free,) = decode(models["gpt2"], [row], pad_id=1, stop_ids=frozenset(), max_new_tokens=6)
    assert not free.stopped
    assert free.text_ids == free.token_ids
    third = free.token_ids[2]
    (cut,) = decode(models["gpt2"], [row], pad_id=1, stop_ids=frozenset([third]), max_new_tokens=6)
    assert cut.stopped
    assert cut.token_ids == free.token_ids[: free.token_ids.index(third) + 1]
    assert cut.text_ids == cut.token_ids[:-1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_is_the_same_alone_and_in_company(
    kind: str, models: dict[str, Any], tokenizer: PreTrainedTokenizerFast
) -> None:
    rows = prompts(tokenizer, 12)
    options = {"pad_id": 1, "stop_ids": frozenset([5]), "temperature": 0.9}
    together = decode(
        models[kind], rows, max_new_tokens=[20] * PROMPTS, seeds=[7 * row for row in range(PROMPTS)], width=4, **options
    )
    backwards = decode(
        models[kind], rows[::-1], max_new_tokens=20, seeds=[7 * row for row in range(PROMPTS)][::-1], width=3, **options
    )[::-1]
    for row, line in enumerate(together):
        (alone,) = decode(models[kind], [rows[row]], max_new_tokens=20, seeds=[7 * row], **options)
        assert alone.token_ids == line.token_ids == backwards[row].token_ids
        assert alone.logprobs == pytest.approx(line.logprobs, abs=1e-4)


def test_nothing_is_read_for_rows_that_may_write_nothing(
    tokenizer: PreTrainedTokenizerFast, models: dict[str, Any]
) -> None:
    passes: list[int] = []
    hook = models["gpt2"].transformer.register_forward_hook(lambda *_: passes.append(1))
    try:
        rows = prompts(tokenizer, 12)
        assert decode(models["gpt2"], rows, pad_id=1, stop_ids=frozenset(), max_new_tokens=0) == [Written()] * PROMPTS
        assert decode(models["gpt2"], [], pad_id=1, stop_ids=frozenset(), max_new_tokens=4) == []
        assert not passes
        decode(models["gpt2"], rows[:3], pad_id=1, stop_ids=frozenset(), max_new_tokens=[0, 2, 0])
        assert len(passes) == 2
    finally:
        hook.remove()


def test_a_row_fills_its_context_beside_one_that_goes_on(
    models: dict[str, Any], tokenizer: PreTrainedTokenizerFast
) -> None:
    """GPT-2 has no position behind its last: a row that is done must not move on, nor may a late one's
    padding matter.
    """
    rows, most = [[2 + row, 3] for row in range(5)] + [[2 + token for token in range(90)]], [60] * 5 + [6]
    written = decode(models["gpt2"], rows, pad_id=1, stop_ids=frozenset(), max_new_tokens=most, width=64)
    assert [len(line.token_ids) for line in written] == most
    for width in (2, 3):
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
        right = alone_without_cache(model, row, limit, 0.0, 0, frozenset([3]), None, "")
        assert line.token_ids == right.token_ids
        assert line.logprobs == pytest.approx(right.logprobs, abs=1e-4)


def test_draws_in_blocks_are_the_draws_of_the_whole_distribution() -> None:
    torch.manual_seed(0)
    for vocabulary in (7, 256, 1000):
        logprobs_BV = torch.log_softmax(3 * torch.randn(400, vocabulary), dim=-1)
        draws = torch.rand(400, dtype=torch.float64)
        cumulative_BV = logprobs_BV.double().exp().cumsum(dim=-1)
        whole_B = (cumulative_BV <= draws[:, None] * cumulative_BV[:, -1:]).sum(dim=-1)
        assert (decoding.sample_tokens(logprobs_BV, draws.tolist()) == whole_B).all()


@pytest.mark.parametrize("kind", KINDS)
def test_guesses_right_or_wrong_change_only_the_number_of_passes(
    kind: str, models: dict[str, Any], tokenizer: PreTrainedTokenizerFast
) -> None:
    model, rows = models[kind], prompts(tokenizer, 12)
    options = {"pad_id": 1, "stop_ids": frozenset(range(2, len(tokenizer), 23)), "max_new_tokens": limits()}
    expected = decode(model, rows, **options)
    known = Drafts()
    for number, (row, line) in enumerate(zip(rows, expected, strict=True)):
        spoilt = [*line.token_ids[:2], 9, *line.token_ids[3:], 11, 12]  # wrong in the third token, and too long
        known.remember(row, line.token_ids if number % 3 else spoilt)
    guides = [known.guide(row) for row in rows]
    for width in (1, 3, 64):
        written = decode(model, rows, width=width, guides=guides, **options)
        for line, right in zip(written, expected, strict=True):
            assert (line.token_ids, line.stopped, line.stop_token) == (right.token_ids, right.stopped, right.stop_token)
            assert line.logprobs == pytest.approx(right.logprobs, abs=1e-4)
    passes: list[int] = []
    hook = model.get_decoder().register_forward_hook(lambda *_: passes.append(1))
    try:
        counts = []
        for guided in (guides, []):  # by the model's own forward, as it is watched
            watched = decode(model, rows, guides=guided, **options)
            assert [line.token_ids for line in watched] == [line.token_ids for line in expected]
            counts.append(len(passes))
            passes.clear()
    finally:
        hook.remove()
    with_guides, without = counts
    assert with_guides <= without * 2 / 3 if kind == "gpt2" else with_guides == without  # convolutions go only forward


def test_a_row_whose_guesses_are_always_wrong_is_rarely_guessed(
    models: dict[str, Any], tokenizer: PreTrainedTokenizerFast
) -> None:
    widths: list[int] = []
    (row, *_) = prompts(tokenizer, 0)
    (right,) = decode(models["gpt2"], [row], pad_id=1, stop_ids=frozenset(), max_new_tokens=20)
    wrong = Guide({}, {(token,): 1 for token in range(len(tokenizer))})
    assert 1 not in right.token_ids
    hook = models["gpt2"].transformer.register_forward_hook(lambda _, __, output: widths.append(output[0].shape[1]))
    try:
        (line,) = decode(models["gpt2"], [row], pad_id=1, stop_ids=frozenset(), max_new_tokens=20, guides=[wrong])
    finally:
        hook.remove()
    assert line.token_ids == right.token_ids
    guessed = [1, 2, 3, 4, 8, 12, 16]  # tokens that are written already; at 16, only 3 more are worth a guess
    assert widths == [len(row), *[1 + min(7, 19 - done) if done in guessed else 1 for done in range(1, 20)]]


def test_many_rows_have_fewer_guesses_each(models: dict[str, Any], tokenizer: PreTrainedTokenizerFast) -> None:
    model, (row, *_) = models["gpt2"], prompts(tokenizer, 0)
    options: dict[str, Any] = {"pad_id": 1, "stop_ids": frozenset(), "max_new_tokens": 10}
    (right,) = decode(model, [row], **options)
    known = Drafts()
    known.remember(row, right.token_ids)
    widths: list[int] = []
    hook = model.transformer.register_forward_hook(lambda _, __, output: widths.append(output[0].shape[1]))
    try:
        for rows, first in ((4, 1 + 7), (16, 1 + 3), (49, 1)):
            widths.clear()
            written = decode(model, [row] * rows, guides=[known.guide(row)] * rows, **options)
            assert widths[1] == first, widths  # behind the pass over the prompts
            assert all(line.token_ids == right.token_ids for line in written)
    finally:
        hook.remove()
