"""Code shared by several stages: an env's files, its horizon, and the settings of stages that play episodes."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Self

from typing_extensions import override

from reflectkit.chat.budget import prices_of
from reflectkit.chat.endpoints import Endpoint, address_in_use, parse_endpoint
from reflectkit.core.config import (
    PACKAGED,
    Elsewhere,
    NoSettings,
    StageConfig,
    flag,
    option,
    settings_elsewhere,
    with_own_settings,
    within,
)
from reflectkit.core.console import Progress
from reflectkit.core.errors import ConfigError, DataError, unknown_name
from reflectkit.core.locks import locked
from reflectkit.core.protocols import TEACHER, Env, require_oracle
from reflectkit.core.registry import code_files, resolve
from reflectkit.core.text import counted
from reflectkit.core.types import Task
from reflectkit.core.users import User
from reflectkit.envs import ENVS, data_folder, env_class, make
from reflectkit.envs.base import MOST_TOKENS as MOST_TOKENS
from reflectkit.envs.base import BaseEnv, Explorer
from reflectkit.stages.shared.chat import ChatConfig

RECORDS = "data_reflection_negative.json"
DEFAULT_HORIZON = 15
MODELS = "models"
"""Folder in the data folder, of packaged models that were converted."""
CONVERTING_S = 600.0  # to wait for another process that converts


@dataclass(frozen=True)
class EnvConfig(StageConfig):
    """Settings of a stage that works on one environment."""

    CHOOSERS: ClassVar[tuple[str, ...]] = ("env",)
    ENV: ClassVar[str] = ""
    """The env whose own settings the class has, after `chosen`."""
    env: str = option(
        help=f"Environment: {', '.join(ENVS)}, or your own as package.module:Class; its settings: --env NAME --help."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        env_class(self.env)

    @property
    def kind(self) -> type[BaseEnv]:
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
        return self.env_folder / self.kind.records_folder

    @property
    def repos_folder(self) -> Path:
        """The default folder of filtered repositories."""
        return self.env_folder / self.kind.repositories_folder

    @property
    @override
    def code_files(self) -> list[Path]:
        """Also those of an env of the user's own."""
        return [*super().code_files, *code_files(base.__module__ for base in self.kind.__mro__)]

    @classmethod
    def own_settings(cls, kind: type[BaseEnv]) -> type[Any] | None:
        """The dataclass of the settings that this stage has only for this env, if any."""
        return None

    @classmethod
    @override
    def chosen(cls, values: Mapping[str, Any]) -> type[Self]:
        """The class with the env's own settings. Raises UnknownNameError, and ConfigError if a name is taken."""
        parent = super().chosen(values)
        default = next(item.default for item in dataclasses.fields(parent) if item.name == "env")
        env = values.get("env", default)
        if parent.ENV or not isinstance(env, str):
            return parent
        own = parent.own_settings(env_class(env))
        return parent if own is None else with_own_settings(parent, own, f"Environment {env}", f"env '{env}'", ENV=env)

    @classmethod
    @override
    def elsewhere(cls) -> Mapping[str, Elsewhere]:
        """The settings of the other envs in the table."""
        field_names = {item.name for item in dataclasses.fields(cls)}
        return settings_elsewhere(
            (item.name, f"env '{env}'", item.default)
            for env in ENVS
            for item in dataclasses.fields(cls.own_settings(env_class(env)) or NoSettings)
            if item.name not in field_names
        )

    @classmethod
    @override
    def refusal(cls, name: str) -> ConfigError | None:
        """The error for setting `name` of another env."""
        other = cls.elsewhere().get(name)
        if other is None:
            return None
        place = f" is not for env '{cls.ENV}', it" if cls.ENV else ""
        return ConfigError(f"{flag(name)}{place} is a setting of {other.owner}; leave it out")


