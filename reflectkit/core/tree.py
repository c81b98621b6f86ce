"""Walking folders of any depth. `os.walk` calls itself for each folder, and ends in a RecursionError at a thousand."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def visible_files(root: Path, key: Callable[[str], Any] | None = None) -> Iterator[Path]:
    """The regular files in and below `root`: a folder's own by name, then those of its folders in the order of `key`.

    Hidden files and folders are left out, and so are links and folders that cannot be read.
    """
    waiting = [str(root)]
    while waiting:
        here = waiting.pop()
        try:
            entries = [entry for entry in os.scandir(here) if not entry.name.startswith(".") and not entry.is_symlink()]
            folders = [entry.name for entry in entries if entry.is_dir()]
            files = [entry.name for entry in entries if entry.is_file()]
        except OSError:  # not ours to read, gone, or of a longer path than the system takes
            continue
        yield from (Path(here, name) for name in sorted(files))
        waiting += [os.path.join(here, name) for name in sorted(folders, key=key, reverse=True)]
