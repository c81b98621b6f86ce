"""Loans that visit us: temporary numbers, the arrival check and the return."""

import datetime as dt
from dataclasses import dataclass

ACCLIMATISE_HOURS = 24
ACCLIMATISE_WINTER_HOURS = 48
RETURN_WINDOW_DAYS = 11
CRATE_KEEP_ROOM = "coach house"
UNCLAIMED_YEARS = 7


@dataclass
class Visitor:
    """An object that belongs to someone else."""

    lender: str
    sequence: int
    arrived: dt.datetime
    end: dt.date

    @property
    def number(self):
        """Temporary number: L, two digits of the year, three of the sequence."""
        return f"L{self.arrived:%y}-{self.sequence:03d}"


def unpack_after(visitor):
    """When the crate may be opened.

    It stands closed for a day, from November to March for two days, so that
    no dew forms on the cold object.
    """
    winter = visitor.arrived.month in (11, 12, 1, 2, 3)
    hours = ACCLIMATISE_WINTER_HOURS if winter else ACCLIMATISE_HOURS
    return visitor.arrived + dt.timedelta(hours=hours)


def witnesses(value):
    """People who sign the arrival sheet: two, from 20000 on three."""
    return 3 if value >= 20000 else 2


def return_by(visitor):
    """The last day to send it home: eleven days after the exhibition ends."""
    return visitor.end + dt.timedelta(days=RETURN_WINDOW_DAYS)


def becomes_unclaimed(visitor, today):
    """Whether seven years have gone by without an answer from the lender.

    Unclaimed objects are put to the council; they are never simply numbered.
    """
    return today.year - visitor.end.year >= UNCLAIMED_YEARS
