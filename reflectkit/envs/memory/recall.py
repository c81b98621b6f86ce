"""What the reader sees of a memory: what is most related to a question, or all of it."""

from __future__ import annotations

from itertools import zip_longest

from reflectkit.envs.memory.retrieval import Related
from reflectkit.envs.memory.store import LISTS, Store
from reflectkit.envs.memory.tools import search
from reflectkit.text import count_tokens

RETRIEVED = 20  # items of each list that the reader gets at most, as in the paper
READER_TOKENS = 8192  # of these items
LONG_CONTEXT_TOKENS = 30_720  # of a memory that the reader gets whole


def most_related(store: Store, question: str, limit: int, retrieve: Related) -> list[str]:
    """The core, and up to `limit` of the most related items of each list, best first, within READER_TOKENS."""
    texts = [store.core] if store.core else []
    room = READER_TOKENS - sum(map(count_tokens, texts))
    by_rank = zip_longest(*(search(store, kind, question, limit, retrieve) for kind in LISTS))
    for item in (item for items in by_rank for item in items if item is not None):
        tokens = count_tokens(item.text)
        if tokens <= room:
            texts.append(item.text)
            room -= tokens
    return texts


def latest(store: Store) -> list[str]:
    """All items in their order, or as many of the last as fit into LONG_CONTEXT_TOKENS."""
    texts: list[str] = []
    room = LONG_CONTEXT_TOKENS
    for item in reversed(store.items.values()):
        room -= count_tokens(item.text)
        if room < 0:
            break
        texts.insert(0, item.text)
    return texts
