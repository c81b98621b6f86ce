"""Neighbour checks: does a station agree with those around it?"""

import math

REACH_KM = 18.0
MIN_NEIGHBOURS = 2
TOLERANCE = {"air": 4.0, "press": 2.2, "humid": 25.0}
RAIN_RATIO = 5.0
RAIN_MIN_MM = 4.0
HEIGHT_SCALE_M = 8300.0


def sea_level(press, height_m):
    """Pressure brought down to sea level with a scale height of 8300 metres."""
    return press * math.exp(height_m / HEIGHT_SCALE_M)


def weight(distance_km, height_difference_m):
    """Weight of a neighbour: falls with distance, and as if 100 m of height were 3 km of way."""
    way = distance_km + 3.0 * abs(height_difference_m) / 100
    return 0.0 if distance_km > REACH_KM else 1.0 / (1.0 + way)


def estimate(pairs):
    """Weighted mean of (value, weight) pairs, or None with fewer than two useful neighbours."""
    useful = [(value, w) for value, w in pairs if w > 0]
    if len(useful) < MIN_NEIGHBOURS:
        return None
    total = sum(w for _value, w in useful)
    return sum(value * w for value, w in useful) / total


def disagrees(name, value, pairs):
    """True if a reading is farther from the estimate than the tolerance of its kind."""
    guess = estimate(pairs)
    return guess is not None and abs(value - guess) > TOLERANCE[name]


def rain_suspect(own_mm, others_mm):
    """Daily rain is suspect if the others had at least 4 mm and it differs by a factor of five.

    The comparison uses the median of the other stations. Thunderstorm days (any station with
    more than 12 mm in one hour) should be left out by the caller.
    """
    others = sorted(others_mm)
    if len(others) < MIN_NEIGHBOURS:
        return False
    middle = others[len(others) // 2]
    if middle < RAIN_MIN_MM:
        return False
    return own_mm * RAIN_RATIO < middle or own_mm > middle * RAIN_RATIO
