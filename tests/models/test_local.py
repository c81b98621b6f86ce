"""The sampler in this process: what is read once, what is kept until the weights change, and what is drawn."""

from __future__ import annotations

import asyncio
import math
from collections import Counter

import pytest
import torch

from reflectkit.core.errors import CheckpointError
from reflectkit.core.eventloop import wait_for
from reflectkit.models.labels import Path
from reflectkit.models.load import Player
from reflectkit.models.local import LocalSampler
from reflectkit.models.sampler import Ask, Sampled, draw
from reflectkit.models.tokens import label_ids, prompt_ids


def sample(sampler: LocalSampler, *asks: Ask) -> list[Sampled]:
    async def gathered() -> list[Sampled]:
        return await asyncio.gather(*map(sampler.sample, asks))

    return wait_for(gathered())


@pytest.fixture
def labels(policy: Player) -> tuple[Path, ...]:
    return label_ids(policy.tokenizer, 4)


def prompt_of(player: Player, text: str) -> tuple[int, ...]:
    return tuple(prompt_ids(player.tokenizer, text))


def test_equal_prompts_are_read_once_until_the_weights_change(policy: Player, labels: tuple[Path, ...]) -> None:
    sampler = LocalSampler(policy)
    prompt = prompt_of(policy, "a taxi")
    first = sample(sampler, *[Ask(prompt, labels, seed=seed) for seed in range(20)])
    assert sampler.tokens == len(prompt)
    assert len({one.token_ids for one in first}) > 1  # each draws for itself
    assert sample(sampler, Ask(prompt, labels, seed=3)) == [first[3]]
    assert sampler.tokens == len(prompt)
    with torch.no_grad():
        policy.model.get_output_embeddings().weight.mul_(2.0)
    assert sample(sampler, Ask(prompt, labels, seed=3)) == [first[3]]  # it does not know yet
    wait_for(sampler.publish(None, 5))
    (after,) = sample(sampler, Ask(prompt, labels, seed=3))
    assert (after.version, first[3].version) == (5, 0)
    assert after.label_logprobs != first[3].label_logprobs
    assert sampler.tokens == 2 * len(prompt)


def test_labels_are_normalised_and_temperature_zero_takes_the_likeliest(
    policy: Player, labels: tuple[Path, ...]
) -> None:
    sampler = LocalSampler(policy)
    prompt = prompt_of(policy, "a taxi")
    greedy, hot = sample(sampler, Ask(prompt, labels, temperature=0.0), Ask(prompt, labels, temperature=3.0))
    assert math.fsum(map(math.exp, greedy.label_logprobs)) == pytest.approx(1, abs=1e-6)
    assert math.fsum(map(math.exp, hot.label_logprobs)) == pytest.approx(1, abs=1e-6)
    assert greedy.logprobs == (max(greedy.label_logprobs),)
    assert max(hot.label_logprobs) < max(greedy.label_logprobs)


def test_draws_follow_the_distribution() -> None:
    shares = [0.1, 0.2, 0.7]
    counts = Counter(draw([math.log(share) for share in shares], 1.0, seed) for seed in range(4000))
    for index, share in enumerate(shares):
        assert abs(counts[index] / 4000 - share) < 3 * math.sqrt(share * (1 - share) / 4000)


def test_equal_greedy_texts_are_written_once(policy: Player) -> None:
    sampler = LocalSampler(policy)
    ask = Ask(prompt_of(policy, "a taxi"), max_new_tokens=5, temperature=0.0)
    one, other = sample(sampler, ask, ask)
    assert one == other
    assert sampler.tokens == len(ask.prompt_ids) + len(one.token_ids)


def test_a_prompt_that_does_not_fit_is_refused_beside_one_that_does(policy: Player, labels: tuple[Path, ...]) -> None:
    long = prompt_of(policy, "a") * policy.context
    longest, longer = Ask(long[: policy.context], labels), Ask((*long[: policy.context], long[0]), labels)
    text = Ask(long[: policy.context], max_new_tokens=5)
    fits, refused, no_room = sample(LocalSampler(policy), longest, longer, text)
    assert fits.token_ids
    assert not fits.too_long
    assert (refused.token_ids, no_room.token_ids) == ((), ())
    assert f"{policy.context + 1} tokens, but its model reads {policy.context}" in refused.too_long
    assert no_room.too_long
    with pytest.raises(CheckpointError, match="train one with a larger --max-length"):
        sample(LocalSampler(policy), longer, text)


def test_scores_that_are_not_numbers_are_an_error(policy: Player, labels: tuple[Path, ...]) -> None:
    with torch.no_grad():
        policy.model.get_output_embeddings().weight.fill_(math.nan)
    with pytest.raises(CheckpointError, match="weights are damaged"):
        sample(LocalSampler(policy), Ask(prompt_of(policy, "a taxi"), labels))
