"""Names to things. A table holds them, or "module:attribute" strings that are imported when they are used.

Other packages add names by entry points, which are read only where a name is not in the table.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from reflectkit.core.errors import UnknownNameError, unknown_name


def resolve(kind: str, name: str, table: Mapping[str, Any], group: str = "") -> Any:
    """What `table` holds under `name`, or what the dotted path `name` ("package.module:Attribute") points to, or what
    an installed package offers by that name in the entry points of `group`.

    Raises
    ------
    UnknownNameError: in no table and no importable path; the message offers the nearest name.
    """
    target = table.get(name, name if ":" in name else None)
    if target is None:
        offered = plugins(group)
        if name not in offered:
            raise unknown_name(kind, name, [*table, *offered], hint="(your own: package.module:NAME)")
        return _loaded(kind, name, offered[name])
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


def plugins(group: str) -> dict[str, metadata.EntryPoint]:
    """The entry points of `group` by name, as installed packages declare them; nothing is imported."""
    return {point.name: point for point in metadata.entry_points(group=group)} if group else {}


def _loaded(kind: str, name: str, point: metadata.EntryPoint) -> Any:
    try:
        return point.load()
    except Exception as error:  # someone else's module may fail in any way while it is imported
        package = point.dist.name if point.dist else "a package"
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UnknownNameError(
            f"cannot import {kind} {name!r} of {package} ({point.value}): {reason}; fix or remove that package"
        ) from None
