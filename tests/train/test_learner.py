"""Rows of what was sampled, and the learner's update: ratios, critic, micro-batches, memory, divergence."""

from __future__ import annotations

import copy
import itertools
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from reflectkit.agents.two_player import TwoPlayerAgent
from reflectkit.errors import DivergedError, ReflectkitError
from reflectkit.models import scoring
from reflectkit.models.labels import label_ids
from reflectkit.models.load import LoadedModel, Reference, save_player
from reflectkit.prompts import policy_prompt
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.sampling.hf import LocalSampler
from reflectkit.train import local_learner, training_rows
from reflectkit.train.critic import Critic
from reflectkit.train.learner import LearnerSettings
from reflectkit.train.local_learner import LocalLearner
from reflectkit.train.losses import weighted_loss
from reflectkit.train.microbatch import Unit, minibatches, packed, packed_as_trees, score, units
from reflectkit.types import Decision, Message, Observation, Sample, Status, Task, Trajectory, Turn
from tests.train.training import Spelling, favour, gradients_after, objective, play, rows_of


@pytest.mark.parametrize(("with_reflector", "temperature"), [(True, 0.7), (False, 1.0)])
def test_ratio_starts_at_exactly_one(
    policy: LoadedModel, reflector_player: LoadedModel, with_reflector: bool, temperature: float
) -> None:
    played = play(policy, reflector_player if with_reflector else None, temperature=temperature, reflect_prob=0.5)
    samples = rows_of(policy, played)
    learner = LocalLearner(policy, LearnerSettings(learning_rate=1e-3, minibatch=10_000, temperature=temperature))
    figures = learner.update(samples, random.Random(0)).figures
    assert figures["ratio_deviation"] < 1e-5
    assert figures["gradient_norm"] > 0
    assert learner.update(samples, random.Random(0)).figures["ratio_deviation"] > 1e-4  # the weights have moved


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
    settings = LearnerSettings(learning_rate=1e-9, loss=weighted_loss)
    figures = LocalLearner(policy, settings).update([older], random.Random(0)).figures
    assert figures["loss"] == pytest.approx(-0.5 * sum(now) / 2, rel=1e-4)


def test_sharing_a_prompts_forward_changes_nothing(policy: LoadedModel) -> None:
    """Ten copies of the rows give the gradient of one copy."""
    samples = rows_of(policy, play(policy, count=6))
    settings = LearnerSettings(learning_rate=0.0, minibatch=10_000, max_grad_norm=1e9)
    once = LocalLearner(policy, settings).update(samples, random.Random(0)).figures
    tenfold = LocalLearner(policy, settings).update(samples * 10, random.Random(0)).figures
    assert tenfold["gradient_norm"] == pytest.approx(once["gradient_norm"], rel=1e-4)
    assert tenfold["entropy"] == pytest.approx(once["entropy"], rel=1e-5)
    assert len(units(samples * 10)) == len({sample.tokens[:-1] for sample in samples})


def test_an_entropy_rate_of_0_leaves_the_bonus_out(policy: LoadedModel) -> None:
    samples = rows_of(policy, play(policy, count=6))
    norms = []
    for entropy, rate in ((0.0, 1.0), (0.5, 0.0), (0.5, 1.0)):
        learner = LocalLearner(policy, LearnerSettings(learning_rate=0.0, minibatch=10_000, entropy=entropy))
        norms.append(learner.update(samples, random.Random(0), entropy_rate=rate).figures["gradient_norm"])
    assert norms[0] == pytest.approx(norms[1], rel=1e-6) != pytest.approx(norms[2], rel=1e-3)


def test_the_entropy_bonus_alone_spreads_the_policy(policy: LoadedModel) -> None:
    rows = [replace(row, advantages=(0.0,) * len(row.tokens)) for row in rows_of(policy, play(policy, count=6))]
    learner = LocalLearner(policy, LearnerSettings(learning_rate=1e-4, minibatch=10_000, entropy=1.0))
    before, after = (learner.update(rows, random.Random(0)).figures["entropy"] for _ in range(2))
    assert after > before


