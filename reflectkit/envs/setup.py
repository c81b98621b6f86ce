"""The environment that a command works on: its settings, its files, and fresh envs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

from pydantic import field_validator, model_validator
from typing_extensions import override

from reflectkit.chat.budget import prices_of
from reflectkit.chat.config import ChatConfig
from reflectkit.chat.endpoints import Endpoint, address_in_use, parse_endpoint
from reflectkit.config import Config, NoSettings, chosen_by, flag, option
from reflectkit.console import Progress
from reflectkit.env import Env, Explorer, User, check_teacher
from reflectkit.envs import ENV_HELP, ENVS, data_folder, env_class, make
from reflectkit.errors import ConfigError, DataError, unknown_name
from reflectkit.models.hub import PACKAGED
from reflectkit.registry import code_files, resolve
from reflectkit.runs.folders import RunConfig
from reflectkit.runs.locks import locked
from reflectkit.text import pluralize
from reflectkit.types import Task

DEFAULT_HORIZON = 15
MODELS = "models"
"""Folder in the data folder, of packaged models that were converted."""
CONVERTING_S = 600.0  # to wait for another process that converts
HORIZON_HELP = "Maximum steps per episode; 0: the env's default for the level."


class EnvConfig(Config):
    """Environment: which one, and its own settings."""

    name: str = option(help=ENV_HELP, name="env")
    settings: Any = chosen_by("name", settings=lambda name: env_class(name).Settings, names=lambda: ENVS)
    shuffle_action: bool = option(
        False, help="Shuffle the order of the actions, and therefore their labels, at each step."
    )

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        env_class(name)
        return name

    @model_validator(mode="after")
    def _check_budgets(self) -> Self:
        for name in chat_models(self.settings):
            _check_budget(self.settings, name)
        return self

    @property
    def kind(self) -> type[Env]:
        """The env's class."""
        return env_class(self.name)

    @property
    @override
    def environment(self) -> dict[str, str]:
        endpoints = (chat_endpoint(self.settings, name) for name in chat_models(self.settings))
        return address_in_use(endpoint for endpoint in endpoints if endpoint)

    def require_teacher(self, *needed: str) -> None:
        """Raises ConfigError if the env's teacher lacks a method that is `needed`, or cannot act with the settings."""
        check_teacher(self.kind.teacher_type, self.kind.name, *needed)
        self.kind.teacher_type.check(self.settings)


class RolloutConfig(Config):
    """Rollouts: how episodes are played."""

    horizon: int = option(0, help=HORIZON_HELP, ge=0)
    width: int = option(
        128,
        name="max_concurrency",
        help="Episodes played at the same time; affects speed and memory, not results.",
        ge=1,
        identity=False,
    )


