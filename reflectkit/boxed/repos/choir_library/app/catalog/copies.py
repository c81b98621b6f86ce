"""Single copies of a work: numbers, wear and when to buy new ones."""

import math

WEAR_PER_CONCERT = 3
WEAR_PER_LOAN = 1
RETIRE_AT = 60
SPARE_SHARE = 0.08


class Copy:
    """A stamped copy with a wear counter."""

    def __init__(self, number, wear=0, taped=False):
        self.number = number
        self.wear = wear
        self.taped = taped

    def use(self, concerts=0, loans=0):
        """Add wear: three points for a concert and one for a loan.

        A taped spine wears out half as fast again.
        """
        points = concerts * WEAR_PER_CONCERT + loans * WEAR_PER_LOAN
        self.wear += points * 1.5 if self.taped else points

    @property
    def retired(self):
        """A copy is taken out of the box at sixty points."""
        return self.wear >= RETIRE_AT


def copies_to_buy(singers, good_copies):
    """How many copies to order for a concert.

    One for each singer and eight in a hundred to spare, rounded up to a
    whole packet of five because the dealer sells packets only.
    """
    needed = math.ceil(singers * (1 + SPARE_SHARE)) - good_copies
    if needed <= 0:
        return 0
    return 5 * math.ceil(needed / 5)


def copy_id(shelfmark, number):
    """Identity printed inside the cover, such as V-HOL-03/017."""
    return "%s/%03d" % (shelfmark, number)
