"""Comments by others than a reflection model."""

from __future__ import annotations

from collections import Counter

import pytest

from reflectkit.agents.two_player import NoComments, ShuffledComments, TeacherComments, TwoPlayerAgent
from reflectkit.env import Context
from reflectkit.envs import env_class, make
from reflectkit.eventloop import run_sync
from reflectkit.models.load import LoadedModel
from reflectkit.sampling.hf import LocalSampler
from reflectkit.types import Observation


def test_the_teacher_speaks_of_the_state_that_is_played(policy: LoadedModel) -> None:
    env = make("corridor")
    agent = TwoPlayerAgent(LocalSampler(policy), TeacherComments())
    assert agent.reflector is None
    for task in env_class("corridor").taskset.tasks("long"):
        seen = env.reset(task, 0)
        said = run_sync(agent.decide(seen, Context(task.data["start"], env))).reflection
        steps = 6 - task.data["start"]
        assert f" {steps} cell" in said


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_a_share_of_the_comments_is_on_other_states(share: float, observations: list[Observation]) -> None:
    swapped = ShuffledComments(NoComments(), ["a", "b"], share)
    env = make("taxi")
    said = [run_sync(swapped.remark(observations[0], Context(seed, env))) for seed in range(400)]
    assert said == [run_sync(swapped.remark(observations[1], Context(seed, env))) for seed in range(400)]
    counts = Counter(said)
    assert abs(1 - counts[""] / 400 - share) <= 3 * (share * (1 - share) / 400) ** 0.5
    assert share == 0 or abs(counts["a"] - counts["b"]) <= 3 * (400 * share) ** 0.5
