"""Text processing without a tokenizer: approximate token counts, shortening to a token budget,
numbers with nouns, and keywords.

A token here is up to six letters of a word, up to three digits, a symbol, or a run of newlines. On
English prose and code this is within about a fifth of the count of byte-level BPE tokenizers with
large vocabularies. On other text it overestimates.
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
LEFT_OUT = "\n[cut]\n"
HEAD_SHARE = 2 / 3
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
STOP_WORDS = frozenset({
    "a", "about", "above", "after", "all", "also", "an", "and", "any", "are", "as", "at", "be", "been", "before",
    "being", "below", "between", "both", "but", "by", "can", "code", "could", "dealt", "define", "defines", "did", "do",
    "does", "each", "every", "few", "file", "files", "find", "for", "from", "further", "had", "has", "have", "having",
    "he", "her", "here", "him", "his", "how", "i", "if", "in", "into", "is", "it", "its", "just", "know", "like",
    "line", "listed", "lists", "made", "make", "may", "me", "might", "more", "most", "must", "my", "need", "next", "no",
    "nor", "not", "now", "of", "off", "on", "once", "one", "only", "or", "other", "our", "out", "over", "part", "per",
    "please", "read", "recorded", "same", "say", "says", "see", "set", "setting", "settings", "she", "should", "so",
    "some", "such", "table", "text", "than", "that", "the", "their", "them", "then", "there", "these", "they", "this",
    "those", "through", "to", "too", "under", "until", "up", "us", "use", "used", "uses", "using", "very", "want",
    "was", "way", "we", "were", "what", "when", "where", "whether", "which", "while", "who", "whom", "why", "will",
    "with", "worked", "would", "you", "your",
})  # fmt: skip


def count_tokens(text: str) -> int:
    """The approximate number of tokens in `text`; a non-ASCII character counts as two.

    >>> count_tokens("The loan period is 21 days.")
    7
    """
    return len(PIECE.findall(text)) + (
        0 if text.isascii() else sum(character > "\x7f" for character in text)
    )


def pluralize(number: int, noun: str, plural: str = "") -> str:
    """`number` with `noun` in the form that it takes; the plural is the noun with an s unless
    given.

    >>> pluralize(1, "episode"), pluralize(2000, "row"), pluralize(0, "repository", "repositories")
    ('1 episode', '2,000 rows', '0 repositories')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def headed(head: str, text: str) -> str:
    """`head` and `text`: on one line if `text` has one, else with its lines below the head, each
    after a space.

    So no line of `text` begins where a head does, and its own indentation is kept.

    >>> headed("User:", "Yes."), headed("Tool read:", "if x:\\n    return 1\\n")
    ('User: Yes.', 'Tool read:\\n if x:\\n     return 1')
    """
    # The text may end with a line of its own
    lines = text.rstrip().splitlines()
    if len(lines) < 2:
        return " ".join([head, *lines])
    return "\n".join([head, *(f" {line}" if line else "" for line in lines)])


@lru_cache(maxsize=100_000)
def count_short(text: str) -> int:
    """`count_tokens`, cached for short texts that recur: names, commands, questions."""
    return count_tokens(text)


def shorten(text: str, budget: int) -> str:
    """`text`, or its beginning (two thirds) and its end in about `budget` tokens, with a mark
    between them.

    >>> shorten("one two three four five six seven eight nine ten " * 9, 14)
    'one two three four five six\\n[cut]\\neight nine ten'
    """
    if count_tokens(text) <= budget:
        return text

    # 1. Room for a head and a tail, or for the mark alone
    room = budget - count_tokens(LEFT_OUT)
    if room < 2:
        return LEFT_OUT.strip() if budget >= count_tokens(LEFT_OUT.strip()) else ""

    # 2. Cut between pieces, so that no word is broken
    pieces = [match.span() for match in PIECE.finditer(text)]
    head = max(1, round(room * HEAD_SHARE))
    kept_head, kept_tail = (
        text[: pieces[head - 1][1]],
        text[pieces[len(pieces) - (room - head)][0] :],
    )
    return kept_head.rstrip() + LEFT_OUT + kept_tail.strip()


def words(text: str) -> list[str]:
    """The words of `text` in lower case, in order. Names are split: `late_fee`, `lateFee` and
    `late-fee` are two words each.

    >>> words("LateFee of hold_days2 (HTTPServer)")
    ['late', 'fee', 'of', 'hold', 'days', '2', 'http', 'server']
    """
    return [word.lower() for word in WORD.findall(text)]


def keywords(text: str) -> list[str]:
    """The keywords of `text`: its distinct words in order, without stop words, single letters and
    plural endings.

    >>> keywords("Which file says how many days a book may be kept, and which days count?")
    ['many', 'day', 'book', 'kept', 'count']
    """
    # Singular and plural count as one word
    stems = [
        stem(word)
        for word in words(text)
        if word not in STOP_WORDS and (len(word) > 2 or word.isdigit())
    ]
    return list(dict.fromkeys(stems))


@lru_cache(maxsize=100_000)
def stem(word: str) -> str:
    """`word` without a plural ending, so that singular and plural match.

    >>> stem("fees"), stem("entries"), stem("class"), stem("bus")
    ('fee', 'entry', 'class', 'bus')
    """
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    return (
        word[:-1]
        if word.endswith("s") and not word.endswith(("ss", "us", "is")) and len(word) > 3
        else word
    )


def notebook_source(text: str) -> str:
    """The sources of a Jupyter notebook's cells, joined; "" if `text` is not a notebook."""
    try:
        cells = json.loads(text)["cells"]
        return "\n\n".join("".join(cell["source"]) for cell in cells)
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""


def distinct_names(folders: Sequence[Path]) -> list[str]:
    """A distinct name for each folder: its own, with as many parent folders as necessary."""
    parts = [folder.absolute().parts for folder in folders]
    # The last parts of a path, as many as tell all of them apart
    for depth in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return list(map(str, folders))


def bm25(texts: Sequence[Sequence[str]]) -> Any:
    """An index of texts, each given as its words: `get_scores(words)` has the score of each text.

    By BM25 (Robertson and Zaragoza 2009), with Lucene's idf, k1 1.5 and b 0.75. Where JAX is
    installed, the library's import would have it take most of a GPU's memory, for a function that
    is not used here.
    """
    # None in sys.modules makes the import fail at once
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
