"""Trajectories to training rows, by the tokens that were sampled; nothing is decoded and tokenised again.

Single-prompt envs rebuild the prompt at each step, so each turn is a row of its own. ABORTED episodes give no rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from reflectkit.core.types import Sample, Status, Trajectory
from reflectkit.rl.returns import returns_to_go


def rows(trajectories: Sequence[Trajectory], labels_of: dict[int, tuple[int, ...]], gamma: float) -> list[Sample]:
    """One row a decision. labels_of: ids of the first K labels, by K. gamma: the discount, 0 … 1."""
    samples = []
    for trajectory in trajectories:
        if trajectory.status is Status.ABORTED:
            continue
        returns = returns_to_go([turn.reward for turn in trajectory.turns], gamma)
        for turn, value in zip(trajectory.turns, returns, strict=True):
            decision = turn.decision
            masked = len(decision.prompt_ids)
            samples.append(
                Sample(
                    tokens=decision.prompt_ids + decision.token_ids,
                    loss_mask=(0,) * masked + (1,) * len(decision.token_ids),
                    logprobs=(0.0,) * masked + decision.logprobs,
                    choices=labels_of[len(turn.observation.choices)],
                    return_to_go=value,
                    value=decision.value,
                    group_id=trajectory.task.id,
                )
            )
    return samples
