"""The shop's records, generated from a seed: frozen tables that episodes share, and what one
episode has changed.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from reflectkit.seeding import generator

Record = dict[str, Any]

FIRST = str.split(
    "Ada Amir Anna Ben Carla Chen Dana David Elif Emma Eric Fatima Felix Grace Hana Hugo Ida Ines"
    " Ivan Jana Jonas Julia Kemal Lara Leon Lina Luca Maja Marc Mia Nadia Nils Nina Noah Olga Omar"
    " Paula Petra Rosa Sami Sara Simon Sofia Tara Theo Tom Vera Yara Zoe"
)
LAST = str.split(
    "Adler Bauer Berg Blum Cohen Costa Diaz Egger Fischer Frei Gomez Haas Huber Ito Jansen Keller"
    " Khan Klein Kovac Lang Lopez Maier Meyer Moser Nowak Olsen Park Peters Rossi Roth Sato Schmid"
    " Silva Singh Stern Suter Tanaka Vogel Wagner Weber Wolf Wong Yilmaz Zhang"
)
STREETS = str.split(
    "Birch Cedar Elm Garden Harbor Hill Lake Maple Market Mill Oak Park River School Station Willow"
)
CITIES = str.split("Bern Delft Gent Graz Linz Lund Lyon Pisa Porto Turku Ulm York")
PRODUCTS: dict[str, tuple[str, ...]] = {
    "desk lamp": ("black", "white", "green", "brass"),
    "backpack": ("grey", "blue", "red", "black"),
    "kettle": ("steel", "white", "black"),
    "headphones": ("black", "silver", "blue"),
    "office chair": ("grey", "black", "green", "beige"),
    "rain jacket": ("yellow", "navy", "olive", "red"),
    "running shoes": ("white", "orange", "grey"),
    "water bottle": ("clear", "blue", "green", "pink"),
    "wall clock": ("oak", "white", "black"),
    "wool blanket": ("cream", "grey", "red"),
    "coffee grinder": ("steel", "black", "red"),
    "bike light": ("front", "rear", "pair"),
    "notebook": ("lined", "dotted", "blank"),
    "pillow": ("soft", "medium", "firm"),
    "toaster": ("two slots", "four slots", "long slot"),
    "picture frame": ("small", "medium", "large"),
}
"""The options of each product."""
KINDS = ("credit card", "gift card", "bank account")
PENDING, SHIPPED, DELIVERED, CANCELLED = "pending", "shipped", "delivered", "cancelled"
REASONS = ("no longer needed", "ordered by mistake")  # for which an order may be cancelled
RETURN_DAYS = 30  # after delivery
LATE_DAYS = 3  # from which a delivery counts as late
TEN = 10  # euros of the credit for a late delivery
CUSTOMERS = 300


@dataclass(frozen=True)
class ShopDatabase:
    """The shop's tables, which never change. tables: customers, payments, products, items, orders;
    each has records, which are JSON objects, by id.
    """

    tables: Mapping[str, Mapping[str, Record]]

    @cached_property
    def digest(self) -> str:
        """A hash of all records."""
        text = json.dumps(self.tables, sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def customers_with(
        self,
        *,
        email: str = "",
        name: str = "",
        city: str = "",
    ) -> list[str]:
        """Ids of the customers with this email, or with this name in this city, whatever the case."""
        parts = (email,) if email else (name, city)
        return self._customers.get(tuple(part.strip().lower() for part in parts), [])

    @cached_property
    def _customers(self) -> Mapping[tuple[str, ...], list[str]]:
        """The ids by email, and by name and city, in lower case."""
        ids: dict[tuple[str, ...], list[str]] = {}
        for customer, record in self.tables["customers"].items():
            for key in ((record["email"],), (record["name"], city_of(record))):
                ids.setdefault(tuple(part.lower() for part in key), []).append(customer)
        return ids


@dataclass
class Ledger:
    """A database as one episode has changed it.

    changed: the new state of each changed record, by table and id. escalated: whether a colleague
    took over.
    """

    database: ShopDatabase
    changed: dict[tuple[str, str], Record] = field(default_factory=dict)
    escalated: bool = False

    def of(self, table: str, name: str) -> Record:
        """The record as it is now; not to be changed. Raises KeyError if there is none."""
        return self.changed.get((table, name)) or self.database.tables[table][name]

    def change(self, table: str, record: str, /, **values: Any) -> None:
        """Set fields of a record."""
        self.changed[table, record] = self.of(table, record) | values

    def differences(self) -> dict[tuple[str, str], dict[str, tuple[Any, Any]]]:
        """(before, after) of each field that differs from the database, by record; without records
        that are as they were.
        """
        differing = {}
        for (table, name), record in self.changed.items():
            before = self.database.tables[table][name]
            fields = {}
            for key, value in record.items():
                if before.get(key) != value:
                    fields[key] = before.get(key), value
            if fields:
                differing[table, name] = fields
        return differing

    def listed(self) -> list[Record]:
        """The differences for people to read, and whether a colleague took over."""
        rows: list[Record] = []

        def add(record: str, field: str, before: Any, after: Any) -> None:
            rows.append({"record": record, "field": field, "before": before, "after": after})

        for (_, name), fields in self.differences().items():
            for field_name, (before, after) in fields.items():
                add(name, field_name, before, after)
        if self.escalated:
            add("conversation", "escalated", False, True)
        return rows


def euros(amount: float) -> float:
    """`amount` in whole cents, without a fraction where there is none, so that it is written in one
    way only.
    """
    # 45.5 for 45.50, and 45 for 45.00
    cents = round(amount, 2)
    return int(cents) if cents == int(cents) else cents


def city_of(customer: Record) -> str:
    """The city of a customer's address."""
    return str(customer["address"].rpartition(", ")[2])


