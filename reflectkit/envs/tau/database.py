"""A domain's database: what an episode sees of it, and what it has changed.

The package loads the whole database for each episode, and hashes it twice for each reward. Here an episode copies a
record when it first reads it, and only those are compared, by the package's rule, so that the verdict is the same.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from dataclasses import dataclass
from typing import Any

Tables = Mapping[str, dict[str, Any]]
"""Records by table and id; JSON values."""
Fields = list[dict[str, Any]]
"""Changed fields, each as {"record": "TABLE/ID", "field": dotted path, "before": value, "after": value}, with null for
what is not there.
"""


@dataclass(frozen=True, slots=True)
class Changes:
    """How a database differs from the original."""

    records: Mapping[str, str | None]
    """The changed records by TABLE/ID, each as the text that the package hashes; None for a removed one."""
    fields: Fields
    """The same, for people to read."""

    def verdict(self, expected: Changes) -> tuple[bool, bool, bool]:
        """(whether a record was changed otherwise than expected, whether a change is missing, whether a record was
        changed that was to stay).
        """
        ours, right = self.records, expected.records
        wrong = any(ours[record] != right[record] for record in ours.keys() & right.keys())
        return wrong, bool(right.keys() - ours.keys()), bool(ours.keys() - right.keys())


class Table(dict[str, Any]):
    """A table of one episode. Each record is copied when it is first read, so that the original stays as it is."""

    def __init__(self, original: Mapping[str, Any]) -> None:
        super().__init__(original)
        self._original = original

    def __getitem__(self, key: str) -> Any:
        record = super().__getitem__(key)
        if record is self._original.get(key):
            record = self[key] = marshal.loads(marshal.dumps(record))
        return record

    def __iter__(self) -> Iterator[str]:  # also makes dict(table) read through __getitem__
        return super().__iter__()

    def get(self, key: str, default: Any = None) -> Any:
        """As that of a dict."""
        try:
            return self[key]
        except KeyError:
            return default

    def setdefault(self, key: str, default: Any = None) -> Any:
        """As that of a dict."""
        if key not in self:
            self[key] = default
        return self[key]

    def pop(self, key: str, *default: Any) -> Any:
        """As that of a dict."""
        self.get(key)
        return super().pop(key, *default)

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        """As those of a dict."""
        return ItemsView(self)

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        """As those of a dict."""
        return ValuesView(self)

    def own(self) -> set[str]:
        """Ids of the records that are not the original's: copied, changed, added or removed."""
        records = super().items()
        own = {key for key, record in records if record is not self._original.get(key)}
        return own | (self._original.keys() - self.keys())


class Database:
    """The database as every episode finds it. canonical: the package's text of a record, equal for equal records."""

    def __init__(self, tables: Tables, canonical: Callable[[Any], str]) -> None:
        self._tables, self._canonical = tables, canonical

    def copy(self) -> dict[str, Table]:
        """Tables to change."""
        return {name: Table(records) for name, records in self._tables.items()}

    def changes(self, tables: Mapping[str, Table]) -> Changes:
        """How `tables` differ from the original."""
        records: dict[str, str | None] = {}
        fields: Fields = []
        for name, originals in self._tables.items():
            for key in sorted(tables[name].own()):
                before, after = originals.get(key), tables[name].get(key)
                if repr(before) == repr(after):
                    continue
                text = None if after is None else self._canonical(after)
                if before is None or text != self._canonical(before):
                    record = f"{name}/{key}"
                    records[record] = text
                    fields += [{"record": record} | change for change in _differences(before, after, "")]
        return Changes(records, fields)


def _differences(before: Any, after: Any, path: str) -> Iterator[dict[str, Any]]:
    """The innermost fields in which two JSON values differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in before | after:
            yield from _differences(before.get(name), after.get(name), f"{path}.{name}" if path else name)
    elif repr(before) != repr(after):
        yield {"field": path, "before": before, "after": after}
