"""Plug-ins for other engines, and the problems that they take. Nothing else imports them."""

from __future__ import annotations

from pathlib import Path

from reflectkit.data.problems import read_records
from reflectkit.envs import env_class, listed
from reflectkit.envs.setup import at_level, check_level
from reflectkit.errors import ConfigError
from reflectkit.types import Task


def tasks_of(env: str, level: str = "", task_file: Path | str | None = None) -> list[Task]:
    """The problems of `level`. Without one: those of the env's last level, or all of the file.

    Raises UnknownNameError: no such env or level. ConfigError, DataError: no problems.
    """
    kind = env_class(env)
    if level:
        check_level(env, level)
    if task_file is not None:
        tasks = [record.task for record in read_records(Path(task_file), kind.name)]
        return at_level(env, tasks, level, Path(task_file)) if level else tasks
    if not kind.taskset.has("tasks"):
        raise ConfigError(
            f"env '{env}' does not list its own problems; give task_file=, a file of them"
        )
    return listed(env, level or kind.levels[-1])
