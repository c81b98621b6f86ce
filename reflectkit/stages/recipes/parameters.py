"""Parameters of a recipe: settings of its steps that `run RECIPE` has as flags, with a name and a help of their own."""

from __future__ import annotations

import hashlib
import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, get_origin

from pydantic import create_model

from reflectkit.core.config import REQUIRED, Config, Leaf, alternatives, as_plain, flat, option
from reflectkit.core.errors import DataError, unknown_name

PARAMETER = re.compile(r"[a-z][a-z0-9_]*")
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
    steps: Sequence[tuple[str, str, Mapping[str, Leaf], Mapping[str, Any]]],
    path: Path,
) -> dict[str, Resolved]:
    """The parameters of the recipe at `path`, checked. steps: (name, stage, its settings by name, their values in the
    recipe). Raises DataError, and UnknownNameError for a step or setting.
    """
    return {name: _resolve(name, parameter, steps, path) for name, parameter in parameters.items()}


def _resolve(
    name: str,
    parameter: Parameter,
    steps: Sequence[tuple[str, str, Mapping[str, Leaf], Mapping[str, Any]]],
    path: Path,
) -> Resolved:
    place = f"parameters.{name}"
    if not PARAMETER.fullmatch(name) or keyword.iskeyword(name):
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
        chosen = [(rows, values) for step, stage, rows, values in steps if owner in (step, stage, DEFAULTS)]
        having = [(rows, values) for rows, values in chosen if setting in rows]
        if not having or (owner != DEFAULTS and len(having) < len(chosen)):
            raise unknown_name(f"setting of '{owner}' in {place}", setting, chosen[0][0])
        for rows, values in having:
            kinds = alternatives(rows[setting].hint)
            hint = str if get_origin(kinds[0]) is Literal else kinds[0] if len(kinds) == 1 else kinds
            hints_and_values.append((hint, _value(rows[setting], values)))
    hints = {str(hint) for hint, _ in hints_and_values}
    hint = hints_and_values[0][0]
    if len(hints) > 1 or hint not in TYPES:
        raise DataError(
            path, f"what it sets has the types {', '.join(sorted(hints))}; expected one plain type", field=place
        )
    if parameter.own_folders and hint not in (Path, int):
        raise DataError(path, "own_folders is for a path or a whole number", field=place)
    return Resolved(parameter, *hints_and_values[0])


def settings_class(recipe: str, resolved: Mapping[str, Resolved]) -> type[Config]:
    """The settings with a field for each parameter, which is None or () unless it is given."""
    fields: dict[str, Any] = {}
    for name, parameter in resolved.items():
        default, is_list = parameter.default, get_origin(parameter.hint) is tuple
        shown = ", ".join(default) if isinstance(default, list | tuple) else default
        text = parameter.parameter.help.rstrip(".") + (f". Default: {shown}." if shown not in (None, "") else ".")
        hint = parameter.hint if is_list else parameter.hint | None
        fields[name] = (hint, option(() if is_list else None, help=text))
    return create_model(f"Parameters of {recipe}", __base__=Config, **fields)


def overrides(config: Config, resolved: Mapping[str, Resolved]) -> list[tuple[str, str, Any]]:
    """(step, stage or "defaults", setting, value) of each parameter that `config` gives. Lists are split at commas."""
    given, values = [], flat(config)
    for name, one in resolved.items():
        value = values.get(name)
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


def _value(leaf: Leaf, values: Mapping[str, Any]) -> Any:
    if leaf.name in values:
        return values[leaf.name]
    return None if leaf.default is REQUIRED else as_plain(leaf.default)
