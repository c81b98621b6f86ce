"""The environments by name. A user's own env needs no registration: pass its dotted path, `package.module:Class`."""

from __future__ import annotations

from typing import Any

from reflectkit.core.errors import ConfigError
from reflectkit.core.protocols import Env
from reflectkit.core.registry import resolve
from reflectkit.core.types import Task

ENVS = {
    "taxi": "reflectkit.envs.taxi:Taxi",
    "corridor": "reflectkit.envs.corridor:Corridor",
    "auto_explore": "reflectkit.envs.autoexplore.env:AutoExplore",
    "memory": "reflectkit.envs.memory.env:Memory",
    "alfworld": "reflectkit.envs.alfworld.env:Alfworld",
}


def env_class(name: str) -> Any:
    """The class that `name` stands for. Raises UnknownNameError, and ConfigError for what is no env."""
    found = resolve("env", name, ENVS)
    if lacking := [part for part in ("name", "levels", "reset", "step") if not hasattr(found, part)]:
        raise ConfigError(f"{name} is no env: it lacks {', '.join(lacking)}; see reflectkit.core.protocols.Env")
    return found


def make(name: str, horizon: int | None = None, *, shuffle: bool = False, **settings: Any) -> Env:
    """A fresh env, made with `settings`.

    horizon: an episode is truncated after that many steps. shuffle: the order of the choices is drawn anew at each
    step.
    """
    from reflectkit.envs.wrappers import Horizon, Shuffled

    kind = env_class(name)
    if horizon is not None and "horizon" in getattr(kind, "settings", ()):
        settings = {"horizon": horizon} | settings
    env: Env = kind(**settings)
    if shuffle:
        env = Shuffled(env)
    return env if horizon is None else Horizon(env, horizon)


def cluster_of(name: str, task: Task) -> str:
    """What env `name` says that `task` is about, by its classmethod `cluster`; an env without one means the task
    itself.

    Raises ConfigError where it says no text.
    """
    ask = getattr(env_class(name), "cluster", None)
    found = task.id if ask is None else ask(task)
    if not isinstance(found, str) or not found:
        raise ConfigError(f"env '{name}': cluster must return a text that is not empty, it returned {found!r:.80}")
    return found


def folder_name(name: str) -> str:
    """The env's folder under the data folder: its name, or the class of a dotted path in lower case."""
    return name.rpartition(":")[2].lower() if ":" in name else name
