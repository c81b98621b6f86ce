"""Merit of a wish: how much a slot is worth to it.

The merit is a product of four factors: height above the horizon, age of the
wish, rank given by the committee, and how close the wish is to being done.
"""

import math

RANK_FACTOR = {"A": 1.0, "B": 0.7, "C": 0.45}
AGE_HALF_DAYS = 60
FINISH_SHARE = 0.8
FINISH_BOOST = 1.25
SCHOOL_BOOST = 1.5


def height_factor(altitude):
    """Sine of the altitude to the power 1.4, zero below the horizon."""
    if altitude <= 0:
        return 0.0
    return math.sin(math.radians(altitude)) ** 1.4


def age_factor(days):
    """Old wishes get more: from 0.5 when new towards 1.0, half way at 60 days."""
    return 1.0 - 0.5 * 0.5 ** (days / AGE_HALF_DAYS)


def finish_factor(done, wanted):
    """A wish with four fifths of its exposure gets a boost to be finished."""
    if wanted and done / wanted >= FINISH_SHARE:
        return FINISH_BOOST
    return 1.0


def merit(altitude, days, rank, done, wanted, school=False):
    """Product of the factors; wishes of the school group are boosted by half."""
    value = height_factor(altitude) * age_factor(days) * RANK_FACTOR[rank]
    value *= finish_factor(done, wanted)
    return value * SCHOOL_BOOST if school else value
