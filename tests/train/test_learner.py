"""The learner's update: ratios, micro-batches, memory, and updates that diverge."""

from __future__ import annotations

import math
import random
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from reflectkit.agents.two_player import TwoPlayerAgent
from reflectkit.errors import DivergedError, ReflectkitError
from reflectkit.models.load import LoadedModel, Reference, save_player
from reflectkit.rollout.episode import Episode, rollout
from reflectkit.sampling.hf import LocalSampler
from reflectkit.train import batch
from reflectkit.train.algorithms import objective
from reflectkit.train.learner import Learner, Settings, score, units
from reflectkit.train.losses import weighted_loss
from reflectkit.types import Sample, Task
from tests.train.training import Spelling, favour, gradients_after, play, rows_of


@pytest.mark.parametrize("with_reflector", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_ratio_starts_at_exactly_one(
    policy: LoadedModel, reflector_player: LoadedModel, with_reflector: bool, temperature: float
) -> None:
    played = play(policy, reflector_player if with_reflector else None, 15, temperature=temperature, reflect_prob=0.5)
    samples = rows_of(policy, played)
    learner = Learner(policy, Settings(learning_rate=1e-3, minibatch=10_000, temperature=temperature))
    figures = learner.update(samples, random.Random(0))
    assert figures["ratio_deviation"] < 1e-5
    assert figures["gradient_norm"] > 0
    assert learner.update(samples, random.Random(0))["ratio_deviation"] > 1e-4  # the weights have moved


def test_adjacent_decisions_of_equal_returns_are_weighted_apart(policy: LoadedModel) -> None:
    """Two decisions with nothing between them, each half as likely as when it was sampled, weigh a half each, not a
    quarter.
    """
    stub = Sample(
        (5, 6, 7), (0, 1, 1), (-1, 0, 1), (0.0,) * 3, (0.0, 1.0, 1.0), (0.0, 2.0, 2.0), (), (), "g", replayed=True
    )
    with torch.no_grad():
        now = score(policy.model, [stub], units([stub]), policy.pad_id, 1.0).logprob_N.tolist()
    older = replace(stub, logprobs=(0.0, *(logprob + math.log(2) for logprob in now)))
    settings = Settings(learning_rate=1e-9, loss=weighted_loss)
    figures = Learner(policy, settings).update([older], random.Random(0))
    assert figures["loss"] == pytest.approx(-0.5 * sum(now) / 2, rel=1e-4)


def test_the_weight_of_the_kl_is_capped(policy: LoadedModel) -> None:
    """Where each token is eight times as likely as when it was sampled, a cap of 2 leaves a quarter of the estimate."""
    samples = rows_of(policy, play(policy, count=2))
    samples = [replace(one, logprobs=tuple(value - math.log(8) for value in one.logprobs)) for one in samples]
    start = deepcopy(policy.model)
    with torch.no_grad():
        for weight in start.parameters():
            weight.mul_(1.1)

    def estimate(cap: float) -> float:
        settings = Settings(learning_rate=0.0, minibatch=10_000, kl=0.1, is_cap=cap)
        learner = Learner(policy, settings, reference=Reference(policy, copy=start))
        return learner.update(samples, random.Random(0))["kl_to_start"]

    assert estimate(0.0) > 0
    assert estimate(2.0) == pytest.approx(estimate(0.0) / 4, rel=1e-4)


def test_sharing_a_prompts_forward_changes_nothing(policy: LoadedModel) -> None:
    """Ten copies of the rows give the gradient of one copy."""
    samples = rows_of(policy, play(policy, count=6))
    settings = Settings(learning_rate=0.0, minibatch=10_000, max_grad_norm=1e9)
    once = Learner(policy, settings).update(samples, random.Random(0))
    tenfold = Learner(policy, settings).update(samples * 10, random.Random(0))
    assert tenfold["gradient_norm"] == pytest.approx(once["gradient_norm"], rel=1e-4)
    assert tenfold["entropy"] == pytest.approx(once["entropy"], rel=1e-5)
    assert len(units(samples * 10)) == len({sample.tokens[:-1] for sample in samples})


def test_the_entropy_bonus_alone_spreads_the_policy(policy: LoadedModel) -> None:
    rows = [replace(row, advantages=(0.0,) * len(row.tokens)) for row in rows_of(policy, play(policy, count=6))]
    learner = Learner(policy, Settings(learning_rate=1e-4, minibatch=10_000, entropy=1.0))
    before, after = (learner.update(rows, random.Random(0))["entropy"] for _ in range(2))
    assert after > before


def test_micro_batches_and_checkpointed_gradients_change_nothing_but_memory(policy: LoadedModel) -> None:
    samples = rows_of(policy, play(policy, count=6))
    whole = gradients_after(policy, samples)
    for settings in ({"max_tokens": 300}, {"max_tokens": 1}, {"gradient_checkpointing": True}):
        for name, gradient in gradients_after(policy, samples, **settings).items():
            torch.testing.assert_close(gradient, whole[name], atol=1e-6, rtol=1e-4)


def test_out_of_memory_halves_the_micro_batch_and_repeats(policy: LoadedModel) -> None:
    samples = rows_of(policy, play(policy, count=6))
    whole = gradients_after(policy, samples)
    trunk, told = policy.model.transformer, []
    inner, limit, failures = trunk.forward, 700, []

    def forgetful(input_ids: torch.Tensor, **arguments: Any) -> Any:
        if input_ids.numel() > limit and torch.is_grad_enabled():
            failures.append(input_ids.numel())
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 7 GiB")
        return inner(input_ids=input_ids, **arguments)

    trunk.forward = forgetful
    settings = Settings(learning_rate=0.0, minibatch=10_000, max_grad_norm=1e9, max_tokens=2000)
    learner = Learner(policy, settings, notify=told.append)
    learner.update(samples, random.Random(0))
    assert learner.max_tokens <= 700
    assert len(told) == len(failures) == 2  # 2000, 1000
    assert "500 tokens" in told[-1]
    for name, weight in policy.model.named_parameters():
        if name in whole:
            torch.testing.assert_close(weight.grad, whole[name], atol=1e-6, rtol=1e-4)
    learner.update(samples, random.Random(0))
    assert len(told) == 2  # said once, and kept
    limit = 10
    with pytest.raises(ReflectkitError, match="a single row of"):
        learner.update(samples, random.Random(0))


def test_text_ratio_starts_at_one_and_the_stop_token_is_trained(policy: LoadedModel) -> None:
    task = Task("w", "spelling", "all", "w", {"word": "ab"})
    favour(policy, ["\n"], 4.0)  # so that an untrained model comes to an end
    agent = TwoPlayerAgent(LocalSampler(policy), max_new_tokens=5)
    played = rollout([Episode(task, seed) for seed in range(6)], Spelling, agent)
    (stop,) = policy.tokenizer("\n")["input_ids"]
    assert any(turn.decision.token_ids[-1] == stop for one in played for turn in one.turns)
    found = objective("reinforce", baseline="none", normalize=False).estimate(played)
    samples = batch.rows(played, [[1.0]] * 6, found.returns, {})
    assert all(sample.loss_mask[-1] == 1 and sum(sample.loss_mask) == len(played[0].turns[0].decision.token_ids)
               for sample in samples[:1])  # fmt: skip
    figures = Learner(policy, Settings(learning_rate=1e-3)).update(samples, random.Random(0))
    assert figures["ratio_deviation"] < 1e-5


@pytest.mark.slow
def test_ppo_stops_early_when_it_has_moved_too_far(policy: LoadedModel) -> None:
    samples = rows_of(policy, play(policy))
    settings = Settings(learning_rate=1e-2, epochs=20, max_grad_norm=10.0)
    assert Learner(policy, settings).update(samples, random.Random(0))["gradient_steps"] == 20
    stopped = Learner(policy, replace(settings, target_kl=0.01)).update(samples, random.Random(0))
    assert stopped["gradient_steps"] < 20
    one_step = Learner(policy, replace(settings, epochs=2, target_kl=1e-6)).update(samples, random.Random(0))
    assert one_step["gradient_steps"] == 1  # the first has moved it, the second is not made


def test_a_loss_that_is_not_finite_stops_before_the_step(policy: LoadedModel) -> None:
    samples = [replace(sample, advantages=(math.nan,) * len(sample.tokens)) for sample in rows_of(policy, play(policy))]
    before = [weight.detach().clone() for weight in policy.model.parameters()]
    with pytest.raises(DivergedError, match="the update diverged") as caught:
        Learner(policy, Settings(learning_rate=1e-3)).update(samples, random.Random(0))
    assert len(caught.value.samples) == len(samples)
    assert all(torch.equal(old, new) for old, new in zip(before, policy.model.parameters(), strict=True))


def test_a_step_after_which_a_weight_is_not_finite_is_an_error(policy: LoadedModel) -> None:
    """The losses and gradients of a first step are finite whatever the learning rate."""
    samples = rows_of(policy, play(policy))
    with pytest.raises(DivergedError, match="a weight became NaN or infinite") as caught:
        Learner(policy, Settings(learning_rate=1e308)).update(samples, random.Random(0))
    assert len(caught.value.samples) == len(samples)


def test_a_player_with_a_weight_that_is_not_finite_is_not_saved(policy: LoadedModel, tmp_path: Path) -> None:
    for value in (math.nan, math.inf):
        with torch.no_grad():
            policy.model.transformer.ln_f.bias[0] = value
        with pytest.raises(DivergedError, match="was not written"):
            save_player(tmp_path / "checkpoint-1", policy)
    assert list(tmp_path.iterdir()) == []


def test_no_rows_no_step(policy: LoadedModel) -> None:
    empty: list[Sample] = []
    assert Learner(policy, Settings(learning_rate=1e-3)).update(empty, random.Random(0)) == {}
