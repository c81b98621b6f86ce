"""Checks of an env's class, made once when it is loaded: its texts, its numbers, and the arguments of its methods."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from numbers import Integral
from typing import Any

from reflectkit.envs.base import BaseEnv, ChoiceEnv
from reflectkit.envs.taskset import Taskset
from reflectkit.errors import ConfigError

ARGUMENTS = {
    "reset": "task seed", "step": "action", "oracle": "", "mistakes": "", "slips": "", "note": "",
    "reflection": "generator", "truncation_penalty": "steps_left",
    "_begin": "task seed", "_move": "action", "_text": "",
    "tasks": "level", "example": "level seed", "at_level": "task level", "cluster": "task", "aspects": "task",
}  # fmt: skip
"""The arguments of methods that an env of one's own may define, after self or cls."""
OF_THE_CLASS = (
    "name", "levels", "horizons", "noise", "negatives", "baselines", "widest", "problem_generator",
    "repositories_folder", "records_folder", "problems_advice", "split_by",
)  # fmt: skip
"""Traits that are asked of the class."""
TEXTS = ("problem_generator", "repositories_folder", "records_folder", "problems_advice")
"""Traits that are a text, or ""."""
TUPLES = {"levels": 1, "choices": 0, "split_by": 1, "baselines": 0}
"""Traits that are texts, with the least number of them."""


def check_class(kind: Any, name: str) -> None:
    """Raises ConfigError, which begins with `name`, for what is wrong with the traits and methods of an env's class."""
    for trait in OF_THE_CLASS:
        if isinstance(getattr(kind, trait, None), property):
            raise ConfigError(f"{name}: its {trait} is a property; write a value, it is asked of the class")
    _check_texts(kind, name)
    _check_numbers(kind, name)
    _check_methods(kind, name)


def _check_texts(kind: Any, name: str) -> None:
    if not isinstance(kind.name, str) or not kind.name:
        raise ConfigError(f'{name}: its name is {kind.name!r:.40}; give it a text, e.g. name = "lift"')
    for trait in TEXTS:
        if not isinstance(value := _trait(kind, trait), str):
            raise ConfigError(f"{name}: its {trait} is {value!r:.60}; give it a text")
    for trait, needed in TUPLES.items():
        values = _trait(kind, trait)
        if isinstance(values, property):
            continue
        if (
            not isinstance(values, tuple | list)
            or len(values) < needed
            or not all(isinstance(value, str) and value for value in values)
        ):
            raise ConfigError(f'{name}: its {trait} are {values!r:.60}; write a tuple of texts, e.g. ("one",)')
        if len(set(values)) < len(values):
            raise ConfigError(f"{name}: its {trait} are {values!r:.60}; each must differ from the others")


def _check_numbers(kind: Any, name: str) -> None:
    horizons = kind.horizons
    if not isinstance(horizons, Mapping) or not all(_is_whole(steps, 1) for steps in horizons.values()):
        raise ConfigError(f"{name}: its horizons are {horizons!r:.60}; write steps by level, {{LEVEL: 15, …}}")
    for trait, least in (("negatives", 0), ("widest", 1)):
        value = getattr(kind, trait)
        if not isinstance(value, property) and not _is_whole(value, least):
            raise ConfigError(f"{name}: its {trait} is {value!r:.40}; write a whole number of at least {least}")
    if not isinstance(kind.noise, int | float) or not 0 <= kind.noise <= 1:
        raise ConfigError(f"{name}: its noise is {kind.noise!r:.40}; write a probability, from 0 to 1")


def _trait(kind: Any, name: str) -> Any:
    """A trait of the env, or of its taskset."""
    return getattr(kind.taskset if name in Taskset.names() else kind, name)


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def _check_methods(kind: Any, name: str) -> None:
    """Each takes the arguments that it is called with; what is asked of the class is a classmethod."""
    of_the_class = [trait for trait, value in vars(BaseEnv).items() if isinstance(value, classmethod)]
    for method in (*of_the_class, *Taskset.names()):
        if inspect.isfunction(inspect.getattr_static(kind, method, None)):
            raise ConfigError(f"{name}: its {method}() is asked of the class; write @classmethod above it")
    for method, arguments in ARGUMENTS.items():
        own = inspect.getattr_static(kind, method, None)
        function = own.__func__ if isinstance(own, classmethod) else own
        if not inspect.isfunction(function) or (method.startswith("_") and not issubclass(kind, ChoiceEnv)):
            continue
        try:
            inspect.signature(function).bind(None, *arguments.split())
        except TypeError:
            called = ", ".join(["self" if function is own else "cls", *arguments.split()])
            raise ConfigError(f"{name}: its {method}() takes other arguments; write {method}({called})") from None
