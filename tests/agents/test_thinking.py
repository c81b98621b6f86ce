"""A policy that writes a comment and then acts: what it is trained on, what it reads, and the rows that it learns."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
import torch

from reflectkit.agents.two_player import TwoPlayerAgent
from reflectkit.data.episodes import episode_to_json
from reflectkit.data.sft_rows import Lesson, SFTRow, think_row
from reflectkit.envs import make
from reflectkit.envs.taxi import Taxi
from reflectkit.models.labels import label_ids
from reflectkit.models.load import LoadedModel
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.sampling.hf import LocalSampler
from reflectkit.train import training_rows
from reflectkit.train.learner import LearnerSettings
from reflectkit.train.local_learner import LocalLearner
from reflectkit.train.sft.tokens import encode
from reflectkit.types import Observation, Trajectory
from tests.conftest import make_player
from tests.train.training import favour


@pytest.fixture
def thinker(observations: list[Observation]) -> LoadedModel:
    player = make_player(observations, "think")
    favour(player, ["\n"], 3.0)  # so that an untrained model's comments end
    return player


def play(thinker: LoadedModel) -> list[Trajectory]:
    agent = TwoPlayerAgent(LocalSampler(thinker), show=True)
    tasks = Taxi.taskset.tasks("full")[::100]
    return rollout([Episode(task, n) for n, task in enumerate(tasks)], lambda: make("taxi", 3), agent)


def test_sft_teaches_the_comment_and_the_label_in_the_place_where_it_acts(thinker: LoadedModel) -> None:
    tokenizer = thinker.tokenizer
    observation = make("taxi").reset(Taxi.taskset.tasks("full")[0], 0)
    row = think_row(Lesson(observation, "Go east.", " 2", "positive"))
    parts = ((row["prompt"], row["completion"]), *((part["prompt"], part["completion"]) for part in row["then"]))
    (encoded,) = encode(Path("rows"), [SFTRow(1, parts)], tokenizer, role="think")
    trained = [token for token in encoded["labels"] if token != -100]
    label = list(label_ids(tokenizer, 6)[2])
    assert trained == [*tokenizer(" Go east.")["input_ids"], tokenizer.eos_token_id, *label]
    read = tokenizer.decode(encoded["input_ids"])
    assert read.index("Actions:") < read.index("Reflection: Go east.") < read.index("\nAction:")


def test_the_action_is_one_of_the_choices_with_its_exact_probability_after_the_comment(thinker: LoadedModel) -> None:
    labels = [label[0] for label in label_ids(thinker.tokenizer, 6)]
    for turn in [turn for trajectory in play(thinker) for turn in trajectory.turns][:6]:
        decision = turn.decision
        assert decision.thought is not None
        acting = thinker.tokenizer("\nAction:")["input_ids"]
        assert decision.prompt_ids == (*decision.thought.prompt_ids, *decision.thought.token_ids, *acting)
        assert decision.reflection == decision.thought.text
        with torch.no_grad():
            logits = thinker.model(input_ids=torch.tensor([decision.prompt_ids])).logits[0, -1, labels]
        expected = torch.softmax(logits, -1)
        assert decision.probabilities == pytest.approx(expected.tolist(), abs=1e-5)
        assert decision.logprobs[0] == pytest.approx(math.log(expected[decision.action]), abs=1e-4)


def test_comment_and_action_are_both_trained_on_their_own_tokens(thinker: LoadedModel) -> None:
    played = play(thinker)
    advantages = [[0.5 + step for step in range(len(trajectory.turns))] for trajectory in played]
    rows = training_rows.rows(played, advantages, advantages, {Taxi.choices: label_ids(thinker.tokenizer, 6)})
    assert [bool(row.choices) for row in rows] == [False, True] * (len(rows) // 2)
    for comment, action in zip(rows[::2], rows[1::2], strict=True):
        assert action.tokens[: len(comment.tokens)] == comment.tokens
        assert comment.advantages[-1] == action.advantages[action.start]
        assert comment.loss_mask[-1] == 1
    figures = LocalLearner(thinker, LearnerSettings(learning_rate=1e-3)).update(rows, random.Random(0)).figures
    assert figures["ratio_deviation"] < 1e-5
    assert figures["gradient_norm"] > 0


def test_tokens_of_the_comment_count_as_written(thinker: LoadedModel) -> None:
    for trajectory in play(thinker):
        line = episode_to_json("x", trajectory)
        for turn, shown in zip(trajectory.turns, line["turns"], strict=True):
            thought = turn.decision.thought
            assert thought is not None
            assert shown["tokens"] == len(thought.token_ids) + len(turn.decision.token_ids)
        assert "comment_tokens" in line["figures"]