@dataclass(frozen=True)
class EnvSetup:
    """An environment as a command uses it: its class, its folders, and fresh envs."""

    env: str
    """Its name, or dotted path."""
    data_dir: Path
    """The folder of all data."""
    settings: Any = NoSettings()
    """The env's own settings."""
    shuffle_action: bool = False
    """Whether the actions are in another order at each step."""
    horizon: int = 0
    """Maximum steps per episode; 0: the env's default for the level."""
    timeout_s: float = 120.0
    """Of a call of a chat model that the env asks."""
    concurrency: int = 8
    """Number of such calls at once."""

    @classmethod
    def of(cls, env: EnvConfig, run: RunConfig, horizon: int = 0, chat: ChatConfig | None = None) -> EnvSetup:
        """The environment of a command with these settings."""
        limits = (chat.timeout_s, chat.concurrency) if chat else ()
        return cls(env.name, run.data_dir, env.settings, env.shuffle_action, horizon, *limits)

    @property
    def kind(self) -> type[Env]:
        """The env's class."""
        return env_class(self.env)

    @property
    def env_name(self) -> str:
        """The env's own name, as in tasks."""
        return str(self.kind.name)

    @property
    def env_folder(self) -> Path:
        """The env's folder."""
        return data_folder(self.env, self.data_dir)

    @property
    def folder(self) -> Path:
        """The folder of the env's records, splits and rows."""
        return self.env_folder / self.kind.taskset.records_folder

    @property
    def repos_folder(self) -> Path:
        """The default folder of filtered repositories."""
        return self.env_folder / self.kind.taskset.repositories_folder

    @property
    def code_files(self) -> list[Path]:
        """The files of the env's class where it is the user's own: inputs of a run, so that an edit makes a new one."""
        return code_files(base.__module__ for base in self.kind.__mro__)

    def horizon_at(self, level: str) -> int:
        """The horizon for `level`."""
        return self.horizon or int(self.kind.horizons.get(level, DEFAULT_HORIZON))

    def maker(self, level: str) -> Callable[[], Env]:
        """Makes fresh envs with the horizon for `level`."""
        steps = self.horizon_at(level)
        return lambda: self.make(steps)

    def make(self, horizon: int | None, user: User | None = None) -> Env:
        """A fresh env with these settings. user: who talks with the agent, instead of the env's own user."""
        arguments = {name: getattr(self.settings, name) for name in type(self.settings).model_fields}
        for name, target in chat_models(self.settings).items():
            arguments.pop(_address_of(name), None)
            arguments.pop(_budget_of(name), None)
            arguments[name] = self._asker_of(name, target)
        if user is not None:
            arguments["user"] = user
        return make(self.env, horizon, shuffle=self.shuffle_action, data_folder=self.env_folder, **arguments)

    def asked(self, progress: Progress) -> dict[str, dict[str, float]]:
        """What this process has asked the env's chat models, by setting and model, e.g. "user openai:MODEL": see
        `ChatClient.usage`. It is reported to `progress`, too.
        """
        usages = {}
        for name, target in chat_models(self.settings).items():
            usage = getattr(self._asker_of(name, target), "usage", {})  # an env of your own may ask otherwise
            if not usage:
                continue
            model = f"{name} {chat_endpoint(self.settings, name)}"
            cost = f"{usage['usd']:.4f} US dollars" if "usd" in usage else "at an unknown price"
            answers = pluralize(int(usage["calls"] + usage["replayed"]), "answer")
            progress.news(f"the {model}: {answers}, {usage['replayed']:,} of them from the journal, {cost}")
            usages[model] = usage
        return usages

    def _asker_of(self, name: str, target: str) -> Any:
        """The object that asks the chat model in setting `name`; None if the setting names none."""
        endpoint, budget = chat_endpoint(self.settings, name), getattr(self.settings, _budget_of(name), None)
        journal = self.env_folder / f"{name}.jsonl"
        return endpoint and _asker(target, endpoint, journal, self.timeout_s, self.concurrency, budget)

    def input_files(self, tasks: Iterable[Task]) -> list[Path]:
        """The files and folders that these tasks use, besides their records, and code of the user's own: inputs of a
        run.
        """
        files: Any = self.kind.taskset.input_files(self.settings, self.env_folder, list(tasks))
        if not isinstance(files, list | tuple) or not all(isinstance(path, Path) for path in files):
            raise ConfigError(f"env '{self.env}': input_files must return a list of Path, it returned {files!r:.80}")
        return [*self.code_files, *files]


def refuse_uncounted(env: EnvConfig, *, dry_run: bool, max_cost_usd: float | None) -> None:
    """Raises ConfigError where a budget or a forecast is wanted, and the env asks a chat model of its own, as
    neither counts that.
    """
    for name in chat_models(env.settings):
        endpoint = chat_endpoint(env.settings, name)
        budgeted = getattr(env.settings, _budget_of(name), None) is not None
        if endpoint and (dry_run or (max_cost_usd is not None and endpoint.kind != "local" and not budgeted)):
            raise ConfigError(
                f"{'--dry-run' if dry_run else '--max-cost-usd'} does not count what {flag(name)} {endpoint} is"
                f" asked; leave it out, or leave out {flag(name)}"
            )


def _check_budget(settings: Any, name: str) -> None:
    """Raises ConfigError if there is a budget for the chat model in setting `name` that cannot be enforced."""
    endpoint = chat_endpoint(settings, name)
    if getattr(settings, _budget_of(name), None) is None:
        return
    if endpoint is None:
        raise ConfigError(f"{flag(_budget_of(name))} needs a {flag(name)}, e.g. openai:MODEL")
    if not prices_of(endpoint.kind, endpoint.model, None, None).known:
        raise ConfigError(
            f"{flag(_budget_of(name))} cannot hold for {flag(name)} {endpoint}, whose price is unknown; leave it"
            " out, or name a model with a known price"
        )


def chat_models(settings: Any) -> Mapping[str, str]:
    """The settings of an env that name a chat model, each with the class that asks it; see `Env.Settings`."""
    models: Mapping[str, str] = getattr(settings, "chat_models", {})
    return models


def chat_endpoint(settings: Any, name: str) -> Endpoint | None:
    """The chat model that an env's setting `name` names; None if it is not a chat model. Raises ConfigError."""
    address, default = _address_of(name), type(settings).model_fields[name].default
    if (model := getattr(settings, name)) != default:
        return parse_endpoint(model, getattr(settings, address, None), flag(name), f"{default}, ", flag(address))
    if getattr(settings, address, None) is not None:
        raise ConfigError(f"{flag(address)} needs a {flag(name)}, e.g. local:MODEL")
    return None


