"""Episodes, rows and trainers for tests of the learner and the loop."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import torch

from reflectkit.agents.two_player import Reflector, TwoPlayerAgent
from reflectkit.env import Agent, Context, StepResult
from reflectkit.envs import make
from reflectkit.envs.corridor import Corridor
from reflectkit.envs.taxi import Taxi
from reflectkit.eventloop import run_sync
from reflectkit.models.labels import label_ids
from reflectkit.models.load import LoadedModel
from reflectkit.models.tiny import build_model, build_tokenizer
from reflectkit.prompts import label, policy_prompt
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.sampling.hf import LocalSampler
from reflectkit.train import training_rows
from reflectkit.train.algorithms import AlgorithmConfig
from reflectkit.train.critic import Critic
from reflectkit.train.curriculum import Level
from reflectkit.train.learner import LearnerSettings
from reflectkit.train.local_learner import LocalLearner
from reflectkit.train.losses import TrainedTokens
from reflectkit.train.trainer import Trainer, TrainerConfig
from reflectkit.types import Decision, Message, Observation, Sample, Task, Trajectory


def objective(name: str, **settings: Any) -> AlgorithmConfig:
    """The algorithm called `name` with these settings, for groups of 8 unless they say otherwise."""
    return AlgorithmConfig.from_flat(**{"algo": name, "group_size": 8} | settings)


def agent_of(
    policy: LoadedModel, reflector: LoadedModel | None = None, watch: Any = None, **settings: Any
) -> TwoPlayerAgent:
    frozen = LocalSampler(reflector, frozen=True, rank=0) if reflector else None
    commenting = Reflector(frozen, max_new_tokens=5) if frozen else None
    return TwoPlayerAgent(LocalSampler(policy, watch=watch), commenting, **settings)


def decide_all(agent: Agent, observations: Sequence[Observation], contexts: Sequence[Context]) -> list[Decision]:
    """The agent's decisions, made side by side."""

    async def gathered() -> list[Decision]:
        return await asyncio.gather(*map(agent.decide, observations, contexts))

    return run_sync(gathered())


def play(
    policy: LoadedModel,
    reflector: LoadedModel | None = None,
    count: int = 6,
    critic: Critic | None = None,
    **settings: Any,
) -> list[Trajectory]:
    tasks = Taxi.taskset.tasks("full")[:: 300 // count]
    learner = LocalLearner(policy, LearnerSettings(learning_rate=0.0), critic)
    agent = agent_of(policy, reflector, learner.observe, **settings)
    played = rollout([Episode(task, index) for index, task in enumerate(tasks)], lambda: make("taxi", 10), agent)
    return learner.valued(played)


def rows_of(policy: LoadedModel, played: Sequence[Trajectory], values: list[list[float]] | None = None) -> list[Sample]:
    kept = training_rows.trainable(played)
    found = objective("ppo" if values else "reinforce").estimate(kept, [], values or [])
    return training_rows.rows(
        kept, found.advantages, found.returns, {Taxi.choices: label_ids(policy.tokenizer, 6)}, values
    )


def gradients_after(policy: LoadedModel, samples: list[Sample], **settings: Any) -> dict[str, torch.Tensor]:
    """The policy's gradients after one update that does not move it."""
    LocalLearner(policy, LearnerSettings(learning_rate=0.0, minibatch=10_000, max_grad_norm=1e9, **settings)).update(
        samples, random.Random(0)
    )
    return {name: weight.grad.clone() for name, weight in policy.model.named_parameters() if weight.grad is not None}


def corridor_player(seed: int) -> LoadedModel:
    seen = [make("corridor").reset(task, 0) for task in Corridor.taskset.tasks("long")]
    tokenizer = build_tokenizer(
        [policy_prompt(observation) for observation in seen], [label(index) for index in range(2)]
    )
    return LoadedModel(build_model(tokenizer, 64, seed), tokenizer, "plain")


def build_trainer(
    player: LoadedModel,
    objective: AlgorithmConfig,
    steps: int,
    levels: Sequence[Level] | None = None,
    critic: Critic | None = None,
    replay: int = 0,
    advance_at: float = 0.0,
    episodes: int = 12,
    **settings: Any,
) -> Trainer:
    """A trainer of `player` in the long corridor, or in `levels`."""
    known = levels or [Level("long", Corridor.taskset.tasks("long"), lambda: make("corridor", 16))]
    options = {"learning_rate": 1e-3, "entropy": 0.003, "max_grad_norm": 1.0, "loss": objective.loss}
    learner = LocalLearner(player, LearnerSettings(**{**options, **settings}), critic)
    repeats = 4 if objective.compares_groups else 1
    algo = objective.model_copy(update={"group_size": repeats, "replay_size": replay})
    config = TrainerConfig(known, steps, episodes, algo, seed=0, width=12, advance_at=advance_at)
    return Trainer(config, agent_of(player, watch=learner.observe), learner)


def favour(player: LoadedModel, texts: Sequence[str], weight: float) -> None:
    """Make an untrained GPT-2 write the single tokens `texts` more often, or less where `weight` is negative."""
    with torch.no_grad():
        for text in texts:
            (token,) = player.tokenizer(text)["input_ids"]
            player.model.transformer.wte.weight[token, 0] += weight
        player.model.transformer.ln_f.bias[0] = 1.5


def tokens_of(
    new: torch.Tensor,
    old: torch.Tensor,
    gains: torch.Tensor,
    clip: float = 0.2,
    replayed: torch.Tensor | None = None,
    clip_high: float = 0.0,
) -> TrainedTokens:
    """Tokens that are a decision each."""
    fresh = torch.zeros(len(new), dtype=torch.bool)
    return TrainedTokens(
        new, old, gains, torch.arange(len(new)), len(new), fresh if replayed is None else replayed, clip, 0.0, clip_high
    )


class Spelling:
    """Free text: say the word that is asked for. One step; reward 0.5 for each letter in its place, -0.3 for
    each too many, 1 for the word itself.
    """

    name = "spelling"
    levels = ("all",)

    def reset(self, task: Task, seed: int) -> Observation:
        self._seen = Observation((Message("user", f"Say {task.data['word']}."),))
        self._word = task.data["word"]
        return self._seen

    def step(self, action: int | str) -> StepResult:
        right = sum(said == asked for said, asked in zip(str(action), self._word, strict=False))
        said_it = action == self._word
        longer = max(0, len(str(action)) - len(self._word))
        return StepResult(self._seen, float(said_it) + 0.5 * right - 0.3 * longer, True, info={"success": said_it})
