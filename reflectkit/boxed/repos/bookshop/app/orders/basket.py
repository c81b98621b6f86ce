"""The basket: the copies that one visitor means to buy, before anything is paid."""

from dataclasses import dataclass, field

MAX_COPIES = 25
BUNDLE_SHELF = "CRIME"
BUNDLE_SIZE = 3
BUNDLE_PRICE_CENTS = 1000


class BasketFull(Exception):
    """Raised when a visitor puts one copy too many into the basket."""


@dataclass
class Line:
    """One copy in the basket; there is no quantity, since every copy is single."""

    copy_id: str
    shelf: str
    price_cents: int
    fragile: bool = False


@dataclass
class Basket:
    """A visitor's basket, remembered by the number of the session."""

    session: str
    lines: list = field(default_factory=list)

    def add(self, line):
        """Put a copy in; the same copy twice is silently ignored."""
        if any(have.copy_id == line.copy_id for have in self.lines):
            return
        if len(self.lines) >= MAX_COPIES:
            raise BasketFull("at most %d copies, please order in two parts" % MAX_COPIES)
        self.lines.append(line)

    def remove(self, copy_id):
        """Take a copy out and say whether it was there."""
        before = len(self.lines)
        self.lines = [line for line in self.lines if line.copy_id != copy_id]
        return len(self.lines) < before

    def total_cents(self):
        """Sum of the prices, with the bundle offer: any three crime novels cost ten euros.

        The three dearest crime novels are bundled first, which is the best for the visitor;
        a group of three that would cost less than the bundle keeps its own prices.
        """
        crime = sorted((l.price_cents for l in self.lines if l.shelf == BUNDLE_SHELF), reverse=True)
        total = sum(l.price_cents for l in self.lines if l.shelf != BUNDLE_SHELF)
        while len(crime) >= BUNDLE_SIZE:
            group, crime = crime[:BUNDLE_SIZE], crime[BUNDLE_SIZE:]
            total += min(sum(group), BUNDLE_PRICE_CENTS)
        return total + sum(crime)

    def needs_padding(self):
        """True when one of the copies is fragile, so that the packer takes the ribbed card."""
        return any(line.fragile for line in self.lines)
