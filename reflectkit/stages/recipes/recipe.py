"""What a recipe is: its steps, ablations and parameters, read from YAML and checked."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

from reflectkit.core.config import Leaf, leaves
from reflectkit.core.errors import DataError, unknown_name
from reflectkit.core.jsonl import file_text
from reflectkit.core.yaml_text import parse_yaml
from reflectkit.stages import STAGES, config_class, is_own, traits
from reflectkit.stages.recipes.ablations import Ablation, references
from reflectkit.stages.recipes.parameters import DEFAULTS, Parameter, Resolved, resolve_parameters

NAME = re.compile(r"[a-z0-9_-]+")
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
