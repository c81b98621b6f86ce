"""Recipes: steps, ablations and parameters, read from YAML and checked."""

from __future__ import annotations

import hashlib
import keyword
import re
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from reflectkit.commands import STAGES, config_class, is_own, traits
from reflectkit.config import (
    REQUIRED,
    Config,
    Leaf,
    alternatives,
    as_plain,
    flat,
    leaves,
    option,
    parse_yaml,
)
from reflectkit.errors import ConfigError, DataError, unknown_name
from reflectkit.jsonl import text_of

NAME = re.compile(r"[a-z0-9_-]+")
DEFAULTS = "defaults"
"""In place of a step's name, as in `--set defaults.horizon=9`: every step that has the setting."""
RECORD = "run"
"""The folder, next to those of the steps, with the overall results."""
RESERVED = ("data", "results", DEFAULTS, RECORD)
"""What cannot name a step."""
MARK = "@"
"""Between the names of a step and of the ablation that copies it."""
OTHER_FLAGS = ("config", "help", "context", "traceback")
"""Names of arguments of `run` that are no settings."""
PARAMETER_TYPES = (str, int, float, bool, Path, tuple[str, ...])

Step = dict[str, Any]
Change = tuple[str, str, Any]
"""(step, stage or "defaults", setting, value)."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Ablation(_Part):
    """An arm with an ingredient changed.

    of: the evaluated arm to compare with. arm: the arm with the change; without `steps` one that
    the recipe already has, otherwise a new one, by default "OF without NAME". steps: the settings
    that differ, by step.
    """

    of: str
    arm: str = ""
    steps: dict[str, dict[str, Any]] = {}
    description: str = ""


class Parameter(_Part):
    """A flag of `run RECIPE`.

    sets: the settings that get its value, as STEP.SETTING, STAGE.SETTING or defaults.SETTING.
    own_folders: whether each value, a path, has its own data and results folders.
    """

    help: str
    sets: tuple[str, ...] = Field(min_length=1)
    own_folders: bool = False

    @property
    def targets(self) -> list[tuple[str, str]]:
        """(step, stage or "defaults", setting) of each setting."""
        pairs = []
        for target in self.sets:
            owner, _, setting = target.rpartition(".")
            pairs.append((owner, setting))
        return pairs


class Recipe(_Part):
    """A pipeline.

    description: one line. steps: each with `name`, `stage` and the stage's settings; `{name}` in a
    value stands for that step's first output. defaults: settings for every stage that has them.
    fast: settings by step for `--fast`. fast_shows: what that variant is and shows, in a sentence;
    empty if it only checks that every step runs. fast_takes: how long it takes. result: the
    sentence that a run ends with, in which {PLAYER} stands for its success in percent. measure:
    what `run` compares, success (the return where none is reported) or a figure of the env that is
    a share. ablations: by name, for `--ablate`. parameters: by name, flags of `run`.
    """

    description: str = ""
    steps: tuple[Step, ...] = Field(min_length=1)
    defaults: dict[str, Any] = {}
    fast: dict[str, dict[str, Any]] = {}
    fast_shows: str = ""
    fast_takes: str = ""
    result: str = ""
    measure: str = "success"
    ablations: dict[str, Ablation] = {}
    parameters: dict[str, Parameter] = {}

    @property
    def settings(self) -> set[str]:
        """The names of all settings of its stages."""
        return {
            name for step in self.steps for name in leaves_of(step["stage"], self.defaults | step)
        }

    @cached_property
    def default_of(self) -> dict[str, Any]:
        """The recipe's own value of each parameter."""
        return {name: self._set_by(name)[1] for name in self.parameters}

    @cached_property
    def parameter_class(self) -> type[Config]:
        """Settings with a field for each parameter, which is None or () unless it is given."""
        fields: dict[str, Any] = {}
        for name, parameter in self.parameters.items():
            hint, default = self._set_by(name)
            is_list = get_origin(hint) is tuple
            value = ", ".join(default) if isinstance(default, list | tuple) else default
            text = parameter.help.rstrip(".") + "."
            if value not in (None, ""):
                text += f" Default: {value}."
            fields[name] = (
                hint if is_list else hint | None,
                option(() if is_list else None, help=text),
            )
        return create_model("Parameters", __base__=Config, **fields)

    def _set_by(self, name: str) -> tuple[Any, Any]:
        """(type without None, value in the recipe) of what parameter `name` sets. Raises
        ConfigError.
        """
        places: list[tuple[Any, Any]] = []

        # 1. The steps that a parameter may name
        owners = {DEFAULTS, *(step[key] for step in self.steps for key in ("name", "stage"))}
        for owner, setting in self.parameters[name].targets:
            if owner not in owners:
                raise unknown_name(f"step in parameter '{name}'", owner or setting, owners)
            if owner == DEFAULTS and setting not in self.settings:
                raise unknown_name(f"setting in parameter '{name}'", setting, self.settings)

            # 2. Each place that it sets, with its type and its value there
            for step in self.steps:
                if owner in (step["name"], step["stage"], DEFAULTS):
                    values = self.defaults | step
                    rows = leaves_of(step["stage"], values)
                    if setting in rows:
                        default = (
                            None
                            if rows[setting].default is REQUIRED
                            else as_plain(rows[setting].default)
                        )
                        hint = alternatives(rows[setting].hint)[0]
                        places.append(
                            (
                                str if get_origin(hint) is Literal else hint,
                                values.get(setting, default),
                            )
                        )
                    elif owner != DEFAULTS:
                        raise unknown_name(
                            f"setting of '{owner}' in parameter '{name}'", setting, rows
                        )

        # 3. One type in all places, as it becomes one flag
        if len({str(hint) for hint, _ in places}) > 1 or places[0][0] not in PARAMETER_TYPES:
            raise ConfigError(
                f"parameter '{name}' sets values of different types; expected one plain type"
            )
        return places[0]


