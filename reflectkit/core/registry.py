"""Look-up by name. A table holds objects, or "module:attribute" strings that are imported on first use.

Other packages add names with entry points, which are read only if a name is not in the table.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from reflectkit.core.errors import UnknownNameError, unknown_name


def resolve(kind: str, name: str, table: Mapping[str, Any], group: str = "") -> Any:
    """The object called `name`: from `table`, at the dotted path `name` ("package.module:Attribute"), or from the
    entry points of `group` of an installed package.

    Raises
    ------
    UnknownNameError: not found; the message suggests the nearest name.
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
