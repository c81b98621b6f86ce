"""When an order must be in, and on which days the bakery bakes at all."""

import datetime as dt

# Hours before midnight of the baking day by which an order has to be in.
# Laminated doughs rest for a night in the cold, so they close earlier.
CUTOFF_HOURS = {
    "levain_loaf": 14,
    "dark_rye": 20,
    "croissant": 30,
    "cardamom_bun": 8,
    "celebration_cake": 72,
}
DEFAULT_CUTOFF = 10
LATE_GRACE_MINUTES = 25
CLOSED_DATES = {(1, 1), (6, 24), (12, 25), (12, 26)}
SUMMER_BREAK = ((7, 15), (7, 28))


def is_open_day(day):
    """False on Mondays, on four fixed feast days and in the summer break."""
    if day.weekday() == 0:
        return False
    key = (day.month, day.day)
    if key in CLOSED_DATES:
        return False
    return not SUMMER_BREAK[0] <= key <= SUMMER_BREAK[1]


def cutoff(product, day):
    """The last moment at which `product` may be ordered for `day`."""
    midnight = dt.datetime.combine(day, dt.time())
    return midnight - dt.timedelta(hours=CUTOFF_HOURS.get(product, DEFAULT_CUTOFF))


def accepts(product, day, now, is_wholesale=False):
    """Whether an order made at `now` is still in time.

    Wholesale customers get a grace of LATE_GRACE_MINUTES; the counter does
    not, because the counter can see the clock.
    """
    limit = cutoff(product, day)
    if is_wholesale:
        limit += dt.timedelta(minutes=LATE_GRACE_MINUTES)
    return now <= limit


def next_possible_day(product, now):
    """First open day on which an order made now can be baked; looks 21 days on."""
    for ahead in range(1, 22):
        day = now.date() + dt.timedelta(days=ahead)
        if is_open_day(day) and accepts(product, day, now):
            return day
    raise LookupError(f"no day within three weeks for {product}")
