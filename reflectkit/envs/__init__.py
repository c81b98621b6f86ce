"""The environments by name: those in the table, and those that installed packages offer as entry points.

A user's own env needs neither: pass its dotted path, `package.module:Class`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

from reflectkit.core.checked import Checked
from reflectkit.core.config import check_own_settings
from reflectkit.core.errors import ConfigError
from reflectkit.core.protocols import Env
from reflectkit.core.registry import plugins, resolve
from reflectkit.core.types import Task
from reflectkit.envs.base import BaseEnv

ENVS = {
    "taxi": "reflectkit.envs.taxi:Taxi",
    "taxi-maps": "reflectkit.envs.taxi_maps:TaxiMaps",
    "corridor": "reflectkit.envs.corridor:Corridor",
    "auto_explore": "reflectkit.envs.autoexplore.env:AutoExplore",
    "memory": "reflectkit.envs.memory.env:Memory",
    "alfworld": "reflectkit.envs.alfworld.env:Alfworld",
    "support": "reflectkit.envs.support.env:Support",
    "tau": "reflectkit.envs.tau.env:Tau",
}
PLUGINS = "reflectkit.envs"
"""The group of entry points in which a package offers its envs: NAME = "package.module:Class"."""
NEEDED = ("name", "levels", "reset", "step")
NONE_LISTED = "env '{}' lists no problems at level '{}'"
BY_NAME = ("state", "remote", "widest", "rules")
"""Traits that an env may also have as attributes of an instance."""


def env_names() -> list[str]:
    """The names in the table, followed by those of installed packages."""
    return [*ENVS, *(name for name in sorted(plugins(PLUGINS)) if name not in ENVS)]


def env_class(name: str) -> type[BaseEnv]:
    """The class of env `name`, with every trait of `BaseEnv`.

    Raises UnknownNameError, and ConfigError if it is not an env.
    """
    kind: type[BaseEnv] = _with_traits(resolve("env", name, ENVS, PLUGINS), name)
    return kind


@cache
def _with_traits(kind: Any, name: str) -> Any:
    """`kind` itself, or a subclass with the traits that it lacks."""
    attributes = {attribute for base in (kind.__mro__ if isinstance(kind, type) else ()) for attribute in vars(base)}
    if lacking := [part for part in NEEDED if part not in attributes]:
        raise ConfigError(f"{name} is no env: it lacks {', '.join(lacking)}; see reflectkit.core.protocols.Env")
    if not issubclass(kind, BaseEnv):
        namespace = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
        if "__getattr__" in attributes:
            namespace |= {trait: _Passed(kind, trait) for trait in _of_instances() if trait not in attributes}
        kind = type(kind)(kind.__name__, (kind, BaseEnv), namespace)
    _check_texts(kind, name)
    _check_methods(kind, name)
    check_own_settings(kind.Settings, f"env '{name}'")
    setting_names = {item.name for item in fields(kind.Settings)}
    if unknown := sorted(kind.chat_settings.keys() - setting_names):
        raise ConfigError(f"{name}: chat_settings names '{unknown[0]}', which its Settings do not have; add it")
    return kind


def _check_texts(kind: Any, name: str) -> None:
    """Raises ConfigError unless the env's name is a text, and its levels and actions are texts."""
    if not isinstance(kind.name, str | property) or not kind.name:
        raise ConfigError(f'{name}: its name is {kind.name!r:.40}; give it a text, e.g. name = "lift"')
    for trait, needed in (("levels", 1), ("choices", 0)):
        values = getattr(kind, trait)
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


def _check_methods(kind: Any, name: str) -> None:
    """Raises ConfigError unless the horizons are numbers of steps by level, and what is asked of the class, not of an
    instance, is a classmethod.
    """
    horizons = kind.horizons
    if not isinstance(horizons, property) and not (
        isinstance(horizons, Mapping)
        and all(isinstance(steps, int) and not isinstance(steps, bool) and steps > 0 for steps in horizons.values())
    ):
        raise ConfigError(f"{name}: its horizons are {horizons!r:.60}; write steps by level, {{LEVEL: 15, …}}")
    for method in (trait for trait, value in vars(BaseEnv).items() if isinstance(value, classmethod)):
        if inspect.isfunction(inspect.getattr_static(kind, method)):
            raise ConfigError(f"{name}: its {method}() is asked of the class; write @classmethod above it")


