"""The environments by name: those in the table, and those that installed packages offer as entry
points.

A user's own env needs neither: pass `package.module:Class`, or the path of its file,
`folder/file.py:Class`.
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache, partial
from numbers import Integral
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import BaseModel, BeforeValidator, Field, StringConstraints, ValidationError

from reflectkit.config import NoSettings, check_own_settings
from reflectkit.env import Env, Teacher
from reflectkit.envs.python_classes import env_text
from reflectkit.errors import ConfigError, brief, code_place
from reflectkit.registry import plugins, resolve
from reflectkit.types import Task

ENVS = {
    "taxi": "reflectkit.envs.taxi:Taxi",
    "corridor": "reflectkit.envs.corridor:Corridor",
    "auto_explore": "reflectkit.envs.auto_explore.env:AutoExplore",
    "memory": "reflectkit.envs.memory.env:Memory",
    "alfworld": "reflectkit.envs.alfworld.env:Alfworld",
    "support": "reflectkit.envs.support.env:Support",
    "tau": "reflectkit.envs.tau.env:Tau",
    "prompts": "reflectkit.envs.adapters.prompts:Prompts",
    "decisions": "reflectkit.envs.adapters.decisions:Decisions",
}
SCHEMES = {
    "beeline": "reflectkit.envs.beeline.env:env_of",
    "class": "reflectkit.envs.python_classes:env_of",
    "gymnasium": "reflectkit.envs.adapters.gymnasium:env_of",
    "openenv": "reflectkit.envs.adapters.openenv:env_of",
    "program": "reflectkit.envs.adapters.program:env_of",
    "skyrl": "reflectkit.envs.adapters.skyrl:env_of",
    "verifiers": "reflectkit.envs.adapters.verifiers:env_of",
}
"""Families of envs, `SCHEME:REST`: the function that makes an env's class from REST."""
ENV_HELP = (
    f"Environment: {', '.join(ENVS)}, or your own as file.py:Class; its settings: --env NAME"
    " --help."
)
PROBLEMS = "data.json"
"""The file of the problems, in the folder of an env's records, of an env that does not list its
own.
"""
RECORDS = "data_reflection_negative.json"
"""The file of the problems with their demonstrations, in the folder of an env's records."""
PLUGINS = "reflectkit.envs"
"""The group of entry points in which a package offers its envs: NAME = "package.module:Class"."""
PLAIN_METHODS = {"reset": "reset(self, seed), which returns what the player sees first"}
ENV_METHODS = {
    "reset": "reset(self, task, seed), which returns an Observation",
    "step": "step(self, action), which returns a StepResult",
}
"""The methods that an env must have, as their definitions begin."""
SPLITS = ("train", "validate", "test")
NONE_LISTED = "env '{}' lists no problems at level '{}'"
Text = Annotated[str, StringConstraints(min_length=1)]


