"""Walks folders of any depth. `os.walk` is recursive and raises RecursionError at a depth of about a thousand."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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
