"""Selects the files of a repository and copies them, from a folder or an archive, in small pieces.

Departs from the Reflect-RL code, which drops every name that contains one of its words ("ci" in "circle.py"), reads
whole files, and follows links. Here the words must match whole names, only one piece is in memory at a time, and
nothing outside the repository can be read or written.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import gzip
import lzma
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO

from reflectkit.data.archives import MEMBERS, PIECE_BYTES, SUFFIXES, Opener, RefusedError, members, outermost, safe_path
from reflectkit.errors import NO_ROOM, DataError
from reflectkit.files import CACHE

CODE = frozenset({".py", ".c", ".cpp", ".cxx", ".cc", ".h", ".hpp", ".hxx", ".cs", ".java", ".go", ".ipynb"})
DATA = frozenset({".csv", ".tsv"})
SETTINGS = frozenset({".json", ".yaml", ".yml", ".toml"})
TEXT = frozenset({".txt", ".md", ".rst"}) | SETTINGS
SHELL = frozenset({".sh", ".bash", ".zsh"})
KINDS = {**dict.fromkeys(CODE | SHELL, "code"), **dict.fromkeys(DATA, "data"), **dict.fromkeys(TEXT, "text")}

DROPPED_NAMES = frozenset(
    {"license", "licence", "copying", "makefile", "artwork", "ci", "tests", "test", "examples", "example"}
)
"""Names, without suffix and in lower case, that say little about what a repository does."""
MARKS = frozenset(
    {".git", ".hg", "pyproject.toml", "setup.py", "setup.cfg", "package.json", "cargo.toml", "go.mod", "pom.xml"}
)
"""Names, in lower case, of which a repository has one at its root."""
DROPPED_ENDINGS = (".egg-info", ".dist-info")
"""Endings of the folders that packaging tools write."""
MIN_CHARACTERS = 10
MIN_ASCII = 0.9
DEPTH = 64  # maximum depth of nested folders
NOT_WRITTEN = NO_ROOM | {errno.EROFS}
"""Error numbers of the copy rather than of the source."""


@dataclass
class Filtered:
    """The result for one repository."""

    name: str
    kept: int = 0
    """Number of files."""
    bytes: int = 0
    """Bytes copied."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Reason → number of files."""
    examples: dict[str, str] = field(default_factory=dict)
    """Reason → the first file dropped for it."""
    why_not: str = ""
    """Why the whole repository was refused."""

    def drop(self, reason: str, path: str) -> None:
        """Count `path` under `reason`; the first path is kept as an example."""
        self.dropped[reason] += 1
        self.examples.setdefault(reason, ascii(path)[1:-1][:200])


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
    packaging = is_folder and stem.endswith(DROPPED_ENDINGS)
    if packaging or stem in DROPPED_NAMES or name.lower() == "conf.py" or stem.startswith("requirements"):
        return "says little (licence, build, tests, examples)"
    return None if is_folder or kind_of(name) else "unsupported file type"


def repositories(folder: Path) -> list[Path]:
    """The repositories in `folder`: its folders and archives, by name. Raises DataError if there are none, or if
    `folder` is a repository itself and not one that contains others.
    """
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if _is_repository(entry))
        if (mark := _mark_of(folder)) and not any(_mark_of(folder / name) for name in names):
            raise DataError(
                folder,
                f"is itself a repository, as it has {mark}; give the folder that contains it (here"
                f" {folder.resolve().parent}), or move it into a new one",
            )
    except FileNotFoundError:
        raise DataError(
            folder, "no such folder; put repositories (folders, .zip, .tar.gz) in it, or give another folder"
        ) from None
    except NotADirectoryError:
        raise DataError(folder, "is a file; give the folder that contains the repositories") from None
    except PermissionError:
        raise DataError(folder, "permission denied; change its permissions") from None
    if not names:
        raise DataError(folder, "has no repositories; put folders, .zip or .tar.gz files in it")
    return [folder / name for name in names]


def _mark_of(folder: Path) -> str:
    """The name that shows that `folder` is a repository; "" if there is none, or if it cannot be read."""
    try:
        return next((name for name in sorted(os.listdir(folder)) if name.lower() in MARKS), "")
    except OSError:
        return ""


def readable(path: Path) -> bool:
    """Whether the repository, a folder or an archive, can be opened."""
    try:
        with os.scandir(path) if path.is_dir() else path.open("rb"):
            return True
    except OSError:
        return False


def repository_name(path: Path) -> str:
    """A repository's name: its folder's, or its archive's without the suffix."""
    for suffix in SUFFIXES:
        if path.name.lower().endswith(suffix) and not path.is_dir():
            return path.name[: -len(suffix)]
    return path.name


