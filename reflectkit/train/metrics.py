"""The figures of episodes in a row of `metrics.jsonl`: ours, and those that the env reports."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from reflectkit.types import Status, Trajectory

NAMED = "env_figures"
"""The key of the names of the env's figures that the row's episodes reported. Where another row of the run names a
figure that this one lacks, no episode came far enough, and it is 0.
"""
OURS = frozenset({
    "step", "level", "episodes", "success_rate", "return", "episode_steps", "aborted", "loss", "entropy",
    "value_loss", "kl_to_start", "kl", "ratio_deviation", "gradient_norm", "gradient_steps",
    "logprob_difference_mean", "logprob_difference_max", "effective_sample_size", "rows", "replayed_episodes",
    "groups_without_spread", "tokens", "tokens_per_second", "episodes_per_second", "rollout_seconds",
    "update_seconds", "staleness", "staleness_max", "stale_groups_dropped", "groups_ahead", "states_left_out",
    "states_without_spread", "comments_true", "sampled_comments_true", "divergence", "commented_decisions",
    "comments_skipped", "masked",
})  # fmt: skip
"""Names that rows have of their own."""
PREFIXES = ("validation_", "reflector_", "env_")
"""Names that begin so are ours, too."""


def env_figures(played: Sequence[Trajectory]) -> dict[str, Any]:
    """The means over episodes of the env's `info["figures"]`, and their names as NAMED; {} if it reported none. A
    figure whose name is ours is called `env_NAME`.

    An episode's figure is the mean over the turns that report it. ABORTED episodes are omitted, and episodes cut off
    before they reported a figure count 0.
    """
    by_episode = [trajectory.figures for trajectory in played if trajectory.status is not Status.ABORTED]
    means = {
        f"env_{name}" if name in OURS or name.startswith(PREFIXES) else name: statistics.fmean(
            episode.get(name, 0.0) for episode in by_episode
        )
        for name in dict.fromkeys(name for episode in by_episode for name in episode)
    }
    return means | {NAMED: list(means)} if means else {}


def summary(played: Sequence[Trajectory]) -> dict[str, float]:
    """Means of success, return and steps over episodes that were not ABORTED, and the share that were."""
    counted = [trajectory for trajectory in played if trajectory.status is not Status.ABORTED]
    share = max(1, len(counted))
    return {
        "success_rate": sum(trajectory.success for trajectory in counted) / share,
        "return": sum(trajectory.total_return for trajectory in counted) / share,
        "episode_steps": sum(len(trajectory.turns) for trajectory in counted) / share,
        "aborted": 1 - len(counted) / max(1, len(played)),
    }
