"""Ablations of a recipe: steps that are repeated with an ingredient changed, for comparison with the original arm."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from reflectkit.core.errors import ConfigError
from reflectkit.core.jsonl import read_jsonl
from reflectkit.core.reports import Report
from reflectkit.stages import traits
from reflectkit.stages.shared import eval_tables

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
