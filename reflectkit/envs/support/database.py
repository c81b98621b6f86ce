"""The shop's records: frozen tables that episodes share, and the changes of one episode on top of them."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

Record = dict[str, Any]


@dataclass(frozen=True)
class Database:
    """The shop's tables, which never change. tables: customers, payments, products, items, orders; each has records,
    which are JSON objects, by id.
    """

    tables: Mapping[str, Mapping[str, Record]]

    @cached_property
    def digest(self) -> str:
        """A hash of all records."""
        text = json.dumps(self.tables, sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    @cached_property
    def customer_of_email(self) -> Mapping[str, str]:
        """Ids of customers by email, in lower case."""
        return {record["email"].lower(): name for name, record in self.tables["customers"].items()}

    @cached_property
    def _customers_by_name(self) -> Mapping[tuple[str, str], list[str]]:
        by_name: dict[tuple[str, str], list[str]] = {}
        for customer, record in self.tables["customers"].items():
            by_name.setdefault((record["name"].lower(), city_of(record).lower()), []).append(customer)
        return by_name

    def customers_named(self, name: str, city: str) -> list[str]:
        """Ids of the customers with this name in this city, whatever the case."""
        return self._customers_by_name.get((name.strip().lower(), city.strip().lower()), [])


def euros(amount: float) -> float:
    """`amount` in whole cents, without a fraction where there is none, so that it is written in one way only."""
    cents = round(amount, 2)
    return int(cents) if cents == int(cents) else cents


def city_of(customer: Record) -> str:
    """The city of a customer's address."""
    return str(customer["address"].rpartition(", ")[2])


@dataclass
class Ledger:
    """A database as one episode has changed it.

    changed: the new state of each changed record, by table and id. escalated: whether a colleague took over.
    """

    database: Database
    changed: dict[tuple[str, str], Record] = field(default_factory=dict)
    escalated: bool = False

    def find(self, table: str, name: str) -> Record | None:
        """The record as it is now; not to be changed."""
        return self.changed.get((table, name)) or self.database.tables[table].get(name)

    def of(self, table: str, name: str) -> Record:
        """The record as it is now, which must exist; not to be changed."""
        record = self.find(table, name)
        assert record is not None, (table, name)
        return record

    def change(self, table: str, record: str, /, **values: Any) -> None:
        """Set fields of a record."""
        self.changed[table, record] = copy.deepcopy(self.of(table, record)) | values

    def differences(self) -> dict[tuple[str, str], dict[str, tuple[Any, Any]]]:
        """(before, after) of each field that differs from the database, by record; without records that are as they
        were.
        """
        differing = {}
        for (table, name), record in self.changed.items():
            before = self.database.tables[table][name]
            fields = {key: (before.get(key), value) for key, value in record.items() if before.get(key) != value}
            if fields:
                differing[table, name] = fields
        return differing
