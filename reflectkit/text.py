"""Text processing without a tokenizer: token counts, shortening, numbers with nouns, and keywords.

Token counts are approximate. A token here is up to six letters of a word, up to three digits, a
symbol, or a run of newlines. On English prose and code, the count is within about a fifth of that
of byte-level BPE tokenizers with large vocabularies. On other text it is too high.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

PIECE = re.compile(r"[A-Za-z]{1,6}|\d{1,3}|\n+|[^\sA-Za-z\d]|[ \t]{2,}")
"""An approximate token."""
CUT_MARK = "\n[cut]\n"
"""The mark in a text whose middle was left out."""
HEAD_SHARE = 2 / 3
"""The share of a shortened text that comes from its beginning."""
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
"""A word: capitals alone, letters of which only the first may be a capital, or digits."""
_STOP_WORDS = """
a about above after all also an and any are as at be been before being below between both but by
can code could dealt define defines did do does each every few file files find for from further
had has have having he her here him his how i if in into is it its just know like line listed
lists made make may me might more most must my need next no nor not now of off on once one only
or other our out over part per please read recorded same say says see set setting settings she
should so some such table text than that the their them then there these they this those through
to too under until up us use used uses using very want was way we were what when where whether
which while who whom why will with worked would you your
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
"""Frequent words that say little about what a text is about."""


def count_tokens(text: str) -> int:
    """The approximate number of tokens in `text`; a non-ASCII character counts as two.

    >>> count_tokens("The loan period is 21 days.")
    7
    """
    pieces = len(PIECE.findall(text))
    if text.isascii():
        return pieces
    non_ascii = sum(character > "\x7f" for character in text)
    return pieces + non_ascii


def pluralize(number: int, noun: str, plural: str = "") -> str:
    """`number` with `noun` in the singular or plural. plural: by default the noun with an s.

    >>> pluralize(1, "episode"), pluralize(2000, "row"), pluralize(0, "repository", "repositories")
    ('1 episode', '2,000 rows', '0 repositories')
    """
    form = noun if number == 1 else plural or f"{noun}s"
    return f"{number:,} {form}"


def headed(head: str, text: str) -> str:
    """`head` and `text`, on one line if `text` has only one.

    The lines of a longer text are below the head, each after a space. So no line of `text` begins
    where a head begins, and the indentation of the text is kept.

    >>> headed("User:", "Yes."), headed("Tool read:", "if x:\\n    return 1\\n")
    ('User: Yes.', 'Tool read:\\n if x:\\n     return 1')
    """
    lines = text.rstrip().splitlines()
    if len(lines) < 2:
        return " ".join([head, *lines])
    indented = [f" {line}" if line else "" for line in lines]
    return "\n".join([head, *indented])


@lru_cache(maxsize=100_000)
def count_short(text: str) -> int:
    """`count_tokens` with a cache, for short texts that recur: names, commands, questions."""
    return count_tokens(text)


def shorten(text: str, budget: int) -> str:
    """`text`, or its beginning and its end in about `budget` tokens, with a mark between them.

    >>> shorten("one two three four five six seven eight nine ten " * 9, 14)
    'one two three four five six\\n[cut]\\neight nine ten'
    """
    if count_tokens(text) <= budget:
        return text

    # 1. If there is no room for a beginning and an end, there may be room for the mark alone
    room = budget - count_tokens(CUT_MARK)
    if room < 2:
        mark = CUT_MARK.strip()
        return mark if budget >= count_tokens(mark) else ""

    # 2. Cut between two tokens, so that no word is broken
    spans = [match.span() for match in PIECE.finditer(text)]
    head_tokens = max(1, round(room * HEAD_SHARE))
    tail_tokens = room - head_tokens
    head_end = spans[head_tokens - 1][1]
    tail_start = spans[len(spans) - tail_tokens][0]
    return text[:head_end].rstrip() + CUT_MARK + text[tail_start:].strip()


def words(text: str) -> list[str]:
    """The words of `text` in lower case, in order.

    Names are split: `late_fee`, `lateFee` and `late-fee` are two words each.

    >>> words("LateFee of hold_days2 (HTTPServer)")
    ['late', 'fee', 'of', 'hold', 'days', '2', 'http', 'server']
    """
    return [word.lower() for word in WORD.findall(text)]


def keywords(text: str) -> list[str]:
    """The distinct keywords of `text` in order, without plural endings.

    Stop words and words of one or two letters are left out; numbers are kept.

    >>> keywords("Which file says how many days a book may be kept, and which days count?")
    ['many', 'day', 'book', 'kept', 'count']
    """
    stems = []
    for word in words(text):
        is_long = len(word) > 2 or word.isdigit()
        if is_long and word not in STOP_WORDS:
            stems.append(stem(word))
    return list(dict.fromkeys(stems))


@lru_cache(maxsize=100_000)
def stem(word: str) -> str:
    """`word` without a plural ending: singular and plural have the same stem.

    >>> stem("fees"), stem("entries"), stem("class"), stem("bus")
    ('fee', 'entry', 'class', 'bus')
    """
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    is_plural = word.endswith("s") and not word.endswith(("ss", "us", "is"))
    if is_plural and len(word) > 3:
        return word[:-1]
    return word


def notebook_source(text: str) -> str:
    """The sources of all cells of the Jupyter notebook in `text`; "" if it is not a notebook."""
    try:
        cells = json.loads(text)["cells"]
        return "\n\n".join("".join(cell["source"]) for cell in cells)
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""


def distinct_names(folders: Sequence[Path]) -> list[str]:
    """A distinct name for each folder: its own name, after as many parent folders as necessary.

    The full paths of `folders` that are not all different.
    """
    parts = [folder.absolute().parts for folder in folders]
    for depth in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return list(map(str, folders))


def bm25(texts: Sequence[Sequence[str]]) -> Any:
    """A BM25 index of texts, each given as its words. Its `get_scores(words)` scores each text.

    Robertson and Zaragoza 2009, with Lucene's idf, k1 = 1.5 and b = 0.75.
    """
    # bm25s imports JAX if it is installed, for a function that is not used here, and JAX takes most
    # of a GPU's memory. None in sys.modules makes its import fail
    jax = sys.modules.get("jax")
    sys.modules["jax"] = None  # type: ignore[assignment]
    try:
        import bm25s
    finally:
        del sys.modules["jax"]
        if jax is not None:
            sys.modules["jax"] = jax
    index = bm25s.BM25()
    index.index([list(words) for words in texts], show_progress=False)
    return index
