"""The examples in the pages: each is a block of Python that the text before it tells to save as a file."""

from __future__ import annotations

import re
from pathlib import Path

EXAMPLE = re.compile(r"as `(\w+)\.py`:\n+```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples(page: Path) -> dict[str, str]:
    """The code of each example in `page`, by the name of its module."""
    return dict(EXAMPLE.findall(page.read_text(encoding="utf-8")))
