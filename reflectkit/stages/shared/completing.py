"""What the shell may complete: the values of settings, by name, from tables and from what lies in the results folder.

This runs at each press of the tab key, so it is quick, and what cannot be read is left out.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reflectkit.agents.endpoints import KEYS
from reflectkit.core.config import leaves, literals
from reflectkit.core.errors import ReflectkitError
from reflectkit.core.folders import CHECKPOINT
from reflectkit.core.identity import read_record
from reflectkit.envs import env_class, env_names
from reflectkit.envs.base import BaseEnv
from reflectkit.models.facts import model_facts
from reflectkit.models.servers.settings import KEYS as SERVERS
from reflectkit.stages import STAGES, config_class
from reflectkit.stages.shared.players import SCRIPTED

MOST_FOLDERS = 5000  # that are looked into
DEEPEST = 6  # folders below the results folder
ACTS, COMMENTS = ("policy", "plain", None), ("reflection",)


@dataclass(frozen=True)
class Begun:
    """A command line that is being written. stage: its command. settings: those given so far, by name. word: what has
    been written of the value.
    """

    stage: str
    settings: Mapping[str, Any]
    word: str

    @property
    def results(self) -> Path:
        """The results folder."""
        return Path(self.settings.get("results_dir") or "results")


Names = Callable[[Begun], Iterable[tuple[str, str]]]
"""Gives values, each with a word about it or ""."""


def values(begun: Begun, setting: str) -> list[tuple[str, str]]:
    """The values that begin with `begun.word`; none for a setting whose values are not known."""
    source = VALUES.get(f"{begun.stage} {setting}") or VALUES.get(setting)
    found: Iterable[tuple[str, str]] = ()
    with contextlib.suppress(ReflectkitError, OSError, ValueError):
        if source is None:
            found = [(name, "") for name in _literals(begun, setting)] or _of_parameter(begun, setting)
        else:
            found = [(name, "") for name in _table(source)] if isinstance(source, str) else list(source(begun))
    return [(value, about) for value, about in found if value.startswith(begun.word) and value.isprintable()]


def _literals(begun: Begun, setting: str) -> list[str]:
    """The values of a setting that has only some."""
    if begun.stage not in STAGES:
        return []
    given = {name: value for name, value in begun.settings.items() if isinstance(value, str)}
    leaf = next((leaf for leaf in leaves(config_class(begun.stage), given) if leaf.name == setting), None)
    return [str(value) for value in literals(leaf.hint) if value] if leaf else []


def _of_parameter(begun: Begun, name: str) -> list[tuple[str, str]]:
    """The values of the setting that a recipe's parameter sets; of a list, behind those that are there already."""
    from reflectkit.stages.recipes.recipe import load_recipe

    if begun.stage != "run" or not begun.settings.get("recipe"):
        return []
    recipe = load_recipe(begun.settings["recipe"])
    parameter = recipe.resolved.get(name)
    if parameter is None:
        return []
    owner, setting = parameter.targets[0]
    step = next((one for one in recipe.steps if owner in (one["name"], one["stage"])), {"stage": ""})
    several = isinstance(parameter.default, list | tuple)
    before, comma, word = begun.word.rpartition(",") if several else ("", "", begun.word)
    offered = values(Begun(step["stage"], {**recipe.defaults, **step, "results_dir": begun.results}, word), setting)
    return [(f"{before}{comma}{value}", about) for value, about in offered if value not in before.split(",")]


def _table(place: str) -> Iterable[str]:
    """The names in a table, "module:NAME"."""
    module, _, name = place.partition(":")
    return tuple(getattr(importlib.import_module(module), name))


def _parts(begun: Begun) -> Iterator[tuple[str, str]]:
    from reflectkit.stages.benchmarks.gpu import names_of_parts

    for name in names_of_parts():
        yield name, ""


def _envs(begun: Begun) -> Iterator[tuple[str, str]]:
    for name in env_names():
        yield name, ""


def _levels(begun: Begun) -> Iterator[tuple[str, str]]:
    if env := begun.settings.get("env"):
        for level in env_class(env).levels:
            yield level, ""


def _recipes(begun: Begun) -> Iterator[tuple[str, str]]:
    from reflectkit.stages.recipes.recipe import recipe_names

    for name in recipe_names():
        yield name, ""


def _ablations(begun: Begun) -> Iterator[tuple[str, str]]:
    """Those of the recipe, behind the ones that are named already."""
    from reflectkit.stages.recipes.recipe import load_recipe

    before, comma, _ = begun.word.rpartition(",")
    if recipe := begun.settings.get("recipe"):
        for name, ablation in load_recipe(recipe).ablations.items():
            if name not in before.split(","):
                yield f"{before}{comma}{name}", ablation.description


