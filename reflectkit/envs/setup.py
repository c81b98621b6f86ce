"""The environment that a command works on: its settings, its files, and fresh envs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import field_validator, model_validator
from typing_extensions import override

from reflectkit.config import Config, NoSettings, chosen_by, flag, option
from reflectkit.console import Progress
from reflectkit.env import Env, Taskset, check_teacher
from reflectkit.envs import (
    ENV_HELP,
    ENVS,
    PROBLEMS,
    RECORDS,
    SPLITS,
    data_folder,
    env_class,
    listed,
    maker,
)
from reflectkit.envs.python_classes import class_in
from reflectkit.errors import ConfigError, DataError, is_user_code, unknown_name
from reflectkit.files import is_there, missing
from reflectkit.jsonl import read_json, write_json
from reflectkit.registry import code_files, module_of, resolve
from reflectkit.runs.run import RunConfig, write_permission
from reflectkit.text import pluralize
from reflectkit.types import Task

if TYPE_CHECKING:
    from reflectkit.chat.config import ChatConfig, Endpoint

OWNER = "class.json"
"""The file that says where the class is written whose files a folder has."""
HORIZON_HELP = "Maximum steps per episode; 0: the env's default for the level."


def problem_settings(by: str) -> Any:
    """A sub-config of the env's settings, in a command that needs them only where they say which
    problems it has.

    by: the attribute with the env's name.
    """

    def settings(name: str) -> type[Config]:
        kind = env_class(name)
        return kind.Settings if kind.taskset.needs_settings else NoSettings

    return chosen_by(by, settings=settings, names=lambda: ENVS)


class EnvConfig(Config):
    """Environment: which one, and its own settings."""

    name: str = option(help=ENV_HELP, name="env")
    settings: Any = chosen_by(
        "name",
        settings=lambda name: env_class(name).Settings,
        names=lambda: ENVS,
    )
    shuffle_action: bool = option(
        False, help="Shuffle the order of the actions, and therefore their labels, at each step."
    )

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        env_class(name)
        return name

    @model_validator(mode="after")
    def _check_chat_models(self) -> Self:
        chat_settings(self.settings)
        return self

    @property
    def kind(self) -> type[Env]:
        """The env's class."""
        return env_class(self.name)

    @property
    def offers_choices(self) -> bool:
        """Whether the policy chooses among listed actions, and writes no text."""
        return self.kind.action_kind(self.settings) == "choice"

    @property
    @override
    def environment(self) -> dict[str, str]:
        endpoints = []
        for setting in chat_settings(self.settings):
            if setting.endpoint:
                endpoints.append(setting.endpoint)
        if not endpoints:
            return {}
        from reflectkit.chat.config import address_in_use

        return address_in_use(endpoints)

    @property
    @override
    def notes(self) -> list[str]:
        note = self.kind.unknown_files(self.settings)
        return [note] if note else []

    def require_teacher(self, *methods: str) -> None:
        """Raises ConfigError if the env's teacher lacks one of `methods`, or cannot act with the
        settings.
        """
        check_teacher(self.kind.teacher_type, self.kind.name, *methods)
        self.kind.teacher_type.check(self.settings)


