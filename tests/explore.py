"""A small repository for tests, and problems on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reflectkit.types import Task

FILES = {
    "README.md": "# Library\n\nLends books.\n",
    "setup notes.txt": "Install it, then start it.\n",
    "app/fees.py": '"""Fees that are shown to guests."""\n\nCURRENCY = "euro"\n',
    "app/rules/fees.py": (
        '"""The late fee: ten cents a day."""\n\n\ndef late_fee(days):\n    return min(3, days / 10)\n'
    ),
    "docs/guide.md": "# Guide\n\n## How to lend a book\n\nScan it twice.\n",
}
LONG = "first line of the file\n" + "some words in the middle of it\n" * 400 + "last line of the file\n"


def write_repository(folder: Path, name: str = "library") -> Path:
    """Write the repository into `folder`, which is returned."""
    for path, text in FILES.items():
        target = folder / name / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return folder


def explore_task(filename: str, question: str = "Where is the late fee worked out?", **data: Any) -> Task:
    """A problem whose target is `filename`."""
    held = {"question": question, "filename": filename, "root": "library", **data}
    return Task(f"library-{filename}", "auto_explore", str(filename.count("/")), "library", held)
