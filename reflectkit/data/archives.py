"""Streams the members of a .zip or .tar.gz without unpacking it. Rejects unsafe paths and decompression bombs."""

from __future__ import annotations

import contextlib
import stat
import tarfile
import zipfile
from collections.abc import Callable, Generator
from pathlib import Path, PurePosixPath
from typing import IO, cast

SUFFIXES = (".zip", ".tar.gz", ".tgz")
PIECE_BYTES = 1 << 16
MEMBERS = 200_000  # maximum number of entries of a repository
EXPANSION = 200  # maximum ratio of unpacked to packed size, above FREE_BYTES
FREE_BYTES = 16 << 20

Opener = Callable[[], IO[bytes]]
Members = Generator[tuple[str, bool | None, Opener], None, None]  # name, is a plain file (None: a folder), opener


class RefusedError(Exception):
    """The repository is refused; the message says why."""


def members(source: Path) -> Members:
    """Every member of archive `source`. Only the current one can be opened. Raises RefusedError for a bomb."""
    limit = FREE_BYTES + EXPANSION * source.stat().st_size
    return (_zip_members if source.name.lower().endswith(".zip") else _tar_members)(source, limit)


def safe_path(name: str) -> PurePosixPath | None:
    """The member's relative path, or None if it is absolute or has "..", a drive, a backslash or a NUL."""
    if not name or name.startswith("/") or "\\" in name or "\0" in name or ":" in name.partition("/")[0]:
        return None
    path = PurePosixPath(name)
    return None if ".." in path.parts or not path.parts else path


def outermost(members: Members) -> str:
    """The one top-level folder that contains everything in an archive, or ""."""
    tops: set[str] = set()
    with contextlib.closing(members):
        for name, is_plain, _ in members:
            path = safe_path(name)
            if path is None:
                continue
            if is_plain is not None and len(path.parts) == 1:
                return ""
            tops.add(path.parts[0])
            if len(tops) > 1:
                return ""
    return tops.pop() if tops else ""


def _zip_members(source: Path, limit: int) -> Members:
    with zipfile.ZipFile(source) as archive:
        members = archive.infolist()
        if len(members) > MEMBERS:
            raise RefusedError(f"more than {MEMBERS} files")
        meter = _Meter(limit)
        for member in members:
            mode = member.external_attr >> 16
            plain = None if member.filename.endswith("/") else not mode or stat.S_ISREG(mode) or not stat.S_IFMT(mode)
            yield member.filename, plain, lambda member=member: meter.watch(archive.open(member))  # type: ignore[misc]


def _tar_members(source: Path, limit: int) -> Members:
    """One pass over the stream, so only the current member can be opened."""
    import gzip

    meter = _Meter(limit)
    with (
        gzip.open(source) as unpacked,
        tarfile.open(fileobj=meter.watch(cast(IO[bytes], unpacked)), mode="r|") as archive,
    ):
        for count, member in enumerate(archive):
            if count > MEMBERS:
                raise RefusedError(f"more than {MEMBERS} files")
            meter.check(archive.offset)  # where the next member should begin; tarfile would read past the end for it
            plain = None if member.isdir() else member.isreg() and not member.issparse()  # sparse files are bombs, too
            yield member.name, plain, lambda member=member: _extracted(archive, member)  # type: ignore[misc]


def _extracted(archive: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    content = archive.extractfile(member)
    if content is None:
        raise OSError("not a file")
    return content


class _Meter:
    """Counts the bytes that are really read from an archive, whatever its headers claim."""

    def __init__(self, limit: int) -> None:
        self.limit, self.read_bytes = limit, 0

    def watch(self, file: IO[bytes]) -> IO[bytes]:
        """`file` with its reads counted. Raises RefusedError when reading past the limit."""
        inner = file.read

        def read(size: int = -1) -> bytes:
            content = inner(min(size, PIECE_BYTES) if size and size > 0 else PIECE_BYTES)
            self.read_bytes += len(content)
            self.check(self.read_bytes)
            return content

        watched: IO[bytes] = _Watched(file, read)  # type: ignore[assignment]
        return watched

    def check(self, size: int) -> None:
        """Raises RefusedError if `size`, in bytes, is past the limit."""
        if size > self.limit:
            raise RefusedError(
                f"unpacks to more than {self.limit >> 20} MiB, {EXPANSION} times its size; a decompression bomb?"
            )


class _Watched:
    """A file with another `read` function. Reads return the full requested size, as tarfile's stream mode needs."""

    def __init__(self, file: IO[bytes], read: Callable[[int], bytes]) -> None:
        self._file, self._read = file, read

    def read(self, size: int = -1) -> bytes:
        parts, remaining = [], size
        while size < 0 or remaining > 0:
            content = self._read(remaining if size >= 0 else PIECE_BYTES)
            if not content:
                break
            parts.append(content)
            remaining -= len(content)
        return b"".join(parts)

    def __enter__(self) -> _Watched:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
