"""Checksums of a folder's files, stored in the folder, to detect damage from a disk or an interrupted write."""

from __future__ import annotations

from pathlib import Path

from reflectkit.errors import CheckpointError, DataError
from reflectkit.jsonl import read_json, sha256, write_json

CHECKSUMS = "checksums.json"


def seal(folder: Path) -> None:
    """Write the SHA-256 of every file in and below `folder` to its checksums.json, as the last step of writing it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != CHECKSUMS)
    write_json(folder / CHECKSUMS, {path.relative_to(folder).as_posix(): sha256(path) for path in files})


def verify(folder: Path) -> None:
    """Raises CheckpointError, naming the file, unless `folder` holds exactly the files that were sealed."""
    checksums = _recorded(folder)
    present = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} - {CHECKSUMS}
    for name in sorted({*checksums, *present}):
        if name not in checksums:
            raise CheckpointError(f"{folder / name} is not listed in {CHECKSUMS}; move it out of the checkpoint")
        if name not in present:
            raise CheckpointError(f"{folder / name} is missing, although {CHECKSUMS} lists it")
        if sha256(folder / name) != checksums[name]:
            raise CheckpointError(f"{folder / name} is damaged: its checksum differs from the one in {CHECKSUMS}")


def refuse_damage(folder: Path) -> None:
    """Raises CheckpointError, naming the file, if one of `folder` has another checksum than the one it was sealed with,
    there or as a part of the folder above. Files that are missing, or were never sealed, are not looked at.
    """
    for place in (folder, folder.parent):
        for name, expected in _recorded(place).items() if (place / CHECKSUMS).is_file() else ():
            path = place / name
            if path.is_relative_to(folder) and path.is_file() and sha256(path) != expected:
                raise CheckpointError(
                    f"{path} is damaged: its checksum differs from the one in {place / CHECKSUMS}; train it again, or"
                    f" delete {CHECKSUMS} if you changed the file yourself"
                )


def _recorded(folder: Path) -> dict[str, str]:
    """The checksums in `folder`. Raises CheckpointError."""
    try:
        return dict(read_json(folder / CHECKSUMS))
    except (DataError, TypeError, ValueError) as error:
        raise CheckpointError(f"{folder} has no readable {CHECKSUMS}, so it is incomplete ({error})") from None