def _teachers(begun: Begun) -> Iterator[tuple[str, str]]:
    yield "oracle", "needs no network"
    for kind in KEYS:
        yield f"{kind}:", "a chat model"


def _samplers(begun: Begun) -> Iterator[tuple[str, str]]:
    yield "local", "in this process"
    for kind in SERVERS:
        yield f"{kind}:http://", "a server"


def _policies(begun: Begun) -> Iterator[tuple[str, str]]:
    """Players by name; and models as NAME=CHECKPOINT, with the reflector that they were trained with."""
    name, equals, model = begun.word.partition("=")
    if not equals:
        env = env_class(begun.settings["env"]) if begun.settings.get("env") else BaseEnv
        own = {"play": ("person",), "evaluate": ("sft",)}.get(begun.stage, ())
        for player in (*own, *SCRIPTED, *env.baselines):
            yield player, ""
        for kind in KEYS if begun.stage == "evaluate" else ():
            yield f"{kind}:", "a chat model"
        for method in env.methods if begun.stage == "evaluate" else ():
            yield f"{method}:", "with any model"
    policy, plus, _ = model.partition("+")
    if plus:
        for checkpoint, _ in _checkpoints(begun.results, COMMENTS):
            yield f"{name}={policy}+{checkpoint}", "reflector"
        return
    for checkpoint, facts in _checkpoints(begun.results, ACTS):
        partner = facts.get("reflector")
        pair = f"{checkpoint}+{partner}" if isinstance(partner, str) and Path(partner).is_dir() else str(checkpoint)
        yield f"{name if equals else _safe(checkpoint.parent.name)}={pair}", str(facts.get("env") or "")


def _safe(name: str) -> str:
    """`name` as a player's name, of which "=" would be the end."""
    return name.replace("=", "-")


def _models(roles: tuple[str | None, ...]) -> Names:
    """Completes checkpoints of these roles."""

    def names(begun: Begun) -> Iterator[tuple[str, str]]:
        for checkpoint, facts in _checkpoints(begun.results, roles):
            yield str(checkpoint), str(facts.get("env") or "")

    return names


def _bases(begun: Begun) -> Iterator[tuple[str, str]]:
    from reflectkit.models.hub import PACKAGED, TINY

    for name in (*TINY, *PACKAGED):
        yield name, "built in"
    yield from _models((*ACTS, *COMMENTS))(begun)


def _runs(*stages: str, named: bool = False) -> Names:
    """Completes finished and unfinished runs of `stages`. named: as NAME=RUN."""

    def names(begun: Begun) -> Iterator[tuple[str, str]]:
        name, equals, _ = begun.word.partition("=")
        for folder in _folders(begun.results):
            stage = read_record(folder).get("stage")
            if stage in stages:
                start = (name if equals else _safe(folder.name)) + "=" if named else ""
                yield f"{start}{folder}", str(stage)

    return names


def _folders(results: Path) -> Iterator[Path]:
    """The folders below `results`, in order, without those inside checkpoints."""
    for number, (place, folders, _) in enumerate(os.walk(results)):
        folder = Path(place)
        if number >= MOST_FOLDERS:
            return
        yield folder
        deep = len(folder.relative_to(results).parts) >= DEEPEST or CHECKPOINT.fullmatch(folder.name)
        folders[:] = [] if deep else sorted((one for one in folders if not one.startswith(".")), key=_natural)


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """checkpoint-9 before checkpoint-10."""
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d{1,9})", name)]


def _checkpoints(results: Path, roles: tuple[str | None, ...]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The checkpoints of these roles, each with its facts."""
    for folder in _folders(results):
        if CHECKPOINT.fullmatch(folder.name):
            facts = model_facts(folder)
            if facts and facts.get("role") in roles:
                yield folder, facts


VALUES: dict[str, Names | str] = {
    "env": _envs,
    "level": _levels,
    "curriculum": _levels,
    "algo": "reflectkit.rl.algorithms:ALGORITHMS",
    "sampler": _samplers,
    "reflector_sampler": _samplers,
    "policy": _policies,
    "reflector": _models(COMMENTS),
    "reflect_load_dir": _models(COMMENTS),
    "load_dir": _models(ACTS),
    "export load_dir": _models((*ACTS, *COMMENTS)),
    "resume_from": _models(ACTS),
    "model": _bases,
    "teacher": _teachers,
    "only": _parts,
    "recipe": _recipes,
    "ablate": _ablations,
    "runs": _runs("rlft", named=True),
    "evals": _runs("evaluate"),
    "episodes": _runs("evaluate"),
    "paths": _runs("evaluate", "play"),
}
"""Who completes a setting, by its name, or by the command's and its own; or "module:NAME" of a table of its values."""