def _address_of(name: str) -> str:
    """The setting with the server address of the chat model in setting `name`."""
    return f"{name}_url"


def _budget_of(name: str) -> str:
    """The setting with the budget of the chat model in setting `name`, in US dollars."""
    return f"{name}_max_usd"


@cache
def _asker(
    target: str, endpoint: Endpoint, journal: Path, timeout_s: float, concurrency: int, budget_usd: float | None
) -> Any:
    """The object that asks a chat model for an env; one for all envs of the process."""
    return resolve("class", target, {})(endpoint, journal, timeout_s, concurrency, budget_usd)


def distinct_names(folders: Sequence[Path]) -> list[str]:
    """A distinct name for each folder: its own, with as many parent folders as necessary."""
    parts = [folder.absolute().parts for folder in folders]
    for depth in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return list(map(str, folders))


def model_source(name: str, data_dir: Path, progress: Progress) -> str:
    """`name`, or the folder of the packaged model of that name, which is converted into `data_dir` first; one process
    at a time converts, and others wait. Raises CheckpointError.
    """
    if name not in PACKAGED:
        return name
    folder = data_dir / MODELS / name
    if not (folder / "config.json").is_file():
        from reflectkit.models.packaged import convert

        folder.parent.resolve().mkdir(parents=True, exist_ok=True)
        with locked(folder.parent, CONVERTING_S), progress.bar(f"{name}: converting into {folder}, once", 1) as bar:
            if not (folder / "config.json").is_file():
                convert(name, folder)
            bar.advance()
    return str(folder)


def share_models(data_dir: Path, folders: Iterable[Path]) -> None:
    """Let the data folders `folders` inside `data_dir` use its converted models; those with models of their own keep
    them.
    """
    for folder in folders:
        link = folder / MODELS
        if folder == data_dir or link.exists() or link.is_symlink():
            continue
        with contextlib.suppress(OSError):  # without links, each folder has a conversion of its own
            (data_dir / MODELS).mkdir(parents=True, exist_ok=True)
            folder.mkdir(parents=True, exist_ok=True)
            link.symlink_to(os.path.relpath(data_dir / MODELS, folder), target_is_directory=True)


def check_level(env: str, level: str) -> None:
    """Raises UnknownNameError unless `env` has `level`."""
    levels: tuple[str, ...] = env_class(env).levels
    if level not in levels:
        raise unknown_name(f"level of env '{env}'", level, levels)


def at_level(env: str, tasks: list[Task], level: str, path: Path) -> list[Task]:
    """`tasks` as problems of `level`, each once. Raises DataError if there are none, or one cannot be played at any
    level.
    """
    kind = env_class(env)
    for task in tasks:
        if task.level not in kind.levels and not any(kind.taskset.at_level(task, other) for other in kind.levels):
            raise DataError(
                path,
                f"task '{task.id}' has level {task.level!r}, and no level can play it: {', '.join(kind.levels)}",
                field="level",
            )
    moved = [kind.taskset.at_level(task, level) for task in tasks]
    tasks_by_id = {task.id: task for task in moved if task is not None}
    if not tasks_by_id:
        levels = ", ".join(sorted({task.level for task in tasks}))
        own = "" if env in ENVS else f"; at_level() of env '{env}' may return a problem of another level as one of it"
        raise DataError(
            path, f"has no task of level '{level}', only of {levels}; choose one of them, or generate some{own}"
        )
    return list(tasks_by_id.values())


def not_repeatable(env: str, task: str, step: int) -> ConfigError:
    """The error for an env that shows something else in `step` of a problem when it is played again from one seed."""
    return ConfigError(
        f"env '{env}': step {step} of task '{task}' differs when it is played again with the same seed; draw from"
        " random.Random(seed) in the env, and show neither the time nor what an earlier episode left"
    )


def explorer(stage: str, env: str) -> Explorer:
    """The env's taskset. Raises ConfigError for an env whose problems are not about repositories."""
    tasks: Any = env_class(env).taskset
    if not tasks.repositories_folder:
        explorers = " or ".join(name for name in ENVS if env_class(name).taskset.repositories_folder)
        raise ConfigError(
            f"{stage} works only on repositories (--env {explorers}); '{env}' lists its own problems (gen-trajectory)"
        )
    return tasks  # type: ignore[no-any-return]
