"""The examples in the pages: each is a block of Python that the text before it tells to save as a file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

CONTRIBUTING = Path(__file__).parents[1] / "CONTRIBUTING.md"
EXAMPLE = re.compile(r"as `(\w+)\.py`:\n+```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^(<!-- needs: [^\n]+ -->\n)?```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples(page: Path) -> dict[str, str]:
    """The code of each example in `page`, by the name of its module."""
    return dict(EXAMPLE.findall(page.read_text(encoding="utf-8")))


def run_page(page: Path) -> dict[str, Any]:
    """Run the Python of `page` from top to bottom, as one program; returns its names. A block with a mark of what it
    needs is left out.
    """
    names: dict[str, Any] = {"__name__": page.stem}
    for needs, code in BLOCK.findall(page.read_text(encoding="utf-8")):
        if not needs:
            exec(compile(code, str(page), "exec"), names)
    return names


def save_example(name: str, module: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Save example `name` of CONTRIBUTING as `module` in `folder`, which is now on the Python path."""
    (folder / f"{module}.py").write_text(examples(CONTRIBUTING)[name], encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))


def own_module(node: pytest.Item) -> str:
    """A module name of this test's own."""
    return "own_" + re.sub(r"\W", "_", node.name)