class PlugInConfig(Config):
    """Settings of an environment in another engine, whose own configuration sets the rest."""

    env: EnvConfig
    horizon: int = option(0, help=HORIZON_HELP, ge=0)
    data_dir: Path = option(Path("data"), help="Folder for data.")

    @property
    def setup(self) -> EnvSetup:
        """The environment."""
        return EnvSetup(
            self.env.name,
            self.data_dir,
            self.env.settings,
            self.env.shuffle_action,
            self.horizon,
        )


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
    max_answer_tokens: int | None = None
    """Of such a call; None: its default."""

    @classmethod
    def of(
        cls,
        env: EnvConfig,
        run: RunConfig,
        horizon: int = 0,
        chat: ChatConfig | None = None,
    ) -> EnvSetup:
        """The environment of a command with these settings."""
        # How the env's own chat models are asked
        limits = (chat.timeout_s, chat.concurrency, chat.max_answer_tokens) if chat else ()
        return cls(env.name, run.data_dir, env.settings, env.shuffle_action, horizon, *limits)

    @property
    def kind(self) -> type[Env]:
        """The env's class."""
        return env_class(self.env)

    @property
    def taskset(self) -> Taskset:
        """Its problems, with its settings."""
        return self.kind.taskset.with_settings(self.settings)

    def listed(self, level: str) -> list[Task]:
        """The problems of `level` that the env lists; raises what `reflectkit.envs.listed` raises."""
        return listed(self.env, level, self.settings)

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
        return self.env_folder / self.taskset.records_folder

    @property
    def class_file(self) -> Path | None:
        """The file of the env's class where it is the user's own; None in a notebook's cell."""
        file = getattr(sys.modules.get(self.kind.__module__), "__file__", None)
        if self.env in ENVS or file is None or not is_user_code(file):
            return None
        return Path(file).resolve()

    def claim_folder(self) -> None:
        """Make the folder of the env's files, and note in it where the user's own class is written.

        Raises ConfigError if nothing can be written to it, and DataError if another class has it.
        """
        write_permission(self.folder)
        self.check_owner()
        if file := self.class_file:
            write_json(self.env_folder / OWNER, {"file": os.path.relpath(file, self.env_folder)})

    def check_owner(self) -> None:
        """Raises DataError if the env's folder has the files of a class of the same name that is
        written in another file. A file that is gone has moved, so its class is this one.
        """
        path, file = self.env_folder / OWNER, self.class_file
        if file is None or not path.is_file():
            return
        noted = str(read_json(path).get("file", ""))
        other = (self.env_folder / noted).resolve()
        if other.is_file() and other != file:
            raise DataError(
                path,
                f"these are the data of a class of the same name in {other}; rename one of the two,"
                f" or name another --data-dir (if the class has moved, remove {OWNER})",
            )

    def require(self, path: Path, *, demonstrated: bool = False) -> None:
        """Raises DataError, with the commands to run first, if `path` is missing, or if it is in
        the folder of another class. demonstrated: it must hold demonstrations, too.
        """
        if self.env_folder in path.parents:
            self.check_owner()
        if is_there(path):
            return
        taskset = self.taskset
        explores, splits = taskset.repositories_folder, [f"{split}.json" for split in SPLITS]
        has_generator = bool(taskset.problem_generator or explores) and not taskset.has("tasks")
        lacks = {name: not is_there(self.folder / name) for name in (PROBLEMS, RECORDS, splits[0])}
        # Backwards through the pipeline: each step names the command that makes the file `name`,
        # and then the file that this command reads, or "" if that is there
        commands: list[str] = []
        name = path.name if path.parent == self.folder else ""
        # 1. Rows for SFT, from the training split
        if name.startswith("sft"):
            commands, demonstrated = [self.command("gen-sft")], True
            name = splits[0] if lacks[splits[0]] else ""
        # 2. A split, from the records
        if name in splits:
            commands.insert(0, self.command("split"))
            name = RECORDS if demonstrated or not has_generator else PROBLEMS
            if not lacks[RECORDS] or not lacks.get(name):
                name = ""
        # 3. Records with demonstrations, from the problems
        if name == RECORDS:
            commands.insert(0, self.command("gen-trajectory"))
            name = PROBLEMS if has_generator and lacks[PROBLEMS] else ""
        # 4. Problems
        if name == PROBLEMS:
            generation = [self.command("gen-task")]
            if explores:
                generation.append("`reflectkit filter-task`")
                if not self.repos_folder.exists():
                    generation.insert(0, "`reflectkit filter-repo`")
            commands = [*generation, *commands]
        if not commands:
            raise missing(path)
        words = commands[-1]
        if len(commands) > 1:
            words = f"{', '.join(commands[:-1])} and {words}"
        raise DataError(path, f"no such file; run {words} first")

    def command(self, stage: str) -> str:
        """How `stage` is run for this env; for a class of a Python program, from there."""
        if kind := class_in(self.env):
            return f"`reflectkit.{stage.replace('-', '_')}(env={kind})`"
        return f"`reflectkit {stage} --env {self.env}`"

    @property
    def repos_folder(self) -> Path:
        """The default folder of filtered repositories."""
        return self.env_folder / self.kind.taskset.repositories_folder

    @property
    def code_files(self) -> list[Path]:
        """The files of the env's code where it is the user's own: inputs of a run, so that an edit
        makes a new one.
        """
        if self.env in ENVS:
            return []
        modules = [module_of(self.env.removeprefix("gymnasium:"))]
        modules += [base.__module__ for base in self.kind.__mro__]
        return [*code_files(modules), *self.kind.own_files(self.settings)]

    def horizon_at(self, level: str) -> int:
        """The horizon for `level`."""
        return self.horizon or self.kind.horizon_of(level)

    def maker(self, level: str) -> Callable[[], Env]:
        """Makes fresh envs with the horizon for `level`."""
        return self._maker(self.horizon_at(level))

    def make(self, horizon: int | None) -> Env:
        """A fresh env with these settings."""
        return self._maker(horizon)()

    def _maker(self, horizon: int | None) -> Callable[[], Env]:
        arguments = {
            name: getattr(self.settings, name) for name in type(self.settings).model_fields
        }
        # The constructor gets the object that asks a chat model, not how to reach the model
        for setting in chat_settings(self.settings):
            arguments.pop(f"{setting.name}_url", None)
            arguments.pop(f"{setting.name}_max_usd", None)
            arguments[setting.name] = self._asker_of(setting)
        return maker(
            self.env,
            horizon,
            shuffle=self.shuffle_action,
            data_folder=self.env_folder,
            **arguments,
        )

    def asked(self, progress: Progress) -> dict[str, dict[str, float]]:
        """What this process has asked the env's chat models, by setting and model, e.g. "user
        openai:MODEL": see `ChatClient.usage`. It is reported to `progress`, too.
        """
        usages = {}
        for setting in chat_settings(self.settings):
            asker = self._asker_of(setting)
            # A user's env may ask in another way, and count nothing
            usage = getattr(asker, "usage", {})
            if not usage:
                continue
            for note in getattr(asker, "notes", []):
                progress.news(note)
            model = f"{setting.name} {setting.endpoint}"
            cost = f"{usage['usd']:.4f} US dollars" if "usd" in usage else "at an unknown price"
            answers = pluralize(int(usage["calls"] + usage["replayed"]), "answer")
            progress.news(
                f"the {model}: {answers}, {usage['replayed']:,} of them from the journal, {cost}"
            )
            usages[model] = usage
        return usages

    def _asker_of(self, setting: ChatSetting) -> Any:
        """The object that asks the chat model of a setting, one for all envs of the process; None
        if it names none.
        """
        if setting.endpoint is None:
            return None
        # One for all episodes, as it holds the journal and the budget
        place = setting.asker, setting.endpoint, self.env_folder / f"{setting.name}.jsonl"
        asker = _asker(*place, self.timeout_s, self.concurrency, setting.budget_usd)
        if hasattr(asker, "max_answer_tokens"):
            asker.max_answer_tokens = self.max_answer_tokens
        return asker

    def input_files(self, tasks: Iterable[Task]) -> list[Path]:
        """The files and folders that these tasks use, besides their records, and code of the user's
        own: inputs of a run.
        """
        return [
            *self.code_files,
            *self.kind.taskset.input_files(self.settings, self.env_folder, list(tasks)),
        ]


