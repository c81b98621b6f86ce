"""Step checks: does a reading change too fast, or not at all?"""

# Largest change allowed between two records five minutes apart.
MAX_STEP = {"air": 3.5, "humid": 22.0, "press": 1.6, "battery": 0.8}

# A reading that stays exactly the same for so many records is called frozen.
FROZEN_RECORDS = {"air": 48, "humid": 96, "press": 60, "dir": 72}
SATURATED = 99.5
SPIKE_RETURN = 0.25
MAX_GAP_MINUTES = 20


def too_fast(before, now):
    """Names of the readings that jump between two records.

    If more than twenty minutes lie between the records, nothing is compared; for gaps below
    that the allowed change grows with the square root of the gap.
    """
    minutes = (now["time"] - before["time"]).total_seconds() / 60
    if minutes <= 0 or minutes > MAX_GAP_MINUTES:
        return []
    stretch = (minutes / 5) ** 0.5
    return [name for name, step in MAX_STEP.items()
            if abs(now[name] - before[name]) > step * stretch]


def is_spike(first, middle, last, step):
    """A spike jumps by more than the step and comes back to within a quarter of the jump."""
    up, back = middle - first, middle - last
    if abs(up) <= step or up * back <= 0:
        return False
    return abs(first - last) <= SPIKE_RETURN * abs(up)


def frozen(values, name):
    """True if the last records all have the same value.

    A humidity at saturation may stay the same as long as it likes, that is just fog; calm wind
    has no direction and is left out before the call.
    """
    need = FROZEN_RECORDS[name]
    tail = values[-need:]
    if len(tail) < need or len(set(tail)) != 1:
        return False
    return not (name == "humid" and tail[0] >= SATURATED)


def repair(values, bad):
    """Fill single bad values with the mean of the neighbours; two in a row become None."""
    result = list(values)
    for i in bad:
        ends = 0 < i < len(values) - 1
        lonely = ends and i - 1 not in bad and i + 1 not in bad
        result[i] = (values[i - 1] + values[i + 1]) / 2 if lonely else None
    return result
