"""Both sides of the comparisons do the same, and what they do not do alike is counted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from reflectkit.env import Env
from reflectkit.envs.taxi import Taxi
from reflectkit.models.load import load_player
from reflectkit.rollouts.episode import Episode
from reflectkit.rollouts.wrappers import Horizon

pytest.importorskip("trl", reason="compares with TRL, which is not installed")

from benchmarks import decoding
from benchmarks.common import HEAD, Ours, Rounds, row
from benchmarks.trl_peer import Theirs, measure


def new() -> Env:
    return Horizon(Taxi(), 3)


@pytest.fixture
def sides(checkpoints: dict[str, Path]) -> Callable[[], tuple[Ours, Theirs]]:
    """Two untrained players for each side; comments of 8 tokens."""

    def make() -> tuple[Ours, Theirs]:
        players = [
            [load_player(checkpoints[role], role, device="cpu") for role in ("policy", "reflection")] for _ in range(2)
        ]
        return Ours(*players[0], new, comment_tokens=8), Theirs(*players[1], new, comment_tokens=8)

    return make


def test_both_sides_play_and_learn_the_same_episodes(sides: Callable[[], tuple[Ours, Theirs]]) -> None:
    ours, theirs = sides()
    episodes = [Episode(task, 7 + number) for number, task in enumerate(Taxi.taskset.tasks("full")[:300:100])]
    played = ours.play(episodes)
    rows = sum(len(trajectory.turns) for trajectory in played)
    ours.agent.reflector = ours.new_reflector()
    rounds = measure(ours, theirs, [episodes] * 3, rows, micro=rows)  # it compares every round
    assert [one.token for turns in theirs.rows for one in turns] == [
        turn.decision.token_ids[0] for trajectory in played for turn in trajectory.turns
    ]
    assert any(turn.decision.reflection for trajectory in played for turn in trajectory.turns)
    for side in rounds.sides:
        assert [len(seconds) for seconds in side.values()] == [2, 2]  # one warmed up
        assert all(second > 0 for seconds in side.values() for second in seconds)
    with torch.no_grad():
        theirs.policy.model.transformer.wte.weight[5:50] *= -3.0
    rounds = measure(ours, theirs, [episodes] * 3, rows, micro=rows)
    assert rounds.left_out == 2
    assert not any(seconds for side in rounds.sides for seconds in side.values())
    assert row("taxi", rounds).count("|") == row("taxi", Rounds()).count("|") == HEAD.splitlines()[0].count("|")


def test_both_sides_write_the_same_texts(checkpoints: dict[str, Path]) -> None:
    theirs, ours = (load_player(checkpoints["reflection"], "reflection", device="cpu") for _ in range(2))
    prompts = [[5, 6, 7, 8, number] for number in range(9, 13)]
    theirs.model.generation_config.eos_token_id = decoding.our_texts(ours, prompts, 2)[0][1]  # ends no text early
    rounds, partings = decoding.measure(theirs, ours, prompts, 6, 2)
    assert partings == decoding.Partings()
    assert [len(side["rollout"]) for side in rounds.sides] == [2, 2]
    name, rollout, update, both, seconds = row("texts", rounds).strip("| ").split(" | ")
    assert (name, update, both) == ("texts", "", "")
    assert rollout.startswith(f"{sum(rounds.ratios('rollout')) / 2:.2f} (")
    assert "/" in seconds
    with torch.no_grad():
        theirs.model.transformer.wte.weight[5:50] *= -3.0
    rounds, partings = decoding.measure(theirs, ours, prompts, 6, 1)
    assert partings.wrong
    assert not partings.near
    assert len(rounds.ours["rollout"]) == 1


def test_the_ratio_is_of_their_time_to_ours() -> None:
    rounds = Rounds({"rollout": [4.0, 6.0], "update": [1.0, 9.0]}, {"rollout": [2.0, 1.0], "update": [0.5, 2.0]})
    assert rounds.ratios("rollout") == [2.0, 6.0]
    assert rounds.ratios("rollout", "update") == [2.0, 5.0]
    assert rounds.overall == 20 / 5.5
