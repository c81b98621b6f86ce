"""Conversations in episodes.jsonl: a turn stores the messages that are new in it, so that a line grows with the
conversation and not with its square.

A message is `{role, content, name}`; only a tool's has a name. The agent's own message is left out where the turn
before says the same. Where an env has changed what it showed before, the turn stores all messages, and `anew` is true.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

from reflectkit.data.fields import Fields
from reflectkit.types import Message, Observation, ToolUse, Turn

ROLES: tuple[str, ...] = get_args(get_type_hints(Message)["role"])


@dataclass(frozen=True, slots=True)
class PlayedMessage:
    """A message of a line of episodes.jsonl. name: in a "tool" message, the tool that returned the content."""

    role: str
    content: str
    name: str


@dataclass(frozen=True, slots=True)
class PlayedCall:
    """A call in a line of episodes.jsonl. arguments: JSON text of an object."""

    name: str
    arguments: str


def heard(observation: Observation, before: Turn | None) -> dict[str, Any]:
    """The fields of a turn that say what is new in `observation` since the turn `before`."""
    messages, anew = observation.messages, False
    if before is not None:
        earlier = before.observation.messages
        anew = messages[: len(earlier)] != earlier
        messages = messages if anew else messages[len(earlier) :]
        if not anew and messages and (messages[0].role, messages[0].content) == ("assistant", before.action_text):
            messages = messages[1:]
    return {"messages": [_message(message) for message in messages], "anew": anew or None}


def calls_of(action: int | str | ToolUse) -> list[dict[str, Any]] | None:
    """The calls of a turn, if any."""
    calls = action.calls if isinstance(action, ToolUse) else ()
    return [{"name": call.name, "arguments": call.arguments} for call in calls] or None


def played_messages(row: Fields, field: str) -> tuple[PlayedMessage, ...] | None:
    """The messages in a field. Raises DataError."""
    values = row.one(field, list)
    if values is None:
        return None
    return tuple(_played_message(row.inner(f"{field}[{index}]", value)) for index, value in enumerate(values))


def played_calls(row: Fields) -> tuple[PlayedCall, ...] | None:
    """The calls of a turn. Raises DataError."""
    values: Sequence[Any] = row.one("calls", list) or ()
    inner = [row.inner(f"calls[{index}]", value) for index, value in enumerate(values)]
    for call in inner:
        call.one("arguments", dict)
    return tuple(PlayedCall(call.text("name") or "", call.json("arguments") or "{}") for call in inner) or None


def _message(message: Message) -> dict[str, str]:
    row = {"role": message.role, "content": message.content}
    return row | {"name": message.name} if message.name else row


def _played_message(row: Fields) -> PlayedMessage:
    role = row.text("role")
    if role not in ROLES:
        raise row.error("role", f"expected one of {', '.join(ROLES)}, found {role!r:.60}")
    return PlayedMessage(role, row.text("content") or "", row.text("name") or "")
