"""Read the night log that the programs write, one event on a line.

A line has a time, a three letter code and free text. Lines of one night are in
a file; a night begins at noon so that midnight does not split it.
"""

from datetime import datetime, timedelta

CODES = {
    "OPN": "roof opened",
    "CLS": "roof closed",
    "EXP": "exposure ended",
    "FOC": "focus run",
    "GST": "guide star lost",
    "WRN": "warning",
    "VIS": "visitors in the dome",
}
GAP_MINUTES = 50


def parse_line(line):
    """Tuple of time, code and text; unknown codes raise an error."""
    stamp, code, text = line.rstrip("\n").split(" ", 2)
    if code not in CODES:
        raise ValueError("unknown code %s" % code)
    return datetime.strptime(stamp, "%Y-%m-%dT%H:%M:%S"), code, text


def night_of(moment):
    """Date of the night: the calendar day on which the night began."""
    return (moment - timedelta(hours=12)).date()


def silent_gaps(events):
    """Pairs of times between which nothing was logged for 50 minutes.

    Gaps while the roof is closed do not count.
    """
    found, is_open, last = [], False, None
    for moment, code, _ in events:
        if is_open and last and moment - last > timedelta(minutes=GAP_MINUTES):
            found.append((last, moment))
        if code in ("OPN", "CLS"):
            is_open = code == "OPN"
        last = moment
    return found
