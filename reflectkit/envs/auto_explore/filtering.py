"""Selects the files of a repository and copies them in small pieces, from a folder, a .zip or a
.tar.gz.

Departs from the Reflect-RL code, which drops every name that contains one of its words ("ci" in
"circle.py"), reads whole files, and follows links. Here the words must match whole names, only one
piece is in memory at a time, nothing outside the repository is read or written, and an archive is
streamed: unsafe paths and decompression bombs are refused.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import gzip
import io
import lzma
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any

from reflectkit.errors import NO_ROOM, DataError
from reflectkit.files import CACHE

CODE = frozenset(
    {".py", ".c", ".cpp", ".cxx", ".cc", ".h", ".hpp", ".hxx", ".cs", ".java", ".go", ".ipynb"}
)
DATA = frozenset({".csv", ".tsv"})
SETTINGS = frozenset({".json", ".yaml", ".yml", ".toml"})
TEXT = frozenset({".txt", ".md", ".rst"}) | SETTINGS
SHELL = frozenset({".sh", ".bash", ".zsh"})
KINDS = {
    **dict.fromkeys(CODE | SHELL, "code"),
    **dict.fromkeys(DATA, "data"),
    **dict.fromkeys(TEXT, "text"),
}
ARCHIVES = (".zip", ".tar.gz", ".tgz")
DROPPED_NAMES = frozenset(
    {
        "license",
        "licence",
        "copying",
        "makefile",
        "artwork",
        "ci",
        "tests",
        "test",
        "examples",
        "example",
    }
)
"""Names, without suffix and in lower case, that say little about what a repository does."""
MARKS = frozenset(
    {
        ".git",
        ".hg",
        "pyproject.toml",
        "setup.py",
        "setup.cfg",
        "package.json",
        "cargo.toml",
        "go.mod",
        "pom.xml",
    }
)
"""Names, in lower case, that only the root of a repository has."""
DROPPED_ENDINGS = (".egg-info", ".dist-info")
"""Endings of the folders that packaging tools write."""
CLUTTER = frozenset({CACHE, "__MACOSX", ".DS_Store", "Thumbs.db", "desktop.ini"})
"""Names of what Python, macOS and Windows put next to files. It is no part of a repository, nor are
names in FORKS.
"""
FORKS = "._"
"""Begins the names in which macOS keeps what a file has besides its content."""
MIN_CHARACTERS = 10
MIN_ASCII = 0.9
DEPTH = 64  # maximum depth of nested folders
MEMBERS = 200_000  # maximum number of entries of a repository
PIECE_BYTES = 1 << 16
EXPANSION = 200  # maximum ratio of unpacked to packed size, above FREE_BYTES
FREE_BYTES = 16 << 20
NOT_WRITTEN = NO_ROOM | {errno.EROFS}
"""Error numbers of the copy rather than of the source."""
DAMAGED = (
    zipfile.BadZipFile,
    gzip.BadGzipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    NotImplementedError,
    RuntimeError,
    ValueError,
)
"""What Python's modules raise for a damaged or encrypted archive."""
Opener = Callable[[], IO[bytes]]


class RepositoryRefusedError(Exception):
    """The repository is refused; the message says why."""


@dataclass
class Filtered:
    """The result for one repository."""

    name: str
    files: int = 0
    """Number of files that were copied."""
    code_files: int = 0
    """Number of those with code."""
    bytes: int = 0
    """Bytes copied."""
    counts_by_reason: Counter[str] = field(default_factory=Counter)
    """Reason → number of files or folders."""
    bytes_by_reason: Counter[str] = field(default_factory=Counter)
    """Reason → bytes of the files of a supported type among them."""
    code_drop: str = ""
    """The first file with code that was dropped, and why."""
    examples: dict[str, str] = field(default_factory=dict)
    """Reason → the first file dropped for it."""
    why_not: str = ""
    """Why the whole repository was refused."""

    def drop(
        self,
        reason: str,
        path: PurePosixPath | str,
        sizes: Mapping[PurePosixPath, int] | None = None,
    ) -> None:
        """Count `path` under `reason`; the first path is kept as an example. sizes: of the files
        that go with it.
        """
        self.counts_by_reason[reason] += 1
        self.examples.setdefault(reason, _ascii(path))
        for file, size in (sizes or {}).items():
            kind = kind_of(file.name)
            if kind and not any(part.startswith(".") for part in file.parts):
                self.bytes_by_reason[reason] += size
                if kind == "code":
                    self.code_drop = self.code_drop or f"{_ascii(file)} ({reason})"

    @property
    def share(self) -> float:
        """Share of the bytes of its files of a supported type, hidden ones apart, that was kept."""
        return self.bytes / max(1, self.bytes + self.bytes_by_reason.total())

    @property
    def main_reason(self) -> str:
        """Why most of the rest was dropped; "" if nothing was."""
        return max(
            self.bytes_by_reason,
            key=lambda reason: self.bytes_by_reason[reason],
            default="",
        )


