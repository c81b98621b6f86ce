"""Checksums of a folder's files, stored in the folder, to detect damage from a disk or an interrupted write."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from reflectkit.errors import CheckpointError, DataError
from reflectkit.jsonl import read_json, sha256, write_json

CHECKSUMS = "checksums.json"


def seal(folder: Path) -> None:
    """Write the SHA-256 of every file in and below `folder` to its checksums.json, as the last step of writing it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != CHECKSUMS)
    write_json(folder / CHECKSUMS, {path.relative_to(folder).as_posix(): sha256(path) for path in files})


def verify(folder: Path) -> None:
    """Raises CheckpointError, naming the file, unless `folder` was sealed and its files are unchanged since then."""
    if not (folder / CHECKSUMS).is_file():
        raise CheckpointError(f"{folder} has no {CHECKSUMS}, so it is incomplete")
    try:
        checksums = dict(read_json(folder / CHECKSUMS))
    except (DataError, OSError, TypeError, ValueError) as error:
        raise CheckpointError(f"{folder / CHECKSUMS} is damaged ({error})") from None
    compare(folder, checksums, CHECKSUMS)


def refuse_damage(folder: Path) -> None:
    """Raises CheckpointError, naming the file, if one of `folder` has another checksum than the one it was sealed with,
    there or as a part of the folder above. Files that are missing, or were never sealed, are not looked at.
    """
    for place in (folder, folder.parent):
        try:
            checksums = dict(read_json(place / CHECKSUMS)) if (place / CHECKSUMS).is_file() else {}
        except (DataError, OSError, TypeError, ValueError):
            continue  # resuming tells of it; weights that load can be used without
        for name, expected in checksums.items():
            path = place / name
            if path.is_relative_to(folder) and path.is_file() and sha256(path) != expected:
                raise CheckpointError(
                    f"{path} is damaged: its checksum differs from the one in {place / CHECKSUMS}; train it again, or"
                    f" delete {CHECKSUMS} if you changed the file yourself"
                )


def compare(folder: Path, checksums: Mapping[str, str], record: str) -> None:
    """Raises CheckpointError, naming the file, unless `folder` holds exactly the files in `checksums`, unchanged.

    record: the file in `folder` that lists the checksums.
    """
    try:
        for name, expected in checksums.items():
            if sha256(folder / name) != expected:
                raise CheckpointError(f"{folder / name} is damaged: its checksum differs from the one in {record}")
    except FileNotFoundError as error:
        raise CheckpointError(f"{error.filename} is missing, although {record} lists it") from None
    except (OSError, TypeError, ValueError) as error:
        raise CheckpointError(f"{folder / record} is damaged ({error})") from None
    present = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    if extra := sorted(present - {record, *checksums}):
        raise CheckpointError(f"{folder / extra[0]} is not listed in {record}; move it out of the checkpoint")
