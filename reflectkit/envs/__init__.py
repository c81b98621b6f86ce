"""The environments by name: those in the table, and those that installed packages offer as entry points.

A user's own env needs neither: pass its dotted path, `package.module:Class`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from reflectkit.config import check_own_settings
from reflectkit.env import Env
from reflectkit.envs.base import BaseEnv, ChoiceEnv
from reflectkit.envs.classes import check_class
from reflectkit.errors import ConfigError
from reflectkit.registry import plugins, resolve
from reflectkit.rollout.checked import Checked
from reflectkit.types import Task

ENVS = {
    "taxi": "reflectkit.envs.taxi:Taxi",
    "taxi-maps": "reflectkit.envs.taxi:TaxiMaps",
    "corridor": "reflectkit.envs.corridor:Corridor",
    "auto_explore": "reflectkit.envs.auto_explore.env:AutoExplore",
    "memory": "reflectkit.envs.memory.env:Memory",
    "alfworld": "reflectkit.envs.alfworld.env:Alfworld",
    "support": "reflectkit.envs.support.env:Support",
    "tau": "reflectkit.envs.tau.env:Tau",
}
PLUGINS = "reflectkit.envs"
"""The group of entry points in which a package offers its envs: NAME = "package.module:Class"."""
NEEDED = ("name", "levels", "reset", "step")
NEEDED_BY_CHOICE = ("_begin", "_move", "_text")
STUBS = {BaseEnv: ("reset", "step"), ChoiceEnv: NEEDED_BY_CHOICE}
SPLITS = ("train", "validate", "test")
LACKING = "{} is no env: it lacks {}; see reflectkit.env.Env"
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
    found = resolve("env", name, ENVS, PLUGINS)
    if not isinstance(found, type):
        raise ConfigError(LACKING.format(name, ", ".join(NEEDED)))
    kind: type[BaseEnv] = _with_traits(found, name)
    return kind


@cache
def _with_traits(kind: Any, name: str) -> Any:
    """`kind` itself, or a subclass with the traits that it lacks."""
    attributes = {attribute for base in kind.__mro__ for attribute in vars(base)}
    needed = (*NEEDED, *NEEDED_BY_CHOICE) if issubclass(kind, ChoiceEnv) else NEEDED
    if lacking := [part for part in needed if part not in attributes or _is_stub(kind, part)]:
        raise ConfigError(LACKING.format(name, ", ".join(lacking)))
    if not issubclass(kind, BaseEnv):
        namespace = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
        if "__getattr__" in attributes:
            namespace |= {trait: _Passed(kind, trait) for trait in _of_instances() if trait not in attributes}
        kind = type(kind)(kind.__name__, (kind, BaseEnv), namespace)
    check_class(kind, name)
    check_own_settings(kind.Settings, f"env '{name}'")
    if unknown := sorted(kind.chat_settings.keys() - kind.Settings.model_fields.keys()):
        raise ConfigError(f"{name}: chat_settings names '{unknown[0]}', which its Settings do not have; add it")
    return kind


def _is_stub(kind: Any, part: str) -> bool:
    """Whether `kind` has `part` only from the base class that leaves it to others."""
    own = inspect.getattr_static(kind, part)
    return any(own is vars(base).get(part) for base, parts in STUBS.items() if part in parts)


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
    except ValueError:
        pass  # a class whose constructor is not Python's own
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
    given: Any = kind.taskset.tasks(level)
    if not isinstance(given, Iterable):
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
    return [replace(task, data=json.loads(json.dumps(task.data))) for task in tasks]  # as they are in files


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
    if (key := _no_text(task.data)) is not None:
        raise ConfigError(f"{lists} '{task.id}' with the key {key!r:.40} in its data; JSON has only texts as keys")


def _no_text(value: Any) -> Any:
    """The first key in `value` that is no text; None if there is none."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                return key
            if (found := _no_text(inner)) is not None:
                return found
    if isinstance(value, list | tuple):
        return next((found for inner in value if (found := _no_text(inner)) is not None), None)
    return None


def cluster_of(name: str, task: Task) -> str:
    """The cluster of `task`, from the env's classmethod `cluster`; by default the task's id.

    Raises ConfigError if it is not a non-empty text.
    """
    cluster: Any = env_class(name).taskset.cluster(task)
    if not isinstance(cluster, str) or not cluster:
        raise ConfigError(f"env '{name}': cluster must return a text that is not empty, it returned {cluster!r:.80}")
    return cluster


def aspects_of(name: str, task: Task) -> dict[str, str]:
    """What the results of `task` are broken down by. Raises ConfigError if that is no dict of texts."""
    aspects: Any = env_class(name).taskset.aspects(task)
    if not isinstance(aspects, Mapping) or not all(isinstance(text, str) for pair in aspects.items() for text in pair):
        raise ConfigError(
            f"env '{name}': aspects must return a dict of texts, e.g. {{'mood': 'terse'}}; it returned {aspects!r:.80}"
        )
    return dict(aspects)


def split_of(name: str, task: Task) -> str:
    """The split that `task` comes with, or "". Raises ConfigError if there is no such split."""
    split: Any = env_class(name).taskset.split_of(task)
    if split not in ("", *SPLITS):
        raise ConfigError(f"env '{name}': split_of must return {', '.join(SPLITS)} or '', it returned {split!r:.80}")
    return str(split)


def folder_name(name: str) -> str:
    """The env's folder under the data folder: its name, or the class of a dotted path in lower case."""
    return name.rpartition(":")[2].lower() if ":" in name else name


def data_folder(name: str, data_dir: Path) -> Path:
    """The folder of the env's files."""
    return data_dir / folder_name(name)