def _whole(value: Any) -> int:
    """`value` as an int. Raises ValueError unless it is a whole number; True and "5" are none."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ValueError("give a whole number")
    return int(value)


Whole = Annotated[int, BeforeValidator(_whole)]


class _Attributes(BaseModel):
    """The attributes of an env's class and its teacher's, to check them."""

    name: Text
    levels: Annotated[tuple[Text, ...], Field(min_length=1)]
    horizons: Mapping[str, Annotated[Whole, Field(gt=0)]]
    max_concurrency: Annotated[Whole, Field(gt=0)]
    noise: Annotated[float, Field(ge=0, le=1)]
    negatives: Annotated[Whole, Field(ge=0)]


def env_names() -> list[str]:
    """The names in the table, followed by those of installed packages."""
    return [*ENVS, *(name for name in sorted(plugins(PLUGINS)) if name not in ENVS)]


def env_class(name: str | type) -> type[Env]:
    """The class of env `name`, or a class of the calling program as an env. One that does not
    inherit from `Env` gets its defaults.

    Raises UnknownNameError, and ConfigError if it is not an env, or something of it is in the wrong
    place.
    """
    if isinstance(name, type):
        return _env_from(name, name.__name__)
    if not isinstance(name, str):
        raise ConfigError(
            f"{brief(name)} is no environment's name or class; give its class, since each episode"
            " has an object of its own, or e.g. 'gymnasium:FrozenLake-v1'"
        )
    # An env of the package is returned as it is, since the contract tests check these
    if name in ENVS:
        module, _, attribute = ENVS[name].partition(":")
        kind: type[Env] = getattr(importlib.import_module(module), attribute)
        return kind
    scheme, _, rest = name.partition(":")
    if scheme in SCHEMES:
        value: Any = resolve("scheme", scheme, SCHEMES)(rest)
    else:
        value = resolve(
            "env",
            name,
            ENVS,
            PLUGINS,
            lambda kind: callable(getattr(kind, "reset", None)),
        )
    if not isinstance(value, type):
        raise ConfigError(f"{name} is {value!r:.60}, and no class; name the class of an env")
    return _env_from(value, env_text(name))


def _env_from(kind: type, name: str) -> type[Env]:
    """`kind` as an env. name: for errors. Raises ConfigError."""
    methods = ("reset", "step") if issubclass(kind, Env) else ("reset",)
    missing = [
        method for method in methods if getattr(kind, method, None) in (None, getattr(Env, method))
    ]
    if missing:
        forms = ENV_METHODS if issubclass(kind, Env) else PLAIN_METHODS
        definitions = " and ".join(forms[method] for method in missing)
        raise ConfigError(f"{name} lacks {' and '.join(missing)}; write {definitions}")
    env: type[Env] = _checked(kind, name)
    return env


@cache
def _checked(kind: Any, name: str) -> Any:
    """The class `kind` with all that an env has: adapted, with the base `Env`, a name and settings."""
    from reflectkit.envs.adapters import adapt
    from reflectkit.envs.adapters.plain import settings_of

    # 1. Adapt a class in another form. With get_reward() it has TRL's form, in which "task" may be
    #    a column and step() a tool.
    has_methods = hasattr(kind, "step") and "task" in inspect.signature(kind.reset).parameters
    has_methods = has_methods and not hasattr(kind, "get_reward")
    if not issubclass(kind, Env) and not has_methods:
        kind = adapt(kind)
    if not issubclass(kind, Env):
        namespace = {
            "__module__": kind.__module__,
            "__qualname__": kind.__qualname__,
            "__doc__": kind.__doc__,
        }
        metaclass: Any = type(kind)
        kind = metaclass(kind.__name__, (kind, Env), namespace)
    if not hasattr(kind, "name"):
        kind.name = _own_name(kind)
    # 2. Check what it says about itself and its teacher
    if inspect.isfunction(inspect.getattr_static(kind, "tasks", None)):
        raise ConfigError(f"{name}: its tasks() is asked of the class; write @classmethod above it")
    if not (isinstance(kind.teacher_type, type) and issubclass(kind.teacher_type, Teacher)):
        raise ConfigError(
            f"{name}: its teacher_type is {brief(kind.teacher_type)}; name a subclass of"
            " reflectkit.Teacher"
        )
    _check_methods(kind, Env)
    _check_methods(kind.teacher_type, Teacher)
    if kind.teacher_type.has("mistakes") and not kind.teacher_type.has("note"):
        raise ConfigError(
            f"{name}: its teacher has mistakes() but no note(), which marks them; add it"
        )
    values = {
        trait: getattr(kind, trait, None)
        for trait in ("name", "levels", "horizons", "max_concurrency")
    }
    values |= {trait: getattr(kind.teacher_type, trait) for trait in ("noise", "negatives")}
    try:
        _Attributes.model_validate(values)
    except ValidationError as error:
        fault = error.errors()[0]
        trait = str(fault["loc"][0])
        what = fault["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{name}: its {trait} are {brief(values[trait])}: {what}") from None
    # 3. Settings from its constructor, if it has none
    if kind.Settings is NoSettings:
        kind.Settings = settings_of(kind)
    check_own_settings(kind.Settings, f"env '{name}'")
    return kind


def _check_methods(kind: type, base: type) -> None:
    """Raises ConfigError if a method of `kind` cannot be called as that of `base` is called."""
    for name, standard in inspect.getmembers_static(base, inspect.isfunction):
        own = inspect.getattr_static(kind, name)
        if own is standard or name.startswith("_"):
            continue
        form = _form(standard)
        if not callable(own) and not hasattr(own, "__get__"):
            raise ConfigError(
                f"{code_place(kind)}: {name} of {kind.__name__} is {brief(own)}; write a method,"
                f" def {name}{form}"
            )
        if not inspect.isfunction(own):
            continue
        signature = inspect.signature(own)
        try:
            signature.bind(*form.parameters)
        except TypeError:
            raise ConfigError(
                f"{code_place(own)}: {kind.__name__} has {name}{_form(own)}; write def {name}{form}"
            ) from None


def _form(function: Any) -> inspect.Signature:
    """The signature of `function` without types."""
    signature = inspect.signature(function)
    parameters = [
        parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()
    ]
    return signature.replace(parameters=parameters, return_annotation=signature.empty)


def maker(
    name: str | type,
    horizon: int | None = None,
    *,
    shuffle: bool = False,
    data_folder: Path | None = None,
    **settings: Any,
) -> Callable[[], Env]:
    """Makes fresh envs, each with `settings`. Raises ConfigError if their constructor takes others.

    horizon: truncate episodes after that many steps. shuffle: shuffle the choices at each step.
    data_folder: the env's folder for data.
    """
    from reflectkit.rollouts.wrappers import fresh

    kind = env_class(name)
    try:
        inspect.signature(kind).bind(**settings)
    except ValueError:
        pass  # a class whose constructor is not Python's own
    except TypeError as error:
        raise ConfigError(
            f"env '{name}' cannot be made: its constructor: {error}; it takes an argument for each"
            " field of Settings, and no others without a default"
        ) from None
    return partial(fresh, kind, settings, horizon, data_folder, shuffle=shuffle)


def make(name: str | type, horizon: int | None = None, **settings: Any) -> Env:
    """A fresh env; see `maker`. horizon: steps after which an episode is truncated; None: the
    `Env.horizon_of` the problem's level.
    """
    env: Any = maker(name, horizon, **settings)()
    env.by_level = horizon is None
    return cast(Env, env)


def listed(name: str, level: str, settings: Any = None) -> list[Task]:
    """The problems of `level` that env `name` lists. settings: the env's own. Raises ConfigError if
    there are none, if they are no tasks of it, or share an id.
    """
    # 1. Ask the env
    kind = env_class(name)
    values: Any = kind.taskset.with_settings(settings).tasks(level)
    lists = f"env '{name}': tasks({level!r}) lists"
    if not isinstance(values, Iterable):
        raise ConfigError(
            f"env '{name}': tasks({level!r}) returned {brief(values)}; return a list of Task"
        )
    # 2. Check each problem, as users write these
    tasks: dict[str, Task] = {}
    for task in values:
        is_task = isinstance(task, Task)
        if not is_task or not isinstance(task.id, str) or not isinstance(task.group, str):
            raise ConfigError(
                f"{lists} {task!r:.120}; return a list of Task, with texts as id and group"
            )
        if task.env != kind.name or task.level not in kind.levels:
            raise ConfigError(
                f"{lists} '{task.id}' as a task of env '{task.env}' at level '{task.level}'; write"
                f" '{kind.name}' and one of {', '.join(kind.levels)}"
            )
        if task.id in tasks:
            raise ConfigError(f"{lists} '{task.id}' twice; give each problem its own id")
        try:
            # Its data become what they will be when read from a file: tuples are lists, for example
            data = json.loads(json.dumps(task.data, allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"{lists} '{task.id}' with data that is not valid JSON ({error})"
            ) from None
        tasks[task.id] = replace(task, data=data)
    if not tasks:
        raise ConfigError(NONE_LISTED.format(name, level))
    return list(tasks.values())


def cluster_of(name: str, task: Task) -> str:
    """The cluster of `task`. Raises ConfigError if it is not a non-empty text."""
    cluster: Any = env_class(name).taskset.cluster(task)
    if not isinstance(cluster, str) or not cluster:
        raise ConfigError(
            f"env '{name}': cluster must return a text that is not empty, it returned"
            f" {brief(cluster)}"
        )
    return cluster


def split_of(name: str, task: Task) -> str:
    """The split that `task` comes with, or "". Raises ConfigError if there is no such split."""
    split = env_class(name).taskset.split_of(task)
    if split not in ("", *SPLITS):
        raise ConfigError(
            f"env '{name}': split_of must return {', '.join(SPLITS)} or '', it returned"
            f" {brief(split)}"
        )
    return split


def data_folder(name: str, data_dir: Path) -> Path:
    """The folder of the env's files: its name under `data_dir`, or the name of an own class in
    lower case.
    """
    if ":" in name or name.endswith(".py"):
        name = _own_name(env_class(name)).replace("/", "-")
    return data_dir / name


def _own_name(kind: type) -> str:
    """The name of a class in lower case; "own-taxi" if an env of the package has that name, whose
    files it must not read.
    """
    name = kind.__name__.lower()
    if name not in ENVS or kind is env_class(name):
        return name
    return f"own-{name}"
