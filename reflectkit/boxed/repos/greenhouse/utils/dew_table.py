"""Print a dew point table for the shed wall, and warn of wet leaves."""

import math
import sys

A = 17.62
B = 243.12
LEAF_MARGIN = 1.4
ROWS = range(8, 33, 2)
COLUMNS = range(60, 101, 5)
WET_HOURS_FOR_MOULD = 4.5


def dew_point(celsius, humidity):
    """Magnus formula with the constants for water above freezing."""
    gamma = math.log(humidity / 100) + A * celsius / (B + celsius)
    return B * gamma / (A - gamma)


def deficit(celsius, humidity):
    """Grams of water that a cubic metre of air could still take up."""
    pressure = 6.112 * math.exp(A * celsius / (B + celsius))
    return 216.7 * pressure * (1 - humidity / 100) / (celsius + 273.15)


def leaf_wet(leaf, celsius, humidity):
    """A leaf counts as wet when it is within 1.4 degrees of the dew point."""
    return leaf - dew_point(celsius, humidity) < LEAF_MARGIN


def mould_risk(wet_minutes):
    """'low', 'some' from half of four and a half wet hours on, then 'high'."""
    hours = wet_minutes / 60
    if hours >= WET_HOURS_FOR_MOULD:
        return "high"
    return "some" if hours >= WET_HOURS_FOR_MOULD / 2 else "low"


def table():
    """Lines of the table: air temperature down, humidity across."""
    yield "air   " + "".join(f"{h:>6}" for h in COLUMNS)
    for celsius in ROWS:
        cells = "".join(f"{dew_point(celsius, h):>6.1f}" for h in COLUMNS)
        yield f"{celsius:<6}{cells}"


if __name__ == "__main__":
    sys.stdout.write("\n".join(table()) + "\n")