def _ascii(path: PurePosixPath | str) -> str:
    return ascii(str(path))[1:-1][:200]


def kind_of(filename: str) -> str | None:
    """ "code", "data" or "text" by the suffix; None for a file that is not kept."""
    return KINDS.get(PurePosixPath(filename).suffix.lower())


def name_fault(name: str, is_folder: bool = False) -> str | None:
    """Why a file or folder called `name` is dropped, or None.

    >>> name_fault("circle.py"), name_fault("ci", is_folder=True), name_fault("LICENSE.txt")
    (None, 'says little (licence, build, tests, examples)', 'says little (licence, build, tests, examples)')
    """
    if not name or name[0] in "._":
        return "hidden or private name"
    if not name.isascii() or not name.isprintable() or "\\" in name or name != name.strip():
        return "name that is not plain ASCII"
    stem = name.lower() if is_folder else PurePosixPath(name).stem.lower()
    is_packaging = is_folder and stem.endswith(DROPPED_ENDINGS)
    is_build = name.lower() == "conf.py" or stem.startswith("requirements")
    if is_packaging or is_build or stem in DROPPED_NAMES:
        return "says little (licence, build, tests, examples)"
    return None if is_folder or kind_of(name) else "unsupported file type"


def repositories(folder: Path) -> list[Path]:
    """The repositories in `folder`: its folders and archives, by name.

    Raises DataError if there are none, or if `folder` is itself a repository and not one that
    contains others.
    """
    if not folder.is_dir():
        raise DataError(
            folder,
            "no such folder; put repositories (folders, .zip, .tar.gz) in it, or name another",
        )
    # 1. Its folders and archives; links are not followed
    paths = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.is_symlink():
            continue
        is_archive = path.name.lower().endswith(ARCHIVES) and path.is_file()
        if path.is_dir() or is_archive:
            paths.append(path)

    # 2. A folder with the marks of a repository is one, unless what is in it has such marks, too
    def mark_of(repository: Path) -> str:
        """The first mark, or ""; "" also for a folder that cannot be read."""
        with contextlib.suppress(OSError):
            for name in sorted(os.listdir(repository)):
                if name.lower() in MARKS:
                    return name
        return ""

    mark = mark_of(folder)
    if mark and not any(map(mark_of, paths)):
        raise DataError(
            folder,
            f"is itself a repository, as it has {mark}; give the folder that contains it (here"
            f" {folder.resolve().parent}), or move it into a new one",
        )
    if not paths:
        raise DataError(folder, "has no repositories; put folders, .zip or .tar.gz files in it")
    return paths


def readable(path: Path) -> bool:
    """Whether the repository, a folder or an archive, can be opened."""
    return os.access(path, os.R_OK | os.X_OK if path.is_dir() else os.R_OK)


def repository_name(path: Path) -> str:
    """A repository's name: its folder's, or its archive's without the suffix."""
    if not path.is_dir():
        for suffix in ARCHIVES:
            if path.name.lower().endswith(suffix):
                return path.name[: -len(suffix)]
    return path.name