def filter_repository(
    source: Path, target: Path, max_bytes: int, advance: Callable[[], None] = lambda: None
) -> Filtered:
    """Copy the selected files of `source` into the new folder `target`, which appears complete or not at all.

    max_bytes: larger files are dropped. advance: called for each file inspected.
    """
    result = Filtered(repository_name(source))
    staging = target.with_name(f".reflectkit-tmp-{target.name}")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        files = _folder_files(source, result) if source.is_dir() else _archive_files(source, result)
        with contextlib.closing(files):
            for path, open_file in files:
                advance()
                _take(path, open_file, staging, max_bytes, result)
    except RefusedError as error:
        result = Filtered(result.name, why_not=str(error))
    except (
        zipfile.BadZipFile,
        gzip.BadGzipFile,
        tarfile.TarError,
        zlib.error,
        lzma.LZMAError,
        EOFError,
        NotImplementedError,
        RuntimeError,
        ValueError,
    ) as error:
        result = Filtered(
            result.name, why_not=f"damaged or encrypted archive ({str(error).splitlines()[0][:80] or 'cut off'})"
        )
    except OSError as error:
        if error.errno in NOT_WRITTEN:
            shutil.rmtree(staging, ignore_errors=True)
            raise
        result = Filtered(result.name, why_not=f"cannot be read ({error.strerror})")
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    if result.kept:
        for folder, _, _ in os.walk(staging, topdown=False):
            with contextlib.suppress(OSError):  # only empty folders can be removed
                os.rmdir(folder)
        if target.is_symlink() or target.is_file():
            target.unlink()
        elif target.exists():
            shutil.rmtree(target)
        staging.rename(target)
    else:
        result.why_not = result.why_not or "no files are left"
        shutil.rmtree(staging, ignore_errors=True)
    return result


def _is_repository(entry: os.DirEntry[str]) -> bool:
    if entry.name.startswith("."):
        return False
    if entry.is_dir(follow_symlinks=False):
        return True
    return entry.is_file(follow_symlinks=False) and entry.name.lower().endswith(SUFFIXES)


_Files = Generator[tuple[PurePosixPath, Opener], None, None]


def _folder_files(root: Path, result: Filtered) -> _Files:
    """(relative path, opener) of every file with a suitable name; links are dropped, not followed."""
    pending = [PurePosixPath(".")]
    count = 0
    while pending:
        folder = pending.pop()
        try:
            entries = sorted(os.scandir(root / folder), key=lambda entry: entry.name)
        except OSError:
            result.drop("cannot be read", str(folder))
            continue
        for entry in entries:
            count += 1
            if count > MEMBERS:
                raise RefusedError(f"more than {MEMBERS} files")
            if entry.name == CACHE:
                continue
            path = folder / entry.name
            try:
                is_folder, is_file = entry.is_dir(follow_symlinks=False), entry.is_file(follow_symlinks=False)
            except OSError:
                result.drop("cannot be read", str(path))
                continue
            if entry.is_symlink() or not (is_folder or is_file):
                result.drop("link or special file", str(path))
            elif fault := name_fault(entry.name, is_folder):
                result.drop(f"folder: {fault}" if is_folder else fault, str(path))
            elif is_folder and len(path.parts) >= DEPTH:
                result.drop("folder: nested too deep", str(path))
            elif is_folder:
                pending.append(path)
            else:
                yield path, lambda name=entry.path: _open_plain(name)  # type: ignore[misc]


def _open_plain(name: str) -> IO[bytes]:
    """Open a regular file for reading. Raises OSError if it has been replaced by a link."""
    number = os.open(name, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError("not a regular file")
    return os.fdopen(number, "rb")


def _archive_files(source: Path, result: Filtered) -> _Files:
    """The same for an archive. If it has a single top-level folder, that is the repository."""
    prefix = outermost(members(source))
    paths: set[PurePosixPath] = set()
    folders: set[PurePosixPath] = set()
    for name, is_plain, open_member in members(source):
        path = safe_path(name)
        if path is None:
            result.drop("path that leaves the archive", name)
            continue
        if prefix and path.parts[0] == prefix:
            path = PurePosixPath(*path.parts[1:])
        if is_plain is None or not path.parts:
            continue  # a folder
        if not is_plain:
            result.drop("link or special file", name)
            continue
        faults = [f"folder: {fault}" for part in path.parts[:-1] if (fault := name_fault(part, is_folder=True))]
        if faults:
            result.drop(faults[0], name)
        elif fault := name_fault(path.name):
            result.drop(fault, name)
        elif len(path.parts) >= DEPTH:
            result.drop("folder: nested too deep", name)
        elif path in paths or path in folders or paths & set(path.parents):
            result.drop("duplicate path", name)
        else:
            paths.add(path)
            folders.update(path.parents)
            yield path, open_member


def _take(path: PurePosixPath, open_file: Opener, staging: Path, max_bytes: int, result: Filtered) -> None:
    """Copy one file in pieces and check its content on the way; an unsuitable file is removed again."""
    target = staging / path
    decoder = codecs.getincrementaldecoder("utf-8")()
    size = characters = ascii_characters = 0
    fault = ""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with open_file() as content, target.open("wb") as copy:
            while piece := content.read(PIECE_BYTES):
                size += len(piece)
                if size > max_bytes:
                    fault = "too large"
                    break
                text = decoder.decode(piece)
                if "\0" in text:
                    fault = "binary"
                    break
                characters += len(text)
                ascii_characters += len(text.encode("ascii", "ignore"))
                copy.write(piece)
            else:
                decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        fault = "not UTF-8"
    except OSError as error:
        if error.errno in NOT_WRITTEN:
            raise
        fault = "cannot be read, or its name cannot be written"
    if not fault and characters < MIN_CHARACTERS:
        fault = f"under {MIN_CHARACTERS} characters"
    if not fault and ascii_characters < MIN_ASCII * characters:
        fault = f"under {MIN_ASCII:.0%} ASCII"
    if fault:
        with contextlib.suppress(OSError):
            target.unlink()
        result.drop(fault, str(path))
        return
    result.kept += 1
    result.bytes += size
