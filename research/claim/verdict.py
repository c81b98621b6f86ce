"""The gate, the test, the rule and the power of the comparison, as pure functions; all were fixed before any run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from reflectkit.evals.stats import mean_interval, mean_p

FOLLOWS = 0.9
"""Share of the success of acting on comments exactly that a policy must reach with them."""
FALLS = 0.3
"""How far its success must fall with comments on other states."""
SOUGHT = 0.08
"""The difference in success that the number of seeds is chosen for."""
POWER = 0.8
MOST_SEEDS = 40
ROUNDING = 1e-9

Outcomes = Mapping[str, float]
"""Success by problem."""


@dataclass(frozen=True, slots=True)
class Gate:
    """Success of acting on the teacher's comments exactly, and of the policy with them, and with those on other
    states.
    """

    exact: float
    teacher: float
    elsewhere: float

    @property
    def holds(self) -> bool:
        """Whether the policy follows its comments."""
        follows = self.teacher >= FOLLOWS * self.exact - ROUNDING
        return follows and self.teacher - self.elsewhere >= FALLS - ROUNDING


def mean_gate(gates: Sequence[Gate]) -> Gate:
    """The means over seeds."""
    return Gate(
        fmean(gate.exact for gate in gates),
        fmean(gate.teacher for gate in gates),
        fmean(gate.elsewhere for gate in gates),
    )


@dataclass(frozen=True, slots=True)
class Difference:
    """A mean paired difference over seeds; the t interval and its p, with a cluster for each seed."""

    difference: float
    low: float
    high: float
    p: float
    seeds: int
    problems: int


def compare(first: Sequence[Outcomes], second: Sequence[Outcomes]) -> Difference:
    """`first` minus `second`, for each seed the outcomes on the problems of that seed, which both played."""
    gaps = []
    for ours, theirs in zip(first, second, strict=True):
        if ours.keys() != theirs.keys():
            raise ValueError("the two arms of a seed played different problems")
        gaps.append([value - theirs[problem] for problem, value in ours.items()])
    every = [gap for seed in gaps for gap in seed]
    return Difference(fmean(every), *mean_interval(gaps), mean_p(gaps), len(gaps), len(every))


def verdict(difference: Difference) -> str:
    """The word of the rule."""
    if difference.low > 0:
        return "helps"
    return "does not help" if difference.high < SOUGHT else "undecided"


def area(curve: Sequence[tuple[float, float]], begin: float = 0) -> float:
    """The mean height of a curve of (x, y) from x = `begin`, one of its points or before them, by the trapezoid rule.

    >>> area([(0, 0.0), (1, 1.0), (3, 1.0)])
    0.8333333333333334
    """
    curve = [point for point in curve if point[0] >= begin]
    width = curve[-1][0] - curve[0][0]
    strips = [(right - left) * (low + high) / 2 for (left, low), (right, high) in pairwise(curve)]
    return math.fsum(strips) / width


def power(deviation: float, seeds: int, difference: float = SOUGHT) -> float:
    """The power of the t test over `seeds` differences whose standard deviation is `deviation`, two-sided at 5 %."""
    from scipy.stats import nct, t

    if seeds < 2:
        return 0.0
    if not deviation:
        return 1.0
    critical = t.ppf(0.975, seeds - 1)
    shift = difference / (deviation / math.sqrt(seeds))
    return float(1 - nct.cdf(critical, seeds - 1, shift) + nct.cdf(-critical, seeds - 1, shift))


def seeds_needed(deviation: float, difference: float = SOUGHT) -> int | None:
    """The fewest seeds with a power of `POWER`; None if that takes over `MOST_SEEDS`."""
    counts = range(2, MOST_SEEDS + 1)
    return next((seeds for seeds in counts if power(deviation, seeds, difference) >= POWER), None)
