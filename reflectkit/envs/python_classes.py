"""Environments that a Python program hands over as classes: `class:Maze-3f2a91c0`, the class's name
and its source.

Such a name is known in the program that made it, and nowhere else. Its digits are a digest of the
source, so a run has another identity once the class is edited.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import re
from contextlib import suppress
from functools import cached_property
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any
from uuid import uuid4

from reflectkit.errors import ConfigError

SCHEME = "class"
NOT_WRITTEN = (
    "__module__",
    "__dict__",
    "__weakref__",
    "__firstlineno__",
    "__static_attributes__",
)
"""Attributes of a class that nobody wrote."""
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


def class_in(name: str) -> str:
    """The class's own name in the name of an env, if it is that of a program's class; else "".

    >>> class_in("class:Maze-3f2a91c0"), class_in("maze.py:Maze")
    ('Maze', '')
    """
    scheme, _, rest = name.partition(":")
    return rest.rpartition("-")[0] if scheme == SCHEME else ""


def env_text(name: str) -> str:
    """The name of an env as a person knows it.

    >>> env_text("class:Maze-3f2a91c0"), env_text("maze.py:Maze")
    ('Maze', 'maze.py:Maze')
    """
    return class_in(name) or name


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
    functions, and the variables that these name there. Nothing if a function has no source.
    """
    parts: list[str] = []
    pending: list[Any] = [base for base in kind.__mro__ if base.__module__ == kind.__module__]
    visits: set[int] = set()
    while pending:
        part = _function_of(pending.pop(0))
        if id(part) in visits:
            continue
        visits.add(id(part))
        # A class: its attributes, and their values later
        if isinstance(part, type):
            for attribute, value in vars(part).items():
                # Whoever asks a class without annotations for them gives it empty ones
                if attribute in NOT_WRITTEN or (attribute == "__annotations__" and not value):
                    continue
                if not _by_dataclass(part, value):
                    pending.append(value)
                    parts.append(f"{attribute} = {_constant(value)}")
        # A function: its source, and what it names
        elif isinstance(part, FunctionType):
            try:
                parts.append(inspect.getsource(part.__code__))
            except (OSError, TypeError):
                return []
            for name, value in _variables(part).items():
                parts.append(f"{name} = {_constant(value)}")
                if getattr(value, "__module__", None) == kind.__module__:
                    pending.append(value)
        # An object of a class that was defined there
        elif type(part).__module__ == kind.__module__:
            pending.append(type(part))
    return parts


def _function_of(part: Any) -> Any:
    """The function of a method, of a property, or of one whose results are kept; else `part`."""
    if isinstance(part, classmethod | staticmethod | MethodType):
        return part.__func__
    if isinstance(part, property):
        return part.fget
    if isinstance(part, cached_property):
        return part.func
    if isinstance(part, type | FunctionType):
        return part
    return getattr(part, "__wrapped__", part)


def _by_dataclass(kind: type, value: Any) -> bool:
    """Whether `dataclass` wrote the method `value`, which follows from the attributes."""
    if not dataclasses.is_dataclass(kind) or not isinstance(value, FunctionType):
        return False
    return value.__code__.co_filename in ("<string>", dataclasses.__file__)


def _variables(function: FunctionType) -> dict[str, Any]:
    """What a function names, by name: globals, variables of the function around it, defaults."""
    variables: dict[str, Any] = {}
    for name in sorted(_names(function.__code__) & function.__globals__.keys()):
        variables[name] = function.__globals__[name]
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in cells:
        with suppress(ValueError):  # not yet set
            variables[name] = cell.cell_contents
    variables["defaults"] = function.__defaults__, function.__kwdefaults__
    return variables


def _names(code: CodeType) -> set[str]:
    """The names that a function and those inside it look up."""
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return {*code.co_names}.union(*map(_names, inner))


def _constant(value: Any, *around: int) -> str:
    """A value as text, the same in each program. around: what holds it, as it may refer to that.

    >>> _constant({(1, 2): {"b", "a"}})
    "{(1, 2): {'a', 'b'}}"
    """
    # 1. What has a name, and what holds itself
    if isinstance(value, type | FunctionType | ModuleType):
        return value.__name__
    if id(value) in around:
        return "itself"
    around = *around, id(value)

    # 2. What holds others. A set has no order, and the text of a large array not all numbers
    if isinstance(value, dict):
        pairs = [f"{_constant(key, *around)}: {_constant(value[key], *around)}" for key in value]
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, set | frozenset):
        return "{" + ", ".join(sorted(_constant(element, *around) for element in value)) + "}"
    if isinstance(value, list | tuple):
        return "(" + ", ".join(_constant(element, *around) for element in value) + ")"
    if callable(getattr(value, "tolist", None)):
        return f"{getattr(value, 'dtype', '')} {_constant(value.tolist(), *around)}"

    # 3. What has a text, without addresses, which differ from program to program
    text = repr(value)
    if " object at 0x" in text and hasattr(value, "__dict__"):
        return f"{type(value).__name__}{_constant(vars(value), *around)}"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)