def test_micro_batches_and_checkpointed_gradients_change_nothing_but_memory(policy: LoadedModel) -> None:
    samples = rows_of(policy, play(policy, count=6))
    whole = gradients_after(policy, samples)
    for settings in ({"max_tokens": 300}, {"max_tokens": 1}, {"gradient_checkpointing": True}):
        for name, gradient in gradients_after(policy, samples, **settings).items():
            torch.testing.assert_close(gradient, whole[name], atol=1e-6, rtol=1e-4)


def test_branches_in_one_row_change_nothing_but_speed(policy: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU. With room for 60 tokens, two rows of 23 tokens are read together, instead of 3 times 22 for each."""
    choices, chance = ((5, 9), (5, 8), (6, 1), (6, 2), (7, 3), (7, 4)), random.Random(0)
    samples = []
    for number in range(4):
        tokens = (*chance.choices(range(1, 60), k=20), *choices[number])
        zeros = (0.0,) * 20
        columns = ((*zeros, -1.5, 0.0), (*zeros, 1.0 - number, 0.0), (*zeros, 0.0, 0.0))
        samples.append(Sample(tokens, (0,) * 20 + (1, 0), (-1,) * 20 + (0, -1), *columns, (), choices, str(number)))
    expected = gradients_after(policy, samples, max_tokens=60)
    passes = list[int]()
    for module in (scoring, local_learner):
        monkeypatch.setattr(module, "reads_branches", lambda model: True)
    hook = policy.model.get_input_embeddings().register_forward_hook(lambda _, given, __: passes.append(len(given[0])))
    found = gradients_after(policy, samples, max_tokens=60)
    hook.remove()
    assert passes == [2, 2]
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-6, rtol=1e-4)


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
    settings = LearnerSettings(learning_rate=0.0, minibatch=10_000, max_grad_norm=1e9, max_tokens=2000)
    learner = LocalLearner(policy, settings, notify=told.append)
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
    samples = training_rows.rows(played, [[1.0]] * 6, found.returns, {})
    assert all(sample.loss_mask[-1] == 1 and sum(sample.loss_mask) == len(played[0].turns[0].decision.token_ids)
               for sample in samples[:1])  # fmt: skip
    figures = LocalLearner(policy, LearnerSettings(learning_rate=1e-3)).update(samples, random.Random(0)).figures
    assert figures["ratio_deviation"] < 1e-5


def test_ppo_stops_early_when_it_has_moved_too_far(policy: LoadedModel) -> None:
    samples = rows_of(policy, play(policy, count=4))
    for target, steps in ((0.0, 2), (1e-6, 1)):  # the first has moved it, the second is not made
        settings = LearnerSettings(learning_rate=1e-2, epochs=2, max_grad_norm=10.0, target_kl=target)
        assert LocalLearner(policy, settings).update(samples, random.Random(0)).figures["gradient_steps"] == steps


def test_an_update_ends_at_its_largest_kl(policy: LoadedModel) -> None:
    samples = rows_of(policy, play(policy, count=4))
    for limit, steps in ((0.0, 2), (1e3, 2), (1e-6, 1)):
        settings = LearnerSettings(learning_rate=1e-2, epochs=2, max_grad_norm=10.0, max_kl=limit)
        figures = LocalLearner(policy, settings).update(samples, random.Random(0)).figures
        assert figures["gradient_steps"] == steps
        assert figures["learning_rate"] == 1e-2  # unlike with a target


def test_the_learning_rate_adapts_to_a_target_kl(policy: LoadedModel) -> None:
    samples = rows_of(policy, play(policy, count=4))
    # 1. A far target: the rate begins at a tenth of the peak, and each of two further steps raises it by half.
    settings = LearnerSettings(learning_rate=1e-6, epochs=3, max_grad_norm=10.0, target_kl=1.0)
    near = LocalLearner(policy, settings)
    assert near.update(samples, random.Random(0)).figures["learning_rate"] == pytest.approx(1e-6 * 0.1 * 1.5**2)
    # 2. A resumed learner continues at this rate, and does not exceed the peak.
    resumed = LocalLearner(policy, settings)
    resumed.load(near.state())
    assert resumed.update(samples, random.Random(0)).figures["learning_rate"] == pytest.approx(1e-6 * 0.1 * 1.5**4)
    for _ in range(2):
        figures = resumed.update(samples, random.Random(0)).figures
    assert figures["learning_rate"] == pytest.approx(1e-6)
    # 3. A step that went too far ends the update, and halves the rate of the next one.
    far = LocalLearner(policy, replace(settings, learning_rate=1e-2, target_kl=1e-9))
    figures = far.update(samples, random.Random(0)).figures
    assert figures["gradient_steps"] == 1
    assert figures["learning_rate"] == pytest.approx(1e-2 * 0.1 * 0.5)


def test_a_loss_that_is_not_finite_stops_before_the_step(policy: LoadedModel) -> None:
    samples = [replace(sample, advantages=(math.nan,) * len(sample.tokens)) for sample in rows_of(policy, play(policy))]
    before = [weight.detach().clone() for weight in policy.model.parameters()]
    with pytest.raises(DivergedError, match="the update diverged") as caught:
        LocalLearner(policy, LearnerSettings(learning_rate=1e-3)).update(samples, random.Random(0))
    assert len(caught.value.samples) == len(samples)
    assert all(torch.equal(old, new) for old, new in zip(before, policy.model.parameters(), strict=True))


def test_a_step_after_which_a_weight_is_not_finite_is_an_error(policy: LoadedModel) -> None:
    """The losses and gradients of a first step are finite whatever the learning rate."""
    samples = rows_of(policy, play(policy))
    with pytest.raises(DivergedError, match="a weight became NaN or infinite") as caught:
        LocalLearner(policy, LearnerSettings(learning_rate=1e308)).update(samples, random.Random(0))
    assert len(caught.value.samples) == len(samples)


def test_a_player_with_a_weight_that_is_not_finite_is_not_saved(policy: LoadedModel, tmp_path: Path) -> None:
    for value in (math.nan, math.inf):
        with torch.no_grad():
            policy.model.transformer.ln_f.bias[0] = value
        with pytest.raises(DivergedError, match="was not written"):
            save_player(tmp_path / "checkpoint-1", policy)
    assert list(tmp_path.iterdir()) == []


def test_old_rows_are_weighted_and_never_fresh(policy: LoadedModel) -> None:
    """A decision that the policy has since made ten times less likely weighs a tenth in REINFORCE."""
    sample = next(sample for sample in rows_of(policy, play(policy)) if abs(sample.advantages[-1]) > 0.5)
    settings = {"entropy": 0.0, "loss": weighted_loss}
    as_fresh = gradients_after(policy, [sample], **settings)
    older = replace(sample, logprobs=(*sample.logprobs[:-1], sample.logprobs[-1] + math.log(10)), replayed=True)
    for name, gradient in gradients_after(policy, [older], **settings).items():
        torch.testing.assert_close(gradient, as_fresh[name] / 10, atol=1e-6, rtol=1e-3)
    likelier = replace(sample, logprobs=(*sample.logprobs[:-1], sample.logprobs[-1] - math.log(10)), replayed=True)
    for name, gradient in gradients_after(policy, [likelier], **settings).items():
        torch.testing.assert_close(gradient, as_fresh[name] * 1.2, atol=1e-6, rtol=1e-3)  # 10, cut at 1 + clip


def test_replayed_tokens_are_not_drawn_to_the_start(policy: LoadedModel) -> None:
    """Of each row and a replayed copy of it, the penalty of the mean token is half that of the rows."""
    samples = rows_of(policy, play(policy, count=4))
    start = copy.deepcopy(policy.model)
    with torch.no_grad():
        for weight in start.parameters():
            weight.mul_(1.5)
    settings = LearnerSettings(learning_rate=0.0, kl=0.5)
    penalties = []
    for old in ([], [replace(sample, replayed=True) for sample in samples]):
        learner = LocalLearner(policy, settings, reference=Reference(policy, copy=start))
        penalties.append(learner.update([*samples, *old], random.Random(0)).figures["kl_to_start"])
    assert penalties[0] > 1e-3
    assert penalties[1] == pytest.approx(penalties[0] / 2, rel=1e-4)


def test_the_schedule_scales_a_step(policy: LoadedModel) -> None:
    """Adam's first step is as long as the learning rate, whatever the gradient."""
    samples = rows_of(policy, play(policy, count=4))
    before = copy.deepcopy(policy.model.state_dict())
    lengths = []
    for rate in (1.0, 0.5, 0.0):
        policy.model.load_state_dict(before)
        learner = LocalLearner(policy, LearnerSettings(learning_rate=1e-3, minibatch=10_000, max_grad_norm=1e9))
        learner.update(samples, random.Random(0), rate=rate)
        after = policy.model.state_dict()
        lengths.append(max(float((after[name] - weight).abs().max()) for name, weight in before.items()))
    assert lengths == pytest.approx([1e-3, 0.5e-3, 0.0], rel=1e-2)


def test_the_critics_error_is_in_units_of_the_returns_deviation(policy: LoadedModel) -> None:
    """A new critic says the mean return, so half its squared error is half the variance: 1/2."""
    critic = Critic(policy)
    played = play(policy, critic=critic)
    values = [[turn.decision.value or 0.0 for turn in one.turns] for one in played]
    samples = rows_of(policy, played, values)
    learner = LocalLearner(policy, LearnerSettings(learning_rate=0.0, minibatch=10_000), critic)
    figures = learner.update(samples, random.Random(0)).figures
    assert abs(float(critic.deviation) - 1) > 0.1
    assert figures["value_loss"] == pytest.approx(0.5, rel=1e-4)


def test_values_of_earlier_weights_are_forgotten(policy: LoadedModel) -> None:
    critic = Critic(policy)
    learner = LocalLearner(policy, LearnerSettings(learning_rate=1e-3), critic)
    played = learner.valued(play(policy, critic=critic))
    values = [[turn.decision.value or 0.0 for turn in one.turns] for one in played]
    learner.update(rows_of(policy, played, values), random.Random(0))
    again = [turn.decision.value for one in learner.valued(played) for turn in one.turns]
    prompts = [turn.decision.prompt_ids for one in played for turn in one.turns]
    assert again == pytest.approx(learner.values(prompts), abs=1e-5)
    assert max(map(abs, again)) > 1e-2  # a new critic says 0


def test_replayed_values_are_the_critics_of_today(policy: LoadedModel) -> None:
    critic = Critic(policy)
    learner = LocalLearner(policy, LearnerSettings(learning_rate=1e-3), critic)
    played = play(policy, critic=critic)
    prompts = [turn.decision.prompt_ids for one in played for turn in one.turns]
    assert learner.values(prompts) == pytest.approx([0.0] * len(prompts))
    with torch.no_grad():
        critic.head.weight.normal_(generator=torch.Generator().manual_seed(0))
    again = play(policy, critic=critic)
    recorded = [turn.decision.value for one in again for turn in one.turns]
    assert learner.values([turn.decision.prompt_ids for one in again for turn in one.turns]) == pytest.approx(
        recorded, abs=1e-4
    )
    assert len(set(recorded)) > 3


@pytest.mark.parametrize(("trunk", "moves"), [("detached", False), ("shared", True), ("separate", False)])
def test_whose_weights_the_critics_errors_move(policy: LoadedModel, trunk: str, moves: bool) -> None:
    critic = Critic(policy, "mlp", trunk)
    with torch.no_grad():
        critic.head[-1].weight.normal_(generator=torch.Generator().manual_seed(0))
    played = play(policy, critic=critic)
    values = [[turn.decision.value or 0.0 for turn in one.turns] for one in played]
    samples = [replace(sample, advantages=(0.0,) * len(sample.tokens)) for sample in rows_of(policy, played, values)]
    learner = LocalLearner(policy, LearnerSettings(learning_rate=0.0, entropy=0.0, max_grad_norm=1e9), critic)
    learner.update(samples, random.Random(0))
    norm = sum(float(weight.grad.abs().sum()) for weight in policy.model.parameters() if weight.grad is not None)
    assert (norm > 0) == moves
    assert all(weight.grad is not None for weight in critic.head.parameters())
    if trunk == "separate":
        assert any(
            float(weight.grad.abs().sum()) > 0 for weight in critic.own_trunk.parameters() if weight.grad is not None
        )


def test_rows_hold_what_was_sampled(policy: LoadedModel) -> None:
    played = play(policy)
    samples = rows_of(policy, played)
    assert len(samples) == sum(len(trajectory.turns) for trajectory in played)
    first, turn = samples[0], played[0].turns[0]
    labels = label_ids(policy.tokenizer, 6)
    assert first.tokens == (
        *policy.tokenizer(policy_prompt(turn.observation))["input_ids"],
        *labels[int(turn.decision.action)],
    )
    assert first.loss_mask == (0,) * (len(first.tokens) - 1) + (1,)
    assert first.logprobs[-1] == turn.decision.logprobs[0]
    assert first.returns[-1] == pytest.approx(played[0].total_return)
    assert not any(first.advantages[:-1])


def test_text_turns_make_one_row_while_the_prompt_grows() -> None:
    def turn(prompt: tuple[int, ...], written: tuple[int, ...]) -> Turn:
        return Turn(
            Observation((Message("user", "?"),)), Decision("a", None, prompt, written, (-0.5,) * len(written)), 1.0
        )

    task = Task("t", "e", "l", "g", {})
    turns = (turn((1, 2), (3, 4)), turn((1, 2, 3, 4, 5), (6,)), turn((9,), (7, 8)))  # the third prompt was rebuilt
    played = [Trajectory(task, 0, turns, Status.COMPLETED, True)]
    first, second = training_rows.rows(played, [[1.0, 2.0, 3.0]], [[4.0, 5.0, 6.0]], {}, [[0.1, 0.2, 0.3]])
    assert first.tokens == (1, 2, 3, 4, 5, 6)
    assert first.loss_mask == (0, 0, 1, 1, 0, 1)
    assert first.decisions == (-1, -1, 0, 0, -1, 1)
    assert first.advantages == (0, 0, 1, 1, 0, 2)
    assert first.returns == (0, 0, 4, 4, 0, 5)
    assert first.values == (0, 0, 0.1, 0.1, 0, 0.2)
    assert (second.tokens, second.loss_mask, second.choices) == ((9, 7, 8), (0, 1, 1), ())


def test_minibatches_mix_the_rows_of_all_units() -> None:
    """A state with 90 rows and one with 30, in minibatches of 40: each has rows of both."""
    parts = [Unit((1,), (2, 3), tuple(range(90))), Unit((2,), (2, 3), tuple(range(90, 120)))]
    mixed = minibatches(parts, 3, random.Random(0))
    for minibatch in mixed:
        assert {unit.tokens for unit in minibatch} == {(1,), (2,)}
        assert sum(len(unit.rows) for unit in minibatch) == 40
    assert sorted(row for minibatch in mixed for unit in minibatch for row in unit.rows) == list(range(120))


def test_a_prompt_with_few_rows_stays_in_one_minibatch() -> None:
    """It is read once; the 64 prompts with four rows each are still divided at random."""
    parts = [Unit((prompt,), (2, 3), tuple(range(4 * prompt, 4 * prompt + 4))) for prompt in range(64)]
    mixed = minibatches(parts, 2, random.Random(0))
    prompts = [[unit.tokens for unit in minibatch] for minibatch in mixed]
    assert sorted(itertools.chain(*prompts)) == [(prompt,) for prompt in range(64)]
    assert prompts[0] != sorted(prompts[0])


def test_minibatches_differ_by_one_row_at_most() -> None:
    parts = [Unit((1,), (2, 3), (0, 4, 5)), Unit((2,), (), (1,)), Unit((3,), (2, 3), (2, 3, 6))]
    mixed = minibatches(parts, 3, random.Random(0))
    assert [sum(len(unit.rows) for unit in minibatch) for minibatch in mixed] == [2, 2, 3]
    (every,) = minibatches(parts, 1, random.Random(0))
    assert {unit.tokens: sorted(unit.rows) for unit in every} == {(1,): [0, 4, 5], (2,): [1], (3,): [2, 3, 6]}


def test_neighbouring_steps_of_a_search_stay_together() -> None:
    """Its options are read alone: in a minibatch, each option of neighbours is read once."""
    parts = []
    for step in range(64):
        options = tuple((option, 9) for option in range(step, step + 20))
        parts.append(Unit((1,), options, (step,), separately=True))
    mixed = minibatches(parts, 2, random.Random(0))
    rows = [row for minibatch in mixed for unit in minibatch for row in unit.rows]
    assert rows != sorted(rows)
    assert sorted(rows) == list(range(64))
    for minibatch in mixed:
        # Lots of four steps
        steps = [unit.rows[0] for unit in minibatch]
        assert steps == [first + place for first in steps[::4] for place in range(4)]
        # Two lots fit into the tokens of a micro-batch, each with 23 options of two tokens
        micro_batches = packed(minibatch, 2 * (4 + 2 * 23))
        assert len(micro_batches) <= 4
        for micro in micro_batches:
            assert [unit.rows for unit in micro] == sorted(unit.rows for unit in micro)


def test_each_epoch_has_other_minibatches(policy: LoadedModel) -> None:
    samples = rows_of(policy, play(policy, count=4))
    passes: list[set[tuple[int, ...]]] = []

    def record(_: Any, given: tuple[torch.Tensor, ...], __: Any) -> None:
        passes.append({tuple(token for token in row if token != policy.pad_id) for row in given[0].tolist()})

    hook = policy.model.get_input_embeddings().register_forward_hook(record)
    settings = LearnerSettings(learning_rate=0.0, epochs=2, minibatch=math.ceil(len(samples) / 2), share_prefixes=False)
    LocalLearner(policy, settings).update(samples, random.Random(0))
    hook.remove()
    first, second, third, fourth = passes
    assert first | second == third | fourth
    assert first not in (third, fourth)


def test_padding_counts_in_a_micro_batch() -> None:
    """Rows of 10 and 4 tokens take 20 with padding, and a third one 30."""
    long, *short = [Unit(tuple(range(size)), (), (row,)) for row, size in enumerate((10, 4, 4))]
    for most, sizes in ((19, [1, 2]), (20, [2, 1]), (29, [2, 1]), (30, [3])):
        assert [len(micro) for micro in packed([*short, long], most)] == sizes


def test_aborted_episodes_are_never_trained_on(policy: LoadedModel) -> None:
    played = play(policy)
    spoiled = [replace(trajectory, status=Status.ABORTED, success=True) for trajectory in played[:-1]]
    kept = training_rows.trainable([*spoiled, played[-1]])
    assert kept == [played[-1]]
    assert len(rows_of(policy, [*spoiled, played[-1]])) == len(played[-1].turns)


def test_long_rows_are_read_together_as_far_as_their_tree_fits() -> None:
    """The second is read from its 600th token on: 1,000 + 300 tokens, and the 600 before these as 75."""
    first = Unit(tuple(range(1000)), (), (0,))
    second = Unit((*range(600), *range(2000, 2300)), (), (1,))
    for most, sizes in ((1374, [1, 1]), (1375, [2])):
        assert [len(micro) for micro in packed_as_trees([first, second], most)] == sizes
