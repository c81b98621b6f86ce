"""Master dark frames: taking, choosing and scaling.

The dark current of the chips doubles with temperature, so a dark is used only
near the temperature at which it was taken. Darks get old, too.
"""

DOUBLING_DEGREES = 6.3
NEAR_DEGREES = 1.5
OLD_AFTER_DAYS = 120
FRAMES_IN_MASTER = 25


def scale(exposure, temperature, dark_exposure, dark_temperature):
    """Factor by which the dark current of a master is multiplied."""
    heat = 2.0 ** ((temperature - dark_temperature) / DOUBLING_DEGREES)
    return exposure / dark_exposure * heat


def choose(masters, exposure, temperature, age_days):
    """Best master or None.

    A master must be within 1.5 degrees and younger than 120 days. Among those
    the one with the nearest longer exposure wins, because scaling down makes
    less noise than scaling up.
    """
    fit = [
        m
        for m in masters
        if abs(m["temperature"] - temperature) <= NEAR_DEGREES and age_days(m) <= OLD_AFTER_DAYS
    ]
    longer = [m for m in fit if m["exposure"] >= exposure]
    if longer:
        return min(longer, key=lambda m: m["exposure"])
    return max(fit, key=lambda m: m["exposure"], default=None)


def hot_pixels(master, mean, spread):
    """Places that lie nine spreads above the mean; they are filled in later."""
    return [
        (row, column)
        for row, line in enumerate(master)
        for column, value in enumerate(line)
        if value > mean + 9 * spread
    ]
