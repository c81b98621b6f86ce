"""Recipes: steps, ablations and parameters, read from YAML and checked."""

from __future__ import annotations

import dataclasses
import hashlib
import keyword
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar, Literal, get_origin

from pydantic import create_model

from reflectkit.commands import STAGES, config_class, is_own, traits
from reflectkit.config import REQUIRED, Config, Leaf, alternatives, as_plain, flat, leaves, option, parse_yaml
from reflectkit.console import Report
from reflectkit.errors import ConfigError, DataError, unknown_name
from reflectkit.evals import tables as eval_tables
from reflectkit.jsonl import file_text, read_jsonl

NAME = re.compile(r"[a-z0-9_-]+")
DEFAULTS = "defaults"  # as the step in STEP.SETTING: every step that has the setting
RECORD = "run"
"""The folder, next to those of the steps, with the overall results."""
RESERVED = ("data", "results", DEFAULTS, RECORD)
"""What cannot name a step."""


@dataclass(frozen=True)
class Recipe:
    """A pipeline. description: one line. defaults: settings for every stage that has them. steps: `name`, `stage` and
    the stage's settings; `{name}` in a value means that step's checkpoint or run. fast: settings by step for `--fast`.
    fast_shows: what that variant is and shows, in a sentence; empty if it only checks that every step runs. full_shows:
    what the full recipe takes and shows, as "takes … and shows …". measure: what `run --seeds` compares, success or one
    of the env's figures that is a share. ablations: by name, for `--ablate`. parameters: by name, flags of `run`.
    """

    description: str
    steps: tuple[dict[str, Any], ...]
    defaults: dict[str, Any] = field(default_factory=dict)
    fast: dict[str, dict[str, Any]] = field(default_factory=dict)
    fast_shows: str = ""
    full_shows: str = ""
    measure: str = "success"
    ablations: dict[str, Ablation] = field(default_factory=dict)
    parameters: dict[str, Parameter] = field(default_factory=dict)

    @cached_property
    def resolved(self) -> dict[str, Resolved]:
        """The parameters with what they set."""
        return _resolved(self, Path("recipe"))


def recipe_names() -> list[str]:
    """The packaged recipes."""
    return sorted(entry.name[: -len(".yaml")] for entry in _packaged().iterdir() if entry.name.endswith(".yaml"))


def load_recipe(name: str) -> Recipe:
    """The packaged recipe called `name`, or the recipe in YAML file `name`.

    Raises
    ------
    UnknownNameError: no such recipe. DataError: it is malformed; names the line or field.
    """
    if name in recipe_names():
        path, text = Path(name), (_packaged() / f"{name}.yaml").read_text(encoding="utf-8")
    elif name.endswith((".yaml", ".yml")) or "/" in name:
        path = Path(name)
        try:
            text = file_text(path)
        except FileNotFoundError:
            raise DataError(path, "no such recipe file") from None
        except UnicodeDecodeError:
            raise DataError(path, "not UTF-8; save it as UTF-8") from None
        except IsADirectoryError:
            raise DataError(path, "is a folder, expected a YAML file") from None
    else:
        raise unknown_name("recipe", name, recipe_names(), "(or give a .yaml file)")
    return _checked(parse_yaml(text, path), path)


def _packaged() -> Any:
    return resources.files("reflectkit") / "recipes"


def _checked(value: Any, path: Path) -> Recipe:
    from pydantic import TypeAdapter, ValidationError

    if not isinstance(value, dict):
        raise DataError(path, "expected a mapping with description and steps")
    if unknown := [key for key in value if key not in {item.name for item in dataclasses.fields(Recipe)}]:
        raise unknown_name(
            f"part of recipe {path}", str(unknown[0]), [item.name for item in dataclasses.fields(Recipe)]
        )
    try:
        recipe = TypeAdapter(Recipe).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise DataError(path, first["msg"], field=".".join(map(str, first["loc"]))) from None
    if not recipe.steps:
        raise DataError(path, "is empty; list the steps, each with a name and a stage", field="steps")
    every = {step.get("name") for step in recipe.steps}
    stages: dict[str, str] = {}
    for index, step in enumerate(recipe.steps):
        for key in ("name", "stage"):
            if not isinstance(step.get(key), str):
                raise DataError(path, "expected text", field=f"steps.{index}.{key}")
        if step["stage"] == "run" or not (step["stage"] in STAGES or is_own(step["stage"])):
            raise unknown_name(f"stage in recipe {path}", step["stage"], [name for name in STAGES if name != "run"])
        if not NAME.fullmatch(step["name"]) or step["name"] in RESERVED:
            raise DataError(
                path,
                f"{step['name']!r} can't name a step; use lower-case letters, and none of {', '.join(RESERVED)}",
                field=f"steps.{index}.name",
            )
        if step["name"] in stages:
            raise DataError(path, f"the name {step['name']!r} is given twice", field=f"steps.{index}.name")
        for reference in sorted(references(step)):
            if reference not in stages and reference in every:
                text = f"reads {{{reference}}}, which does not come before it; move that step up"
                raise DataError(path, text, field=f"steps.{index}")
            if reference not in stages:
                raise unknown_name(f"earlier step in recipe {path}", reference, stages)
        stages[step["name"]] = step["stage"]
    possible = settings_of(recipe)
    for key in recipe.defaults:
        if key not in possible:
            raise unknown_name(f"setting in the defaults of recipe {path}", key, possible)
    for name in [*recipe.fast, *(step for ablation in recipe.ablations.values() for step in ablation.steps)]:
        if name not in stages:
            raise unknown_name(f"step of recipe {path}", name, stages)
    for name, ablation in recipe.ablations.items():
        if not NAME.fullmatch(name):
            raise DataError(path, f"{name!r} can't name an ablation; use lower-case letters", field="ablations")
        for changed in ablation.steps:
            if not traits(stages[changed]).makes_arm:
                makers = [stage for stage in STAGES if traits(stage).makes_arm]
                raise DataError(
                    path,
                    f"an ablation changes steps of {', '.join(makers)}, not '{changed}'",
                    field=f"ablations.{name}.steps",
                )
    _resolved(recipe, path)
    return recipe


