"""The memory tools, the outcome of calling one, and search. A call by an agent never raises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from reflectkit.envs.memory.retrieval import Related, related
from reflectkit.envs.memory.store import CORE, EPISODIC, LISTS, SEMANTIC, Item, RefusedError, Store
from reflectkit.tools import check_call
from reflectkit.types import ToolCall, ToolSpec

INSERT, UPDATE, DELETE = "new_memory_insert", "memory_update", "memory_delete"
ID = {"type": "string", "description": "of the item, as shown; not for core_memory"}


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


TOOLS = (
    ToolSpec(
        INSERT,
        "Add an item.",
        _object(
            ["memory_type", "content"],
            memory_type={"type": "string", "enum": [SEMANTIC, EPISODIC]},
            content={"type": "string"},
        ),
    ),
    ToolSpec(
        UPDATE,
        "Replace an item, or the whole core.",
        _object(
            ["memory_type", "new_content"],
            memory_type={"type": "string", "enum": [CORE, SEMANTIC, EPISODIC]},
            new_content={"type": "string"},
            memory_id=ID,
        ),
    ),
    ToolSpec(
        DELETE,
        "Remove an item, or the whole core.",
        _object(["memory_type"], memory_type={"type": "string", "enum": [CORE, SEMANTIC, EPISODIC]}, memory_id=ID),
    ),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a call."""

    call: ToolCall
    """The call."""
    ok: bool
    """Whether it succeeded."""
    message: str
    """The message for the agent."""
    counts: bool = True
    """Whether it is a success or a failure; a call that would change nothing is refused and is neither."""
    written: str = ""
    """The text that it wrote."""
    removed: str = ""
    """The text that it removed."""
    fresh: bool = False
    """Whether the removed text was written at the same chunk."""


def insertion(kind: str, content: str) -> ToolCall:
    """The call that adds an item."""
    return ToolCall(INSERT, {"memory_type": kind, "content": content})


def deletion(item: Item) -> ToolCall:
    """The call that removes `item`."""
    return ToolCall(DELETE, {"memory_type": item.kind, "memory_id": item.id})


def search(store: Store, kind: str, query: str, limit: int, retrieve: Related = related) -> list[Item]:
    """Up to `limit` items of one list that are most related to `query`, best first (the paper's `search_memory`)."""
    items = store.listed(kind)
    return [items[index] for index in retrieve([item.text for item in items], query, limit)]


def apply(store: Store, call: ToolCall, chunk: int) -> Outcome:
    """Execute `call` at chunk number `chunk`."""
    if (wrong := check_call(call, TOOLS)) is not None:
        return Outcome(call, False, wrong)
    kind = call.arguments["memory_type"]
    item_id = call.arguments.get("memory_id")
    try:
        if call.name == INSERT:
            content = " ".join(call.arguments["content"].split())
            if kind in LISTS and (same := store.find(kind, content)) is not None:
                return Outcome(call, False, f"{kind} says that already, as {same.id}", counts=False)
            item = store.insert(kind, content, chunk)
            return Outcome(call, True, f"{item.id} added", written=item.text)
        if call.name == UPDATE:
            content = " ".join(call.arguments["new_content"].split())
            if (content == store.core) if kind == CORE else store.find(kind, content):
                return Outcome(call, False, f"{kind} says that already", counts=False)
            item_before = store.items.get(item_id or "")
            before = store.core if kind == CORE else item_before.text if item_before else ""
            changed = store.update(kind, call.arguments["new_content"], item_id, chunk)
            return Outcome(
                call, True, f"{kind} updated", written=store.core if changed is None else changed.text, removed=before
            )
        item_before = store.items.get(item_id or "")
        at = store.core_chunk if kind == CORE else item_before.chunk if item_before else None
        return Outcome(call, True, f"{kind} deleted from", removed=store.delete(kind, item_id), fresh=at == chunk)
    except RefusedError as error:
        return Outcome(call, False, str(error))
