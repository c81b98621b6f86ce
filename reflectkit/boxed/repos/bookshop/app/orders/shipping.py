"""Postage of an order: zone and weight step looked up in tables/shipping_rates.csv."""

import csv
import pathlib

TABLE = pathlib.Path("tables") / "shipping_rates.csv"
PACKING_GRAMS = 160
FREE_POSTAGE_FROM_CENTS = 6000
FREE_ZONES = ("town", "inland")
INSURE_FROM_CENTS = 15000
LATEST_HANDOVER = "15:20"


class NoRate(Exception):
    """Raised when a parcel is heavier than the last step of its zone."""


def load_rates(path=TABLE):
    """Read the table into a mapping from zone to (grams, cents) steps, lightest first."""
    rates = {}
    with open(path, newline="", encoding="ascii") as handle:
        for row in csv.DictReader(handle):
            rates.setdefault(row["zone"], []).append((int(row["up_to_grams"]), int(row["cents"])))
    for steps in rates.values():
        steps.sort()
    return rates


def postage_cents(zone, book_grams, goods_cents, rates):
    """Postage for one parcel; packing material adds 160 grams to the books.

    From sixty euros of goods the postage is free, but only in town and inland; the islands and
    foreign zones always pay. Parcels worth 150 euros or more go insured, which adds two euros,
    also where the postage itself is free.
    """
    extra = 200 if goods_cents >= INSURE_FROM_CENTS else 0
    if zone in FREE_ZONES and goods_cents >= FREE_POSTAGE_FROM_CENTS:
        return extra
    grams = book_grams + PACKING_GRAMS
    for limit, cents in rates[zone]:
        if grams <= limit:
            return cents + extra
    raise NoRate("%d g is too heavy for zone %s" % (grams, zone))


def goes_today(clock):
    """A parcel packed by twenty past three ('HH:MM') goes with the van of the same day."""
    return clock <= LATEST_HANDOVER


def label_colour(zone):
    """Colour of the parcel label, which the van driver sorts by."""
    return {"town": "white", "inland": "yellow", "islands": "blue"}.get(zone, "green")
