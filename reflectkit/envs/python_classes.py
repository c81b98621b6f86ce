"""Environments that a Python program hands over as classes: `class:Maze-3f2a91c0`, the class's name
and its source.

Such a name is known in the program that made it, and nowhere else. Its digits are a digest of the
source, so a run has another identity once the class is edited.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from types import CodeType, FunctionType
from typing import Any
from uuid import uuid4

from reflectkit.errors import ConfigError

SCHEME = "class"
_CLASSES: dict[str, type] = {}
"""The classes that were handed over, by what follows the scheme."""


def name_of(kind: type) -> str:
    """The name under which commands of this program know the class `kind`."""
    source = "\n".join(_sources(kind))
    digits = (
        hashlib.sha256(source.encode("utf-8", "replace")).hexdigest()[:8]
        if source
        else uuid4().hex[:8]
    )
    name = f"{kind.__name__}-{digits}"
    _CLASSES[name] = kind
    return f"{SCHEME}:{name}"


def has_source(kind: type) -> bool:
    """Whether the source of `kind` is known, so that a run of it can be found again."""
    return bool(_sources(kind))


def env_of(name: str) -> type:
    """The class that was handed over as `name`. Raises ConfigError in another program."""
    if name not in _CLASSES:
        raise ConfigError(
            f"env '{SCHEME}:{name}' is a class of another Python program; save it in a file, and"
            " write FILE.py:CLASS"
        )
    return _CLASSES[name]


def _sources(kind: type) -> list[str]:
    """What decides how `kind` behaves, as far as it was defined where it was: its attributes and
    functions, and the constants and functions of its module that these name. Nothing if a function
    has no source.
    """
    parts: list[str] = []
    pending: list[Any] = [base for base in kind.__mro__ if base.__module__ == kind.__module__]
    visits: set[int] = set()
    while pending:
        # The function of a method or of a property
        part = pending.pop(0)
        part = getattr(part, "__func__", getattr(part, "fget", None) or part)
        if id(part) in visits:
            continue
        visits.add(id(part))
        # A class: its attributes, and their values later
        if isinstance(part, type):
            for attribute, value in vars(part).items():
                if attribute not in ("__module__", "__dict__", "__weakref__", "__firstlineno__"):
                    pending.append(value)
                    parts.append(f"{attribute} = {_constant(value)}")
        # A function: its source, and the globals that it names
        elif isinstance(part, FunctionType):
            try:
                parts.append(inspect.getsource(part))
            except (OSError, TypeError):
                return []
            for name in sorted(_names(part.__code__) & part.__globals__.keys()):
                value = part.__globals__[name]
                parts.append(f"{name} = {_constant(value)}")
                if getattr(value, "__module__", None) == kind.__module__:
                    pending.append(value)
    return parts


def _names(code: CodeType) -> set[str]:
    """The names that a function and those inside it look up."""
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return {*code.co_names}.union(*map(_names, inner))


def _constant(value: Any) -> str:
    """A value as JSON; empty if it is none."""
    try:
        return json.dumps(value, sort_keys=True)
    except (TypeError, ValueError):
        return ""
