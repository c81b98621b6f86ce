"""JSON Lines that a run appends to and a resumed run verifies: the digest of each line is in a hidden file next to it.

A line is known by the update, or other step, that it is of. A kill may leave half a line, or lines of a step that the
resumed run makes again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from reflectkit.core.jsonl import dumps, replacing, salvage

Row = Mapping[str, Any]


def append(path: Path, rows: Iterable[Row], *, sync: bool = False) -> None:
    """Append `rows`, each with its `step`. sync: to the disk, as before a checkpoint that relies on them."""
    rows = list(rows)
    for file, text in ((_digests(path), _digest_lines(rows)), (path, b"".join(map(_line, rows)))):
        with file.open("ab") as opened:
            opened.write(text)
            if sync:
                opened.flush()
                os.fsync(opened.fileno())


def rewrite(path: Path, rows: Iterable[Row]) -> None:
    """Replace `path` by `rows`, each with its `step`."""
    rows = list(rows)
    for file, text in ((_digests(path), _digest_lines(rows)), (path, b"".join(map(_line, rows)))):
        with replacing(file) as opened:
            opened.write(text)


def intact(path: Path, step: int, fields: Mapping[str, Any]) -> tuple[list[dict[str, Any]], int, int]:
    """(rows, damaged, missing): the rows up to `step` as they were written, in order; how many other lines there are,
    apart from those of later steps; and how many were written, but are not there. fields: see `salvage`.

    Where an earlier version wrote no digests, all rows with these fields are taken for intact.
    """
    rows, damaged = salvage(path, {"step": int, **fields})
    rows = [row for row in rows if row["step"] <= step]
    if not _digests(path).is_file():
        return rows, damaged, 0
    found = {_digest(row): row for row in rows}
    written = [line.split() for line in _digests(path).read_text("utf-8", "replace").splitlines()]
    expected = [line[1] for line in written if len(line) == 2 and line[0].isdecimal() and int(line[0]) <= step]
    kept = [found[digest] for digest in expected if digest in found]
    return kept, damaged + len(rows) - len(kept), len(expected) - len(kept)


def _digests(path: Path) -> Path:
    return path.with_name(f".{path.name}.sha256")


def _line(row: Row) -> bytes:
    """A lone surrogate, which envs and models may produce, is written as a JSON escape."""
    return dumps(row).encode("utf-8", "backslashreplace") + b"\n"


def _digest(row: Row) -> str:
    return hashlib.sha256(_line(row)).hexdigest()


def _digest_lines(rows: Iterable[Row]) -> bytes:
    return "".join(f"{row['step']} {_digest(row)}\n" for row in rows).encode()
