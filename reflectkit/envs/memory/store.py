"""The memory, a core paragraph and lists of semantic and episodic items, and the tools that change
it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from reflectkit.text import count_tokens
from reflectkit.tools import check_call
from reflectkit.types import ToolCall, ToolSpec

CORE: Final = "core_memory"
SEMANTIC: Final = "semantic_memory"
EPISODIC: Final = "episodic_memory"
LISTS = (SEMANTIC, EPISODIC)
CORE_TOKENS = 512
ITEM_TOKENS = 4096  # of an item; a chunk of the published data fits
INSERT, UPDATE, DELETE = "new_memory_insert", "memory_update", "memory_delete"


class RefusedChangeError(ValueError):
    """A change that cannot be made; the message is for the agent."""


@dataclass(frozen=True, slots=True)
class Item:
    """id: unique within the memory, never reused. kind: its list. text: one line. chunk: number of
    the chunk at which it was written.
    """

    id: str
    kind: str
    text: str
    chunk: int


@dataclass
class Store:
    """core: at most about 512 tokens. core_chunk: chunk at which it was last written. items: by id,
    oldest first. id_counts: number of ids that each list has used.
    """

    core: str = ""
    core_chunk: int = -1
    items: dict[str, Item] = field(default_factory=dict)
    id_counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(LISTS, 0))

    @property
    def tokens(self) -> int:
        """Approximate number of tokens in the memory."""
        texts = [self.core, *(item.text for item in self.items.values())]
        return sum(map(count_tokens, texts))

    def listed(self, kind: str) -> list[Item]:
        """The items of one list, oldest first."""
        return [item for item in self.items.values() if item.kind == kind]

    def find(self, kind: str, item_id: str | None) -> Item:
        """The core, which has no id, or an item. Raises RefusedChangeError if there is none."""
        if kind == CORE:
            return Item("", CORE, self.core, self.core_chunk)
        if item_id is None:
            raise RefusedChangeError(f"{kind} needs a memory_id")
        item = self.items.get(item_id)
        if item is None or item.kind != kind:
            raise RefusedChangeError(f"{kind} has no item {item_id[:40]!r}")
        return item


def _check_text(text: str, kind: str) -> None:
    """Raises RefusedChangeError for a text that is empty or too long."""
    if not text:
        raise RefusedChangeError(
            f"{kind}: the text is empty; use memory_delete to remove something"
        )
    limit = CORE_TOKENS if kind == CORE else ITEM_TOKENS
    tokens = count_tokens(text)
    if tokens > limit:
        raise RefusedChangeError(
            f"{kind}: the text has {tokens} tokens, and the limit is {limit}; shorten it"
        )


def _tool(
    name: str,
    description: str,
    required: list[str],
    **properties: Any,
) -> ToolSpec:
    schema = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    return ToolSpec(name, description, schema)


_ANY = {"type": "string", "enum": [CORE, SEMANTIC, EPISODIC]}
_LISTS = {"type": "string", "enum": [SEMANTIC, EPISODIC]}
_TEXT = {"type": "string"}
_ID = {"type": "string", "description": "the item's id, as shown; not for core_memory"}
TOOLS = (
    _tool(INSERT, "Add an item.", ["memory_type", "content"], memory_type=_LISTS, content=_TEXT),
    _tool(
        UPDATE,
        "Replace an item, or the whole core.",
        ["memory_type", "new_content"],
        memory_type=_ANY,
        new_content=_TEXT,
        memory_id=_ID,
    ),
    _tool(
        DELETE,
        "Remove an item, or the whole core.",
        ["memory_type"],
        memory_type=_ANY,
        memory_id=_ID,
    ),
)


def insertion(kind: str, content: str) -> ToolCall:
    """The call that adds an item."""
    return ToolCall(INSERT, {"memory_type": kind, "content": content})


def replacement(item: Item, content: str) -> ToolCall:
    """The call that gives `item` another text."""
    return ToolCall(
        UPDATE, {"memory_type": item.kind, "memory_id": item.id, "new_content": content}
    )


def deletion(item: Item) -> ToolCall:
    """The call that removes `item`."""
    return ToolCall(DELETE, {"memory_type": item.kind, "memory_id": item.id})


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """The outcome of a call."""

    call: ToolCall
    ok: bool
    """Whether it succeeded."""
    message: str
    """The message for the agent."""
    counts: bool = True
    """Whether it is a success or a failure; a call that would change nothing is refused and is
    neither.
    """
    written: str = ""
    """The text that it wrote."""
    removed: str = ""
    """The text that it removed."""
    fresh: bool = False
    """Whether the removed text was written at the same chunk."""


def apply(store: Store, call: ToolCall, chunk: int) -> CallOutcome:
    """Execute `call` at chunk number `chunk`. Never raises for what an agent wrote."""
    fault = check_call(call, TOOLS)
    if fault is not None:
        return CallOutcome(call, False, fault)
    kind, item_id = call.arguments["memory_type"], call.arguments.get("memory_id")
    try:
        # 1. A removal
        if call.name == DELETE:
            old = store.find(kind, item_id)
            if kind != CORE:
                del store.items[old.id]
            elif store.core:
                store.core = ""
            else:
                raise RefusedChangeError("core_memory is already empty")
            return CallOutcome(
                call,
                True,
                f"deleted from {kind}",
                removed=old.text,
                fresh=old.chunk == chunk,
            )
        # 2. A text that is there already
        text = " ".join(call.arguments["content" if call.name == INSERT else "new_content"].split())
        items = [store.find(CORE, None)] if kind == CORE else store.listed(kind)
        for item in items:
            if item.text == text:
                place = f", in {item.id}" if call.name == INSERT else ""
                return CallOutcome(call, False, f"{kind} already says that{place}", counts=False)
        # 3. A new item
        if call.name == INSERT:
            _check_text(text, kind)
            store.id_counts[kind] += 1
            item = Item(f"{kind[0]}{store.id_counts[kind]}", kind, text, chunk)
            store.items[item.id] = item
            return CallOutcome(call, True, f"{item.id} added", written=text)
        # 4. Another text
        old = store.find(kind, item_id)
        _check_text(text, kind)
        if kind == CORE:
            store.core, store.core_chunk = text, chunk
        else:  # moves to the end of its list
            del store.items[old.id]
            store.items[old.id] = Item(old.id, kind, text, chunk)
        return CallOutcome(call, True, f"{kind} updated", written=text, removed=old.text)
    except RefusedChangeError as error:
        return CallOutcome(call, False, str(error))
