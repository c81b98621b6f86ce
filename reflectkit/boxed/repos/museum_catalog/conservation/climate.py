"""Judge the climate of a room from its loggers."""

from statistics import mean, pstdev

# Lowest and highest relative humidity in percent per kind of store.
HUMIDITY = {"mixed": (42, 58), "metal": (20, 38), "paper": (40, 50),
            "textile": (45, 55)}
DAILY_SWING = 8
WARM_LIMIT = 24.5
DEW_MARGIN = 2.0
SPIKE_MINUTES = 40


def dew_point(celsius, humidity):
    """Rule of thumb: one degree down per 5 percent below saturation."""
    return celsius - (100 - humidity) / 5


def alarms(kind, readings, wall_celsius):
    """Alarms of one day of (celsius, humidity) readings.

    'range'  the mean humidity lies outside the band of the store;
    'swing'  highest and lowest differ by more than eight points;
    'warm'   a reading lies above 24.5 degrees;
    'dew'    the wall is within two degrees of the dew point.
    """
    low, high = HUMIDITY[kind]
    humid = [h for _, h in readings]
    out = []
    if not low <= mean(humid) <= high:
        out.append("range")
    if max(humid) - min(humid) > DAILY_SWING:
        out.append("swing")
    if any(c > WARM_LIMIT for c, _ in readings):
        out.append("warm")
    if any(wall_celsius - dew_point(c, h) < DEW_MARGIN for c, h in readings):
        out.append("dew")
    return out


def is_spike(minutes_outside):
    """Less than forty minutes outside is a door left open, not a climate."""
    return minutes_outside < SPIKE_MINUTES


def stability(readings):
    """Grade A to C by the spread of humidity: under 1.5, under 3, above."""
    spread = pstdev([h for _, h in readings])
    return "A" if spread < 1.5 else "B" if spread < 3 else "C"
