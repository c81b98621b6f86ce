"""Reductions: slow copies become cheaper step by step until they leave the shop."""

# Months on the shelf and the share of the first asking price that is then asked.
STEPS = ((9, 0.85), (15, 0.65), (24, 0.40))
LEAVE_AFTER_MONTHS = 30
FLOOR_CENTS = 200
EXEMPT_SHELVES = ("LOCAL", "SIGNED", "MAPS")
WINDOW_PAUSE_MONTHS = 2


def months_that_count(months, in_window_months=0):
    """Age of a copy for the reductions; up to two months in the window do not count."""
    return months - min(in_window_months, WINDOW_PAUSE_MONTHS)


def reduced_cents(first_cents, months, shelf, in_window_months=0):
    """Price after the reductions.

    Local history, signed copies and maps are never reduced. Other copies lose 15 percent after
    nine months, 35 percent after fifteen and 60 percent after two years, counted from the first
    price and not from the last one. The result is rounded down to full ten cents and is not
    below two euros.
    """
    if shelf in EXEMPT_SHELVES:
        return first_cents
    share = 1.0
    for limit, step in STEPS:
        if months_that_count(months, in_window_months) >= limit:
            share = step
    return max(FLOOR_CENTS, int(first_cents * share) // 10 * 10)


def must_leave(months, shelf):
    """After thirty months an ordinary copy goes to the charity crate of the parish hall."""
    return shelf not in EXEMPT_SHELVES and months >= LEAVE_AFTER_MONTHS


def sticker(share):
    """Colour of the round sticker on the spine that tells the reduction at a glance."""
    colours = {1.0: None, 0.85: "green", 0.65: "orange", 0.40: "red"}
    return colours[share]