def _resolved(recipe: Recipe, path: Path) -> dict[str, Resolved]:
    """The parameters of `recipe`, checked."""
    steps = []
    for step in recipe.steps if recipe.parameters else ():
        values = recipe.defaults | {key: value for key, value in step.items() if key not in ("name", "stage")}
        steps.append((step["name"], step["stage"], leaves_of(step["stage"], values), values))
    return resolve_parameters(recipe.parameters, steps, path)


def settings_of(recipe: Recipe) -> set[str]:
    """The settings of the stages of `recipe`."""
    return {name for step in recipe.steps for name in leaves_of(step["stage"], recipe.defaults | step)}


def leaves_of(stage: str, values: Mapping[str, Any]) -> dict[str, Leaf]:
    """The settings of `stage` by name, with those that the choices in `values` bring."""
    return {leaf.name: leaf for leaf in leaves(config_class(stage), values)}


MARK = "@"

Step = dict[str, Any]


@dataclass(frozen=True)
class Ablation:
    """of: the evaluated arm to compare with. arm: the arm with the change; without `steps` one that the recipe already
    has, otherwise a new one, by default "OF without NAME". steps: the settings that differ, by step. description: one
    line.
    """

    of: str
    arm: str = ""
    steps: dict[str, dict[str, Any]] = field(default_factory=dict)
    description: str = ""
    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    def named(self, name: str) -> Ablation:
        """This ablation with its arm's name filled in."""
        return self if self.arm else replace(self, arm=f"{self.of} without {name}")


def with_copies(steps: Sequence[Step], ablations: Mapping[str, Ablation]) -> list[Step]:
    """`steps`, each followed by its copies `step@ablation`: an ablation copies the steps that it changes and those
    between them and its arm.
    """
    renamed = {name: names(steps, name, ablation) for name, ablation in ablations.items()}
    return [
        copy
        for step in steps
        for copy in (step, *(step | {"name": new[step["name"]]} for new in renamed.values() if step["name"] in new))
    ]


def names(steps: Sequence[Step], name: str, ablation: Ablation) -> dict[str, str]:
    """The name of the copy of each step that ablation `name` copies."""
    read = {step["name"]: references(step | ablation.steps.get(step["name"], {})) for step in steps}
    changed: set[str] = set()
    for step in steps:
        if step["name"] in ablation.steps or (traits(step["stage"]).makes_arm and read[step["name"]] & changed):
            changed.add(step["name"])
    entries = [
        entry
        for step in steps
        for key in traits(step["stage"]).arms
        for entry in step.get(key, ())
        if _is_of(entry, ablation)
    ]
    needed = set(ablation.steps) | references(entries)
    for step in reversed(steps):
        if step["name"] in needed & changed:
            needed |= read[step["name"]]
    return {step: f"{step}{MARK}{name}" for step in read if step in needed & changed}


def with_arms(entries: Sequence[str], ablations: Mapping[str, Ablation], steps: Sequence[Step]) -> list[str]:
    """`entries` of a list of players, plus an entry for each ablation of one of them."""
    more = [
        f"{ablation.arm}={follow(entry.partition('=')[2], names(steps, name, ablation))}"
        for name, ablation in ablations.items()
        for entry in entries
        if ablation.steps and _is_of(entry, ablation)
    ]
    return [*entries, *more]


def follow(value: Any, new: Mapping[str, str]) -> Any:
    """`value` with the steps in braces replaced by their new names."""
    if isinstance(value, str):
        for old, name in new.items():
            value = value.replace(f"{{{old}}}", f"{{{name}}}")
        return value
    return [follow(part, new) for part in value] if isinstance(value, list | tuple) else value


def references(value: Any) -> set[str]:
    """The step names in braces anywhere in `value`. Raises ConfigError."""
    if isinstance(value, str):
        try:
            parsed = [part for part in string.Formatter().parse(value) if part[1] is not None]
        except ValueError as error:
            raise ConfigError(f"recipe: {value!r}: {error}; write a step's name in the braces") from None
        if any(form or conversion for _, _, form, conversion in parsed):
            raise ConfigError(f"recipe: {value!r}: write only a step's name in the braces, without ':' or '!'")
        return {str(name) for _, name, _, _ in parsed} - {"data", "results"}
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return {name for part in parts for name in references(part)}


def compared(ablations: Mapping[str, Ablation], evaluations: Sequence[Report]) -> list[dict[str, Any]]:
    """Differences, original arm minus ablation, over `evaluations` (seeds); see `differences_over_seeds`."""
    seeds = [[dict(episode) for _, episode in read_jsonl(one.folder / "episodes.jsonl")] for one in evaluations]
    effects = []
    for name, ablation in ablations.items():
        arms = (ablation.of, ablation.arm)
        pairs = [[episode for arm in arms for episode in seed if episode["name"] == arm] for seed in seeds]
        effects += [{"ablation": name} | one for one in eval_tables.differences_over_seeds(pairs)]
    return effects


def _is_of(entry: Any, ablation: Ablation) -> bool:
    return isinstance(entry, str) and entry.startswith(f"{ablation.of}=")


PARAMETER = re.compile(r"[a-z][a-z0-9_]*")
TYPES = (str, int, float, bool, Path, tuple[str, ...])


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
