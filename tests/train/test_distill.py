"""The divergence from a teacher that reads comments: its gradient against arithmetic, shared prefixes, masks."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
import torch

from reflectkit.agents.two_player import TeacherComments, TwoPlayerAgent
from reflectkit.envs import make
from reflectkit.envs.taxi import Taxi
from reflectkit.models.labels import label_ids
from reflectkit.models.load import LoadedModel, averaged_player
from reflectkit.prompts import policy_prompt
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.sampling.hf import LocalSampler
from reflectkit.train import training_rows
from reflectkit.train.learner import LearnerSettings
from reflectkit.train.local_learner import LocalLearner
from reflectkit.train.losses import divergence, on_policy_enough
from reflectkit.types import Sample, Trajectory

KINDS = ("forward", "reverse", "js")


def played_with_hints(policy: LoadedModel, count: int = 4, **settings: float) -> list[Trajectory]:
    agent = TwoPlayerAgent(LocalSampler(policy), TeacherComments(), reflect_prob=0.0, distills=True, **settings)
    tasks = Taxi.taskset.tasks("full")[:: 300 // count]
    return rollout([Episode(task, n) for n, task in enumerate(tasks)], lambda: make("taxi", 3), agent)


def choice_rows(policy: LoadedModel, played: list[Trajectory]) -> list[Sample]:
    numbers = [[0.0] * len(trajectory.turns) for trajectory in played]
    labels = {Taxi.choices: label_ids(policy.tokenizer, 6)}
    return training_rows.rows(played, numbers, numbers, labels, with_distillation=True, with_reward=False)


def text_rows() -> list[Sample]:
    """Two decisions of two and three tokens in one row, the second with a comment, and a row with comments alone."""
    zeros = (0.0,) * 9
    first = Sample(
        (40, 41, 42, 43, 44, 45, 46, 47, 48),
        (0, 0, 1, 1, 0, 0, 1, 1, 1),
        (-1, -1, 0, 0, -1, -1, 1, 1, 1),
        zeros,
        zeros,
        zeros,
        (),
        (),
        "g",
        commented=((), (40, 41, 42, 43, 60, 61, 45)),
        only_distilled=True,
    )
    return [first, replace(first, commented=((70, 71, 72), (70, 71, 72, 42, 43, 73)))]


def distribution(model: torch.nn.Module, prompt: tuple[int, ...], labels: list[int] | None = None) -> torch.Tensor:
    """Probabilities of the next token, among `labels` if given: one pass, no padding, by hand."""
    logits = model(input_ids=torch.tensor([prompt])).logits[0, -1]
    return torch.softmax(logits if labels is None else logits[labels], -1)


def by_hand(kind: str, student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    middle = (student + teacher) / 2
    terms = {
        "forward": teacher * (teacher / student).log(),
        "reverse": student * (student / teacher).log(),
        "js": (student * (student / middle).log() + teacher * (teacher / middle).log()) / 2,
    }
    return terms[kind].sum()


def test_divergences_of_a_coin() -> None:
    student, teacher = torch.tensor([[0.5, 0.5, 0.0]]).log(), torch.tensor([[0.9, 0.1, 0.0]]).log()
    forward = 0.9 * math.log(1.8) + 0.1 * math.log(0.2)
    reverse = 0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(5)
    half = (
        0.5 * math.log(0.5 / 0.7) + 0.5 * math.log(0.5 / 0.3) + 0.9 * math.log(0.9 / 0.7) + 0.1 * math.log(1 / 3)
    ) / 2
    for kind, expected in zip(KINDS, (forward, reverse, half), strict=True):
        assert float(divergence(student, teacher, kind)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("text", "kind", "mean"),
    [(False, "forward", "token"), (False, "js", "row"), (True, "reverse", "row"), (True, "js", "token")],
)
def test_the_gradient_is_that_of_one_pass_a_token(policy: LoadedModel, text: bool, kind: str, mean: str) -> None:
    samples = text_rows() if text else choice_rows(policy, played_with_hints(policy))
    teacher = averaged_player(policy)
    with torch.no_grad():
        for weight in policy.model.parameters():  # so that the two differ by more than the comment
            weight.add_(0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(len(weight))))
    labels = None if text else [label[0] for label in samples[0].choices]
    terms: list[list[torch.Tensor]] = []
    for sample in samples:
        own: list[torch.Tensor] = []
        for place, decision in enumerate(sample.decisions):
            if decision >= 0 and sample.commented[decision]:
                begin = sample.decisions.index(decision)
                read = (*sample.commented[decision], *sample.tokens[begin:place])
                with torch.no_grad():
                    wise = distribution(teacher.copy, read, labels)
                own.append(by_hand(kind, distribution(policy.model, sample.tokens[:place], labels), wise))
        terms.append(own)
    flat = [term for own in terms for term in own]
    expected = sum(flat) / len(flat) if mean == "token" else sum(sum(own) / len(own) for own in terms) / len(terms)
    policy.model.zero_grad()
    (2.5 * expected).backward()
    wanted = {name: weight.grad.clone() for name, weight in policy.model.named_parameters() if weight.grad is not None}

    settings = LearnerSettings(
        learning_rate=0.0, max_grad_norm=1e9, entropy=1.0, distill=2.5, divergence=kind, mean=mean
    )
    for share, max_tokens in ((False, 16384), (True, 16384), (False, 1)):
        learner = LocalLearner(policy, replace(settings, share_prefixes=share, max_tokens=max_tokens), teacher=teacher)
        figures = learner.update(samples, random.Random(0)).figures
        assert figures["divergence"] == pytest.approx(expected.item(), rel=1e-4)
        assert figures["loss"] == figures["entropy"] == 0  # rows for distillation alone have no part in them
        for name, weight in policy.model.named_parameters():
            if name in wanted:
                torch.testing.assert_close(weight.grad, wanted[name], atol=2e-6, rtol=1e-3)


def test_a_hint_is_the_prompt_with_the_comment_unless_it_does_not_fit(policy: LoadedModel) -> None:
    turn = played_with_hints(policy)[0].turns[0]
    assert turn.decision.reflection is None
    assert turn.decision.hint
    shown = policy.tokenizer(policy_prompt(turn.observation, turn.decision.hint))["input_ids"]
    assert list(turn.decision.hint_prompt_ids) == shown
    policy.model.config.n_positions = policy.model.config.max_position_embeddings = len(shown) - 1
    short = played_with_hints(policy)[0].turns[0].decision
    assert short.hint == turn.decision.hint
    assert short.hint_prompt_ids == ()
    assert short.token_ids == turn.decision.token_ids


@pytest.mark.parametrize("mean", ["token", "row"])
def test_rows_with_rewards_keep_their_loss_where_others_are_distilled(policy: LoadedModel, mean: str) -> None:
    """Rows of another group, for distillation alone, change no figure of the policy loss."""
    played = played_with_hints(policy)
    numbers = [[1.0] * len(trajectory.turns) for trajectory in played]
    labels = {Taxi.choices: label_ids(policy.tokenizer, 6)}
    rewarded = training_rows.rows(played[:2], numbers[:2], numbers[:2], labels)
    extra = training_rows.rows(played[2:], numbers[2:], numbers[2:], labels, with_distillation=True, with_reward=False)
    settings = LearnerSettings(learning_rate=0.0, max_grad_norm=1e9, mean=mean)
    alone = LocalLearner(policy, settings).update(rewarded, random.Random(0)).figures
    both = LocalLearner(policy, settings).update([*rewarded, *extra], random.Random(0)).figures
    assert all(sample.only_distilled for sample in extra)
    for name in ("loss", "entropy", "gradient_norm"):
        assert both[name] == pytest.approx(alone[name], rel=1e-5)


def test_comments_of_replayed_episodes_are_not_distilled(policy: LoadedModel) -> None:
    """They were written for what an earlier policy did."""
    played = played_with_hints(policy, count=1)
    numbers = [[1.0] * len(trajectory.turns) for trajectory in played]
    labels = {Taxi.choices: label_ids(policy.tokenizer, 6)}
    fresh, old = (
        training_rows.rows(played, numbers, numbers, labels, replayed=replayed, with_distillation=True)
        for replayed in (False, True)
    )
    assert all(any(sample.commented) for sample in fresh)
    assert old == [replace(sample, replayed=True, commented=()) for sample in fresh]


def test_masks_by_hand() -> None:
    """Ratios of 4 and 1/2 in one row, 1/2 and 1/3 in the other."""
    change = torch.tensor([4.0, 0.5, 0.5, 1 / 3]).log()
    row, advantage = torch.tensor([0, 0, 1, 1]), torch.tensor([1.0, -1.0, -1.0, 1.0])
    keep = {kind: on_policy_enough(change, advantage, row, kind, 3.0).tolist() for kind in ("token", "sequence")}
    assert keep == {"token": [False, True, True, True], "sequence": [True] * 4}
    assert on_policy_enough(change, advantage, row, "sequence", 1.9).tolist() == [False, False, True, True]
    assert on_policy_enough(change, advantage, row, "geometric", 2.0).tolist() == [True, True, False, True]
    assert on_policy_enough(change, advantage, row, "geometric", 2.5).tolist() == [True] * 4
