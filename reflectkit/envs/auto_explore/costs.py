"""What a step and an ending cost, in the units of the Reflect-RL paper (arXiv 2402.12621); the env's reward is minus
that, scaled.

Departs from the published code, whose costs for errors and warnings never fire.
"""

from __future__ import annotations

STEP, ERROR, WARNING = 1, 2, 1
SOLVED_BELOW = 0.01


def step_cost(errors: int, warnings: int) -> int:
    """Of one command whose output has so many errors and warnings."""
    return STEP + ERROR * errors + WARNING * warnings


def end_cost(right: bool, horizon: int) -> int:
    """Added at the end: minus the horizon where the file named is right, plus the horizon where it is not, or
    none was.
    """
    return -horizon if right else horizon


def solved(total_cost: float) -> bool:
    """Whether an episode of this total cost counts as a success."""
    return total_cost < SOLVED_BELOW
