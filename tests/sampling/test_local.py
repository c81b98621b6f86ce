"""The sampler in this process: what is read once, what is kept until the weights change, and what is drawn."""

from __future__ import annotations

import asyncio
import math
import tracemalloc
from collections import Counter
from dataclasses import replace

import pytest
import torch

from reflectkit.errors import CheckpointError
from reflectkit.eventloop import run_sync
from reflectkit.models.labels import LabelPath, label_ids, option_ids, prompt_ids
from reflectkit.models.load import LoadedModel
from reflectkit.sampling.base import SampleOutput, Sampler, SampleRequest, ScoreMemo, Truncation, draw, truncated_rows
from reflectkit.sampling.hf import LocalSampler


def sample(sampler: Sampler, *asks: SampleRequest) -> list[SampleOutput]:
    async def gathered() -> list[SampleOutput]:
        return await asyncio.gather(*map(sampler.sample, asks))

    return run_sync(gathered())


@pytest.fixture
def labels(policy: LoadedModel) -> tuple[LabelPath, ...]:
    return label_ids(policy.tokenizer, 4)


def prompt_of(player: LoadedModel, text: str) -> tuple[int, ...]:
    return tuple(prompt_ids(player.tokenizer, text))


def test_equal_prompts_are_read_once_until_the_weights_change(
    policy: LoadedModel, labels: tuple[LabelPath, ...]
) -> None:
    sampler = LocalSampler(policy)
    prompt = prompt_of(policy, "a taxi")
    first = sample(sampler, *[SampleRequest(prompt, labels, seed=seed) for seed in range(20)])
    assert sampler.tokens == len(prompt)
    assert len({one.token_ids for one in first}) > 1  # each draws for itself
    assert sample(sampler, SampleRequest(prompt, labels, seed=3)) == [first[3]]
    assert sampler.tokens == len(prompt)
    with torch.no_grad():
        policy.model.get_output_embeddings().weight.mul_(2.0)
    assert sample(sampler, SampleRequest(prompt, labels, seed=3)) == [first[3]]  # it does not know yet
    run_sync(sampler.publish(None, 5))
    (after,) = sample(sampler, SampleRequest(prompt, labels, seed=3))
    assert (after.version, first[3].version) == (5, 0)
    assert after.label_logprobs != first[3].label_logprobs
    assert sampler.tokens == 2 * len(prompt)


def test_a_choice_that_was_read_alone_is_not_read_again(policy: LoadedModel) -> None:
    """Not in another list, order or temperature, until the weights change."""
    sampler, prompt = LocalSampler(policy), prompt_of(policy, "a taxi")
    paths = option_ids(policy.tokenizer, ("go left", "go right", "wait"))
    ask = SampleRequest(prompt, paths[:2], temperature=0, separately=True)
    (two,) = sample(sampler, ask)
    read = len(prompt) + sum(map(len, paths[:2]))
    assert sampler.tokens == read
    (three,) = sample(sampler, replace(ask, labels=(paths[2], paths[1], paths[0]), temperature=1.0))
    assert sampler.tokens == read + len(prompt) + len(paths[2])
    gap = two.label_logprobs[0] - two.label_logprobs[1]
    assert three.label_logprobs[2] - three.label_logprobs[1] == pytest.approx(gap, abs=1e-5)
    assert math.fsum(map(math.exp, three.label_logprobs)) == pytest.approx(1, abs=1e-5)
    assert two.token_ids == max(zip(two.label_logprobs, paths, strict=False))[1]
    run_sync(sampler.publish(None, 1))
    sample(sampler, ask)
    assert sampler.tokens == 2 * read + len(prompt) + len(paths[2])


def test_draws_follow_the_distribution() -> None:
    shares = [0.1, 0.2, 0.7]
    counts = Counter(draw([math.log(share) for share in shares], 1.0, seed) for seed in range(4000))
    for index, share in enumerate(shares):
        assert abs(counts[index] / 4000 - share) < 3 * math.sqrt(share * (1 - share) / 4000)


def test_a_text_keeps_its_stop_token(policy: LoadedModel) -> None:
    ask = SampleRequest(prompt_of(policy, "a taxi"), max_new_tokens=5, temperature=0.0)
    (free,) = sample(LocalSampler(policy), ask)
    stop = free.token_ids[2]
    (cut,) = sample(LocalSampler(policy), replace(ask, stop_ids=frozenset({stop})))
    end = free.token_ids.index(stop) + 1
    assert (cut.token_ids, len(cut.logprobs)) == (free.token_ids[:end], end)


def test_only_a_token_that_the_model_cannot_read_is_refused(policy: LoadedModel, labels: tuple[LabelPath, ...]) -> None:
    """A tokenizer may have more tokens than its model, as that of Gemma 3 1B."""
    sampler, prompt = LocalSampler(policy), prompt_of(policy, "a taxi")
    (before,) = sample(sampler, SampleRequest(prompt, labels))
    policy.tokenizer.add_tokens(["<tool>"])
    assert sample(LocalSampler(policy), SampleRequest(prompt, labels)) == [before]
    with pytest.raises(CheckpointError, match=f"token {len(policy.tokenizer) - 1}, '<tool>'"):
        sample(sampler, SampleRequest(prompt_of(policy, "a <tool>"), labels))


