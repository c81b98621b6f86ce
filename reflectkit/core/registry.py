"""Names to things. A table holds them, or "module:attribute" strings that are imported when they are used."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from reflectkit.core.errors import UnknownNameError, unknown_name


def resolve(kind: str, name: str, table: Mapping[str, Any]) -> Any:
    """What `table` holds under `name`, or what the dotted path `name` ("package.module:Attribute") points to.

    Raises
    ------
    UnknownNameError: in no table and no importable path; the message offers the nearest name.
    """
    target = table.get(name, name if ":" in name else None)
    if target is None:
        raise unknown_name(kind, name, table, hint="(your own: package.module:NAME)")
    if not isinstance(target, str):
        return target
    module_name, _, attribute = target.partition(":")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except Exception as error:  # a user's module may fail in any way while it is imported
        if name in table:
            raise
        raise UnknownNameError(
            f"cannot import {kind} {name!r}: {error}; is its folder on the Python path (PYTHONPATH)?"
        ) from None
