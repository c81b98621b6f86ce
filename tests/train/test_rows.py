"""Rows and micro-batches: what is trained is what was sampled."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reflectkit.models.load import LoadedModel
from reflectkit.models.tokens import label_ids
from reflectkit.prompts import policy_prompt
from reflectkit.train import batch
from reflectkit.train.learner import Unit, minibatches, packed, units
from reflectkit.train.rl import ReplayBuffer
from reflectkit.types import Decision, Message, Observation, Status, Task, Trajectory, Turn
from tests.train.training import play, rows_of


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
    first, second = batch.rows(played, [[1.0, 2.0, 3.0]], [[4.0, 5.0, 6.0]], {}, [[0.1, 0.2, 0.3]])
    assert first.tokens == (1, 2, 3, 4, 5, 6)
    assert first.loss_mask == (0, 0, 1, 1, 0, 1)
    assert first.decisions == (-1, -1, 0, 0, -1, 1)
    assert first.advantages == (0, 0, 1, 1, 0, 2)
    assert first.returns == (0, 0, 4, 4, 0, 5)
    assert first.values == (0, 0, 0.1, 0.1, 0, 0.2)
    assert (second.tokens, second.loss_mask, second.choices) == ((9, 7, 8), (0, 1, 1), ())


def test_minibatches_cut_units_where_they_must() -> None:
    parts = [Unit((1,), (2, 3), (0, 4, 5)), Unit((2,), (), (1,)), Unit((3,), (2, 3), (2, 3, 6))]
    cut = minibatches(parts, 3)  # 7 rows: 2, 2 and 3
    assert [[unit.rows for unit in minibatch] for minibatch in cut] == [[(0, 4)], [(5,), (1,)], [(2, 3, 6)]]
    assert cut[1][0] == Unit((1,), (2, 3), (5,))
    assert minibatches(parts, 1) == [parts]


def test_aborted_episodes_are_never_trained_on_or_replayed(policy: LoadedModel) -> None:
    played = play(policy)
    spoiled = [replace(trajectory, status=Status.ABORTED, success=True) for trajectory in played[:-1]]
    kept = batch.trainable([*spoiled, played[-1]])
    assert kept == [played[-1]]
    assert len(rows_of(policy, [*spoiled, played[-1]])) == len(played[-1].turns)
    buffer = ReplayBuffer(5)
    buffer.add(spoiled)
    assert len(buffer) == 0


def test_micro_batches_hold_no_more_tokens_than_allowed(policy: LoadedModel) -> None:
    samples = rows_of(policy, play(policy, count=20))
    batches = packed(units(samples), 500)
    assert len(batches) > 1
    for micro in batches:
        assert max(len(unit.tokens) for unit in micro) * len(micro) <= 500
    assert sorted(row for micro in batches for unit in micro for row in unit.rows) == list(range(len(samples)))