@dataclass(frozen=True)
class WorldConfig(EnvConfig):
    """Settings of a stage that creates environments, including the env's own."""

    PANEL: ClassVar = "Environments"
    shuffle_action: bool = option(
        False, help="Shuffle the order of the actions, and therefore their labels, at each step."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.kind.chat_settings:
            self._check_budget(name, self._endpoint(name))
        self.settings  # noqa: B018  checked as they are made

    @classmethod
    @override
    def own_settings(cls, kind: type[BaseEnv]) -> type[Any] | None:
        """The settings of the env."""
        return kind.Settings

    @property
    @override
    def environment(self) -> dict[str, str]:
        endpoints = map(self._endpoint, self.kind.chat_settings)
        return super().environment | address_in_use(endpoint for endpoint in endpoints if endpoint)

    @property
    def settings(self) -> Any:
        """The env's own settings. Raises ConfigError."""
        return self.part(self.kind.Settings)

    def require_oracle(self, needed: Sequence[str] = TEACHER) -> None:
        """Raises ConfigError if the env has no oracle with what is `needed`, or it cannot act with these settings."""
        require_oracle(self.kind, needed)
        self.kind.check_oracle(self.settings)

    def make(self, horizon: int | None, user: User | None = None) -> Env:
        """A fresh env with these settings. user: who talks with the agent, instead of the env's own user."""
        arguments = self.kind.constructor_arguments(self.settings, self.env_folder)
        for name, target in self.kind.chat_settings.items():
            arguments.pop(_address_of(name), None)
            arguments.pop(_budget_of(name), None)
            arguments[name] = self._asker_of(name, target)
        if user is not None:
            arguments["user"] = user
        return make(self.env, horizon, shuffle=self.shuffle_action, **arguments)

    def asked(self, progress: Progress) -> dict[str, dict[str, float]]:
        """What this process has asked the env's chat models, by setting and model, e.g. "user openai:MODEL": see
        `ChatClient.usage`. It is reported to `progress`, too.
        """
        usages = {}
        for name, target in self.kind.chat_settings.items():
            usage = getattr(self._asker_of(name, target), "usage", {})  # an env of your own may ask otherwise
            if not usage:
                continue
            model = f"{name} {self._endpoint(name)}"
            cost = f"{usage['usd']:.4f} US dollars" if "usd" in usage else "at an unknown price"
            answers = counted(int(usage["calls"] + usage["replayed"]), "answer")
            progress.news(f"the {model}: {answers}, {usage['replayed']:,} of them from the journal, {cost}")
            usages[model] = usage
        return usages

    def _asker_of(self, name: str, target: str) -> Any:
        """The object that asks the chat model in setting `name`; None if the setting names none."""
        endpoint, budget = self._endpoint(name), getattr(self.settings, _budget_of(name), None)
        journal = self.env_folder / f"{name}.jsonl"
        return endpoint and _asker(target, endpoint, journal, *self._request_limits, budget)

    @property
    def _request_limits(self) -> tuple[float, int]:
        """(timeout in seconds, concurrent calls) of the env's chat models; the stage's own values if it has them."""
        return (self.timeout_s, self.concurrency) if isinstance(self, ChatConfig) else (120.0, 8)

    def input_files(self, tasks: Iterable[Task]) -> list[Path]:
        """The files and folders that these tasks use, besides their records, and code of the user's own: inputs of a
        run.
        """
        files: Any = self.kind.input_files(self.settings, self.env_folder, list(tasks))
        if not isinstance(files, list | tuple) or not all(isinstance(path, Path) for path in files):
            raise ConfigError(f"env '{self.env}': input_files must return a list of Path, it returned {files!r:.80}")
        return [*self.code_files, *files]

    def refuse_uncounted(self, *, dry_run: bool, max_cost_usd: float | None) -> None:
        """Raises ConfigError where a budget or a forecast is wanted, and the env asks a chat model of its own, which
        neither counts.
        """
        for name in self.kind.chat_settings:
            endpoint = self._endpoint(name)
            budgeted = getattr(self.settings, _budget_of(name), None) is not None
            if endpoint and (dry_run or (max_cost_usd is not None and endpoint.kind != "local" and not budgeted)):
                raise ConfigError(
                    f"{'--dry-run' if dry_run else '--max-cost-usd'} does not count what {flag(name)} {endpoint} is"
                    f" asked; leave it out, or leave out {flag(name)}"
                )

    def _check_budget(self, name: str, endpoint: Endpoint | None) -> None:
        """Raises ConfigError if there is a budget for the chat model in setting `name` that cannot be enforced."""
        if getattr(self.settings, _budget_of(name), None) is None:
            return
        if endpoint is None:
            raise ConfigError(f"{flag(_budget_of(name))} needs a {flag(name)}, e.g. openai:MODEL")
        if not prices_of(endpoint.kind, endpoint.model, None, None).known:
            raise ConfigError(
                f"{flag(_budget_of(name))} cannot hold for {flag(name)} {endpoint}, whose price is unknown; leave it"
                " out, or name a model with a known price"
            )

    def _endpoint(self, name: str) -> Endpoint | None:
        """The chat model that the env's setting `name` names; None if it is not a chat model. Raises ConfigError."""
        address, values = _address_of(name), dataclasses.asdict(self.settings)
        default = next(item.default for item in dataclasses.fields(self.settings) if item.name == name)
        if values[name] != default:
            return parse_endpoint(values[name], values.get(address), flag(name), f"{default}, ", flag(address))
        if values.get(address) is not None:
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


@dataclass(frozen=True)
class HorizonConfig(WorldConfig):
    """Settings of a stage in which episodes have an end."""

    horizon: int = option(0, help="Maximum steps per episode; 0: the env's default for the level.")

    def __post_init__(self) -> None:
        super().__post_init__()
        within("horizon", self.horizon, 0, 100_000)

    def horizon_at(self, level: str) -> int:
        """The horizon for `level`."""
        return self.horizon or int(self.kind.horizons.get(level, DEFAULT_HORIZON))

    def maker(self, level: str) -> Callable[[], Env]:
        """Makes fresh envs with the horizon for `level`."""
        steps = self.horizon_at(level)
        return lambda: self.make(steps)


@dataclass(frozen=True)
class PlayConfig(HorizonConfig):
    """Settings of a stage that plays many episodes."""

    width: int = option(128, help="Episodes played in parallel; affects speed and memory, not results.", identity=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        within("width", self.width, 1, 4096)


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
        if task.level not in kind.levels and not any(kind.at_level(task, other) for other in kind.levels):
            raise DataError(
                path,
                f"task '{task.id}' has level {task.level!r}, and no level can play it: {', '.join(kind.levels)}",
                field="level",
            )
    moved = [kind.at_level(task, level) for task in tasks]
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


def explorer(stage: str, env: str) -> type[Explorer]:
    """The env's class. Raises ConfigError for an env whose problems are not about repositories."""
    kind: Any = env_class(env)
    if not kind.repositories_folder:
        explorers = " or ".join(name for name in ENVS if env_class(name).repositories_folder)
        raise ConfigError(
            f"{stage} works only on repositories (--env {explorers}); '{env}' lists its own problems (gen-trajectory)"
        )
    return kind  # type: ignore[no-any-return]
