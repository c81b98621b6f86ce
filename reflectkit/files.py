"""Files that come with the package, and walks through folders of any depth."""

from __future__ import annotations

import contextlib
import difflib
import itertools
import json
import os
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Self

from reflectkit.errors import DataError, unknown_name

REPOSITORIES = Path("data/auto_explore/repos")
"""Where users put their own repositories. Where it is missing, the included ones are meant."""

WRITES = {
    "data.json": "gen-task",
    "data_reflection_negative.json": "gen-trajectory",
    **dict.fromkeys(("train.json", "validate.json", "test.json", "unseen.json"), "split"),
    **dict.fromkeys(("sft.jsonl", "sft_reflection.jsonl", "sft_policy.jsonl"), "gen-sft"),
    "metrics.jsonl": "rlft",
    **dict.fromkeys(("episodes.jsonl", "eval.json"), "evaluate"),
}
"""The command that writes a file of this name."""


class OwnFolder:
    """A context for code of somebody else, which may change the working folder of the process: the
    next context of this object begins in the folder that it changed to, and all else goes on in the
    one before.

    folder: where the first context begins; None: where the process is.
    """

    def __init__(self, folder: str | None = None) -> None:
        self.folder = folder
        self._outside = ""

    def __enter__(self) -> Self:
        self._outside = os.getcwd()
        if self.folder is not None:
            os.chdir(self.folder)
        return self

    def __exit__(self, *error: object) -> None:
        try:
            folder = os.getcwd()
        except FileNotFoundError:  # it was a temporary one
            folder = ""
        self.folder = None
        if folder != self._outside:
            self.folder = folder or None
            os.chdir(self._outside)


def is_there(path: Path) -> bool:
    """Whether there is a file or folder at `path`. Raises DataError for a link that leads nowhere,
    e.g. to a disk that is not mounted: the user means what it led to.
    """
    if path.exists():
        return True
    if path.is_symlink():
        raise DataError(
            path, f"is a link to {os.readlink(path)}, which cannot be read; mend or delete the link"
        )
    return False


def missing(path: Path) -> DataError:
    """The error for `path`, which does not exist; it names the command that makes such a file, and
    what is similar.
    """
    # A run of another command has no such file
    stage = stage_of(path.parent)
    if stage and path.name in WRITES and stage != WRITES[path.name]:
        return DataError(path.parent, f"is a run of {stage}; name a run of {WRITES[path.name]}")
    fix = (
        f"run `reflectkit {WRITES[path.name]}` first, or name another"
        if path.name in WRITES
        else "name another"
    )
    return DataError(path, f"no such file or folder; {similar(path) or fix}")


def stage_of(folder: Path) -> str:
    """The command whose run `folder` is; "" if it is none."""
    config = folder / "config.json"
    try:
        stage = json.loads(config.read_bytes())["stage"] if config.is_file() else ""
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return stage if isinstance(stage, str) else ""


def similar(path: Path) -> str:
    """A question that suggests the path most like `path`, which does not exist; "" if there is
    none.
    """
    # 1. The first part of the path that is wrong
    parts = [path, *path.parents]
    for wrong, folder in itertools.pairwise(parts):
        if folder.is_dir():
            names: list[str] = []
            with contextlib.suppress(OSError):
                names = [entry.name for entry in os.scandir(folder)]

            # 2. The most similar name there, and the rest of the path after it
            closest = difflib.get_close_matches(wrong.name, names, n=1)
            place = folder / Path(*closest) / path.relative_to(wrong)
            return (
                f"did you mean {place if place.exists() else folder / closest[0]}?"
                if closest
                else ""
            )
    return ""


def included_repositories() -> Path:
    """The folder of the included repositories."""
    return _package() / "boxed" / "repos"


def launch_config(name: str) -> Path:
    """The file of the config for `accelerate launch --config_file` called `name`. Raises
    UnknownNameError.
    """
    files = {path.stem: path for path in sorted((_package() / "configs").glob("*.yaml"))}
    if name not in files:
        raise unknown_name("config", name, files)
    return files[name]


def launch_configs() -> Mapping[str, str]:
    """The first line of each config for `accelerate launch --config_file`, by name."""
    files = sorted((_package() / "configs").glob("*.yaml"))
    return {
        path.stem: path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ") for path in files
    }


def _package() -> Path:
    return Path(str(resources.files("reflectkit")))


CACHE = "__pycache__"
"""Python compiles what it installs and imports; this is not the content of a folder."""


def visible_files(root: Path) -> Iterator[Path]:
    """The regular files in and below `root`: each folder's files by name, then its subfolders by
    name.

    Skips hidden files and folders, links, `__pycache__`, and folders that cannot be read.
    """
    # Without recursion, as folders may be nested deeper than Python's stack
    pending = [str(root)]
    while pending:
        folder = pending.pop()
        try:
            entries = [
                entry
                for entry in os.scandir(folder)
                if not entry.name.startswith(".") and not entry.is_symlink()
            ]
            folders = [entry.name for entry in entries if entry.is_dir() and entry.name != CACHE]
            files = [entry.name for entry in entries if entry.is_file()]
        except OSError:  # no permission, already gone, or a path too long for the system
            continue
        yield from (Path(folder, name) for name in sorted(files))
        pending += [os.path.join(folder, name) for name in sorted(folders, reverse=True)]
