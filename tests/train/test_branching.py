"""Episodes played again up to a state: the same state, the same dice, and what a comment brought."""

from __future__ import annotations

from typing import Any

import pytest

from reflectkit.agents.two_player import Reflector, TwoPlayerAgent
from reflectkit.envs import make
from reflectkit.envs.corridor import Corridor
from reflectkit.eventloop import run_sync
from reflectkit.models.load import LoadedModel
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.sampling.hf import LocalSampler
from reflectkit.train.reflector import Branch, Compared, by_return
from reflectkit.train.rl_config import ReflectorTrainingConfig


def branches_of(agent: TwoPlayerAgent, turn: int = 2, horizon: int = 8) -> list[Branch]:
    """States behind `turn` turns of some episodes."""
    episodes = [Episode(task, number) for number, task in enumerate(Corridor.taskset.tasks("long"))]
    played = rollout(episodes, lambda: make("corridor", horizon), agent)
    return [
        Branch(episode, trajectory, turn)
        for episode, trajectory in zip(episodes, played, strict=True)
        if len(trajectory.turns) > turn
    ]


def agent_of(policy: LoadedModel, reflecting: LoadedModel) -> TwoPlayerAgent:
    reflector = Reflector(LocalSampler(reflecting, rank=0), max_new_tokens=5)
    return TwoPlayerAgent(LocalSampler(policy), reflector)


def corridor(horizon: int = 8) -> Any:
    return make("corridor", horizon)


def compared_by_return(
    agent: TwoPlayerAgent, branches: list[Branch], make_env: Any, comments: int, temperature: float, gamma: float
) -> list[Compared]:
    config = ReflectorTrainingConfig(every=1, comments=comments, temperature=temperature)
    return run_sync(by_return(agent, branches, make_env, config, gamma, width=4))


def test_with_the_comment_that_was_read_an_episode_ends_as_it_did(
    policy: LoadedModel, reflector_player: LoadedModel
) -> None:
    """A temperature near 0 samples the greedy comment, and the dice are the same: the same return from there."""
    agent = agent_of(policy, reflector_player)
    branches = branches_of(agent)
    compared = compared_by_return(agent, branches, corridor, 2, 0.001, 0.5)
    assert len(compared) == len(branches) > 1
    for branch, one in zip(branches, compared, strict=True):
        turns = branch.trajectory.turns[branch.turn :]
        assert [comment.text for comment in one.comments] == [turns[0].decision.reflection] * 2
        expected = sum(0.5**step * turn.reward for step, turn in enumerate(turns))
        assert [comment.reward for comment in one.comments] == pytest.approx([expected] * 2)


class Forgetful(Corridor):
    """Never shows the same again."""

    shown = 0

    def _text(self) -> str:
        Forgetful.shown += 1
        return f"{super()._text()} {Forgetful.shown}"


def test_a_state_that_is_not_shown_again_is_left_out(policy: LoadedModel, reflector_player: LoadedModel) -> None:
    agent = agent_of(policy, reflector_player)
    assert compared_by_return(agent, branches_of(agent), Forgetful, 2, 1.0, 1.0) == []
