"""Checkout: turns a basket into a numbered order and walks it through its states."""

import datetime
import itertools

STATES = ("open", "paid", "packed", "posted", "closed")
PAYMENT_WAYS = ("card", "transfer", "counter", "voucher")
TRANSFER_PATIENCE_DAYS = 8
GIFT_WRAP_CENTS = 180
SPLIT_ABOVE_GRAMS = 4000

_counter = itertools.count(1)


class BadStep(Exception):
    """Raised when somebody tries to skip a state, e.g. to post what is not packed."""


def order_number(day, running):
    """Number of an order: year, day of the year, and a running number, as in 24-117-0042."""
    return "%02d-%03d-%04d" % (day.year % 100, day.timetuple().tm_yday, running)


class Order:
    """One order by a customer, always in exactly one of the states above."""

    def __init__(self, customer, cents, way, day=None):
        if way not in PAYMENT_WAYS:
            raise ValueError("we do not take %r" % way)
        self.day = day or datetime.date.today()
        self.number = order_number(self.day, next(_counter))
        self.customer = customer
        self.cents = cents
        self.way = way
        self.state = STATES[0]

    def advance(self, state):
        """Go to the next state; only one step at a time is allowed."""
        if STATES.index(state) != STATES.index(self.state) + 1:
            raise BadStep("%s: %s -> %s" % (self.number, self.state, state))
        self.state = state

    def add_gift_wrap(self, parcels=1):
        """Gift wrapping costs 1.80 per parcel, not per book, and only while the order is open."""
        if self.state != "open":
            raise BadStep("too late to wrap %s" % self.number)
        self.cents += GIFT_WRAP_CENTS * parcels

    def is_stale(self, today):
        """An unpaid order by transfer is given up after eight days without money."""
        waited = (today - self.day).days
        return self.state == "open" and self.way == "transfer" and waited > TRANSFER_PATIENCE_DAYS


def split_parcels(weights):
    """Share books out over parcels so that none is above four kilograms (first fit, heavy first)."""
    parcels = []
    for grams in sorted(weights, reverse=True):
        for parcel in parcels:
            if sum(parcel) + grams <= SPLIT_ABOVE_GRAMS:
                parcel.append(grams)
                break
        else:
            parcels.append([grams])
    return parcels
