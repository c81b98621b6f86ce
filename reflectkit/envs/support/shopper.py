"""A customer of the shop, and what of theirs a request can be about."""

from __future__ import annotations

import random
from collections.abc import Callable

from reflectkit.envs.support.database import Database, Record
from reflectkit.envs.support.generate import RETURN_DAYS


class UnfitError(Exception):
    """This customer has nothing that such a request could be about."""


class Shopper:
    """A customer, and what they have. An order is the subject of one request at most."""

    def __init__(self, database: Database, customer: str, chance: random.Random) -> None:
        self.database, self.customer, self.chance = database, customer, chance
        self.record = database.tables["customers"][customer]
        self._used: set[str] = set()
        self.moved: set[str] = set()
        """Items whose stock a request changes."""
        self.asked: set[str] = set()
        """Items whose stock a request depends on."""

    def order(self, status: str, fits: Callable[[Record], bool] = lambda order: True) -> tuple[str, Record]:
        """One of the customer's orders that is not used yet. Raises UnfitError."""
        orders = self.database.tables["orders"]
        fitting = [
            name
            for name in self.record["orders"]
            if orders[name]["status"] == status and name not in self._used and fits(orders[name])
        ]
        if not fitting:
            raise UnfitError
        name: str = self.chance.choice(fitting)
        self._used.add(name)
        return name, orders[name]

    def item(self, name: str) -> Record:
        """An item."""
        return self.database.tables["items"][name]

    def options(self, item: str, *, stocked: bool) -> list[str]:
        """The other items of the same product that are, or are not, in stock."""
        product = self.database.tables["products"][self.item(item)["product"]]
        stocks = {other: self.item(other)["stock"] for other in product["items"] if other != item}
        return [other for other, stock in stocks.items() if (stock > 1 if stocked else stock == 0)]

    def other_payment(self, order: Record) -> str:
        """A payment method of the customer that the order does not have, of a kind that they have once."""
        payments = self.database.tables["payments"]
        kinds = [payments[name]["kind"] for name in self.record["payments"]]
        fitting = [
            name
            for name in self.record["payments"]
            if name != order["payment"] and kinds.count(payments[name]["kind"]) == 1
        ]
        if not fitting:
            raise UnfitError
        payment: str = self.chance.choice(fitting)
        return payment

    def kind_of(self, payment: str) -> str:
        """How a user calls a payment method."""
        return str(self.database.tables["payments"][payment]["kind"])


def is_recent(order: Record) -> bool:
    """Whether a delivered order can be returned."""
    return bool(order["days_since_delivery"] <= RETURN_DAYS)


def split(item: Record) -> tuple[str, str]:
    """(product, option) of an item."""
    product, _, option = item["name"].partition(", ")
    return product, option


def money(euros: float) -> str:
    """An amount as agents tell it."""
    return f"{euros:g}"
