"""A repository as an immutable tree: read once, shared by all episodes. Texts are read on demand, a file's ends at
most.

Departs from the Reflect-RL code, which copied the repository for each episode and ran shell commands in the copy.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from reflectkit.errors import DataError
from reflectkit.text import LEFT_OUT, notebook_source, shorten

FILES = 200_000  # maximum in one repository
READ_WHOLE = 1 << 18  # bytes; of a larger file only the two ends are read
MAX_FILE_NAME = 200  # characters; longer names do not fit a prompt


@dataclass(frozen=True, slots=True, eq=False)
class Folder:
    """One folder. path: from the root, "" for the root itself. folders, files: names in it, sorted. Equal only to
    itself.
    """

    path: str
    folders: tuple[str, ...]
    files: tuple[str, ...]


class Repository:
    """The tree below `root`. folders: by path. sizes: bytes of each file by path. Hidden things and links are not in
    it.
    """

    def __init__(self, root: Path, folders: Mapping[str, Folder], sizes: Mapping[str, int]) -> None:
        self.root, self.folders, self.sizes = root, folders, sizes
        self.memo: dict[Any, Any] = {}  # cache for results derived from these files
        self._views: dict[tuple[str, int], str | None] = {}

    def view(self, path: str, budget: int) -> str | None:
        """What is shown of file `path`: its text, both ends of it where it has over `budget` tokens; None if it cannot
        be read.

        Raises KeyError for what is no file of this repository.
        """
        key = path, budget
        if key not in self._views:
            size = self.sizes[path]
            self._views[key] = _read(self.root, path, size, budget)
        return self._views[key]


def open_repository(root: Path) -> Repository:
    """The repository in folder `root`; read once a process, unless the folder was replaced since.

    Raises
    ------
    DataError: no such folder, or more than 200,000 files.
    """
    try:
        facts = os.stat(root)
    except (OSError, ValueError):
        raise DataError(
            ascii(str(root))[1:-1], "no such repository; run `reflectkit filter-repo`, or give --repos-dir"
        ) from None
    if not stat.S_ISDIR(facts.st_mode):
        raise DataError(root, "is a file, expected a repository's folder")
    return _open(str(root), facts.st_ino, facts.st_mtime_ns)


@lru_cache(maxsize=1024)
def _open(root: str, inode: int, changed_ns: int) -> Repository:
    folders: dict[str, Folder] = {}
    sizes: dict[str, int] = {}
    waiting = [""]
    while waiting:
        path = waiting.pop()
        names: tuple[list[str], list[str]] = [], []
        try:
            entries = list(os.scandir(os.path.join(root, path)))
        except OSError:
            entries = []
        for entry in entries:
            inside = f"{path}/{entry.name}" if path else entry.name
            if not _showable(entry.name) or entry.is_symlink():
                continue
            if entry.is_dir(follow_symlinks=False):
                names[0].append(entry.name)
                waiting.append(inside)
            elif entry.is_file(follow_symlinks=False):
                names[1].append(entry.name)
                sizes[inside] = entry.stat(follow_symlinks=False).st_size
        if len(sizes) > FILES:
            raise DataError(root, f"more than {FILES} files; filter it, or take a part of it")
        folders[path] = Folder(path, tuple(sorted(names[0])), tuple(sorted(names[1])))
    return Repository(Path(root), folders, sizes)


def _showable(name: str) -> bool:
    return not name.startswith(".") and name.isprintable() and name == name.strip() and len(name) <= MAX_FILE_NAME


def _read(root: Path, path: str, size: int, budget: int) -> str | None:
    full = os.path.join(root, path)
    if os.path.realpath(full) != os.path.join(os.path.realpath(root), path):
        return None  # a folder on the path has become a link
    try:
        with open(
            os.open(full, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)), "rb"
        ) as file:
            content = file.read(READ_WHOLE + 1)
            if len(content) <= READ_WHOLE:
                return shorten(_readable(content.decode("utf-8"), path), budget)
            file.seek(-READ_WHOLE // 2, io.SEEK_END)
            ends = content[: READ_WHOLE // 2], file.read(READ_WHOLE // 2)
            head, tail = (part.decode("utf-8", "ignore") for part in ends)  # a character may be cut in two
            return shorten(_readable(head + LEFT_OUT + tail, path), budget)
    except (OSError, UnicodeDecodeError):
        return None


def _readable(text: str, path: str) -> str:
    """Notebooks as their cells' sources; other files as they are. Control characters, which a terminal obeys, are left
    out.
    """
    if path.endswith(".ipynb"):
        text = notebook_source(text) or text
    return "".join(character for character in text if character in "\n\t" or character.isprintable())
