"""What an OpenEnv server takes and shows, in our terms: action schemas, MCP tools, observations and results."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from reflectkit.envs.conversation import LONGEST_RESULT, cut
from reflectkit.errors import ConfigError
from reflectkit.prompts import LABELS
from reflectkit.tools import NAME, check_call
from reflectkit.types import ToolCall, ToolSpec

RESERVED = ("reset", "step", "state", "close")
HIDDEN = ("metadata", "done", "reward")


@dataclass(frozen=True)
class Actions:
    """How a server is acted on. field: of the action, which a choice or a text fills. values: one for each choice.
    mcp: whether calls go to MCP tools, instead of being the action.
    """

    kind: Literal["choice", "text", "tools"]
    field: str = ""
    values: tuple[Any, ...] = ()
    tools: tuple[ToolSpec, ...] = ()
    mcp: bool = False

    @property
    def choices(self) -> tuple[str, ...]:
        """The texts of the choices."""
        return tuple(map(as_text, self.values))


def actions_of(schema: Any, where: str) -> Actions | None:
    """How to act by an action's JSON schema; None: by the MCP tools that the server lists. Raises ConfigError."""
    if not isinstance(schema, dict) or not isinstance(schema.get("properties", {}), dict):
        raise ConfigError(f"{where}: its action schema is not that of an object: {json.dumps(schema):.80}")
    tool = ToolSpec("act", str(schema.get("description") or ""), {"properties": {}} | schema)
    check_call(ToolCall("act", {}), [tool])  # raises for what is no JSON schema
    fields = {name: field for name, field in tool.parameters["properties"].items() if name != "metadata"}
    if not fields or {"tool_name", "arguments"} <= fields.keys():
        return None
    if len(fields) == 1:
        ((name, field),) = fields.items()
        field = schema.get("$defs", {}).get(str(field.get("$ref", "")).rpartition("/")[2], field)
        actions = Actions("choice", name, values_of(field))
        if 0 < len(set(actions.choices)) == len(actions.values) <= len(LABELS):
            return actions
        if field.get("type") == "string":
            return Actions("text", name)
    return Actions("tools", tools=(replace(tool, parameters=schema | {"properties": fields}),))


def values_of(field: Mapping[str, Any]) -> tuple[Any, ...]:
    """The values of an enumeration, a Boolean or a bounded integer; none for others."""
    if "enum" in field or field.get("type") == "boolean":
        return tuple(field.get("enum", (False, True)))
    low = field["exclusiveMinimum"] + 1 if "exclusiveMinimum" in field else field.get("minimum")
    high = field["exclusiveMaximum"] - 1 if "exclusiveMaximum" in field else field.get("maximum")
    if field.get("type") != "integer" or low is None or high is None or high - low >= len(LABELS):
        return ()
    return tuple(range(int(low), int(high) + 1))


def tools_of(listed: Any, where: str) -> Actions:
    """The MCP tools that a server lists. Raises ConfigError for those that cannot be offered."""
    tools: dict[str, ToolSpec] = {}
    for entry in listed if isinstance(listed, list) else []:
        entry = entry if isinstance(entry, dict) else {"name": entry}
        name, schema = str(entry.get("name")), entry.get("input_schema", entry.get("inputSchema"))
        if not re.fullmatch(NAME, name) or not isinstance(schema, dict):
            raise ConfigError(f"{where} lists the tool {name:.80}, but its name or its schema is none: {schema!r:.80}")
        if name in RESERVED or name in tools:
            why = "lists it twice" if name in tools else "OpenEnv itself has that name"
            raise ConfigError(f"{where} lists the tool {name!r}, but {why}; rename it in the server")
        tools[name] = ToolSpec(name, str(entry.get("description") or ""), {"properties": {}} | schema)
        check_call(ToolCall(name, {}), [tools[name]])  # raises for what is no JSON schema
    if not tools:
        raise ConfigError(f"{where} lists no tools, and its actions have no fields: there is nothing to do")
    return Actions("tools", tools=tuple(tools.values()), mcp=True)


def observation_text(seen: Mapping[str, Any]) -> str:
    """An observation as text: its only field if that is a text, else a line for each field that is not empty."""
    fields = {name: value for name, value in seen.items() if name not in HIDDEN and value not in (None, "", [], {})}
    fields = fields or {k: v for k, v in (seen.get("metadata") or {}).items() if v not in (None, "", [], {})}
    texts = {name: as_text(value) for name, value in fields.items()}
    if len(texts) > 1 or not all(isinstance(value, str) for value in fields.values()):
        texts = {name: f"{name}: {text}" for name, text in texts.items()}
    return cut("\n".join(texts.values()), LONGEST_RESULT)


def result_text(seen: Mapping[str, Any]) -> tuple[str, bool]:
    """(what a tool returned, whether it failed)."""
    if error := seen.get("error"):
        return cut(as_text(error.get("message", error) if isinstance(error, dict) else error), LONGEST_RESULT), True
    result = seen.get("result")
    if not isinstance(result, dict):
        return cut(as_text(result), LONGEST_RESULT) if "result" in seen else observation_text(seen), False
    parts = result.get("content")
    texts = [part.get("text") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    data = result.get("data")
    text = as_text(data) if data is not None else "\n".join(filter(None, texts)) or as_text(result)
    return cut(text, LONGEST_RESULT), bool(result.get("is_error"))


def as_text(value: Any) -> str:
    """A JSON value as text; a text as it is."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
