"""Probabilities in a server's reply, which must be a distribution over the offered options."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

TOLERANCE = 0.05
"""How far the sum of a reply's probabilities may be from 1, since many servers round them."""


class UnusableReplyError(ValueError):
    """A reply that does not answer the question."""


class ModelRefusalError(UnusableReplyError):
    """The model declined to answer."""


def option_probabilities(shares: Mapping[Any, Any], options: Sequence[str]) -> tuple[float, ...]:
    """The probability of each of `options` (K), scaled to a sum of 1.

    shares: the probabilities by option, as the server sent them. Raises UnusableReplyError if they
    are of other options or no distribution.

    >>> option_probabilities({"left": 0.26, "right": 0.78}, ("right", "left"))
    (0.75, 0.25)
    """
    if set(shares) != set(options):
        raise UnusableReplyError("its options are not those that were offered")
    values = [shares[option] for option in options]
    return distribution(values, TOLERANCE, UnusableReplyError)


def distribution(
    values: Sequence[Any],
    tolerance: float,
    error: Callable[[str], Exception],
) -> tuple[float, ...]:
    """`values`, scaled to a sum of 1.

    tolerance: how far their sum may be from 1. error: makes an error from a message. That error is
    raised if a value is no probability, or if the sum is too far from 1.
    """
    # 1. Each value is a probability, which NaN is not
    for value in values:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value <= 1:
            raise error(f"{value!r:.60} is no probability")

    # 2. Their sum is about 1
    total = math.fsum(values)
    if abs(total - 1) > tolerance:
        raise error(f"the probabilities add up to {total:.4g}, not to 1")
    return tuple(value / total for value in values)
