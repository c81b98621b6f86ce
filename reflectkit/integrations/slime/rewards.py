"""Rewards and figures of groups of episodes, each of one or several rows, for slime.

slime's own normalisation reshapes the rows by `--n-samples-per-prompt`; where episodes have several
rows, it takes the whole batch for one group. Here the rows of a `group_index` are a group, and each
`rollout_id` counts once in its mean and standard deviation. Failed episodes are in neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from reflectkit.evals.stats import pass_all, pass_at

EPISODE = "episode"
"""Where `generate` puts an episode's figures in the metadata of its rows."""
SMALLEST = 1e-6
"""Added to a standard deviation, as slime does; groups whose rewards differ by less teach nothing.
"""
CENTRED = ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline")
SCALED = ("grpo", "gspo", "cispo")


def normalise_rewards(args: Any, samples: list[Any]) -> tuple[list[float], list[float]]:
    """(rewards, rewards normalised within their group), one each per sample:
    `--custom-reward-post-process-path`.

    All rows of an episode get the same: slime's loss is a mean over the tokens of a `rollout_id`.
    Groups are centred and scaled where slime does so for its advantage estimator. A failed
    episode's reward is 0.
    """
    # 1. Only some estimators centre rewards in groups
    raw = [reward_of(args, sample) for sample in samples]
    estimator = getattr(args, "advantage_estimator", CENTRED[0])
    if estimator not in CENTRED or not getattr(args, "rewards_normalization", True):
        return raw, raw

    # 2. The mean and deviation of a group, over its episodes
    scaled = estimator in SCALED and getattr(args, "grpo_std_normalization", True)
    rewards = [0.0] * len(samples)
    groups: dict[Any, list[int]] = {}
    for row, sample in enumerate(samples):
        if not failed(sample):
            groups.setdefault(sample.group_index, []).append(row)
    for rows in groups.values():
        episodes: dict[Any, list[float]] = {}
        for row in rows:
            episodes.setdefault(episode_key(samples[row], row), []).append(raw[row])
        values = [fmean(parts) for parts in episodes.values()]
        mean, scale = fmean(values), 1.0
        if scaled:
            # A group of one has no deviation
            deviation = stdev(values) if len(values) > 1 else 0.0
            scale = deviation + SMALLEST
        for row in rows:
            rewards[row] = (raw[row] - mean) / scale
    return raw, rewards


def keep_group(args: Any, samples: list[Any], **_: Any) -> Any:
    """Whether a group can teach something, for `--dynamic-sampling-filter-path`: at least two
    episodes have ended, and their rewards differ. Otherwise slime plays another group. samples: a
    Sample or a list of rows for each episode.
    """
    from slime.rollout.filter_hub.base_types import DynamicFilterOutput

    # An episode of several rows comes as a list
    firsts = [item[0] if isinstance(item, list) else item for item in samples if item != []]
    whole = [sample for sample in firsts if not failed(sample)]
    rewards = [reward_of(args, sample) for sample in whole]
    if len(whole) < 2:
        return DynamicFilterOutput(keep=False, reason="failed_episodes")
    if max(rewards) - min(rewards) <= SMALLEST:
        return DynamicFilterOutput(keep=False, reason=f"equal_rewards_{round(rewards[0], 1)}")
    return DynamicFilterOutput(keep=True)


def failed(sample: Any) -> bool:
    """Whether the infrastructure failed in its episode."""
    return bool(sample.status.value == "aborted" or sample.reward is None)


def reward_of(args: Any, sample: Any) -> float:
    """The reward of its episode; 0 if that failed."""
    if failed(sample):
        return 0.0
    key = getattr(args, "reward_key", None)
    return float(sample.reward[key] if key else sample.reward)


def episode_key(sample: Any, row: int) -> Any:
    """What the rows of an episode share; a sample without `rollout_id` is one by itself."""
    return ("row", row) if sample.rollout_id is None else sample.rollout_id


def figures(samples: Sequence[Any]) -> dict[str, float]:
    """Means over the episodes of `samples`: success, return, steps, rows, tokens, …, and those that
    their env reports.

    `failed` is the share of episodes whose infrastructure failed; the others are means of the rest.
    With several tries of each problem, also pass@k and pass^k for all k tries.
    """
    # 1. One sample for each episode, as its rows have the same figures
    firsts: dict[Any, Any] = {}
    for row, sample in enumerate(samples):
        firsts.setdefault(episode_key(sample, row), sample)
    episodes = [sample for sample in firsts.values() if EPISODE in (sample.metadata or {})]
    if not episodes:
        return {}

    # 2. Means over the episodes that have the figure
    whole = [sample.metadata[EPISODE] for sample in episodes if not failed(sample)]
    means = {"failed": fmean(failed(sample) for sample in episodes)}
    for name in sorted({name for episode in whole for name in episode["figures"]}):
        means[name] = fmean(
            episode["figures"][name] for episode in whole if name in episode["figures"]
        )

    # 3. Success in several tries; a problem with a failed episode has too few
    tries: dict[str, list[bool]] = {}
    for episode in whole if "success" in means else ():
        tries.setdefault(episode["task"], []).append(bool(episode["figures"].get("success")))
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
        rollout_extra_metrics.update(
            {f"reflectkit/{name}": value for name, value in figures(samples).items()}
        )
    return False


def log_evaluation(rollout_id: int, args: Any, data: dict[str, Any], extra_metrics: Any) -> bool:
    """Log `eval/NAME/reflectkit/…` of each evaluation set, and take failed episodes out of what
    slime logs of it: `--custom-eval-rollout-log-function-path`.
    """
    from slime.observability import logging_utils
    from slime.observability.metric_utils import compute_rollout_step

    logged: dict[str, float] = {"eval/step": compute_rollout_step(args, rollout_id)}
    for name, part in list(data.items()):
        samples = part.get("samples") or []
        logged |= {
            f"eval/{name}/reflectkit/{key}": value for key, value in figures(samples).items()
        }
        # Failed episodes would count as failures of the policy
        numbers = [number for number, sample in enumerate(samples) if not failed(sample)]
        if samples and not numbers:
            del data[name]
        elif len(numbers) < len(samples):
            for key in ("rewards", "truncated", "samples"):
                part[key] = [part[key][number] for number in numbers]
    logging_utils.log(args, logged, step_key="eval/step")
    return False
