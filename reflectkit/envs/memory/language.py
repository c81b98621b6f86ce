"""Splits text of any script into words, for retrieval and rewards. Each CJK character is a word."""

from __future__ import annotations

import re
from functools import lru_cache

from reflectkit.text import STOP_WORDS, stem

SCRIPTS = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
UNSPACED = re.compile(f"[{SCRIPTS}]")
WORD = re.compile(rf"[{SCRIPTS}]|[^\W_{SCRIPTS}]+")


@lru_cache(maxsize=100_000)
def words(text: str) -> tuple[str, ...]:
    """The words of `text` in lower case, in order."""
    return tuple(word.lower() for word in WORD.findall(text))


@lru_cache(maxsize=100_000)
def content_words(text: str) -> tuple[str, ...]:
    """The distinct content words of `text`, in order: no stop words, single letters or plural endings.

    >>> content_words("What is Anna's city?"), content_words("Где живёт Анна?")
    (('anna', 'city'), ('где', 'живёт', 'анна'))
    """
    stems = [stem(word) for word in words(text) if word not in STOP_WORDS and (len(word) > 1 or not "a" <= word <= "z")]
    return tuple(dict.fromkeys(stems))
