"""Generates the shop's database from a seed: customers, what they may pay with, products with options, and orders."""

from __future__ import annotations

import random
from functools import lru_cache

from reflectkit.envs.support.database import Database, Record, euros
from reflectkit.seeding import generator

FIRST = str.split(
    "Ada Amir Anna Ben Carla Chen Dana David Elif Emma Eric Fatima Felix Grace Hana Hugo Ida Ines Ivan Jana Jonas Julia"
    " Kemal Lara Leon Lina Luca Maja Marc Mia Nadia Nils Nina Noah Olga Omar Paula Petra Rosa Sami Sara Simon Sofia"
    " Tara Theo Tom Vera Yara Zoe"
)
LAST = str.split(
    "Adler Bauer Berg Blum Cohen Costa Diaz Egger Fischer Frei Gomez Haas Huber Ito Jansen Keller Khan Klein Kovac Lang"
    " Lopez Maier Meyer Moser Nowak Olsen Park Peters Rossi Roth Sato Schmid Silva Singh Stern Suter Tanaka Vogel"
    " Wagner Weber Wolf Wong Yilmaz Zhang"
)
STREETS = str.split("Birch Cedar Elm Garden Harbor Hill Lake Maple Market Mill Oak Park River School Station Willow")
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
RETURN_DAYS = 30
CUSTOMERS = 300


@lru_cache(maxsize=8)
def shop(seed: int, customers: int = CUSTOMERS) -> Database:
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
    order_numbers = iter(chance.sample(range(1000, 1000 + 20 * customers), 5 * customers))
    emails: set[str] = set()
    for number in range(customers):
        name = f"{chance.choice(FIRST)} {chance.choice(LAST)}"
        email = _email(name, emails, chance)
        payments = [f"p{3 * number + 10 + place}" for place in range(chance.randint(1, 3))]
        for payment in payments:
            kind = chance.choice(KINDS)
            tables["payments"][payment] = {"customer": f"c{number + 100}", "kind": kind}
        orders = [f"W{next(order_numbers)}" for _ in range(chance.randint(2, 5))]
        address = _address(chance)
        for order in orders:
            tables["orders"][order] = _order(f"c{number + 100}", payments, address, items, products, chance)
        tables["customers"][f"c{number + 100}"] = {
            "name": name,
            "email": email,
            "address": address,
            "payments": payments,
            "orders": orders,
        }
    return Database(tables)


def _assortment(chance: random.Random) -> tuple[dict[str, Record], dict[str, Record]]:
    """(products, their items): an item is a product in one option, and one option of each is out of stock."""
    products: dict[str, Record] = {}
    items: dict[str, Record] = {}
    numbers = iter(chance.sample(range(100, 1000), sum(map(len, PRODUCTS.values()))))
    for place, (name, options) in enumerate(PRODUCTS.items()):
        product = f"k{place + 10}"
        price = chance.randint(8, 120)
        empty = chance.choice(options)
        members = []
        for option in options:
            item = f"i{next(numbers)}"
            stock = 0 if option == empty else chance.randint(1, 9)
            items[item] = {
                "product": product,
                "name": f"{name}, {option}",
                "price": euros(price + chance.choice((0, 0.5, 2, 5))),
                "stock": stock,
            }
            members.append(item)
        products[product] = {"name": name, "items": members}
    return products, items


def _email(name: str, taken: set[str], chance: random.Random) -> str:
    while True:
        email = f"{name.replace(' ', '.').lower()}{chance.randint(10, 99)}@mail.example"
        if email not in taken:
            taken.add(email)
            return email


def _address(chance: random.Random) -> str:
    return f"{chance.randint(1, 99)} {chance.choice(STREETS)} Street, {chance.choice(CITIES)}"


def another_address(chance: random.Random, than: str) -> str:
    """An address other than `than`."""
    while (address := _address(chance)) == than:
        pass
    return address


def _order(
    customer: str,
    payments: list[str],
    address: str,
    items: dict[str, Record],
    products: dict[str, Record],
    chance: random.Random,
) -> Record:
    chosen = [
        chance.choice(products[product]["items"]) for product in chance.sample(sorted(products), chance.randint(1, 3))
    ]
    status = chance.choices((PENDING, SHIPPED, DELIVERED, CANCELLED), (4, 2, 4, 1))[0]
    delivered = chance.choice((*range(1, RETURN_DAYS + 1), *range(RETURN_DAYS + 5, RETURN_DAYS + 30)))
    return {
        "customer": customer,
        "status": status,
        "items": chosen,
        "paid": euros(sum(items[item]["price"] for item in chosen)),
        "payment": chance.choice(payments),
        "address": address,
        "days_since_delivery": delivered if status == DELIVERED else None,
        "late_days": chance.choice((0, 0, 0, 2, 4, 8)) if status == DELIVERED else None,
        "exchanged": False,
        "returned": [],
        "refunded": 0,
    }
