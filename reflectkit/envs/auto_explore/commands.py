"""`cd`, `cat` and `id` as methods on a tree: no shell, no process, and no name that reaches out of the repository."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from reflectkit.envs.auto_explore.repo import Folder, Repository
from reflectkit.errors import IllegalActionError
from reflectkit.prompts import LABELS

UP = "cd .."


@dataclass(frozen=True, slots=True)
class Output:
    """What a command printed. errors, warnings: how many it holds, which cost."""

    text: str
    errors: int = 0
    warnings: int = 0


class Walk:
    """One walk through a repository. here: the folder's path. shown: files that `cat` has shown, in order.

    budget: tokens that `cat` shows of a file. hidden: whether a file (by its path) is left out of this walk.
    """

    def __init__(self, repository: Repository, budget: int, hidden: Callable[[str], bool] | None = None) -> None:
        self.repository, self.budget, self.hidden = repository, budget, hidden
        self.here = ""
        self.shown: list[str] = []
        self._folders: dict[str, Folder] = {}

    @property
    def folder(self) -> Folder:
        """What is in the current folder, on this walk."""
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
        """What may be done now, at most as many as there are labels: `cd ..`, `cd DIR`, then for each file `cat` and
        `id`.

        A file that was shown is not offered to `cat` again. In a crowded folder the last files are not offered.
        """
        every = _commands(self.folder, bool(self.here))
        done = {f"cat {path.rpartition('/')[2]}" for path in self.shown if path.rpartition("/")[0] == self.here}
        return tuple(command for command in every if command not in done) if done else every

    def run(self, command: str) -> Output | str:
        """Perform one command line; the path that `id` names, or the output of the others. Raises
        IllegalActionError.
        """
        verb, _, name = command.partition(" ")
        if verb == "cd":
            return self.up() if name == ".." else self.cd(name)
        if verb == "cat":
            return self.cat(name)
        if verb == "id":
            return self.id(name)
        raise IllegalActionError(f"no command {command!r:.80}; use cd, cat or id")

    def cd(self, name: str) -> Output:
        """Into folder `name`, which lies in the current one."""
        if name not in self.folder.folders:
            raise IllegalActionError(f"no folder {name!r:.80} in /{self.here}")
        self.here = self.path(name)
        return Output("")

    def up(self) -> Output:
        """To the folder above; the root has none."""
        if not self.here:
            raise IllegalActionError("the root of the repository has no folder above it")
        self.here = self.here.rpartition("/")[0]
        return Output("")

    def cat(self, name: str) -> Output:
        """The text of file `name` in the current folder; an error if it can no longer be read, a warning if it is
        empty.
        """
        path = self._file(name)
        if path in self.shown:
            raise IllegalActionError(f"{name!r:.80} has been shown already")
        self.shown.append(path)
        text = self.repository.view(path, self.budget)
        if text is None:
            return Output(f"Error: {name} cannot be read", errors=1)
        return Output(text) if text.strip() else Output(f"Warning: {name} is empty", warnings=1)

    def id(self, name: str) -> str:
        """The path from the root of file `name` in the current folder: the answer."""
        return self._file(name)

    def _file(self, name: str) -> str:
        if name not in self.folder.files:
            raise IllegalActionError(f"no file {name!r:.80} in /{self.here}")
        return self.path(name)


@lru_cache(maxsize=10_000)
def _commands(folder: Folder, can_go_up: bool) -> tuple[str, ...]:
    ways = [UP] * can_go_up + [f"cd {name}" for name in folder.folders]
    room = max(0, len(LABELS) - len(ways)) // 2
    files = folder.files[:room]
    return tuple([*ways, *(f"cat {name}" for name in files), *(f"id {name}" for name in files)][: len(LABELS)])


def shortest_path(path: str) -> list[str]:
    """The commands from the root that read file `path` and name it: `cd` for each folder, `cat`, `id`.

    >>> shortest_path("app/rules/fees.py")
    ['cd app', 'cd rules', 'cat fees.py', 'id fees.py']
    """
    *folders, name = path.split("/")
    return [*(f"cd {folder}" for folder in folders), f"cat {name}", f"id {name}"]


def offered(repository: Repository, path: str) -> bool:
    """Whether file `path` is there and can be reached and named by commands that are offered (folders can be too
    crowded).
    """
    walk = Walk(repository, budget=1)
    for command in shortest_path(path)[:-2]:
        if walk.here not in repository.folders or command not in walk.commands():
            return False
        walk.run(command)
    return f"id {path.rpartition('/')[2]}" in walk.commands()
