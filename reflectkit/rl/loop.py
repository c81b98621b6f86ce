"""The online loop: draw problems, let the two players play them, learn from the rows, and say how it went."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from reflectkit.agents.two_player import TwoPlayerAgent
from reflectkit.core.protocols import Env
from reflectkit.core.rollout import Episode, rollout
from reflectkit.core.seeding import derive, generator
from reflectkit.core.types import Status, Task, Trajectory
from reflectkit.models.tokens import label_ids
from reflectkit.rl import batch
from reflectkit.rl.curriculum import draw, level_at
from reflectkit.rl.learner import Learner


@dataclass(frozen=True)
class Plan:
    """What to play. tasks, makers: problems and env makers by level. levels: in curriculum order, equal steps each.

    steps: updates in all. episodes: played for each update. gamma: the discount. width: episodes side by side.
    decay: whether learning rates fall in a line to 0 at the last step, so that the last policy stands still.
    """

    tasks: Mapping[str, Sequence[Task]]
    makers: Mapping[str, Callable[[], Env]]
    levels: Sequence[str]
    steps: int
    episodes: int
    gamma: float
    seed: int
    width: int
    decay: bool = True


def train_step(step: int, plan: Plan, agent: TwoPlayerAgent, learner: Learner) -> dict[str, object]:
    """Play and learn once; `step` counts from 0. Returns the step's figures, JSON values, as `metrics.jsonl` holds them."""
    started = time.perf_counter()
    tokens_before = _tokens(agent)
    reflector = agent.reflector
    hits, asked = (reflector.hits, reflector.asked) if reflector else (0, 0)
    level = level_at(step, plan.steps, plan.levels)
    tasks = draw(plan.tasks[level], step, plan.episodes, plan.seed)
    episodes = [Episode(task, derive(plan.seed, "rollout", step, number)) for number, task in enumerate(tasks)]
    played = rollout(episodes, plan.makers[level], agent, width=plan.width)
    played_s = time.perf_counter() - started

    tokenizer = agent.policy.tokenizer
    counts = {len(turn.observation.choices) for trajectory in played for turn in trajectory.turns}
    samples = batch.rows(played, {count: label_ids(tokenizer, count) for count in counts}, plan.gamma)
    rate = 1 - step / plan.steps if plan.decay else 1.0
    figures = learner.update(samples, generator(plan.seed, "update", step), rate)
    agent.forget_scores()
    seconds = time.perf_counter() - started
    newly_asked = (reflector.asked - asked) if reflector else 0
    return {
        "step": step + 1,
        "level": level,
        "episodes": (step + 1) * plan.episodes,
        **summary(played),
        **figures,
        "reflector_cache_hits": (reflector.hits - hits) / newly_asked if reflector and newly_asked else None,
        "rows": len(samples),
        "tokens_per_second": round((_tokens(agent) - tokens_before + sum(len(s.tokens) for s in samples)) / seconds, 1),
        "episodes_per_second": round(len(played) / seconds, 3),
        "rollout_seconds": round(played_s, 3),
        "update_seconds": round(seconds - played_s, 3),
    }


def summary(played: Sequence[Trajectory]) -> dict[str, float]:
    """success_rate, return and steps of the episodes that count, and the share that were ABORTED."""
    counted = [trajectory for trajectory in played if trajectory.status is not Status.ABORTED]
    share = max(1, len(counted))
    return {
        "success_rate": sum(trajectory.success for trajectory in counted) / share,
        "return": sum(trajectory.total_return for trajectory in counted) / share,
        "episode_steps": sum(len(trajectory.turns) for trajectory in counted) / share,
        "aborted": 1 - len(counted) / max(1, len(played)),
    }


def _tokens(agent: TwoPlayerAgent) -> int:
    return agent.tokens + (agent.reflector.tokens if agent.reflector else 0)