class _Passed:
    """A trait that the class may resolve in `__getattr__`, as a wrapper does for those of its env."""

    def __init__(self, kind: Any, trait: str) -> None:
        self.kind, self.trait = kind, trait

    def __get__(self, env: Any, owner: Any) -> Any:
        default = vars(BaseEnv)[self.trait]
        if env is None:
            return default
        try:
            return self.kind.__getattr__(env, self.trait)
        except AttributeError:
            return default.__get__(env, owner) if callable(default) else default


def _of_instances() -> list[str]:
    methods = [name for name, value in vars(BaseEnv).items() if callable(value) and not isinstance(value, type)]
    return [*BY_NAME, *(name for name in methods if not name.startswith("_"))]


def make(name: str, horizon: int | None = None, *, shuffle: bool = False, **settings: Any) -> Env:
    """A fresh env, made with `settings`. Raises ConfigError if its constructor takes others.

    horizon: truncate episodes after that many steps. shuffle: shuffle the choices at each step.
    """
    from reflectkit.envs.wrappers import Horizon, Shuffled

    kind = env_class(name)
    if horizon is not None and kind.needs_horizon:
        settings = {"horizon": horizon} | settings
    try:
        inspect.signature(kind).bind(**settings)
    except TypeError as error:
        raise ConfigError(
            f"env '{name}' cannot be made: its constructor: {error}; it takes an argument for each field of Settings,"
            " and no others without a default"
        ) from None
    env: Env = Checked(kind(**settings))
    if shuffle:
        env = Shuffled(env)
    return env if horizon is None else Horizon(env, horizon)


def listed(name: str, level: str) -> list[Task]:
    """The problems of `level` that env `name` lists. Raises ConfigError if there are none, if they are no tasks of it,
    or share an id.
    """
    kind = env_class(name)
    given: Any = kind.tasks(level)
    if given is None or not isinstance(given, Iterable):
        raise ConfigError(f"env '{name}': tasks({level!r}) returned {given!r:.60}; return a list of Task")
    tasks = list(given)
    if not tasks:
        raise ConfigError(NONE_LISTED.format(name, level))
    seen: set[str] = set()
    for task in tasks:
        _check_task(task, kind, f"env '{name}': tasks({level!r}) lists")
        if task.id in seen:
            raise ConfigError(f"env '{name}': tasks({level!r}) lists '{task.id}' twice; give each problem its own id")
        seen.add(task.id)
    return tasks


def _check_task(task: Any, kind: type[BaseEnv], lists: str) -> None:
    """Raises ConfigError, which begins with `lists`, unless `task` is a problem of env `kind`."""
    if not isinstance(task, Task):
        raise ConfigError(f"{lists} {task!r:.60}; return a list of Task")
    for part in ("id", "env", "level", "group"):
        if not isinstance(value := getattr(task, part), str) or not (value or part == "group"):
            raise ConfigError(f"{lists} a task whose {part} is {value!r:.40}; give it a text")
    if task.env != kind.name:
        raise ConfigError(f"{lists} '{task.id}' as a task of env '{task.env}'; write '{kind.name}'")
    if task.level not in kind.levels:
        raise ConfigError(f"{lists} '{task.id}' at level '{task.level}'; its levels are {', '.join(kind.levels)}")
    try:
        json.dumps(task.data, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{lists} '{task.id}' with data that is not valid JSON ({error})") from None
    if not isinstance(task.data, dict):
        raise ConfigError(f"{lists} '{task.id}' with {task.data!r:.40} as its data; write a dict")


def cluster_of(name: str, task: Task) -> str:
    """The cluster of `task`, from the env's classmethod `cluster`; by default the task's id.

    Raises ConfigError if it is not a non-empty text.
    """
    cluster: Any = env_class(name).cluster(task)
    if not isinstance(cluster, str) or not cluster:
        raise ConfigError(f"env '{name}': cluster must return a text that is not empty, it returned {cluster!r:.80}")
    return cluster


def folder_name(name: str) -> str:
    """The env's folder under the data folder: its name, or the class of a dotted path in lower case."""
    return name.rpartition(":")[2].lower() if ":" in name else name


def data_folder(name: str, data_dir: Path) -> Path:
    """The folder of the env's files."""
    return data_dir / folder_name(name)