def filter_repository(source: Path, target: Path, max_bytes: int) -> Filtered:
    """Copy the selected files of `source` into the new folder `target`, which appears complete or
    not at all.

    max_bytes: larger files are dropped.
    """
    result = Filtered(repository_name(source))
    staging = target.with_name(f".reflectkit-tmp-{target.name}")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        # 1. Copy its files into the staging folder
        files_of = _folder_files if source.is_dir() else _archive_files
        try:
            with contextlib.closing(files_of(source, result)) as files:
                for path, size, open_file in files:
                    _copy(path, size, open_file, staging, max_bytes, result)
        except RepositoryRefusedError as error:
            return Filtered(result.name, why_not=str(error))
        except DAMAGED as error:
            reason = str(error).splitlines()[0][:80] or "cut off"
            return Filtered(result.name, why_not=f"damaged or encrypted archive ({reason})")
        except OSError as error:
            if error.errno in NOT_WRITTEN:
                raise
            return Filtered(result.name, why_not=f"cannot be read ({error.strerror})")
        if not result.files:
            result.why_not = "no files are left"
            for reason, count in result.counts_by_reason.most_common(1):
                result.why_not += (
                    f"; dropped most often: {reason} ({count}, e.g. {result.examples[reason]})"
                )
        # 2. Remove folders without files
        for folder, _, _ in os.walk(staging, topdown=False):
            with contextlib.suppress(OSError):  # only empty folders can be removed
                os.rmdir(folder)
        # 3. Put it in the place of an earlier one
        if result.files:
            if target.is_symlink() or target.is_file():
                target.unlink()
            elif target.exists():
                shutil.rmtree(target)
            staging.rename(target)
        return result
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _copy(
    path: PurePosixPath,
    stated_size: int,
    open_file: Opener,
    staging: Path,
    max_bytes: int,
    result: Filtered,
) -> None:
    """Copy one file in pieces and check its content on the way; an unsuitable file is removed
    again.
    """
    target = staging / path
    decoder = codecs.getincrementaldecoder("utf-8")()
    size = characters = ascii_characters = 0
    fault = ""
    # 1. Copy until a fault shows
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with open_file() as content, target.open("wb") as copy:
            while not fault and (piece := content.read(PIECE_BYTES)):
                size += len(piece)
                text = decoder.decode(piece)
                if size > max_bytes:
                    fault = "too large"
                elif "\0" in text:
                    fault = "binary"
                characters += len(text)
                ascii_characters += len(text.encode("ascii", "ignore"))
                copy.write(piece)
            if not fault:
                decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        fault = "not UTF-8"
    except OSError as error:
        if error.errno in NOT_WRITTEN:
            raise
        fault = "cannot be read, or its name cannot be written"
    # 2. Faults of the whole content
    if not fault and characters < MIN_CHARACTERS:
        fault = f"under {MIN_CHARACTERS} characters"
    if not fault and ascii_characters < MIN_ASCII * characters:
        fault = f"under {MIN_ASCII:.0%} ASCII"
    if fault:
        with contextlib.suppress(OSError):
            target.unlink()
        result.drop(fault, path, {path: stated_size})
        return
    result.files += 1
    result.code_files += kind_of(path.name) == "code"
    result.bytes += size


# -----------------------------------------------------------------------------------------------
# folders and archives

Files = Generator[tuple[PurePosixPath, int, Opener], None, None]
"""(relative path, size in bytes as the source states it, opener) of each file with a suitable name.
"""


def _is_clutter(name: str) -> bool:
    """Whether a file or folder called `name` is no part of a repository."""
    return name in CLUTTER or name.startswith(FORKS)


def _folder_files(root: Path, result: Filtered) -> Files:
    """The files of a folder; links are dropped, not followed."""
    pending = [PurePosixPath(".")]
    count = 0
    while pending:
        folder = pending.pop()
        try:
            entries = sorted(os.scandir(root / folder), key=lambda entry: entry.name)
        except OSError:
            result.drop("cannot be read", folder)
            continue
        for entry in entries:
            count += 1
            if count > MEMBERS:
                raise RepositoryRefusedError(f"more than {MEMBERS} files")
            if _is_clutter(entry.name):
                continue
            path = folder / entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            if not (is_folder or entry.is_file(follow_symlinks=False)):
                result.drop("link or special file", path)
                continue
            fault = name_fault(entry.name, is_folder)
            if is_folder and not fault and len(path.parts) >= DEPTH:
                fault = "nested too deep"
            if is_folder and fault:
                result.drop(f"folder: {fault}", path, _sizes_below(root, path))
            elif is_folder:
                pending.append(path)
            elif fault:
                result.drop(fault, path, {path: _size(root / path)})
            else:
                yield path, _size(root / path), lambda name=entry.path: _open_plain(name)  # type: ignore[misc]


def _size(path: Path) -> int:
    """The size of a file in bytes; 0 if it has just gone."""
    with contextlib.suppress(OSError):
        return path.lstat().st_size
    return 0