def leaves_of(stage: str, values: Mapping[str, Any]) -> dict[str, Leaf]:
    """The settings of `stage` by name, with those that the choices in `values` bring."""
    return {leaf.name: leaf for leaf in leaves(config_class(stage), values)}


def _packaged() -> dict[str, Any]:
    files = (resources.files("reflectkit") / "recipes").iterdir()
    return {file.name.removesuffix(".yaml"): file for file in files if file.name.endswith(".yaml")}


def recipe_names() -> list[str]:
    """The packaged recipes."""
    return sorted(_packaged())


def load_recipe(name: str) -> Recipe:
    """The packaged recipe called `name`, or the recipe in YAML file `name`.

    Raises
    ------
    UnknownNameError: no such recipe, or a name in it is unknown. DataError: it is malformed; names
    the line or field.
    """
    packaged = _packaged()
    if name in packaged:
        return _parsed(packaged[name].read_text(encoding="utf-8"), Path(name))
    if not (name.endswith((".yaml", ".yml")) or "/" in name):
        raise unknown_name("recipe", name, packaged, "(or give a .yaml file)")
    return _parsed(text_of(Path(name)), Path(name))


@lru_cache(maxsize=8)
def _parsed(text: str, path: Path) -> Recipe:
    """The recipe in `text`, whose steps have names and stages and read only earlier steps. Raises
    what `load_recipe` raises.
    """
    # 1. The form
    value = parse_yaml(text, path)
    if not isinstance(value, dict):
        raise DataError(path, "expected a mapping with description and steps")
    try:
        recipe = Recipe.model_validate(value)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise DataError(path, problem["msg"], field=".".join(map(str, problem["loc"]))) from None

    # 2. The steps, which read only earlier ones
    stages: dict[str, str] = {}
    for index, step in enumerate(recipe.steps):
        for key in ("name", "stage"):
            if not isinstance(step.get(key), str):
                raise DataError(path, "expected text", field=f"steps.{index}.{key}")
        name = step["name"]
        stage = step["stage"]
        if stage == "run" or not (stage in STAGES or is_own(stage)):
            stages_of_recipes = [name for name in STAGES if name != "run"]
            raise unknown_name(f"stage in recipe {path}", stage, stages_of_recipes)
        if not NAME.fullmatch(name) or name in RESERVED or name in stages:
            rule = f"use lower-case letters, each name once, and none of {', '.join(RESERVED)}"
            raise DataError(
                path, f"{name!r} can't name a step; {rule}", field=f"steps.{index}.name"
            )
        not_earlier = references(step) - set(stages)
        if not_earlier:
            raise unknown_name(f"earlier step in recipe {path}", min(not_earlier), stages)
        stages[name] = stage

    # 3. Names in the defaults and in the variants
    unknown = recipe.defaults.keys() - recipe.settings
    if unknown:
        raise unknown_name(
            f"setting in the defaults of recipe {path}", min(unknown), recipe.settings
        )
    variants = [recipe.fast]
    variants += [ablation.steps for ablation in recipe.ablations.values()]
    for variant in variants:
        unknown = variant.keys() - stages.keys()
        if unknown:
            raise unknown_name(f"step of recipe {path}", min(unknown), stages)

    # 4. Ablations and parameters, which become names and flags
    for name, ablation in recipe.ablations.items():
        if not NAME.fullmatch(name):
            raise DataError(
                path, f"{name!r} can't name an ablation; use lower-case letters", field="ablations"
            )
        for step_name in ablation.steps:
            if not traits(stages[step_name]).makes_arm:
                raise DataError(
                    path,
                    f"an ablation changes steps that train, not '{step_name}'",
                    field=f"ablations.{name}",
                )
    for name in recipe.parameters:
        is_name = name.isidentifier() and name.islower()
        if not is_name or keyword.iskeyword(name) or name in OTHER_FLAGS:
            raise DataError(
                path, f"{name!r} can't name a parameter; choose another", field=f"parameters.{name}"
            )

    # 5. Values of parameters
    try:
        _ = recipe.parameter_class
    except ConfigError as error:
        raise type(error)(f"recipe {path}: {error}") from None
    return recipe


