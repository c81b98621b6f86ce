"""Monthly report for the members, made from the parsed night logs.

The report tells how many hours the roof was open, how many of them brought
light, and what the weather took. It is pinned up by the tea kettle.
"""

GOOD_NIGHT_HOURS = 3.5
EFFICIENCY_GOAL = 0.68
BARS = 30


def open_hours(events):
    """Hours between opening and closing; an open end is not counted."""
    total, opened = 0.0, None
    for moment, code, _ in events:
        if code == "OPN":
            opened = moment
        elif code == "CLS" and opened:
            total += (moment - opened).total_seconds() / 3600
            opened = None
    return total


def exposure_hours(events):
    """Hours of light; the text of an EXP line begins with seconds."""
    return sum(float(text.split()[0]) for _, code, text in events if code == "EXP") / 3600


def efficiency(events):
    """Light divided by open time; the goal is 68 percent."""
    hours = open_hours(events)
    return exposure_hours(events) / hours if hours else 0.0


def good_nights(nights):
    """Number of nights with at least three and a half hours of light."""
    return sum(1 for events in nights.values() if exposure_hours(events) >= GOOD_NIGHT_HOURS)


def bar(value):
    """A bar of up to thirty signs for the printed page, one sign per hour third."""
    return "#" * min(BARS, int(round(value * 3)))


def lines(nights):
    """Report lines, nights below the goal are marked with a question mark."""
    for night, events in sorted(nights.items()):
        mark = "?" if efficiency(events) < EFFICIENCY_GOAL else " "
        yield "%s %s %s" % (night, mark, bar(exposure_hours(events)))
