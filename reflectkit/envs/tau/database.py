"""A domain's database: what an episode sees of it, and what it has changed.

The package loads the whole database for each episode, and hashes it twice for each reward. Here an episode copies a
record when it first reads it, and only those are compared, by the package's rule, so that the verdict is the same.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterator, Mapping, MutableMapping
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


class EpisodeTable(MutableMapping[str, Any]):
    """A table of one episode. Each record is copied when it is first read, so that the original stays as it is.

    own: the records that were read, changed or added, by id; None for a removed one.
    """

    def __init__(self, original: Mapping[str, Any]) -> None:
        self._original, self._keys = original, dict.fromkeys(original)
        self.own: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        if key not in self._keys:
            raise KeyError(key)
        if key not in self.own:
            self.own[key] = marshal.loads(marshal.dumps(self._original[key]))
        return self.own[key]

    def __setitem__(self, key: str, record: Any) -> None:
        self._keys[key] = None
        self.own[key] = record

    def __delitem__(self, key: str) -> None:
        del self._keys[key]
        self.own[key] = None

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


class DomainDatabase:
    """The database as every episode finds it. canonical: the package's text of a record, equal for equal records."""

    def __init__(self, tables: Tables, canonical: Callable[[Any], str]) -> None:
        self._tables, self._canonical = tables, canonical

    def copy(self) -> dict[str, EpisodeTable]:
        """Tables to change."""
        return {name: EpisodeTable(records) for name, records in self._tables.items()}

    def changes(self, tables: Mapping[str, EpisodeTable]) -> Changes:
        """How `tables` differ from the original."""
        records: dict[str, str | None] = {}
        fields: Fields = []
        for name, originals in self._tables.items():
            for key, after in sorted(tables[name].own.items()):
                before = originals.get(key)
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
