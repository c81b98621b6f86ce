"""Exchange credit: households that bring books may take books instead of money."""

from dataclasses import dataclass, field

CREDIT_BONUS = 1.3
MAX_SHARE_OF_PURCHASE = 0.60
EXPIRY_MONTHS = 22
FREE_BOOK_EVERY = 12
FREE_BOOK_UP_TO_CENTS = 700


@dataclass
class Household:
    """People at one address share one account of credit and one card of stamps."""

    card: str
    credit_cents: int = 0
    stamps: int = 0
    history: list = field(default_factory=list)


def credit_for(cash_offer_cents):
    """Credit is worth thirty percent more than the cash that the counter would have paid."""
    return round(cash_offer_cents * CREDIT_BONUS)


def spend(house, purchase_cents):
    """Pay with credit: at most 60 percent of a purchase, the rest must be money.

    Returns the cents that are still to be paid and takes the credit from the account.
    """
    usable = min(house.credit_cents, int(purchase_cents * MAX_SHARE_OF_PURCHASE))
    house.credit_cents -= usable
    house.history.append(("spent", usable))
    return purchase_cents - usable


def stamp(house, copies):
    """One stamp per copy bought at the counter; twelve stamps give a book of up to 7 euros.

    Returns the number of free books earned by this purchase. Copies that were bought with the
    bundle offer earn stamps too. Stamps never run out, unlike credit.
    """
    house.stamps += copies
    earned, house.stamps = divmod(house.stamps, FREE_BOOK_EVERY)
    return earned


def expire(house, months_idle):
    """Credit is lost after 22 months without any movement; a letter goes out a month before."""
    if months_idle >= EXPIRY_MONTHS:
        lost, house.credit_cents = house.credit_cents, 0
        return lost
    return 0
