"""Intake: a bought book gets its copy number, its asking price and its shelf."""

import re

SMELLS = ("none", "smoke", "damp")
DRYING_BOX_DAYS = 12
AIRING_RACK_DAYS = 5
MIN_ASKING_CENTS = 250
SHARE_OF_CATALOGUE = {"As New": 0.70, "Fine": 0.62, "Very Good": 0.50, "Good": 0.36, "Fair": 0.20}

COPY_NUMBER = re.compile(r"^G[0-9]{5}[A-HJ-NP-Z]$")
CHECK_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ"


def check_letter(digits):
    """Check letter of a copy number: weighted sum 3-1-3-1-3 of the digits, modulo 24."""
    weights = (3, 1, 3, 1, 3)
    total = sum(weight * int(digit) for weight, digit in zip(weights, digits))
    return CHECK_LETTERS[total % len(CHECK_LETTERS)]


def copy_number(running):
    """Copy number as printed on the slip: G, five digits and the check letter (never I or O)."""
    digits = "%05d" % running
    return "G" + digits + check_letter(digits)


def is_copy_number(text):
    """True for a well-formed copy number with the right check letter."""
    return bool(COPY_NUMBER.match(text)) and check_letter(text[1:6]) == text[6]


def asking_cents(catalogue_cents, grade):
    """Asking price: a share of the catalogue price by grade, rounded up to full 50 cents.

    No book in the ledger is offered below 2.50; a book that would be cheaper still gets the
    least price, and a Reading copy has no asking price at all.
    """
    if grade not in SHARE_OF_CATALOGUE:
        return None
    raw = catalogue_cents * SHARE_OF_CATALOGUE[grade]
    return max(MIN_ASKING_CENTS, int(-(-raw // 50) * 50))


def quarantine_days(smell):
    """Days before shelving: damp books lie in the drying box, smoky ones on the airing rack."""
    if smell not in SMELLS:
        raise ValueError(smell)
    return {"none": 0, "smoke": AIRING_RACK_DAYS, "damp": DRYING_BOX_DAYS}[smell]
