"""Returns, baselines and advantages as pure functions."""

from __future__ import annotations

from collections.abc import Sequence


def returns_to_go(rewards: Sequence[float], gamma: float) -> list[float]:
    """G_t = r_t + gamma * G_{t+1} for each step of one episode (Sutton and Barto, eq. 3.9).

    >>> returns_to_go([1.0, 2.0, 4.0], 0.5)
    [3.0, 4.0, 4.0]
    """
    returns = [0.0] * len(rewards)
    following = 0.0
    for index in range(len(rewards) - 1, -1, -1):
        following = rewards[index] + gamma * following
        returns[index] = following
    return returns


def advantages(returns: Sequence[float], values: Sequence[float] | None, baseline: str, scale: bool) -> list[float]:
    """How much better each decision went than expected, in return units (or in standard deviations, with `scale`).

    Parameters
    ----------
    returns: G of B decisions. values: the critic's V of the same decisions, needed by baseline "critic" alone.
    baseline: "none" keeps G; "batch" subtracts the mean of all B; "critic" subtracts V.
    scale: divide by the standard deviation of the B advantages (left alone where they are all equal).
    """
    if not returns:
        return []
    if baseline == "none":
        expected: Sequence[float] = [0.0] * len(returns)
    elif baseline == "batch":
        expected = [sum(returns) / len(returns)] * len(returns)
    else:
        assert values is not None
        expected = values
    result = [achieved - hoped for achieved, hoped in zip(returns, expected, strict=True)]
    if not scale:
        return result
    mean = sum(result) / len(result)
    deviation = (sum((value - mean) ** 2 for value in result) / len(result)) ** 0.5
    return [value / deviation for value in result] if deviation > 1e-8 else result
