"""Both sides of the comparison do the same work, and rounds that are not alike are counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from reflectkit.console import Quiet
from reflectkit.env import Env
from reflectkit.envs.taxi import Taxi
from reflectkit.rollouts.episode import Episode
from reflectkit.rollouts.wrappers import Checked

pytest.importorskip("trl", reason="compares with TRL, which is not installed")

from benchmarks.common import HEAD, Ours, Rounds, row
from benchmarks.scenes import Bench, answering, single_turn, sums
from benchmarks.trl_peer import Chooser, Writer, measure


@pytest.fixture
def bench() -> Bench:
    return Bench("tiny", rounds=2, seed=0, data_dir=Path(), progress=Quiet())


def test_both_sides_play_and_learn_the_same_choices(bench: Bench) -> None:
    def new() -> Env:
        return Checked(Taxi(), 3)

    mine, other = bench.sides(Taxi.taskset.tasks("full"), new)
    ours, theirs = Ours(mine, new), Chooser(other, new)
    episodes = [Episode(task, 7 + number) for number, task in enumerate(Taxi.taskset.tasks("full")[:300:100])]
    rows = sum(len(trajectory.turns) for trajectory in ours.play(episodes))
    rounds = measure(theirs, ours, [episodes] * 3, rows, micro=rows)  # it compares every round
    assert not rounds.left_out
    for side in rounds.seconds.values():
        assert [len(seconds) for seconds in side.values()] == [2, 2]  # one warmed up
        assert all(second > 0 for seconds in side.values() for second in seconds)
    assert [len(shares) for shares in rounds.bare.values()] == [1, 1]
    assert row("taxi", rounds).count("|") == row("taxi", Rounds()).count("|") == HEAD.splitlines()[0].count("|")
    with torch.no_grad():
        other.model.transformer.wte.weight[5:50] *= -3.0
    rounds = measure(theirs, ours, [episodes] * 3, rows, micro=rows)
    assert rounds.left_out == 2
    assert not any(seconds for side in rounds.seconds.values() for seconds in side.values())


def test_both_sides_get_the_same_gradients_from_texts(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = sums(4, seed=0)
    mine, other = bench.sides(tasks, single_turn)
    ours = answering(mine, 12, micro=2)
    task = tasks[0]  # one prompt, since TRL counts GPT-2's positions from the padding on
    episodes = [Episode(task, number) for number in range(4)]
    norms: list[float] = []
    clip = torch.nn.utils.clip_grad_norm_

    def noted(*given: Any, **more: Any) -> torch.Tensor:
        norms.append(float(norm := clip(*given, **more)))
        return norm

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", noted)
    rounds = measure(Writer(other, ours.agent.labels), ours, [episodes], 4, micro=2)
    assert not rounds.left_out
    theirs, own = norms
    assert own == pytest.approx(theirs, rel=1e-3)
