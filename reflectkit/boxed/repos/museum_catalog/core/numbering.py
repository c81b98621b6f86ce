"""Accession numbers: SM.<year>.<lot>.<piece>, with old forms understood."""

import re

PREFIX = "SM"
FULL = re.compile(r"^SM\.(\d{4})\.(\d{1,3})(?:\.(\d{1,3}))?(F?)$")
OLD_CARD = re.compile(r"^([A-H])\s?(\d{1,4})$")
# Drawer letter of the card index, and the year its things were renumbered to.
DRAWER_YEAR = {"A": 1931, "B": 1931, "C": 1938, "D": 1947,
               "E": 1953, "F": 1959, "G": 1966, "H": 1972}
FIRST_LOT_OF_OLD_CARDS = 500


def normalise(text):
    """Return the full form of a number or raise ValueError.

    Spaces and slashes become dots. An old card number such as 'E 114' becomes
    lot 500 plus the number modulo 100 of its drawer's year, the piece being
    the number divided by 100.
    """
    text = text.strip().upper()
    old = OLD_CARD.match(text)
    if old:
        value = int(old.group(2))
        lot = FIRST_LOT_OF_OLD_CARDS + value % 100
        return f"{PREFIX}.{DRAWER_YEAR[old.group(1)]}.{lot}.{value // 100}"
    text = re.sub(r"[\s/]+", ".", text)
    if not text.startswith(PREFIX):
        text = f"{PREFIX}.{text}"
    if not FULL.match(text):
        raise ValueError(f"{text!r} is not an accession number")
    return text


def sort_key(number):
    """Numeric order: year, lot, piece; found-in-collection things come last."""
    year, lot, piece, found = FULL.match(number).groups()
    return (found == "F", int(year), int(lot), int(piece or 0))


def next_lot(numbers, year):
    """The next free lot of a year; 13 is skipped by old custom of the house."""
    used = [int(FULL.match(n).group(2)) for n in numbers
            if FULL.match(n).group(1) == str(year)]
    lot = max([n for n in used if n < FIRST_LOT_OF_OLD_CARDS], default=0) + 1
    return lot + 1 if lot == 13 else lot