def _sizes_below(root: Path, folder: PurePosixPath) -> dict[PurePosixPath, int]:
    """The sizes of the files in `folder`, which is dropped; hidden folders and files past MEMBERS
    are not looked at.
    """
    sizes: dict[PurePosixPath, int] = {}
    if folder.name.startswith("."):
        return sizes
    for place, folders, names in os.walk(root / folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        below = PurePosixPath(Path(place).relative_to(root).as_posix())
        sizes |= {below / name: _size(Path(place, name)) for name in names}
        if len(sizes) > MEMBERS:
            break
    return sizes


def _open_plain(name: str) -> IO[bytes]:
    """Open a regular file for reading. Raises OSError if it has been replaced by a link."""
    # Two of the flags are missing on Windows
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    number = os.open(name, flags)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError("not a regular file")
    return os.fdopen(number, "rb")


def _archive_files(source: Path, result: Filtered) -> Files:
    """The files of an archive. If it has a single top-level folder, that is the repository."""
    prefix = _top_folder(source)
    paths: set[PurePosixPath] = set()
    folders: set[PurePosixPath] = set()
    with contextlib.closing(_members(source)) as members:
        for name, size, is_plain, open_member in members:
            path = _safe_path(name)
            if path is None:
                result.drop("path that leaves the archive", name)
                continue
            if prefix and path.parts[0] == prefix:
                path = PurePosixPath(*path.parts[1:])
            if is_plain is None or not path.parts or any(map(_is_clutter, path.parts)):
                continue  # a folder, or no part of the repository
            folder_faults = [name_fault(part, is_folder=True) for part in path.parts[:-1]]
            folder_fault = next(filter(None, folder_faults), "")
            fault = f"folder: {folder_fault}" if folder_fault else name_fault(path.name)
            if not is_plain:
                result.drop("link or special file", name)
            elif fault:
                result.drop(fault, name, {path: size})
            elif len(path.parts) >= DEPTH:
                result.drop("folder: nested too deep", name, {path: size})
            elif path in paths or path in folders or paths & set(path.parents):
                result.drop("duplicate path", name)
            else:
                paths.add(path)
                folders.update(path.parents)
                yield path, size, open_member


def _safe_path(name: str) -> PurePosixPath | None:
    """The member's relative path, or None if it is absolute or has "..", a drive, a backslash or a
    NUL.
    """
    has_drive = ":" in name.partition("/")[0]
    if not name or name.startswith("/") or has_drive or "\\" in name or "\0" in name:
        return None
    path = PurePosixPath(name)
    return None if ".." in path.parts or not path.parts else path


def _top_folder(source: Path) -> str:
    """The one top-level folder that contains everything in an archive, or ""."""
    top = ""
    with contextlib.closing(_members(source)) as members:
        for name, _, is_plain, _ in members:
            path = _safe_path(name)
            if path and not any(map(_is_clutter, path.parts)):
                top = top or path.parts[0]
                if path.parts[0] != top or (is_plain is not None and len(path.parts) == 1):
                    return ""
    return top


Members = Generator[tuple[str, int, bool | None, Opener], None, None]
"""(name, stated size in bytes, whether it is a plain file or None for a folder, opener) of each
member; open only the current one.
"""


def _members(source: Path) -> Members:
    """Every member of archive `source`; a .tar.gz in one pass over the stream. Raises
    RepositoryRefusedError for a bomb.
    """
    meter = _Meter(FREE_BYTES + EXPANSION * source.stat().st_size)
    if source.name.lower().endswith(".zip"):
        with zipfile.ZipFile(source) as archive:
            if len(archive.infolist()) > MEMBERS:
                raise RepositoryRefusedError(f"more than {MEMBERS} files")
            for entry in archive.infolist():
                kind = stat.S_IFMT(entry.external_attr >> 16)
                name = entry.filename.replace("\\", "/")  # as Windows writes it
                plain = None if name.endswith("/") else kind in (0, stat.S_IFREG)
                size = entry.file_size
                yield name, size, plain, lambda entry=entry: meter.watch(archive.open(entry))  # type: ignore[misc]
        return
    with (
        gzip.open(source) as unpacked,
        tarfile.open(fileobj=meter.watch(unpacked), mode="r|") as stream,
    ):
        for count, member in enumerate(stream):
            if count > MEMBERS:
                raise RepositoryRefusedError(f"more than {MEMBERS} files")
            # The offset is where the next member should begin; tarfile would read on past the end
            meter.check(stream.offset)
            # Sparse files are bombs, too
            plain = None if member.isdir() else member.isreg() and not member.issparse()
            yield member.name, member.size, plain, lambda member=member: stream.extractfile(member)  # type: ignore[misc]


class _Meter:
    """Counts the bytes that are really read from an archive, whatever its headers claim."""

    def __init__(self, limit: int) -> None:
        self.limit, self.read_bytes = limit, 0

    def watch(self, file: Any) -> IO[bytes]:
        """`file` with its reads counted, which raise RepositoryRefusedError past the limit."""
        return io.BufferedReader(_Counted(file, self), PIECE_BYTES)

    def check(self, size: int) -> None:
        """Raises RepositoryRefusedError if `size`, in bytes, is past the limit."""
        if size > self.limit:
            raise RepositoryRefusedError(
                f"unpacks to more than {self.limit >> 20} MiB, {EXPANSION} times its size; a"
                " decompression bomb?"
            )


class _Counted(io.RawIOBase):
    def __init__(self, file: IO[bytes], meter: _Meter) -> None:
        self.file, self.meter = file, meter

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = self.file.read(len(buffer))
        self.meter.read_bytes += len(content)
        self.meter.check(self.meter.read_bytes)
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        self.file.close()
        super().close()
