"""Episodes played again up to a state: the same state, the same dice, and what a comment brought."""

from __future__ import annotations

import math
from typing import Any

import pytest

from reflectkit.agents.two_player import Reflector, TwoPlayerAgent
from reflectkit.envs import make
from reflectkit.envs.corridor import Corridor
from reflectkit.eventloop import run_sync
from reflectkit.models.load import LoadedModel
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.sampling.base import SampleOutput, SampleRequest
from reflectkit.sampling.hf import LocalSampler
from reflectkit.train.branching import Branch, Trial, by_judgement, by_return


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


def test_with_the_comment_that_was_read_an_episode_ends_as_it_did(
    policy: LoadedModel, reflector_player: LoadedModel
) -> None:
    """A temperature near 0 samples the greedy comment, and the dice are the same: the same return from there."""
    agent = agent_of(policy, reflector_player)
    branches = branches_of(agent)
    compared = run_sync(by_return(agent, branches, corridor, Trial(2, 0.001, 0.5, width=4)))
    assert len(compared) == len(branches) > 1
    for branch, one in zip(branches, compared, strict=True):
        turns = branch.trajectory.turns[branch.turn :]
        assert [comment.text for comment in one.comments] == [turns[0].decision.reflection] * 2
        expected = sum(0.5**step * turn.reward for step, turn in enumerate(turns))
        assert [comment.reward for comment in one.comments] == pytest.approx([expected] * 2)


def test_comments_differ_and_carry_the_tokens_they_are_made_of(
    policy: LoadedModel, reflector_player: LoadedModel
) -> None:
    agent = agent_of(policy, reflector_player)
    (one, *_) = run_sync(by_return(agent, branches_of(agent), corridor, Trial(3, 1.0, 1.0, width=4)))
    assert len({comment.token_ids for comment in one.comments}) == 3
    for comment in one.comments:
        assert len(comment.token_ids) == len(comment.logprobs) == 5
        assert comment.text == " ".join(reflector_player.tokenizer.decode(comment.token_ids).split())
        assert comment.true is False  # an untrained model's words


class Forgetful(Corridor):
    """Never shows the same again."""

    shown = 0

    def _text(self) -> str:
        Forgetful.shown += 1
        return f"{super()._text()} {Forgetful.shown}"


def test_a_state_that_is_not_shown_again_is_left_out(policy: LoadedModel, reflector_player: LoadedModel) -> None:
    agent = agent_of(policy, reflector_player)
    branches = branches_of(agent)
    for compare in (by_return, by_judgement):
        assert run_sync(compare(agent, branches, Forgetful, Trial(2, 1.0, 1.0, width=4))) == []


class Preferring:
    """A policy that takes the choice which the last words of its prompt name."""

    role, context, tokens = "policy", 10_000, 0

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    async def sample(self, ask: SampleRequest) -> SampleOutput:
        prompt = self.tokenizer.decode(ask.prompt_ids)
        right = 0.9 if "GOOD" in prompt else 0.2
        logs = (math.log(1 - right), math.log(right))
        return SampleOutput(ask.labels[0], (logs[0],), logs)

    async def publish(self, weights: Any, version: int) -> None:
        pass


class Writing:
    """A reflector's sampler whose comment is given by the seed's parity."""

    role, context, tokens = "reflection", 10_000, 0

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    async def sample(self, ask: SampleRequest) -> SampleOutput:
        ids = tuple(self.tokenizer("GOOD" if ask.seed % 2 else "BAD")["input_ids"])
        return SampleOutput(ids, (-1.0,) * len(ids))

    async def publish(self, weights: Any, version: int) -> None:
        pass


def test_a_judgement_is_whether_the_policy_prefers_the_oracles_action(policy: LoadedModel) -> None:
    """Right is best in the corridor: 0.9 of the probability after GOOD, 0.2 after BAD."""
    agent = TwoPlayerAgent(Preferring(policy.tokenizer), Reflector(Writing(policy.tokenizer)))
    compared = run_sync(by_judgement(agent, branches_of(agent), corridor, Trial(6, 1.0, 1.0, width=4)))
    rewards = {(comment.text, comment.reward) for one in compared for comment in one.comments}
    assert rewards == {("GOOD", 1.0), ("BAD", 0.0)}
