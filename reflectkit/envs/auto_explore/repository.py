"""A repository as an immutable tree, and walks through it: no shell, no copies, no name that leads
out of it.

A tree is read once and shared by all episodes; texts are read on demand, of large files only the
two ends. Departs from the Reflect-RL code, which copied the repository for each episode and ran
shell commands in the copy.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from reflectkit.errors import DataError, IllegalActionError
from reflectkit.text import CUT_MARK, notebook_source, shorten

FILES = 200_000  # maximum in one repository
READ_WHOLE = 1 << 18  # bytes; of a larger file only the two ends are read
MAX_FILE_NAME = 200  # characters; longer names do not fit a prompt
UP = "cd .."
MOST_COMMANDS = 252
"""Commands that are offered in a folder."""


@dataclass(frozen=True, slots=True, eq=False)
class Folder:
    """One folder. path: from the root, "" for the root itself. folders, files: names in it, sorted.
    Equal only to itself.
    """

    path: str
    folders: tuple[str, ...]
    files: tuple[str, ...]


class Repository:
    """The tree below `root`, without hidden files and links. folders: by path. sizes: bytes of each
    file by path.
    """

    def __init__(
        self,
        root: Path,
        folders: Mapping[str, Folder],
        sizes: Mapping[str, int],
    ) -> None:
        self.root, self.folders, self.sizes = root, folders, sizes
        self.memo: dict[Any, Any] = {}  # cache for results derived from these files

    def view(self, path: str, budget: int) -> str | None:
        """The text of file `path`; only both ends if it has over `budget` tokens; None if it cannot
        be read.

        Raises KeyError if the repository has no such file.
        """
        if (path, budget) not in self.memo:
            self.sizes[path]  # raises
            self.memo[path, budget] = _read(self.root, path, budget)
        text: str | None = self.memo[path, budget]
        return text


def open_repository(root: Path) -> Repository:
    """The repository in folder `root`; read once a process, unless the folder was replaced since.
    Raises DataError: no such folder, or more than 200,000 files.
    """
    if not root.is_dir():
        raise DataError(
            root, "no such repository; run `reflectkit filter-repo`, or give --repos-dir"
        )
    status = root.stat()
    return _open(str(root), status.st_ino, status.st_mtime_ns)


def find_repository(folder: Path, name: str) -> Repository:
    """The repository called `name` in `folder`. Raises DataError for a name that leads elsewhere,
    or is not there.
    """
    if name in ("", ".", "..") or not set(name).isdisjoint("/\\\0"):
        raise DataError(folder, f"a repository's name was expected, not {name!r:.80}", field="root")
    return open_repository(folder / name)


@lru_cache(maxsize=1024)
def _open(root: str, inode: int, changed_ns: int) -> Repository:
    folders: dict[str, Folder] = {}
    sizes: dict[str, int] = {}
    waiting = [""]
    while waiting:
        path = waiting.pop()
        folder_names, file_names = [], []
        try:
            entries = list(os.scandir(os.path.join(root, path)))
        except OSError:
            entries = []
        for entry in entries:
            name, inside = entry.name, os.path.join(path, entry.name)
            # Only names that a prompt can hold, and nothing that leads out of the repository
            is_plain = not name.startswith(".") and name.isprintable() and name == name.strip()
            if not is_plain or len(name) > MAX_FILE_NAME or entry.is_symlink():
                continue
            if entry.is_dir(follow_symlinks=False):
                folder_names.append(name)
                waiting.append(inside)
            elif entry.is_file(follow_symlinks=False):
                file_names.append(name)
                sizes[inside] = entry.stat(follow_symlinks=False).st_size
        if len(sizes) > FILES:
            raise DataError(root, f"more than {FILES} files; filter it, or take a part of it")
        folders[path] = Folder(path, tuple(sorted(folder_names)), tuple(sorted(file_names)))
    return Repository(Path(root), folders, sizes)


def _read(root: Path, path: str, budget: int) -> str | None:
    full = os.path.join(root, path)
    if os.path.realpath(full) != os.path.join(os.path.realpath(root), path):
        return None  # a folder on the path has become a link
    # 1. The bytes: all, or those of both ends. The two flags are missing on Windows.
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        with open(os.open(full, flags), "rb") as file:
            content = file.read(READ_WHOLE + 1)
            if len(content) <= READ_WHOLE:
                text = content.decode("utf-8")
            else:
                file.seek(-READ_WHOLE // 2, io.SEEK_END)
                ends = content[: READ_WHOLE // 2], file.read(READ_WHOLE // 2)
                # A character may be cut in two
                text = CUT_MARK.join(part.decode("utf-8", "ignore") for part in ends)
    except (OSError, UnicodeDecodeError):
        return None
    # 2. The text: of a notebook its cells, and without the control characters, which a terminal
    #    obeys
    if path.endswith(".ipynb"):
        text = notebook_source(text) or text
    characters = [each for each in text if each in "\n\t" or each.isprintable()]
    return shorten("".join(characters), budget)


# --------------------------------------------------------------------------------------------------------------
# walks


@dataclass(frozen=True, slots=True)
class Output:
    """What a command printed. errors, warnings: their number."""

    text: str = ""
    errors: int = 0
    warnings: int = 0


class Walk:
    """A walk through a repository with `cd`, `cat` and `id`.

    budget: tokens that `cat` shows of a file. hidden: whether a file (by its path) is left out of
    this walk.
    """

    def __init__(
        self,
        repository: Repository,
        budget: int,
        hidden: Callable[[str], bool] | None = None,
    ) -> None:
        self.repository, self.budget, self.hidden = repository, budget, hidden
        self.here = ""
        """Path of the current folder."""
        self.reads: list[str] = []
        """Paths of the files that `cat` has shown, in order."""
        self._folders: dict[str, Folder] = {}

    @property
    def folder(self) -> Folder:
        """The current folder, without hidden files."""
        folder = self.repository.folders[self.here]
        if self.hidden is None:
            return folder
        if self.here not in self._folders:
            visible = tuple(name for name in folder.files if not self.hidden(self.path(name)))
            self._folders[self.here] = Folder(folder.path, folder.folders, visible)
        return self._folders[self.here]

    def path(self, name: str) -> str:
        """The path from the root of `name` in the current folder."""
        return f"{self.here}/{name}" if self.here else name

    def commands(self) -> tuple[str, ...]:
        """The commands on offer, at most as many as there are labels: `cd ..`, `cd DIR`, then for
        each file `cat` and `id`.

        A file that was shown is not offered to `cat` again. In a crowded folder the last files are
        not offered.
        """
        commands = _commands(self.folder, bool(self.here))
        repetitions = set()
        for path in self.reads:
            if os.path.dirname(path) == self.here:
                repetitions.add(f"cat {os.path.basename(path)}")
        if not repetitions:
            return commands
        return tuple(command for command in commands if command not in repetitions)

    def run(self, command: str) -> Output | str:
        """Perform one command line: the path that `id` names, or the output of the others. Raises
        IllegalActionError.

        A file that can no longer be read is an error in the output, an empty file a warning.
        """
        verb, _, name = command.partition(" ")
        # 1. Another folder
        if command == UP and self.here:
            self.here = os.path.dirname(self.here)
            return Output()
        path = self.path(name)
        if verb == "cd" and name in self.folder.folders:
            self.here = path
            return Output()
        # 2. A file, which can be read once
        is_legal = verb in ("cat", "id") and name in self.folder.files
        if not is_legal or (verb == "cat" and path in self.reads):
            raise IllegalActionError(f"cannot {command!r:.80} in /{self.here}")
        if verb == "id":
            return path
        self.reads.append(path)
        text = self.repository.view(path, self.budget)
        if text is None:
            return Output(f"Error: {name} cannot be read", errors=1)
        return Output(text) if text.strip() else Output(f"Warning: {name} is empty", warnings=1)


@lru_cache(maxsize=10_000)
def _commands(folder: Folder, can_go_up: bool) -> tuple[str, ...]:
    ways = [UP] * can_go_up + [f"cd {name}" for name in folder.folders]
    room = max(0, MOST_COMMANDS - len(ways)) // 2
    files = folder.files[:room]
    commands = [*ways, *(f"cat {name}" for name in files), *(f"id {name}" for name in files)]
    return tuple(commands[:MOST_COMMANDS])


def shortest_path(
    target: str,
    here: str = "",
    *,
    read: bool = False,
) -> list[str]:
    """The commands from folder `here` that read file `target` and name it. read: whether it was
    read before.

    >>> shortest_path("app/rules/fees.py")
    ['cd app', 'cd rules', 'cat fees.py', 'id fees.py']
    """
    *folders, name = target.split("/")
    current = here.split("/") if here else []
    common = 0
    for folder, other in zip(folders, current, strict=False):
        if folder != other:
            break
        common += 1
    commands = [UP] * (len(current) - common)
    commands += [f"cd {folder}" for folder in folders[common:]]
    if not read:
        commands.append(f"cat {name}")
    return [*commands, f"id {name}"]


def can_be_named(repository: Repository, path: str) -> bool:
    """Whether file `path` can be reached and named by commands that are offered; folders can be too
    crowded.
    """
    walk = Walk(repository, budget=1)
    for command in shortest_path(path, read=True):
        if walk.here not in repository.folders or command not in walk.commands():
            return False
        walk.run(command)
    return True


def answer_of(repository: Repository, commands: Sequence[str]) -> str:
    """The file that the sequence `commands` ends by naming; "" if none."""
    walk = Walk(repository, budget=1)
    try:
        outputs = [walk.run(command) for command in commands]
    except IllegalActionError:
        return ""
    return outputs[-1] if outputs and isinstance(outputs[-1], str) else ""