@lru_cache(maxsize=8)
def shop(seed: int, customers: int = CUSTOMERS) -> ShopDatabase:
    """The database of `seed`, with that many customers."""
    chance = generator(seed, "shop")
    products, items = _assortment(chance)
    tables: dict[str, dict[str, Record]] = {
        "customers": {},
        "payments": {},
        "products": products,
        "items": items,
        "orders": {},
    }
    # Five orders at most for each customer, with numbers in no order
    order_numbers = iter(chance.sample(range(1000, 1000 + 20 * customers), 5 * customers))
    emails: set[str] = set()
    for number in range(customers):
        # 1. Name and email, of which no two are equal
        name = f"{chance.choice(FIRST)} {chance.choice(LAST)}"
        email = ""
        while not email or email in emails:
            email = f"{name.replace(' ', '.').lower()}{chance.randint(10, 99)}@mail.example"
        emails.add(email)
        # 2. Payment methods
        payments = [f"p{3 * number + 10 + place}" for place in range(chance.randint(1, 3))]
        customer = f"c{number + 100}"
        for payment in payments:
            tables["payments"][payment] = {"customer": customer, "kind": chance.choice(KINDS)}
        # 3. Orders
        orders = [f"W{next(order_numbers)}" for _ in range(chance.randint(2, 5))]
        address = an_address(chance)
        for order in orders:
            record = _order(payments, address, items, products, chance)
            tables["orders"][order] = {"customer": customer} | record
        tables["customers"][customer] = {
            "name": name,
            "email": email,
            "address": address,
            "payments": payments,
            "orders": orders,
        }
    return ShopDatabase(tables)


def _assortment(chance: random.Random) -> tuple[dict[str, Record], dict[str, Record]]:
    """(products, their items): an item is a product in one option, and one option of each is out of
    stock.
    """
    products: dict[str, Record] = {}
    items: dict[str, Record] = {}
    # Ids tell nothing about the item
    numbers = iter(chance.sample(range(100, 1000), sum(map(len, PRODUCTS.values()))))
    for place, (name, options) in enumerate(PRODUCTS.items()):
        product = f"k{place + 10}"
        products[product] = {"name": name, "items": []}
        price = chance.randint(8, 120)
        empty = chance.choice(options)
        for option in options:
            item = f"i{next(numbers)}"
            stock = 0 if option == empty else chance.randint(1, 9)
            items[item] = {
                "product": product,
                "name": f"{name}, {option}",
                "price": euros(price + chance.choice((0, 0.5, 2, 5))),
                "stock": stock,
            }
            products[product]["items"].append(item)
    return products, items


def an_address(chance: random.Random) -> str:
    """An address anywhere."""
    return f"{chance.randint(1, 99)} {chance.choice(STREETS)} Street, {chance.choice(CITIES)}"


def _order(
    payments: list[str],
    address: str,
    items: dict[str, Record],
    products: dict[str, Record],
    chance: random.Random,
) -> Record:
    """An order of one to three products, without its customer."""
    names = chance.sample(sorted(products), chance.randint(1, 3))
    order_items = [chance.choice(products[name]["items"]) for name in names]
    status = chance.choices((PENDING, SHIPPED, DELIVERED, CANCELLED), (4, 2, 4, 1))[0]
    # No delivery is so close to the limit that a day more or less would matter
    days = (*range(1, RETURN_DAYS + 1), *range(RETURN_DAYS + 5, RETURN_DAYS + 30))
    days_since_delivery = chance.choice(days)
    return {
        "status": status,
        "items": order_items,
        "paid": euros(sum(items[item]["price"] for item in order_items)),
        "payment": chance.choice(payments),
        "address": address,
        "days_since_delivery": days_since_delivery if status == DELIVERED else None,
        "late_days": chance.choice((0, 0, 0, 2, 4, 8)) if status == DELIVERED else None,
        "exchanged": False,
        "returned": [],
        "refunded": 0,
    }
