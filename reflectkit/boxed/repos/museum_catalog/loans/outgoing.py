"""Loans from our house to others: who may borrow, for how long, at what price."""

import datetime as dt

MAX_MONTHS = {"a": 4, "b": 9, "c": 18, "d": 36}
REST_FACTOR = 2
HANDLING_FEE = {"museum": 0, "school": 15, "company": 240, "private": None}
COURIER_CLASSES = {"a"}
NOTICE_WEEKS = 16
LUX_LIMIT = {"paper": 50, "wool": 50, "linen": 50, "ivory": 120, "oak": 200}
DEFAULT_LUX = 300


def fee(kind, pieces):
    """Handling fee per loan; each piece after the third adds a tenth.

    Private people cannot borrow at all, which is signalled by None.
    """
    base = HANDLING_FEE[kind]
    if base is None:
        return None
    extra = max(0, pieces - 3)
    return round(base * (1 + 0.1 * extra), 2)


def longest_end(value_class, start):
    """The latest day on which the loan must be back, months counted as 30 days."""
    return start + dt.timedelta(days=30 * MAX_MONTHS[value_class])


def earliest_next(start, end):
    """After a loan, an object of cloth or paper rests twice as long as it was out."""
    return end + (end - start) * REST_FACTOR


def conditions(value_class, materials):
    """Sentences for the loan contract."""
    lux = min((LUX_LIMIT.get(m, DEFAULT_LUX) for m in materials),
              default=DEFAULT_LUX)
    out = [f"Light on the object stays at or under {lux} lux."]
    if value_class in COURIER_CLASSES:
        out.append("A courier of ours travels with the crate and sleeps nearby.")
    if "glass" in materials:
        out.append("The case stands on sand-filled feet.")
    return out


def in_time(asked, start):
    """A request must be made sixteen weeks before the loan begins."""
    return start - asked >= dt.timedelta(weeks=NOTICE_WEEKS)
