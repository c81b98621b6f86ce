"""What several stages need: where an env's files lie, its horizon, and the settings of a stage that plays episodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reflectkit.core.config import StageConfig, at_least, option
from reflectkit.core.errors import DataError, unknown_name
from reflectkit.core.protocols import Env
from reflectkit.core.types import Task
from reflectkit.envs import ENVS, env_class, folder_name, make

RECORDS = "data_reflection_negative.json"
DEFAULT_HORIZON = 15


@dataclass(frozen=True)
class EnvConfig(StageConfig):
    """What a stage takes that works on one environment."""

    env: str = option(help=f"Environment: {', '.join(ENVS)}, or your own as package.module:Class.")

    def __post_init__(self) -> None:
        super().__post_init__()
        env_class(self.env)

    @property
    def env_name(self) -> str:
        """What the env calls itself, as tasks do."""
        return str(env_class(self.env).name)

    @property
    def folder(self) -> Path:
        """Where the env's data files lie."""
        return self.data_dir / folder_name(self.env)


@dataclass(frozen=True)
class PlayConfig(EnvConfig):
    """What a stage takes that plays episodes."""

    horizon: int = option(0, help="Steps after which an episode is cut off; 0: the env's own default for the level.")
    width: int = option(128, help="Episodes played side by side; changes speed and memory, not results.")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("horizon", self.horizon, 0)
        at_least("width", self.width, 1)

    def maker(self, level: str) -> Callable[[], Env]:
        """Makes fresh envs with the horizon for `level`."""
        steps = self.horizon or getattr(env_class(self.env), "horizons", {}).get(level, DEFAULT_HORIZON)
        return lambda: make(self.env, steps)


def check_level(env: str, level: str) -> None:
    """Raises UnknownNameError unless `env` has `level`."""
    levels: tuple[str, ...] = env_class(env).levels
    if level not in levels:
        raise unknown_name(f"level of env '{env}'", level, levels)


def at_level(env: str, tasks: list[Task], level: str, path: Path) -> list[Task]:
    """`tasks` as problems of `level`, each once. Raises DataError where there is none."""
    known: Any = env_class(env)
    moved = [known.at_level(task, level) if hasattr(known, "at_level") else task for task in tasks]
    kept = {task.id: task for task in moved if task is not None and task.level == level}
    if not kept:
        raise DataError(path, f"holds no task of level '{level}'; make some with `gen-trajectory --level`")
    return list(kept.values())
