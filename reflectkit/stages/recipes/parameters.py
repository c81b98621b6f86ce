"""Parameters of a recipe: settings of its steps that `run RECIPE` has as flags, with a name and a help of their own."""

from __future__ import annotations

import dataclasses
import hashlib
import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, get_args, get_origin, get_type_hints

from reflectkit.core.config import StageConfig, as_plain, option
from reflectkit.core.errors import DataError, unknown_name

NAME = re.compile(r"[a-z][a-z0-9_]*")
TYPES = (str, int, float, bool, Path, tuple[str, ...])
DEFAULTS = "defaults"  # as the step in STEP.SETTING: every step that has the setting


@dataclass(frozen=True)
class Parameter:
    """A flag of `run RECIPE`."""

    help: str
    """One line."""
    sets: tuple[str, ...]
    """The settings that get its value: STEP.SETTING, STAGE.SETTING or defaults.SETTING, all of one type."""
    own_folders: bool = False
    """Whether each value has data and results folders of its own; for a path or a whole number."""
    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}


@dataclass(frozen=True)
class Resolved:
    """A parameter together with what it sets."""

    parameter: Parameter
    hint: Any
    """The type of the settings, without None."""
    default: Any
    """Their value in the recipe."""

    @property
    def targets(self) -> list[tuple[str, str]]:
        """(step, stage or "defaults", setting) of each setting."""
        return [(target.rpartition(".")[0], target.rpartition(".")[2]) for target in self.parameter.sets]


def resolve_parameters(
    parameters: Mapping[str, Parameter],
    steps: Sequence[tuple[str, str, type[StageConfig], Mapping[str, Any]]],
    path: Path,
) -> dict[str, Resolved]:
    """The parameters of the recipe at `path`, checked. steps: (name, stage, class of the settings, settings in the
    recipe). Raises DataError, and UnknownNameError for a step or setting.
    """
    return {name: _resolve(name, parameter, steps, path) for name, parameter in parameters.items()}


def _resolve(
    name: str,
    parameter: Parameter,
    steps: Sequence[tuple[str, str, type[StageConfig], Mapping[str, Any]]],
    path: Path,
) -> Resolved:
    place = f"parameters.{name}"
    if not NAME.fullmatch(name) or keyword.iskeyword(name):
        text = f"{name!r} can't name a parameter; use lower-case letters, digits and _, and no keyword of Python"
        raise DataError(path, text, field=place)
    if not parameter.sets:
        raise DataError(path, "is empty; list what the parameter sets, as STEP.SETTING", field=f"{place}.sets")
    hints_and_values: list[tuple[Any, Any]] = []
    for target in parameter.sets:
        owner, _, setting = target.rpartition(".")
        names = {step for step, *_ in steps} | {stage for _, stage, *_ in steps} | {DEFAULTS}
        if owner not in names:
            raise unknown_name(f"step of recipe {path} in {place}", owner or target, names)
        chosen = [(kind, values) for step, stage, kind, values in steps if owner in (step, stage, DEFAULTS)]
        having = [(kind, values) for kind, values in chosen if setting in _field_names(kind)]
        if not having or (owner != DEFAULTS and len(having) < len(chosen)):
            raise unknown_name(f"setting of '{owner}' in {place}", setting, _field_names(chosen[0][0]))
        for kind, values in having:
            hints_and_values.append((_without_none(get_type_hints(kind)[setting]), _value(kind, values, setting)))
    hints = {str(hint) for hint, _ in hints_and_values}
    if len(hints) > 1 or hints_and_values[0][0] not in TYPES:
        raise DataError(
            path, f"what it sets has the types {', '.join(sorted(hints))}; expected one plain type", field=place
        )
    if parameter.own_folders and hints_and_values[0][0] not in (Path, int):
        raise DataError(path, "own_folders is for a path or a whole number", field=place)
    return Resolved(parameter, *hints_and_values[0])


def settings_class(recipe: str, resolved: Mapping[str, Resolved]) -> type:
    """A dataclass with a field for each parameter, which is None or () unless it is given."""
    rows = []
    for name, one in resolved.items():
        shown = ", ".join(one.default) if isinstance(one.default, list | tuple) else one.default
        text = one.parameter.help.rstrip(".") + (f". Default: {shown}." if shown not in (None, "") else ".")
        rows.append((name, one.hint, text))
    return _settings_class(recipe, tuple(rows))


@cache
def _settings_class(recipe: str, rows: tuple[tuple[str, Any, str], ...]) -> type:
    fields = [
        (
            name,
            hint if get_origin(hint) is tuple else hint | None,
            option(() if get_origin(hint) is tuple else None, help=text),
        )
        for name, hint, text in rows
    ]
    return dataclasses.make_dataclass(f"Parameters of {recipe}".title().replace(" ", ""), fields, frozen=True)


def overrides(config: StageConfig, resolved: Mapping[str, Resolved]) -> list[tuple[str, str, Any]]:
    """(step, stage or "defaults", setting, value) of each parameter that `config` gives. Lists are split at commas."""
    given = []
    for name, one in resolved.items():
        value = getattr(config, name, None)
        if value in (None, ()):
            continue
        if isinstance(value, tuple):
            value = [part.strip() for text in value for part in text.split(",") if part.strip()]
        given += [(target, setting, value) for target, setting in one.targets]
    return given


def folder_label(path: Path | str | int | None, default: str, name: str = "") -> str:
    """What tells the data and results of `path` from those of other paths: its last part and a digest of the whole; ""
    if it is not given, or is the recipe's `default`. For a number, it is the parameter's `name` with the number.

    >>> folder_label(Path("/home/me/my repos"), "data/repos")
    'my-repos-158e9c'
    >>> folder_label(5, "10", "demonstrations")
    'demonstrations-5'
    """
    if isinstance(path, int):
        return "" if str(path) == default else f"{name.replace('_', '-')}-{path}"
    if path is None or Path(path) == Path(default):
        return ""
    whole = Path(path).resolve()
    own = re.sub(r"[^A-Za-z0-9_-]+", "-", whole.name).strip("-")[:40] or "folder"
    return f"{own}-{hashlib.sha256(str(whole).encode('utf-8', 'surrogateescape')).hexdigest()[:6]}"


def _field_names(kind: type[StageConfig]) -> set[str]:
    return {item.name for item in dataclasses.fields(kind)}


def _value(kind: type[StageConfig], values: Mapping[str, Any], setting: str) -> Any:
    if setting in values:
        return values[setting]
    default = next(item.default for item in dataclasses.fields(kind) if item.name == setting)
    return None if default is dataclasses.MISSING else as_plain(default)


def _without_none(hint: Any) -> Any:
    if not isinstance(hint, UnionType):
        return hint
    parts = [part for part in get_args(hint) if part is not NoneType]
    return parts[0] if len(parts) == 1 else hint
