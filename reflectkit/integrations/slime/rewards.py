"""Rewards of groups of episodes, and figures of episodes, for slime.

An episode has one or several rows, which slime calls samples. slime's own normalisation reshapes
the rows by `--n-samples-per-prompt`. If episodes have several rows, it takes the whole batch for
one group. Here the rows of a `group_index` are a group, and each `rollout_id`, an episode, counts
once in its mean and standard deviation. Failed episodes do not count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    is_centred = estimator in CENTRED
    if not is_centred or not getattr(args, "rewards_normalization", True):
        return raw, raw

    # 2. The rows of each group, without failed episodes
    rows_by_group: dict[Any, list[int]] = {}
    for row, sample in enumerate(samples):
        if not has_failed(sample):
            rows = rows_by_group.setdefault(sample.group_index, [])
            rows.append(row)

    # 3. Centre and scale each group
    is_scaled = estimator in SCALED
    if not getattr(args, "grpo_std_normalization", True):
        is_scaled = False
    rewards = [0.0] * len(samples)
    for rows in rows_by_group.values():
        episode_rewards = _episode_rewards(samples, raw, rows)
        mean = fmean(episode_rewards)
        scale = _scale(episode_rewards) if is_scaled else 1.0
        for row in rows:
            rewards[row] = (raw[row] - mean) / scale
    return raw, rewards


def _episode_rewards(
    samples: Sequence[Any],
    rewards: Sequence[float],
    rows: Sequence[int],
) -> list[float]:
    """The reward of each episode, the mean over its rows, which are among `rows`."""
    by_episode: dict[Any, list[float]] = {}
    for row in rows:
        key = episode_key(samples[row], row)
        episode = by_episode.setdefault(key, [])
        episode.append(rewards[row])
    return [fmean(episode) for episode in by_episode.values()]


def _scale(rewards: Sequence[float]) -> float:
    """The number by which slime divides the rewards of a group."""
    # One reward has no standard deviation
    if len(rewards) < 2:
        return SMALLEST
    return stdev(rewards) + SMALLEST


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
    spread = max(rewards) - min(rewards)
    if spread <= SMALLEST:
        reason = f"equal_rewards_{round(rewards[0], 1)}"
        return DynamicFilterOutput(keep=False, reason=reason)
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
    by_episode: dict[Any, Any] = {}
    for row, sample in enumerate(samples):
        key = episode_key(sample, row)
        by_episode.setdefault(key, sample)
    episodes = []
    for sample in by_episode.values():
        if sample.metadata and EPISODE in sample.metadata:
            episodes.append(sample)
    if not episodes:
        return {}

    # 2. The mean of each figure, over the episodes that have it
    complete = [sample.metadata[EPISODE] for sample in episodes if not has_failed(sample)]
    values_by_name: dict[str, list[float]] = {}
    for episode in complete:
        for name, value in episode["figures"].items():
            values = values_by_name.setdefault(name, [])
            values.append(value)
    means = {"failed": fmean(map(has_failed, episodes))}
    for name in sorted(values_by_name):
        means[name] = fmean(values_by_name[name])

    # 3. Success in several tries of a problem
    if "success" in means:
        means |= _pass_figures(complete)
    return means


def _pass_figures(episodes: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """pass@k and pass^k, if problems were tried k > 1 times.

    A problem with a failed episode has fewer tries, and is left out.
    """
    # 1. The tries of each problem
    tries_by_task: dict[str, list[bool]] = {}
    for episode in episodes:
        success = episode["figures"].get("success")
        tries = tries_by_task.setdefault(episode["task"], [])
        tries.append(bool(success))
    k = max(map(len, tries_by_task.values()), default=0)
    if k < 2:
        return {}

    # 2. The chances over problems with k tries
    counts = [sum(tries) for tries in tries_by_task.values() if len(tries) == k]
    return {
        f"pass@{k}": fmean(pass_at(k, count, k) for count in counts),
        f"pass^{k}": fmean(pass_all(k, count, k) for count in counts),
    }


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

    step = compute_rollout_step(args, rollout_id)
    log: dict[str, float] = {"eval/step": step}
    for name, part in list(data.items()):
        # 1. The figures of the set
        samples = part.get("samples") or []
        for key, value in figures(samples).items():
            log[f"eval/{name}/reflectkit/{key}"] = value

        # 2. Remove failed episodes, and a set without others
        complete = []
        for number, sample in enumerate(samples):
            if not has_failed(sample):
                complete.append(number)
        if samples and not complete:
            del data[name]
        elif len(complete) < len(samples):
            for key in ("rewards", "truncated", "samples"):
                column = part[key]
                part[key] = [column[number] for number in complete]
    logging_utils.log(args, log, step_key="eval/step")
    return False