@dataclass(frozen=True)
class ChatSetting:
    """A setting of an env that names a chat model; see `Env.Settings`. asker: the class that asks
    it, as "module:Class". endpoint: the model; None if the setting is at its default.
    """

    name: str
    asker: str
    endpoint: Endpoint | None
    budget_usd: float | None


def chat_settings(settings: Any) -> list[ChatSetting]:
    """The settings of an env that name chat models. Raises ConfigError for one that cannot be
    asked, an address without a model, and a budget that cannot be enforced.
    """
    models = []
    for name, asker in getattr(settings, "chat_models", {}).items():
        if name not in type(settings).model_fields:
            continue
        from reflectkit.chat.config import parse_endpoint, prices_of

        model, default = getattr(settings, name), type(settings).model_fields[name].default
        url = getattr(settings, f"{name}_url", None)
        budget = getattr(settings, f"{name}_max_usd", None)
        endpoint = None
        if model != default:
            endpoint = parse_endpoint(model, url, flag(name), f"{default}, ", flag(f"{name}_url"))
        # An address or a budget needs a model
        elif url is not None or budget is not None:
            setting = f"{name}_url" if url is not None else f"{name}_max_usd"
            raise ConfigError(f"{flag(setting)} needs a {flag(name)}, e.g. openai:MODEL")
        # A budget needs a price
        has_price = endpoint and prices_of(endpoint.kind, endpoint.model, None, None).known
        if endpoint and budget is not None and not has_price:
            raise ConfigError(
                f"{flag(f'{name}_max_usd')} cannot hold for {flag(name)} {endpoint}, whose price is"
                " unknown; leave it out, or name a model with a known price"
            )
        models.append(ChatSetting(name, asker, endpoint, budget))
    return models