def test_a_prompt_that_does_not_fit_is_refused_beside_one_that_does(
    policy: LoadedModel, labels: tuple[LabelPath, ...]
) -> None:
    long = prompt_of(policy, "a") * policy.context
    longest, longer = (
        SampleRequest(long[: policy.context], labels),
        SampleRequest((*long[: policy.context], long[0]), labels),
    )
    text = SampleRequest(long[: policy.context], max_new_tokens=5)
    fits, refused, no_room = sample(LocalSampler(policy), longest, longer, text)
    assert fits.token_ids
    assert not fits.too_long
    assert (refused.token_ids, no_room.token_ids) == ((), ())
    assert f"{policy.context + 1} tokens, but its model reads {policy.context}" in refused.too_long
    assert no_room.too_long
    # Alone, too: the answer does not depend on what else is asked
    assert [answer.too_long for answer in sample(LocalSampler(policy), longer, text)] == [
        refused.too_long,
        no_room.too_long,
    ]


def test_scores_that_are_not_numbers_are_an_error(policy: LoadedModel, labels: tuple[LabelPath, ...]) -> None:
    with torch.no_grad():
        policy.model.get_output_embeddings().weight.fill_(math.nan)
    with pytest.raises(CheckpointError, match="weights are damaged"):
        sample(LocalSampler(policy), SampleRequest(prompt_of(policy, "a taxi"), labels))


@pytest.mark.parametrize(
    ("truncation", "left"),
    [
        (Truncation(), [0.1, 0.4, 0.2, 0.3]),
        (Truncation(top_k=1), [0, 1, 0, 0]),
        (Truncation(top_k=2), [0, 4 / 7, 0, 3 / 7]),
        (Truncation(top_k=9), [0.1, 0.4, 0.2, 0.3]),
        (Truncation(top_p=0.35), [0, 1, 0, 0]),
        (Truncation(top_p=0.6), [0, 4 / 7, 0, 3 / 7]),
        (Truncation(top_p=0.75), [0, 4 / 9, 2 / 9, 3 / 9]),
        (Truncation(min_p=0.4), [0, 4 / 9, 2 / 9, 3 / 9]),  # 0.16 and more
        (Truncation(min_p=1), [0, 1, 0, 0]),
        (Truncation(top_k=2, top_p=0.5), [0, 1, 0, 0]),  # 0.4 of the two that are left is 0.57
        (Truncation(top_p=0.95, min_p=0.6), [0, 4 / 7, 0, 3 / 7]),
    ],
)
def test_truncation_leaves_the_likeliest(truncation: Truncation, left: list[float]) -> None:
    """Of two rows at once."""
    logprobs = [math.log(share) for share in (0.1, 0.4, 0.2, 0.3)]
    rows = truncated_rows(torch.tensor([logprobs, logprobs[::-1]]), truncation).exp().tolist()
    assert rows[0] == pytest.approx(left)
    assert rows[1] == pytest.approx(left[::-1])


def test_top_k_leaves_what_is_as_likely_as_the_last() -> None:
    logprobs = torch.tensor([[0.25, 0.25, 0.5]]).log()
    assert truncated_rows(logprobs, Truncation(top_k=2)).exp().tolist() == [pytest.approx([0.25, 0.25, 0.5])]


def test_labels_that_are_cut_off_are_not_drawn_and_keep_their_probability(
    policy: LoadedModel, labels: tuple[LabelPath, ...]
) -> None:
    prompt, two = prompt_of(policy, "a taxi"), Truncation(top_k=2)
    asks = [SampleRequest(prompt, labels, temperature=3.0, seed=seed, truncation=two) for seed in range(200)]
    drawn = sample(LocalSampler(policy), *asks)
    (whole,) = sample(LocalSampler(policy), SampleRequest(prompt, labels, temperature=3.0))
    first, second, *_ = sorted(whole.label_logprobs, reverse=True)
    kept = math.log(math.exp(first) + math.exp(second))
    likeliest = {labels[whole.label_logprobs.index(one)]: one - kept for one in (first, second)}
    assert {one.token_ids for one in drawn} == set(likeliest)
    for one in drawn:
        assert one.logprobs == pytest.approx((likeliest[one.token_ids],), abs=1e-6)
        assert one.label_logprobs == whole.label_logprobs


def test_a_text_is_drawn_from_the_tokens_that_are_left(policy: LoadedModel) -> None:
    """Beside one that is drawn from all of them."""
    prompt = prompt_of(policy, "a taxi")
    ask = SampleRequest(prompt, max_new_tokens=8, temperature=1.0, seed=1)
    one, free = sample(LocalSampler(policy), replace(ask, truncation=Truncation(top_k=1)), ask)
    (greedy,) = sample(LocalSampler(policy), replace(ask, temperature=0.0))
    assert one.token_ids == greedy.token_ids != free.token_ids
    assert one.logprobs == pytest.approx([0.0] * 8, abs=1e-6)


def test_the_memo_counts_labels_that_change_with_the_prompt() -> None:
    memo = ScoreMemo()
    tracemalloc.start()
    for number in range(300):
        labels = tuple(tuple(1000 * number + 20 * option + place for place in range(8)) for option in range(20))
        memo.keep(labels, (number,), "plain", tuple(float(option) for option in range(20)))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.5 * held < memo.size < 2 * held

    # Labels that are always the same are counted once
    size = memo.size
    memo.keep(labels, (0,), "plain", (0.0,))
    assert memo.size - size < 300
    memo.clear()
    memo.keep(labels, (0,), "plain", (0.0,))
    assert memo.size > 20 * 8 * 28
