"""Rewards of groups of episodes, and figures of episodes, for slime.

An episode has one or several rows, which slime calls samples. slime's own normalisation reshapes
the rows by `--n-samples-per-prompt`. If episodes have several rows, it takes the whole batch for
one group. Here the rows of a `group_index` are a group, and each `rollout_id`, an episode, counts
once in its mean and standard deviation. Failed episodes do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from reflectkit.evals.stats import pass_all, pass_at

EPISODE = "episode"
"""The key in the metadata of a row under which `generate` puts the figures of its episode."""
SMALLEST = 1e-6
"""A number that slime adds to a standard deviation. A group whose rewards differ by less teaches
nothing.
"""
CENTRED = ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline")
"""The advantage estimators whose rewards slime centres in groups."""
SCALED = ("grpo", "gspo", "cispo")
"""The advantage estimators whose rewards slime also divides by the standard deviation."""


def normalise_rewards(args: Any, samples: list[Any]) -> tuple[list[float], list[float]]:
    """(rewards, normalised rewards), one each for each sample; a failed episode has reward 0.

    For `--custom-reward-post-process-path`. Groups are centred and scaled as slime does for its
    advantage estimator. All rows of an episode get the same reward, since slime's loss is a mean
    over the tokens of a `rollout_id`.
    """
    # 1. Some estimators take the rewards as they are
    raw = [reward_of(args, sample) for sample in samples]
    estimator = getattr(args, "advantage_estimator", CENTRED[0])
    if estimator not in CENTRED or not getattr(args, "rewards_normalization", True):
        return raw, raw

    # 2. The rows of each group, without failed episodes
    groups: dict[Any, list[int]] = {}
    for row, sample in enumerate(samples):
        if not has_failed(sample):
            groups.setdefault(sample.group_index, []).append(row)

    # 3. Centre and scale each group
    is_scaled = estimator in SCALED and getattr(args, "grpo_std_normalization", True)
    rewards = [0.0] * len(samples)
    for rows in groups.values():
        # Each episode counts once
        rewards_of: dict[Any, list[float]] = {}
        for row in rows:
            key = episode_key(samples[row], row)
            rewards_of.setdefault(key, []).append(raw[row])
        episode_rewards = list(map(fmean, rewards_of.values()))
        mean = fmean(episode_rewards)
        scale = _scale(episode_rewards) if is_scaled else 1.0
        for row in rows:
            rewards[row] = (raw[row] - mean) / scale
    return raw, rewards


def _scale(rewards: Sequence[float]) -> float:
    """The number by which slime divides the rewards of a group."""
    # One reward has no standard deviation
    deviation = stdev(rewards) if len(rewards) > 1 else 0.0
    return deviation + SMALLEST


def keep_group(args: Any, samples: list[Any], **_: Any) -> Any:
    """Whether a group can teach something; otherwise slime plays another one.

    For `--dynamic-sampling-filter-path`. At least two episodes must have ended, with different
    rewards. samples: a sample, or a list of rows, for each episode.
    """
    from slime.rollout.filter_hub.base_types import DynamicFilterOutput

    # 1. The first row of each episode that has not failed
    complete = []
    for episode in samples:
        rows = episode if isinstance(episode, list) else [episode]
        if rows and not has_failed(rows[0]):
            complete.append(rows[0])

    # 2. Their rewards
    if len(complete) < 2:
        return DynamicFilterOutput(keep=False, reason="failed_episodes")
    rewards = [reward_of(args, sample) for sample in complete]
    if max(rewards) - min(rewards) <= SMALLEST:
        return DynamicFilterOutput(keep=False, reason=f"equal_rewards_{round(rewards[0], 1)}")
    return DynamicFilterOutput(keep=True)


def has_failed(sample: Any) -> bool:
    """Whether the infrastructure failed in the episode of `sample`."""
    return bool(sample.status.value == "aborted" or sample.reward is None)


def reward_of(args: Any, sample: Any) -> float:
    """The reward of the episode of `sample`; 0 if it failed."""
    if has_failed(sample):
        return 0.0
    key = getattr(args, "reward_key", None)
    reward = sample.reward[key] if key else sample.reward
    return float(reward)


def episode_key(sample: Any, row: int) -> Any:
    """A key that the rows of an episode share. A sample without `rollout_id` is an episode of its
    own.

    row: the index of the sample.
    """
    if sample.rollout_id is None:
        return ("row", row)
    return sample.rollout_id


def figures(samples: Sequence[Any]) -> dict[str, float]:
    """Means over the episodes of `samples`: success, return, steps, rows, tokens, and figures of
    the env.

    `failed` is the share of episodes whose infrastructure failed. The other figures are means over
    the rest. If each problem was tried k > 1 times, there are also pass@k and pass^k.
    """
    # 1. One sample for each episode, since its rows have the same figures
    firsts: dict[Any, Any] = {}
    for row, sample in enumerate(samples):
        firsts.setdefault(episode_key(sample, row), sample)
    episodes = [sample for sample in firsts.values() if EPISODE in (sample.metadata or {})]
    if not episodes:
        return {}

    # 2. The mean of each figure, over the episodes that have it
    complete = [sample.metadata[EPISODE] for sample in episodes if not has_failed(sample)]
    means = {"failed": fmean(has_failed(sample) for sample in episodes)}
    names = {name for episode in complete for name in episode["figures"]}
    for name in sorted(names):
        values = [episode["figures"][name] for episode in complete if name in episode["figures"]]
        means[name] = fmean(values)
    if "success" not in means:
        return means

    # 3. Success in several tries of a problem; problems with a failed episode have fewer, and are
    # left out
    tries_of: dict[str, list[bool]] = {}
    for episode in complete:
        success = bool(episode["figures"].get("success"))
        tries_of.setdefault(episode["task"], []).append(success)
    k = max(map(len, tries_of.values()), default=0)
    if k > 1:
        successes = [sum(tries) for tries in tries_of.values() if len(tries) == k]
        means[f"pass@{k}"] = fmean(pass_at(k, count, k) for count in successes)
        means[f"pass^{k}"] = fmean(pass_all(k, count, k) for count in successes)
    return means


def log_rollout(
    rollout_id: int, args: Any, samples: list[Any], rollout_extra_metrics: Any, rollout_time: float
) -> bool:
    """Add figures to what slime logs of a rollout, as `reflectkit/NAME`.

    For `--custom-rollout-log-function-path`. Returns False: slime then logs as usual.
    """
    if isinstance(rollout_extra_metrics, dict):
        for name, value in figures(samples).items():
            rollout_extra_metrics[f"reflectkit/{name}"] = value
    return False


def log_evaluation(rollout_id: int, args: Any, data: dict[str, Any], extra_metrics: Any) -> bool:
    """Log figures of each evaluation set, as `eval/SET/reflectkit/NAME`.

    For `--custom-eval-rollout-log-function-path`. Failed episodes are removed from `data`, and so
    from what slime logs; there they would count as failures of the policy. Returns False: slime
    then logs as usual.
    """
    from slime.observability import logging_utils
    from slime.observability.metric_utils import compute_rollout_step

    log: dict[str, float] = {"eval/step": compute_rollout_step(args, rollout_id)}
    for name, part in list(data.items()):
        # 1. The figures of the set
        samples = part.get("samples") or []
        for key, value in figures(samples).items():
            log[f"eval/{name}/reflectkit/{key}"] = value

        # 2. Remove failed episodes, and a set without others
        complete = [number for number, sample in enumerate(samples) if not has_failed(sample)]
        if samples and not complete:
            del data[name]
        elif len(complete) < len(samples):
            for key in ("rewards", "truncated", "samples"):
                part[key] = [part[key][number] for number in complete]
    logging_utils.log(args, log, step_key="eval/step")
    return False
