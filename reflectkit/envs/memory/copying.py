"""The players that go by a rule and copy text from the chunks, for comparison.

keep-everything: each sentence is an item; most-recent: the same, for the last three chunks only; rag: whole chunks, of
which the reader gets the two most related to a question; long-context: whole chunks, of which it gets all in their
order, or the latest that fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from reflectkit.envs.memory.reader import SENTENCES
from reflectkit.envs.memory.store import EPISODIC, ITEM_TOKENS, Store
from reflectkit.envs.memory.tools import deletion, insertion
from reflectkit.text import count_tokens
from reflectkit.tools import use_of
from reflectkit.types import ToolUse

RAG, LONG_CONTEXT, MOST_RECENT = "rag", "long-context", "most-recent"
BASELINES = ("keep-everything", MOST_RECENT, RAG, LONG_CONTEXT)
RECENT_CHUNKS = 3  # kept by `most-recent`


def copied(name: str, store: Store, chunk: str, number: int) -> ToolUse:
    """The calls of baseline `name` for `chunk`, which has this number."""
    text = " ".join(chunk.split())
    if name in (RAG, LONG_CONTEXT):
        return use_of([insertion(EPISODIC, part) for part in _pieces([text])])
    old = store.items.values() if name == MOST_RECENT else ()
    deletions = [deletion(item) for item in old if item.chunk <= number - RECENT_CHUNKS]
    return use_of([*deletions, *(insertion(EPISODIC, part) for part in _pieces(SENTENCES.split(text)))])


def _pieces(texts: Iterable[str]) -> Iterator[str]:
    """`texts`, with those that are too long for an item cut in half."""
    for text in texts:
        if count_tokens(text) <= ITEM_TOKENS:
            if text:
                yield text
        else:
            middle = len(text) // 2
            cut = text.rfind(" ", 1, middle)
            yield from _pieces((text[: cut if cut > 0 else middle].strip(), text[cut if cut > 0 else middle :].strip()))
