"""The rows of a data set, from a file or the hub: columns with JSON values.

A CSV file holds texts, whatever they look like. Dates become texts in ISO form, decimal numbers
texts, and NaN null. A column with anything else, such as bytes or pictures, is left out.
"""

from __future__ import annotations

import csv
import io
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, time
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

from reflectkit.errors import ConfigError, DataError, refuse
from reflectkit.files import missing
from reflectkit.jsonl import first_repeated, read_json, read_jsonl, refuse_device, text_of

FILES = (".json", ".jsonl", ".csv", ".parquet")
DELIMITERS = ",;\t"
"""Of a CSV file; spreadsheets write the second where a comma is in numbers."""
FIX = "fix the file"


@dataclass(frozen=True)
class DataRows:
    """rows: each has all columns; None in one that lacks some. left_out: columns → where they hold
    no JSON value.
    """

    rows: list[dict[str, Any]]
    left_out: dict[str, str] = field(default_factory=dict)


@cache
def read_rows(dataset: str, split: str) -> DataRows:
    """The rows of a file, or of a split on the hub. Raises DataError, and ConfigError where there
    is no data set.
    """
    # 1. All columns, in the order in which they come up
    raw = _read_file(Path(dataset)) if dataset.endswith(FILES) else _read_hub(dataset, split)
    columns: dict[str, None] = {}
    for number, row in enumerate(raw, start=1):
        if not isinstance(row, Mapping):
            raise DataError(dataset, f"row {number} is no JSON object")
        columns |= dict.fromkeys(row)
    # 2. Their values as JSON
    rows: list[dict[str, Any]] = []
    left_out: dict[str, str] = {}
    for number, row in enumerate(raw, start=1):
        rows.append(dict.fromkeys(columns))
        for name, value in row.items():
            try:
                rows[-1][name] = json_value(value)
            except TypeError as error:
                left_out.setdefault(name, f"row {number}, column '{name}': {error}")
            except RecursionError:
                reason = "a value that is nested too deep"
                left_out.setdefault(name, f"row {number}, column '{name}': {reason}")
    # 3. Without the columns that have no such form
    for name in left_out:
        for row in rows:
            del row[name]
    if not rows:
        raise DataError(dataset, "has no rows")
    return DataRows(rows, left_out)


def json_value(value: Any) -> Any:
    """`value` as JSON. Raises TypeError, with what it holds, if there is no such form.

    >>> json_value({"day": date(2024, 3, 1), "price": Decimal("1.50"), "score": float("nan")})
    {'day': '2024-03-01', 'price': '1.50', 'score': None}
    """
    if isinstance(value, str | bool | int | None):
        return value
    if isinstance(value, float):
        if math.isinf(value):
            raise TypeError("an infinite number")
        return None if math.isnan(value) else value
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return {name: json_value(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(inner) for inner in value]
    raise TypeError(f"a value of type {type(value).__name__}")


def _read_file(path: Path) -> list[Any]:
    if not path.exists():
        raise missing(path)
    refuse_device(path)
    if path.suffix == ".csv":
        return list(_read_csv(path))
    if path.suffix == ".jsonl":
        return [row for _, row in read_jsonl(path, FIX, float)]
    if path.suffix == ".json":
        rows = read_json(path, FIX, float, unique=True)
        if not isinstance(rows, list):
            raise DataError(path, f"expected a list of rows, found {type(rows).__name__}")
        return rows
    from pyarrow import ArrowException, parquet

    try:
        table: list[Any] = parquet.read_table(path).to_pylist()
    except (ArrowException, OSError) as error:
        reason = " ".join(str(error).split())
        raise DataError(path, f"cannot be read as parquet ({reason:.200})") from None
    return table


def _read_csv(path: Path) -> Iterator[dict[str, str]]:
    text = text_of(path)
    header = next(io.StringIO(text, newline=None), "").rstrip("\n")
    # 1. The delimiter is the one with which the header names a prompt.
    delimiter = DELIMITERS[0]
    for mark in DELIMITERS:
        if "prompt" in next(csv.reader([header], delimiter=mark), []):
            delimiter = mark
            break
    csv.field_size_limit(sys.maxsize)
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    # 2. Each row has as many texts as the header.
    try:
        columns = next(lines, [])
        repeated = first_repeated(columns)
        if repeated is not None:
            raise DataError(path, f"there are two columns '{repeated}'; rename one")
        for number, cells in enumerate(filter(None, lines), start=1):
            if len(cells) != len(columns):
                counts = f"row {number} has {len(cells)} columns, and the header {len(columns)}"
                raise DataError(
                    path,
                    f"{counts}; put texts with {delimiter!r} into quotes",
                    line=lines.line_num,
                )
            yield dict(zip(columns, cells, strict=True))
    except csv.Error as error:
        raise DataError(path, f"not CSV: {error}; {FIX}", line=lines.line_num) from None


def _read_hub(dataset: str, split: str) -> list[Any]:
    from reflectkit.models.hub import dataset_rows

    files = ", ".join(FILES)
    refuse(Path(dataset).is_file(), f"--dataset {dataset}: is none of {files}")
    name, _, config = dataset.partition(":")
    try:
        return list(dataset_rows(name, config, split))
    except ValueError as error:
        why = f"no file ({files}), nor can it be read from the hub: {error}"
        raise ConfigError(f"--dataset {dataset}: {why}") from None
