"""What a learning curve comes to: the area below it, and where it first reaches a value."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


def area(places: Sequence[float], values: Sequence[float]) -> float:
    """The mean height of the curve between its first and last place, by the trapezoidal rule.

    >>> area([0, 10, 20], [0.0, 1.0, 1.0])
    0.75
    """
    points = list(zip(places, values, strict=True))
    if len(points) == 1:
        return values[0]
    parts = ((right - left) * (low + high) / 2 for (left, low), (right, high) in pairwise(points))
    return sum(parts) / (places[-1] - places[0])


def first_reaching(places: Sequence[float], values: Sequence[float], wanted: float) -> float | None:
    """The first place where the curve is at least `wanted`; None if it never is.

    >>> first_reaching([128, 256, 384], [0.5, 0.9, 0.8], 0.9)
    256
    """
    return next((place for place, value in zip(places, values, strict=True) if value >= wanted), None)
