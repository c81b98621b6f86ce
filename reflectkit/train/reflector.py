"""The reflector as a second player: its comments are actions, each compared with others on the same state.

The advantage of a comment is counterfactual: its reward minus the mean reward of the other comments sampled on that
state. Leaving the comment out of its own baseline keeps the gradient unbiased (RLOO, arXiv 2402.14740, eq. 6), and all
tokens of a comment share its advantage. CTRL (arXiv 2502.03492) also trains a critic by what its words do for an
actor, which is fixed there and revises a whole answer.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from reflectkit.train.advantages import SPREAD, deviation, leave_one_out
from reflectkit.types import Comment, Sample, Trajectory

if TYPE_CHECKING:
    from reflectkit.train.learner import Learner
    from reflectkit.train.rl_config import ReflectorTrainingConfig

FIGURES = ("loss", "entropy", "kl_to_start", "ratio_deviation", "gradient_norm")
"""What is reported of the learner's figures."""


@dataclass(frozen=True)
class ReflectorTrainer:
    """Trains the reflector. learner: holds it, its optimizer, and the frozen one that it started from."""

    learner: Learner
    config: ReflectorTrainingConfig
    normalize: bool = True
    """Whether advantages are divided by their standard deviation."""

    def is_due(self, step: int) -> bool:
        """Whether it takes its turn after the policy's update number `step`."""
        return step % self.config.every == 0

    def learn(self, compared: Sequence[Sequence[Comment]], chance: random.Random, rate: float) -> dict[str, float]:
        """Learn from the comments on each state; `chance` shuffles them. Returns figures named `reflector_…`.

        rate: the schedule's factor for the learning rate, 0 … 1. Raises DivergedError, see `Learner.update`.
        """
        every = [comment for comments in compared for comment in comments]
        cost = self.config.length_cost
        charged = [
            [replace(comment, reward=comment.reward - cost * len(comment.token_ids)) for comment in comments]
            for comments in compared
        ]
        rewards = [[comment.reward for comment in comments] for comments in charged]
        samples = rows(charged, advantages(rewards, self.normalize))
        figures = self.learner.update(samples, chance, rate) if self.learner.settings.learning_rate else {}
        alike = sum(max(row) - min(row) <= SPREAD for row in rewards)
        return {f"reflector_{name}": figures[name] for name in FIGURES if name in figures} | {
            "reflector_states": len(rewards),
            "reflector_rows": len(samples),
            "reflector_reward": sum(comment.reward for comment in every) / max(1, len(every)),
            "reflector_tokens": sum(len(comment.token_ids) for comment in every) / max(1, len(every)),
            "states_without_spread": alike / max(1, len(rewards)),
            "reflector_turn_tokens": sum(len(sample.tokens) for sample in samples) if figures else 0,
        }


def advantages(rewards: Sequence[Sequence[float]], normalize: bool) -> list[list[float]]:
    """Each comment's reward minus the mean reward of the other comments on its state, by state.

    normalize: divide by the standard deviation over the states whose comments differ; the others have 0.

    >>> advantages([[3.0, 0.0, 0.0], [1.0, 1.0, 1.0]], normalize=False)
    [[3.0, -1.5, -1.5], [0.0, 0.0, 0.0]]
    """
    result = [
        [difference for (difference,) in leave_one_out([[reward] for reward in row], [0] * len(row))] for row in rewards
    ]
    if not normalize:
        return result
    spread = deviation([value for row in result if any(abs(value) > SPREAD for value in row) for value in row])
    return [[value / spread for value in row] for row in result]


def rows(compared: Sequence[Sequence[Comment]], advantages: Sequence[Sequence[float]]) -> list[Sample]:
    """A training row for each comment, of the tokens that were sampled; none of states whose comments did equally well,
    or on which a comment has no tokens.
    """
    samples = []
    for place, (comments, row) in enumerate(zip(compared, advantages, strict=True)):
        if not all(comment.token_ids for comment in comments) or all(abs(value) <= SPREAD for value in row):
            continue
        for comment, advantage in zip(comments, row, strict=True):
            before, written = len(comment.prompt_ids), len(comment.token_ids)
            samples.append(
                Sample(
                    tokens=(*comment.prompt_ids, *comment.token_ids),
                    loss_mask=(0,) * before + (1,) * written,
                    decisions=(-1,) * before + (0,) * written,
                    logprobs=(0.0,) * before + comment.logprobs,
                    advantages=(0.0,) * before + (advantage,) * written,
                    returns=(0.0,) * before + (comment.reward,) * written,
                    values=(),
                    choices=(),
                    group_id=str(place),
                )
            )
    return samples


def visited(played: Sequence[Trajectory], count: int, chance: random.Random) -> list[tuple[Trajectory, int]]:
    """A turn of each of at most `count` of the episodes, drawn evenly; `played` all have turns."""
    chosen = chance.sample(list(played), min(count, len(played)))
    return [(trajectory, chance.randrange(len(trajectory.turns))) for trajectory in chosen]


def share_true(marks: Sequence[bool | None]) -> float | None:
    """The share of True among what is not None; None if there is nothing else."""
    known = [mark for mark in marks if mark is not None]
    return sum(known) / len(known) if known else None