def refuse_uncounted(
    env: EnvConfig,
    *,
    dry_run: bool,
    max_cost_usd: float | None,
) -> None:
    """Raises ConfigError where a budget or a forecast is wanted, and the env asks a chat model of
    its own, as neither counts that.
    """
    for setting in chat_settings(env.settings):
        name, endpoint = flag(setting.name), setting.endpoint
        if not endpoint:
            continue
        has_limit = endpoint.kind == "local" or setting.budget_usd is not None
        if dry_run or (max_cost_usd is not None and not has_limit):
            raise ConfigError(
                f"{'--dry-run' if dry_run else '--max-cost-usd'} does not count what {name}"
                f" {endpoint} is asked; leave it out, or leave out {name}"
            )


@cache
def _asker(asker: str, *arguments: Any) -> Any:
    return resolve("class", asker, {})(*arguments)


def check_level(env: str, level: str) -> None:
    """Raises UnknownNameError unless `env` has `level`."""
    levels: tuple[str, ...] = env_class(env).levels
    if level not in levels:
        raise unknown_name(f"level of env '{env}'", level, levels)


def at_level(
    env: str,
    tasks: list[Task],
    level: str,
    path: Path,
    option: str = "--level",
) -> list[Task]:
    """`tasks` as problems of `level`, each once. Raises DataError if there are none, or one cannot
    be played at any level. option: the flag that chooses another level.
    """
    kind = env_class(env)
    # 1. Each must be playable at some level
    for task in tasks:
        if task.level in kind.levels:
            continue
        if not any(kind.taskset.at_level(task, other) for other in kind.levels):
            names = ", ".join(kind.levels)
            reason = f"has level {task.level!r}, and no level can play it: {names}"
            raise DataError(path, f"task '{task.id}' {reason}", field="level")
    # 2. Those that can be played at this one
    versions = [kind.taskset.at_level(task, level) for task in tasks]
    tasks_by_id = {task.id: task for task in versions if task is not None}
    if not tasks_by_id:
        levels = sorted({task.level for task in tasks})
        fix = f"add {' or '.join(f'{option} {other}' for other in levels)}, or generate some"
        if env not in ENVS:
            fix += f"; at_level() of env '{env}' may return a problem of another level as one of it"
        raise DataError(path, f"has no task of level '{level}'; {fix}")
    return list(tasks_by_id.values())


def not_repeatable(env: str, task: str, step: int) -> ConfigError:
    """The error for an env that shows something else in `step` of a problem when it is played again
    from one seed.
    """
    return ConfigError(
        f"env '{env}': step {step} of task '{task}' differs when it is played again with the same"
        " seed; draw from random.Random(seed) in the env, and show neither the time nor what an"
        " earlier episode left"
    )


def check_explores(stage: str, env: str) -> None:
    """Raises ConfigError for an env whose problems are not about repositories."""
    if env_class(env).taskset.repositories_folder:
        return
    raise ConfigError(
        f"{stage} is not for env '{env}', whose problems are not made of repositories; begin with"
        f" `reflectkit gen-trajectory --env {env}`"
    )
