"""The base of the parts that an env may have besides playing: its `Taskset` and its `Teacher`."""

from __future__ import annotations

import inspect
from typing import Any


class Part:
    """A part of an env, with a default for everything in it. A subclass defines what its env has."""

    def __init__(self, env: Any) -> None:
        self.env = env

    @classmethod
    def has(cls, *names: str) -> bool:
        """Whether this part itself defines these, instead of inheriting the defaults."""
        return all(inspect.getattr_static(cls, name) is not vars(cls._root())[name] for name in names)

    @classmethod
    def names(cls) -> list[str]:
        """What such a part may define."""
        return [name for name in vars(cls._root()) if not name.startswith("_")]

    @classmethod
    def with_own(cls, kind: Any, bases: tuple[Any, ...]) -> Any:
        """This part, with what the env's class `kind` defines of it in its own body or in one of `bases`: a short env
        is one class.
        """
        defined = {name for base in (kind, *bases) for name in vars(base)}
        own: dict[str, Any] = {name: _OfTheEnv(kind, name) for name in cls.names() if name in defined}
        return type(f"{kind.__name__}{cls._root().__name__}", (cls,), own) if own else cls

    @classmethod
    def _root(cls) -> type:
        """The part that all envs have: a direct subclass of `Part`."""
        return cls.__mro__[cls.__mro__.index(Part) - 1]


class _OfTheEnv:
    """Something that an env's class defines in place of its part."""

    def __init__(self, kind: Any, name: str) -> None:
        self.kind, self.name = kind, name

    def __get__(self, part: Part | None, owner: type) -> Any:
        return getattr(self.kind if part is None else part.env, self.name)
