"""Reservations: how long a copy is put aside for a customer and who comes next."""

import datetime

HOLD_DAYS = {"counter": 6, "phone": 4, "web": 2}
REGULAR_BONUS_DAYS = 3
MAX_HELD_PER_CUSTOMER = 5
QUEUE_LENGTH = 3
DEPOSIT_FROM_CENTS = 4000
DEPOSIT_SHARE = 0.25


def hold_until(start, channel, regular=False):
    """Last day of a reservation.

    Six days if asked for at the counter, four on the phone, two over the web page; regular
    customers get three days more. If the last day is a Monday, when the shop is closed to the
    public, the hold ends on the Tuesday.
    """
    days = HOLD_DAYS[channel] + (REGULAR_BONUS_DAYS if regular else 0)
    end = start + datetime.timedelta(days=days)
    if end.weekday() == 0:
        end += datetime.timedelta(days=1)
    return end


def may_hold(already_held, price_cents, deposit_cents):
    """A customer may hold five copies at once; dear copies need a quarter of the price first."""
    if already_held >= MAX_HELD_PER_CUSTOMER:
        return False
    if price_cents >= DEPOSIT_FROM_CENTS:
        return deposit_cents >= round(price_cents * DEPOSIT_SHARE)
    return True


class Queue:
    """Customers who wait for the same reserved copy; at most three can stand in line."""

    def __init__(self):
        self.names = []

    def join(self, name):
        """Enter the queue and tell the place, or None when the queue is full."""
        if name in self.names:
            return self.names.index(name) + 1
        if len(self.names) >= QUEUE_LENGTH:
            return None
        self.names.append(name)
        return len(self.names)

    def release(self):
        """The copy is free again: the first in line gets a call, or the copy goes to its shelf."""
        return self.names.pop(0) if self.names else "shelf"
