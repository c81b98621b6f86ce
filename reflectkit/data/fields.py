"""Typed fields of JSON objects from files that anybody may have changed."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from reflectkit.errors import DataError

SAFE_DIGITS = 15  # digits of an integer that JavaScript represents exactly
Kind = TypeVar("Kind")
NAMES: dict[type[Any], str] = {
    str: "text",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}


@dataclass(frozen=True, slots=True)
class Fields:
    """Reads typed fields of a JSON object; a missing value is None. Raises DataError, which names the field of a wrong
    type.
    """

    values: dict[str, Any]
    path: Path
    line: int
    within: str = ""

    def error(self, field: str, message: str) -> DataError:
        """The error for a field."""
        return DataError(self.path, message, line=self.line, field=f"{self.within}{field}")

    def inner(self, field: str, value: object) -> Fields:
        """The fields of an object inside this one."""
        if not isinstance(value, dict):
            raise self.error(field, f"expected an object, found {type(value).__name__}")
        return Fields(value, self.path, self.line, f"{self.within}{field}.")

    def one(self, field: str, kind: type[Kind]) -> Kind | None:
        """The value, if it is a `kind`."""
        value = self.values.get(field)
        if value is None or (isinstance(value, kind) and (kind is bool or not isinstance(value, bool))):
            return value
        raise self.error(field, f"expected {NAMES[kind]}, found {value!r:.60}")

    def text(self, field: str) -> str | None:
        """The value, if it is text."""
        return self.one(field, str)

    def name(self, field: str) -> str:
        """The value as text, whatever it is."""
        value = self.values.get(field)
        return value if isinstance(value, str) else "" if value is None else json.dumps(value)

    def number(self, field: str) -> float | None:
        """The value, if it is a number."""
        value = self.values.get(field)
        return value if type(value) is int else self.one(field, float)

    def all(self, field: str, kind: type[Kind]) -> tuple[Kind, ...] | None:
        """The values of a list, if each is a `kind`."""
        values = self.one(field, list)
        if values is None:
            return None
        numeric = (float, int) if kind is float else (kind,)
        if wrong := [value for value in values if type(value) not in numeric]:
            raise self.error(field, f"expected a list in which each item is {NAMES[kind]}, found {wrong[0]!r:.60}")
        return tuple(values)

    def json(self, field: str) -> str | None:
        """The value as JSON text."""
        value = self.values.get(field)
        return None if value is None else json.dumps(value, separators=(",", ":"))


def parse(text: str) -> Any:
    """`text` as JSON; integers that JavaScript cannot represent, and infinite numbers, are text. Raises ValueError."""
    return json.loads(text, parse_int=_integer, parse_float=_float, parse_constant=_refuse)


def _integer(text: str) -> int | str:
    return int(text) if len(text) <= SAFE_DIGITS else text


def _float(text: str) -> float | str:
    value = float(text)
    return value if math.isfinite(value) else text


def _refuse(text: str) -> None:
    raise ValueError(f"{text} is not valid JSON")
