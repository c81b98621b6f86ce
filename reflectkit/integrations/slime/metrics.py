"""Figures of episodes for slime's logs, each episode counted once and failed ones apart."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from reflectkit.evals.stats import pass_all, pass_at
from reflectkit.integrations.slime.rewards import failed, first_rows

EPISODE = "episode"
"""Where `generate` puts an episode's figures in the metadata of its rows."""


def figures(samples: Sequence[Any]) -> dict[str, float]:
    """Means over the episodes of `samples`: success, return, steps, rows, tokens, …, and those that their env reports.

    `failed` is the share of episodes whose infrastructure failed; the others are means of the rest. With several tries
    of each problem, also pass@k and pass^k for all k tries.
    """
    episodes = [sample for sample in first_rows(samples) if EPISODE in (sample.metadata or {})]
    if not episodes:
        return {}
    ended = [sample.metadata[EPISODE] for sample in episodes if not failed(sample)]
    means = {"failed": fmean(failed(sample) for sample in episodes)}
    for name in sorted({name for episode in ended for name in episode["figures"]}):
        means[name] = fmean(episode["figures"][name] for episode in ended if name in episode["figures"])
    tries: dict[str, list[bool]] = {}
    for episode in ended:
        tries.setdefault(episode["task"], []).append(bool(episode["figures"]["success"]))
    most = max(map(len, tries.values()), default=0)
    complete = [outcomes for outcomes in tries.values() if len(outcomes) == most]
    if most > 1:
        means[f"pass@{most}"] = fmean(pass_at(most, sum(outcomes), most) for outcomes in complete)
        means[f"pass^{most}"] = fmean(pass_all(most, sum(outcomes), most) for outcomes in complete)
    return means


def log_rollout(
    rollout_id: int, args: Any, samples: list[Any], rollout_extra_metrics: Any, rollout_time: float
) -> bool:
    """Add `reflectkit/…` to what slime logs of a rollout: `--custom-rollout-log-function-path`."""
    if isinstance(rollout_extra_metrics, dict):
        rollout_extra_metrics.update({f"reflectkit/{name}": value for name, value in figures(samples).items()})
    return False


def log_evaluation(rollout_id: int, args: Any, data: dict[str, Any], extra_metrics: Any) -> bool:
    """Log `eval/NAME/reflectkit/…` of each evaluation set, and take failed episodes out of what slime logs of it:
    `--custom-eval-rollout-log-function-path`.
    """
    from slime.observability import logging_utils
    from slime.observability.metric_utils import compute_rollout_step

    logged: dict[str, float] = {"eval/step": compute_rollout_step(args, rollout_id)}
    for name, part in list(data.items()):
        samples = part.get("samples") or []
        logged |= {f"eval/{name}/reflectkit/{key}": value for key, value in figures(samples).items()}
        kept = [number for number, sample in enumerate(samples) if not failed(sample)]
        if samples and not kept:
            del data[name]
        elif len(kept) < len(samples):
            for key in ("rewards", "truncated", "samples"):
                part[key] = [part[key][number] for number in kept]
    logging_utils.log(args, logged, step_key="eval/step")
    return False
