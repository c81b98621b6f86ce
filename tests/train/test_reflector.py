"""The reflector as a second player: advantages by hand, rows of sampled tokens, who learns, and replayed states."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from reflectkit.agents.two_player import Reflector, TwoPlayerAgent
from reflectkit.envs import make
from reflectkit.envs.corridor import Corridor
from reflectkit.envs.taxi import Taxi
from reflectkit.eventloop import run_sync
from reflectkit.models.load import LoadedModel
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.sampling.hf import LocalSampler
from reflectkit.train.curriculum import Level
from reflectkit.train.learner import LearnerSettings, LossOutput
from reflectkit.train.local_learner import LocalLearner
from reflectkit.train.reflector import Branch, Compared, ReflectorTrainer, advantages, by_return, rows
from reflectkit.train.rl_config import ReflectorTrainingConfig
from reflectkit.train.trainer import Trainer, TrainerConfig
from reflectkit.types import Comment
from tests.conftest import make_player
from tests.train.training import favour, objective


def comment(reward: float, tokens: tuple[int, ...] = (7, 8)) -> Comment:
    return Comment("text", (1, 2, 3), tokens, (-0.5,) * len(tokens), reward)


def test_an_advantage_is_the_difference_from_the_other_comments_on_the_state() -> None:
    """First state: 4 - (1 + 1) / 2 = 3, 1 - (4 + 1) / 2 = -1.5. Two comments: each less the other. The third state's
    comments do equally well. The deviation of 3, -1.5, -1.5, 2, -2 about their mean 0 is sqrt(21.5 / 5).
    """
    rewards = [[4.0, 1.0, 1.0], [2.0, 0.0], [5.0, 5.0]]
    assert advantages(rewards, normalize=False) == [[3.0, -1.5, -1.5], [2.0, -2.0], [0.0, 0.0]]
    spread = (21.5 / 5) ** 0.5
    scaled = advantages(rewards, normalize=True)
    assert scaled[0] == pytest.approx([3 / spread, -1.5 / spread, -1.5 / spread])
    assert scaled[2] == [0.0, 0.0]
    assert advantages([], normalize=True) == []


def test_a_row_is_what_was_sampled_and_states_that_teach_nothing_have_none() -> None:
    compared = [[comment(1.0), comment(0.0, (9,))], [comment(1.0), comment(1.0)], [comment(1.0), comment(0.0, ())]]
    first, second = rows(compared, advantages([[one.reward for one in row] for row in compared], normalize=False))
    assert first.tokens == (1, 2, 3, 7, 8)
    assert first.loss_mask == (0, 0, 0, 1, 1)
    assert first.logprobs == (0.0, 0.0, 0.0, -0.5, -0.5)
    assert first.advantages == (0.0, 0.0, 0.0, 1.0, 1.0)
    assert second.tokens == (1, 2, 3, 9)
    assert second.advantages == (0.0, 0.0, 0.0, -1.0)


def trainer_of_both(observations: Any, **settings: Any) -> Trainer:
    policy, reflecting = make_player(observations, "policy"), make_player(observations, "reflection", seed=1)
    favour(reflecting, ["\n"], 3.0)  # so that some comments end
    reflector = Reflector(LocalSampler(reflecting, rank=0), max_new_tokens=5)
    agent = TwoPlayerAgent(LocalSampler(policy), reflector)
    learning = LearnerSettings(learning_rate=1e-3, entropy=0.0, temperature=settings.get("temperature", 1.0))
    second = ReflectorTrainer(
        LocalLearner(reflecting, learning), ReflectorTrainingConfig(every=1, states=6, comments=3, **settings)
    )
    level = Level("full", Taxi.taskset.tasks("full")[:20], lambda: make("taxi", 6))
    config = TrainerConfig([level], 4, 8, objective("reinforce", group_size=1), seed=0, width=8)
    return Trainer(config, agent, LocalLearner(policy, LearnerSettings(learning_rate=1e-3)), reflector_trainer=second)


def weights(player: LoadedModel) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in player.model.named_parameters()}


def test_only_the_reflector_learns_in_its_turn_from_the_tokens_it_sampled(observations: Any) -> None:
    """The learner's log-probabilities are the sampler's, at a temperature that is not 1 too: the ratio starts at 1."""
    trainer = trainer_of_both(observations, temperature=1.5, length_cost=0.1)
    second, reflector = trainer.reflector_trainer, trainer.agent.reflector
    assert second is not None
    assert reflector is not None
    before = []

    class Watched(ReflectorTrainer):
        def learn(self, *arguments: Any) -> dict[str, float]:
            before.append((weights(trainer.learner.player), weights(self.learner.player)))
            return super().learn(*arguments)

    trainer.reflector_trainer = Watched(second.learner, second.config)
    figures = trainer.train_step()
    assert figures["reflector_rows"]
    assert figures["reflector_ratio_deviation"] < 1e-4
    ((policy, reflecting),) = before
    assert all(torch.equal(policy[name], now) for name, now in weights(trainer.learner.player).items())
    assert any(not torch.equal(reflecting[name], now) for name, now in weights(second.learner.player).items())
    assert reflector.memo == {}  # its comments were the earlier weights'
    seeds = [0] * len(observations)
    fresh = Reflector(LocalSampler(second.learner.player), max_new_tokens=5)  # has no drafts of theirs either
    assert run_sync(reflector.comments(observations, seeds)) == run_sync(fresh.comments(observations, seeds))


def test_a_rate_of_0_measures_the_comments_alone(observations: Any) -> None:
    trainer = trainer_of_both(observations)
    assert trainer.reflector_trainer is not None
    still = LocalLearner(trainer.reflector_trainer.learner.player, LearnerSettings(learning_rate=0.0))
    config = trainer.reflector_trainer.config.model_copy(update={"learning_rate": 0.0})
    trainer.reflector_trainer = ReflectorTrainer(still, config)
    before = weights(still.player)
    figures = trainer.train_step()
    assert figures["reflector_states"] == 6
    assert 0 <= figures["sampled_comments_true"] <= 1
    assert "reflector_loss" not in figures
    assert all(torch.equal(before[name], weight) for name, weight in weights(still.player).items())


class Recording:
    """A learner that keeps its rows and learns nothing."""

    def update(self, samples: Any, *_: Any) -> LossOutput:
        self.samples = samples
        return LossOutput(None, {})


def test_each_token_of_a_comment_costs_something() -> None:
    """Equal rewards of 1, but 2, 2 and 5 tokens: at 0.1 a token they are 0.8, 0.8 and 0.5, each less the mean of the
    others 0.15, 0.15 and -0.3. What is reported is before the cost.
    """
    compared = [[comment(1.0), comment(1.0), comment(1.0, (5, 6, 7, 8, 9))]]
    learner = Recording()
    second = ReflectorTrainer(learner, ReflectorTrainingConfig(every=1, comments=3, length_cost=0.1), normalize=False)  # type: ignore[arg-type]
    figures = second.learn(compared, random.Random(0), 1.0)
    assert [sample.advantages[-1] for sample in learner.samples] == pytest.approx([0.15, 0.15, -0.3])
    assert (figures["reflector_reward"], figures["reflector_tokens"]) == (1.0, 3.0)
    assert figures["states_without_spread"] == 0
    free = ReflectorTrainer(learner, ReflectorTrainingConfig(every=1, comments=3), normalize=False).learn(
        compared, random.Random(0), 1.0
    )  # type: ignore[arg-type]
    assert learner.samples == []
    assert free["states_without_spread"] == 1


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