def references(value: Any) -> set[str]:
    """The step names in braces anywhere in `value`. Raises ConfigError."""
    names: set[str] = set()

    # 1. A list or a mapping has those of its parts
    parts: Iterable[Any] = ()
    if isinstance(value, dict):
        parts = value.values()
    elif isinstance(value, list | tuple):
        parts = value
    for part in parts:
        names |= references(part)

    # 2. A text has those in its braces, as Python's format reads them
    if isinstance(value, str):
        fault = ConfigError(
            f"recipe: {value!r}: write only a step's name in the braces, without ':' or '!'"
        )
        try:
            fields = list(string.Formatter().parse(value))
        except ValueError:
            raise fault from None
        for _, name, form, conversion in fields:
            if form or conversion:
                raise fault
            if name is not None:
                names.add(name)
        names -= {"data", "results"}
    return names


def with_copies(steps: Sequence[Step], ablations: Mapping[str, Ablation]) -> Iterator[Step]:
    """`steps`, each followed by its copies `step@ablation`: an ablation copies the steps that it
    changes and those between them and its arm.
    """
    new_names = [copies(steps, name, ablation) for name, ablation in ablations.items()]
    for step in steps:
        yield step
        for new_name_of in new_names:
            if step["name"] in new_name_of:
                yield step | {"name": new_name_of[step["name"]]}


def copies(steps: Sequence[Step], name: str, ablation: Ablation) -> dict[str, str]:
    """The name of the copy of each step that ablation `name` copies."""
    # 1. What each step reads under the ablation
    read = {step["name"]: references(step | ablation.steps.get(step["name"], {})) for step in steps}
    changed: set[str] = set()
    names = set(ablation.steps)

    # 2. What changes: its own steps, and the training steps that read a changed one
    for step in steps:
        about = traits(step["stage"])
        if step["name"] in ablation.steps or (about.makes_arm and read[step["name"]] & changed):
            changed.add(step["name"])
        for key in about.arms:
            names |= references([entry for entry in step.get(key, ()) if _is_of(entry, ablation)])

    # 3. What is needed: the arm's steps, and those that they read
    for step in reversed(steps):
        if step["name"] in names & changed:
            names |= read[step["name"]]
    return {step: f"{step}{MARK}{name}" for step in read if step in names & changed}


def with_arms(
    entries: Sequence[str], ablations: Mapping[str, Ablation], steps: Sequence[Step]
) -> list[str]:
    """`entries` of a list of players, plus an entry for each ablation of one of them."""
    more = []
    for name, ablation in ablations.items():
        if not ablation.steps:
            continue
        for entry in entries:
            if _is_of(entry, ablation):
                player = entry.partition("=")[2]
                new_player = follow(player, copies(steps, name, ablation))
                more.append(f"{ablation.arm}={new_player}")
    return [*entries, *more]


def _is_of(entry: Any, ablation: Ablation) -> bool:
    """Whether `entry`, of a list of players, is the arm that the ablation changes."""
    return isinstance(entry, str) and entry.startswith(f"{ablation.of}=")


def follow(value: Any, new: Mapping[str, str]) -> Any:
    """`value` with the steps in braces replaced by their new names."""
    if isinstance(value, str):
        for old, name in new.items():
            value = value.replace(f"{{{old}}}", f"{{{name}}}")
        return value
    if isinstance(value, list | tuple):
        return [follow(part, new) for part in value]
    return value


def parameter_changes(recipe: Recipe, parameters: Config) -> list[Change]:
    """What these parameters of a command change. Lists are split at commas."""
    changes: list[Change] = []
    for name, value in flat(parameters).items():
        if isinstance(value, tuple):
            parts = ",".join(value).split(",")
            value = [part.strip() for part in parts if part.strip()]
        if value not in (None, []):
            for owner, setting in recipe.parameters[name].targets:
                changes.append((owner, setting, value))
    return changes


def folder_label(value: Path | None, default: str) -> str:
    """Label of the folders for a path that a parameter has: its last part and a digest of the
    whole; "" if it is not given, or is the recipe's `default`.

    >>> folder_label(Path("/home/me/my repos"), "data/repos")
    'my-repos-158e9c'
    """
    if value is None or Path(value) == Path(default):
        return ""
    whole = Path(value).resolve()
    label = re.sub(r"[^A-Za-z0-9_-]+", "-", whole.name).strip("-")[:40] or "folder"
    return (
        f"{label}-{hashlib.sha256(str(whole).encode('utf-8', 'surrogateescape')).hexdigest()[:6]}"
    )
