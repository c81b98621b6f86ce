"""One file per command: `run(config, progress) → Report` and the class of its config. No printing, no math.

`STAGES` is the pipeline in order; the command line and `run` read it, and a module is imported when its stage is used.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from dataclasses import dataclass
from importlib.abc import InspectLoader
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reflectkit.config import Config

STAGES = {
    "new": "reflectkit.commands.new",
    "play": "reflectkit.commands.play",
    "filter-repo": "reflectkit.commands.filter_repo",
    "gen-task": "reflectkit.commands.gen_task",
    "filter-task": "reflectkit.commands.filter_task",
    "gen-trajectory": "reflectkit.commands.gen_trajectory",
    "split": "reflectkit.commands.split",
    "gen-sft": "reflectkit.commands.gen_sft",
    "sft": "reflectkit.commands.sft",
    "rlft": "reflectkit.commands.rlft",
    "evaluate": "reflectkit.commands.evaluate",
    "plot": "reflectkit.commands.plot",
    "view": "reflectkit.commands.view",
    "serve": "reflectkit.commands.serve",
    "export": "reflectkit.commands.export",
    "run": "reflectkit.commands.run",
}


@dataclass(frozen=True)
class Traits:
    """What a recipe must know of a stage; its module's `TRAITS` differ from these defaults."""

    writes_data: bool = False
    """Whether it writes into the data folder: a recipe's later steps wait for it."""
    trains: bool = False
    """Whether it trains a model."""
    makes_arm: bool = False
    """Whether its output belongs to one arm of a recipe, so that an ablation may change its settings."""
    output: str = ""
    """The setting with its output path, which two arms must not share."""
    arms: tuple[str, ...] = ()
    """Settings that list one entry for each arm, as NAME=…"""
    reports: bool = False
    """Whether its tables are part of a recipe's own report."""


def is_own(name: str) -> bool:
    """Whether `name` is the dotted name of a module, such as `research.pack`, and its package can be imported."""
    package, dot, _ = name.partition(".")
    return bool(dot) and package.isidentifier() and importlib.util.find_spec(package) is not None


def stage_module(name: str) -> Any:
    """The module of stage `name`: one of the table, or your own (`is_own`)."""
    return importlib.import_module(STAGES.get(name, name))


def traits(name: str) -> Traits:
    """What a recipe must know of stage `name`."""
    return getattr(stage_module(name), "TRAITS", Traits())


def config_class(name: str) -> type[Config]:
    """The class of the settings of stage `name`, which its `run` takes."""
    module = stage_module(name)
    kind: type[Config] = getattr(module, inspect.signature(module.run).parameters["config"].annotation)
    return kind


def summary(name: str) -> str:
    """What stage `name` is for: the first paragraph of its module's text, read without importing the module."""
    spec = importlib.util.find_spec(STAGES[name])
    assert spec is not None
    assert isinstance(spec.loader, InspectLoader)
    source = spec.loader.get_source(STAGES[name]) or ""
    text = " ".join(source.split('"""')[1].partition("\n\n")[0].split()).partition(": ")[2]
    return text[:1].upper() + text[1:]
