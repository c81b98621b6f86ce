"""The memory: a core paragraph, and semantic and episodic items with ids. Changes are atomic; invalid ones are refused
with a reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from reflectkit.text import count_tokens

CORE, SEMANTIC, EPISODIC = "core_memory", "semantic_memory", "episodic_memory"
LISTS = (SEMANTIC, EPISODIC)
CORE_TOKENS = 512
ITEM_TOKENS = 4096  # of one item; a chunk of the published data fits
MOST_ITEMS = 10_000


class RefusedError(ValueError):
    """A change that cannot be made; the message is for the agent."""


@dataclass(frozen=True, slots=True)
class Item:
    """id: unique within the memory, never reused. kind: its list. text: one line. chunk: number of the chunk at which
    it was written.
    """

    id: str
    kind: str
    text: str
    chunk: int


@dataclass
class Store:
    """core: at most about 512 tokens. core_chunk: chunk at which it was last written. items: by id, oldest first."""

    core: str = ""
    core_chunk: int = -1
    items: dict[str, Item] = field(default_factory=dict)
    _given: dict[str, int] = field(default_factory=lambda: dict.fromkeys(LISTS, 0))

    @property
    def tokens(self) -> int:
        """Approximate number of tokens in the memory."""
        return count_tokens(self.core) + sum(count_tokens(item.text) for item in self.items.values())

    def listed(self, kind: str) -> list[Item]:
        """The items of one list, oldest first."""
        return [item for item in self.items.values() if item.kind == kind]

    def lines(self) -> Iterator[str]:
        """All texts in the memory, the core first."""
        if self.core:
            yield self.core
        yield from (item.text for item in self.items.values())

    def find(self, kind: str, text: str) -> Item | None:
        """The item of `kind` whose text is `text`."""
        return next((item for item in self.listed(kind) if item.text == text), None)

    def insert(self, kind: str, content: str, chunk: int) -> Item:
        """Add an item. Raises RefusedError if it is empty or too long, or if the memory is full."""
        text = _checked(content, ITEM_TOKENS, kind)
        if len(self.items) >= MOST_ITEMS:
            raise RefusedError(f"the memory holds {MOST_ITEMS} items, and no more; delete some")
        self._given[kind] += 1
        item = Item(f"{kind[0]}{self._given[kind]}", kind, text, chunk)
        self.items[item.id] = item
        return item

    def update(self, kind: str, content: str, item_id: str | None, chunk: int) -> Item | None:
        """Replace the whole core, and return None; or an item, which moves to the end of its list. Raises
        RefusedError.
        """
        if kind == CORE:
            self.core, self.core_chunk = _checked(content, CORE_TOKENS, kind), chunk
            return None
        old = self._item(kind, item_id)
        new = Item(old.id, kind, _checked(content, ITEM_TOKENS, kind), chunk)
        del self.items[old.id]
        self.items[new.id] = new
        return new

    def delete(self, kind: str, item_id: str | None) -> str:
        """Remove the core or an item, and return its text. Raises RefusedError."""
        if kind == CORE:
            if not self.core:
                raise RefusedError("core_memory is empty already")
            removed, self.core = self.core, ""
            return removed
        return self.items.pop(self._item(kind, item_id).id).text

    def _item(self, kind: str, item_id: str | None) -> Item:
        if item_id is None:
            raise RefusedError(f"{kind} needs a memory_id")
        item = self.items.get(item_id)
        if item is None or item.kind != kind:
            raise RefusedError(f"{kind} has no item {item_id[:40]!r}")
        return item


def _checked(content: str, max_tokens: int, kind: str) -> str:
    """`content` on one line."""
    if len(content) > 100 * max_tokens:  # before it is counted
        raise RefusedError(f"{kind} takes at most {max_tokens} tokens a text, and this is far more; shorten it")
    text = " ".join(content.split())
    if not text:
        raise RefusedError(f"{kind}: the text is empty; use memory_delete to remove something")
    if (tokens := count_tokens(text)) > max_tokens:
        raise RefusedError(f"{kind} takes at most {max_tokens} tokens a text, and this is {tokens}; shorten it")
    return text
