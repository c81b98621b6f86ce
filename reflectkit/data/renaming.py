"""Other words in the same places: a row's words exchanged for others at random, so that what it says must be read, not remembered.

A small model that sees a few repositories again and again learns them by heart. With each word of a row exchanged (the same word in
the same way wherever it stands in the row, its capitals and plural kept), only how words come back is left to learn.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence

from reflectkit.core.text import stem

WORD = re.compile(r"[A-Za-z]{3,}")


def vocabulary(texts: Iterable[str]) -> list[str]:
    """The distinct words of `texts` without their endings, sorted: what others are exchanged for."""
    return sorted({stem(word.lower()) for text in texts for word in WORD.findall(text)})


def renamed(row: Mapping[str, str], pool: Sequence[str], kept: frozenset[str], generator: random.Random) -> dict[str, str]:
    """`row` (text by name) with its words exchanged for words of `pool`, but for those in `kept` (in small letters)."""
    exchanged: dict[str, str] = {}
    free = list(pool)

    def other(found: re.Match[str]) -> str:
        word = found[0]
        small = word.lower()
        if small in kept:
            return word
        root = stem(small)
        if root not in exchanged:
            exchanged[root] = free.pop(generator.randrange(len(free))) if free else root
        new = exchanged[root] + ("s" if root != small else "")
        return new.upper() if word.isupper() else new.capitalize() if word[0].isupper() else new

    return {name: WORD.sub(other, text) for name, text in row.items()}
