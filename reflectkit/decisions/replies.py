"""Probabilities in the reply of a server, which are used only if they are a distribution over the offered options."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

TOLERANCE = 0.05
"""By how much the probabilities of a reply may miss 1, since many servers round them."""


class UnusableReplyError(ValueError):
    """A reply that does not answer what was asked."""


class ModelRefusalError(UnusableReplyError):
    """The model declined to answer."""


def checked(shares: Mapping[Any, Any], options: Sequence[str]) -> tuple[float, ...]:
    """The probability of each of `options`, whose sum is 1. shares: by option, as they came. Raises
    UnusableReplyError.

    >>> checked({"left": 0.26, "right": 0.78}, ("right", "left"))
    (0.75, 0.25)
    """
    if set(shares) != set(options):
        raise UnusableReplyError("its options are not those that were offered")
    return distribution([shares[option] for option in options], TOLERANCE, UnusableReplyError)


def distribution(
    values: Sequence[Any],
    tolerance: float,
    error: Callable[[str], Exception],
) -> tuple[float, ...]:
    """`values` as probabilities whose sum is 1. tolerance: by how much it may miss 1. error: makes the error of a
    message, which is raised where they are none.
    """
    # 1. Each is one
    for value in values:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value <= 1:  # NaN is not, either
            raise error(f"{value!r:.60} is no probability")

    # 2. Their sum, which many writers round
    total = math.fsum(values)
    if abs(total - 1) > tolerance:
        raise error(f"the probabilities add up to {total:.4g}, not to 1")
    return tuple(value / total for value in values)
