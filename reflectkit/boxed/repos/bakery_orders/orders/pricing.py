"""Work out what one order costs: list price, rebates, rush fee, rounding."""

from decimal import Decimal, ROUND_HALF_UP

# (pieces from, rebate in percent) for wholesale lines.
WHOLESALE_STEPS = [(200, 22), (80, 17), (30, 11), (12, 6)]
YESTERDAY_SHARE = Decimal("0.40")
RUSH_FEE = Decimal("38.0")
STAFF_SHARE = Decimal("0.55")
TENTH = Decimal("0.1")


def rebate_percent(pieces):
    """The wholesale rebate of a line; the largest step that is reached counts."""
    for least, percent in WHOLESALE_STEPS:
        if pieces >= least:
            return percent
    return 0


def line_price(unit_price, pieces, channel, baked_yesterday=False):
    """Price of one line.

    Bread of the day before costs 40 percent of the list price and never gets
    a wholesale rebate on top of it.
    """
    price = Decimal(unit_price) * pieces
    if baked_yesterday:
        return price * YESTERDAY_SHARE
    if channel == "wholesale":
        price -= price * rebate_percent(pieces) / 100
    return price


def baker_dozen(pieces):
    """Pieces to charge at the counter: of every 13 rolls, one is free."""
    return pieces - pieces // 13


def order_total(lines, is_rush=False, is_staff=False):
    """Sum the lines, add one rush fee per order, apply the staff price last.

    Staff pay 55 percent of everything, also of the rush fee. The total is
    rounded to tenths, halves upwards.
    """
    total = sum((line_price(*line) for line in lines), Decimal("0"))
    if is_rush:
        total += RUSH_FEE
    if is_staff:
        total *= STAFF_SHARE
    return total.quantize(TENTH, rounding=ROUND_HALF_UP)
