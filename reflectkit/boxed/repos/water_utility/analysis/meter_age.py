"""Which meters are to be changed this year.

A meter is changed when its calibration runs out, when it counts slowly or
when its battery is low. The list is sorted so that a street is done at once.
"""

from datetime import date

CALIBRATION_YEARS = {"Kestrel 20": 6, "Plover 25": 9, "Bittern bulk": 4}
SLOW_DROP = 0.30
LOW_BATTERY_PERCENT = 17
CHANGES_PER_DAY = 11


def runs_out(make, built):
    """Last day of the year in which the calibration ends."""
    return date(built.year + CALIBRATION_YEARS[make], 12, 31)


def slow(use_by_year):
    """True when the use fell by thirty percent against the mean of three years."""
    if len(use_by_year) < 4:
        return False
    earlier = sum(use_by_year[-4:-1]) / 3
    return earlier > 0 and use_by_year[-1] < (1 - SLOW_DROP) * earlier


def reasons(make, built, use_by_year, battery, today):
    """Reasons to change a meter, an empty list when it may stay."""
    found = []
    if today.year >= runs_out(make, built).year:
        found.append("calibration")
    if slow(use_by_year):
        found.append("slow")
    if battery is not None and battery < LOW_BATTERY_PERCENT:
        found.append("battery")
    return found


def days_needed(meters):
    """Working days for a number of meters, eleven a day with two fitters."""
    return -(-len(meters) // CHANGES_PER_DAY)


def route(meters):
    """Order by street and then odd house numbers before even ones."""
    return sorted(meters, key=lambda m: (m["street"], m["house"] % 2 == 0, m["house"]))
