"""Read incoming orders, clean them and reject what cannot be baked."""

import csv
import re
from dataclasses import dataclass

ORDER_NUMBER = re.compile(r"^[KWT]\d{5}$")
CHANNELS = {"K": "counter", "W": "wholesale", "T": "telephone"}
MIN_PIECES = {"wholesale": 12, "counter": 1, "telephone": 4}
ALIASES = {"sourdo": "levain_loaf", "rye": "dark_rye", "bun": "cardamom_bun"}


class RejectedOrder(ValueError):
    """Raised for a line that cannot be used; the text says why."""


@dataclass
class OrderLine:
    """One product of one order."""

    number: str
    channel: str
    customer: str
    product: str
    pieces: int


def clean_number(text):
    """Upper-case an order number and turn a letter O after the first sign to 0."""
    text = text.strip().upper()
    text = text[:1] + text[1:].replace("O", "0")
    if not ORDER_NUMBER.match(text):
        raise RejectedOrder(f"order number {text!r} is not a letter and 5 digits")
    return text


def parse_line(row):
    """Make an OrderLine; the first letter of the number decides the channel.

    Telephone orders under four pieces are refused, since they are not worth a
    paper slip; wholesale lines under a dozen are refused too.
    """
    number = clean_number(row["number"])
    channel = CHANNELS[number[0]]
    product = ALIASES.get(row["product"].strip(), row["product"].strip())
    pieces = int(row["pieces"])
    if pieces < MIN_PIECES[channel]:
        raise RejectedOrder(f"{number}: {pieces} pieces is too few for {channel}")
    return OrderLine(number, channel, row["customer"].strip(), product, pieces)


def read_orders(path, day):
    """Return the good lines of one day; write bad lines to PATH.rejects."""
    good, bad = [], []
    with open(path, newline="", encoding="utf-8") as handle:
        for row in csv.DictReader(handle):
            if row["day"] != day.isoformat():
                continue
            try:
                good.append(parse_line(row))
            except (RejectedOrder, KeyError) as error:
                bad.append(str(error))
    if bad:
        with open(f"{path}.rejects", "w", encoding="utf-8") as out:
            out.write("\n".join(bad) + "\n")
    return good
