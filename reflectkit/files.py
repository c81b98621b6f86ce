"""Files that come with the package, and walks through folders of any depth."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from reflectkit.errors import unknown_name

REPOSITORIES = Path("data/auto_explore/repos")
"""Where users put their own repositories. Where it is missing, the included ones are meant."""


def included_repositories() -> Path:
    """The folder of the included repositories."""
    return _package() / "boxed" / "repos"


def launch_config(name: str) -> Path:
    """The file of the config for `accelerate launch --config_file` called `name`. Raises UnknownNameError."""
    files = {path.stem: path for path in sorted((_package() / "configs").glob("*.yaml"))}
    if name not in files:
        raise unknown_name("config", name, files)
    return files[name]


def launch_configs() -> Mapping[str, str]:
    """The first line of each config for `accelerate launch --config_file`, by name."""
    names = sorted(path.stem for path in (_package() / "configs").glob("*.yaml"))
    return {name: launch_config(name).read_text(encoding="utf-8").splitlines()[0].lstrip("# ") for name in names}


def _package() -> Path:
    return Path(str(resources.files("reflectkit")))


CACHE = "__pycache__"
"""Python compiles what it installs and imports; this is not the content of a folder."""


def visible_files(root: Path, key: Callable[[str], Any] | None = None) -> Iterator[Path]:
    """The regular files in and below `root`: each folder's files by name, then its subfolders in the order of `key`.

    Skips hidden files and folders, links, `__pycache__`, and folders that cannot be read.
    """
    pending = [str(root)]
    while pending:
        folder = pending.pop()
        try:
            entries = [
                entry for entry in os.scandir(folder) if not entry.name.startswith(".") and not entry.is_symlink()
            ]
            folders = [entry.name for entry in entries if entry.is_dir() and entry.name != CACHE]
            files = [entry.name for entry in entries if entry.is_file()]
        except OSError:  # no permission, already gone, or a path too long for the system
            continue
        yield from (Path(folder, name) for name in sorted(files))
        pending += [os.path.join(folder, name) for name in sorted(folders, key=key, reverse=True)]
