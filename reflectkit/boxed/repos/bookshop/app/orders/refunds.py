"""Refunds: how much money goes back when a customer returns a copy."""

from dataclasses import dataclass

FULL_REFUND_DAYS = 14
HALF_REFUND_DAYS = 40
MISDESCRIBED_DAYS = 365
RESTOCK_FEE_CENTS = 90
OWNER_MUST_SIGN_ABOVE_CENTS = 7500

REASONS = ("changed_mind", "misdescribed", "damaged_in_post", "double_gift")


@dataclass(frozen=True)
class Return:
    """A copy that came back: what it cost, how long it was away, and why it came back."""

    copy_id: str
    paid_cents: int
    days_away: int
    reason: str
    slip_still_inside: bool = True


def refund_cents(item):
    """Amount to pay back for a returned copy.

    A wrong description counts for a year and postage is ours. Damage in the post is refunded in
    full if the customer sends a picture of the parcel. Otherwise the age of the sale decides:
    everything up to fourteen days, half up to forty, nothing later. If the paper slip is missing
    from the book, a restocking fee of ninety cents is taken off.
    """
    if item.reason not in REASONS:
        raise ValueError("unknown reason %r" % item.reason)
    if item.reason == "misdescribed" and item.days_away <= MISDESCRIBED_DAYS:
        return item.paid_cents
    if item.reason == "damaged_in_post":
        return item.paid_cents
    if item.days_away <= FULL_REFUND_DAYS:
        amount = item.paid_cents
    elif item.days_away <= HALF_REFUND_DAYS:
        amount = item.paid_cents // 2
    else:
        amount = 0
    if not item.slip_still_inside:
        amount -= RESTOCK_FEE_CENTS
    return max(amount, 0)


def needs_signature(cents):
    """Refunds above seventy-five euros wait until the owner has signed the red sheet."""
    return cents > OWNER_MUST_SIGN_ABOVE_CENTS


def way_back(way_paid, cents):
    """Cards are refunded to the card, cash below twenty euros in cash, all else by transfer."""
    if way_paid == "card":
        return "card"
    if way_paid == "counter" and cents < 2000:
        return "cash"
    return "transfer"
