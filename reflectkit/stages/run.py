"""run: a whole pipeline from a recipe, each step a stage of its own; finished steps are skipped, killed ones go on.

Steps that do not wait for each other run side by side, each in its own process. With `--seeds N` the pipeline runs N times
into folders of their own, and the evaluations and curves are put together.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from reflectkit.core.config import StageConfig, at_least, flag, from_mapping, option
from reflectkit.core.console import Progress
from reflectkit.core.errors import ConfigError, DataError, unknown_name
from reflectkit.core.jsonl import read_json, read_jsonl, write_json
from reflectkit.core.runs import Report, open_run
from reflectkit.stages import STAGES, comparing, plot
from reflectkit.stages.schedule import Job, perform

EXAMPLES = (
    "reflectkit run taxi-tiny",
    "reflectkit run taxi-tiny --seeds 3 --set reflect-rl.max_steps=200",
    "reflectkit run my_recipe.yaml --fast",
)
DATA_STAGES = ("filter-repo", "gen-task", "filter-task", "gen-trajectory", "split", "gen-sft")
WHOLE_RUN = frozenset({"data_dir", "results_dir", "seed", "force"})


@dataclass(frozen=True)
class Config(StageConfig):
    """Settings of run."""

    recipe: str = dataclasses.field(
        metadata={"help": "A packaged recipe's name, or a YAML file.", "argument": True}, kw_only=True
    )
    set: tuple[str, ...] = option((), help="STEP.SETTING=VALUE, over the recipe (repeat the flag); STEP may be a stage's name.")
    seeds: int = option(1, help="How many seeds to run, counting from --seed; more than one use folders seed0, seed1, …")
    jobs: int = option(2, help="Steps side by side.")
    fast: bool = option(False, help="The recipe's short variant, which shows that everything runs, not how well.")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("seeds", self.seeds, 1)
        at_least("jobs", self.jobs, 1)


@dataclass(frozen=True)
class Recipe:
    """A pipeline. description: one line. defaults: settings for every stage that has them. steps: `name`, `stage` and the
    stage's settings; `{name}` in a value is that step's checkpoint or run. fast: settings by step for `--fast`.
    """

    description: str
    steps: tuple[dict[str, Any], ...]
    defaults: dict[str, Any] = field(default_factory=dict)
    fast: dict[str, dict[str, Any]] = field(default_factory=dict)


def recipe_names() -> list[str]:
    """The packaged recipes."""
    return sorted(entry.name[: -len(".yaml")] for entry in _packaged().iterdir() if entry.name.endswith(".yaml"))


def load_recipe(name: str) -> Recipe:
    """The recipe that `name` (a packaged one, or a YAML file) holds.

    Raises
    ------
    UnknownNameError: no such recipe. DataError: not YAML, or of the wrong shape, with the line or field.
    """
    if name in recipe_names():
        path, text = Path(name), (_packaged() / f"{name}.yaml").read_text(encoding="utf-8")
    elif name.endswith((".yaml", ".yml")) or "/" in name:
        path = Path(name)
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise DataError(path, "no such recipe file") from None
        except UnicodeDecodeError:
            raise DataError(path, "not UTF-8; save it as UTF-8") from None
        except IsADirectoryError:
            raise DataError(path, "is a folder, expected a YAML file") from None
    else:
        raise unknown_name("recipe", name, recipe_names(), "(or give a .yaml file)")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise DataError(path, f"not YAML: {getattr(error, 'problem', error)}", line=mark.line + 1 if mark else None) from None
    return _checked(value, path)


def run(config: Config, progress: Progress) -> Report:
    """Run every step that is not finished. Raises what the stages raise, and UnknownNameError for a step or setting."""
    recipe = load_recipe(config.recipe)
    overrides = _overrides(config, recipe)
    with open_run("run", config) as current:
        jobs = [job for offset in range(config.seeds) for job in _jobs(config, recipe, overrides, config.seed + offset)]
        reports = perform(jobs, config.jobs, progress)
        finals = [report for name, report in reports.items() if report.stage in ("evaluate", "plot")]
        figures: dict[str, Any] = {"steps": {name: str(report.folder) for name, report in reports.items()}}
        if config.seeds == 1:
            current.tables += [table for report in finals for table in report.tables]
            return current.finish(figures, [path for report in finals for path in report.outputs])
        outputs = []
        evaluations = [report for report in finals if report.stage == "evaluate"]
        if evaluations:
            rows = pool(evaluations)
            write_json(current.folder / "eval.json", {"rows": rows})
            outputs.append(current.folder / "eval.json")
            current.tables.append(comparing.table(f"{config.recipe}, {config.seeds} seeds pooled", rows))
            current.tables += comparing.figures_tables(rows)
        if drawn_from := _all_curves(jobs, reports):
            picture = current.folder / "curves.png"
            drawn = plot.run(
                from_mapping(plot.Config, drawn_from | {"results_dir": config.results_dir, "out": picture}, "plot"), progress
            )
            current.tables += drawn.tables
            outputs.append(picture)
        return current.finish(figures, outputs)


def pool(evaluations: list[Report]) -> list[dict[str, Any]]:
    """Rows over several evaluations (seeds): success is the mean over distinct tasks of each task's mean over seeds."""
    parts: dict[tuple[str, str], list[dict[str, Any]]] = {}
    played: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for report in evaluations:
        for row in read_json(report.folder / "eval.json")["rows"]:
            parts.setdefault((row["name"], row["level"]), []).append(row)
        for _, episode in read_jsonl(report.folder / "episodes.jsonl"):
            played.setdefault((episode["name"], episode["level"]), []).append(episode)
    return [
        comparing.row(name, rows[0]["env"], level, played.get((name, level), []))
        | {"by_seed": [row["success"] for row in rows]}
        for (name, level), rows in parts.items()
    ]


def _packaged() -> Any:
    return resources.files("reflectkit") / "recipes"


def _checked(value: Any, path: Path) -> Recipe:
    from pydantic import TypeAdapter, ValidationError

    if not isinstance(value, dict):
        raise DataError(path, "expected a mapping with description and steps")
    if unknown := [key for key in value if key not in {item.name for item in dataclasses.fields(Recipe)}]:
        raise unknown_name(f"part of recipe {path}", str(unknown[0]), [item.name for item in dataclasses.fields(Recipe)])
    try:
        recipe = TypeAdapter(Recipe).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise DataError(path, first["msg"], field=".".join(map(str, first["loc"]))) from None
    names: list[str] = []
    for index, step in enumerate(recipe.steps):
        for key in ("name", "stage"):
            if not isinstance(step.get(key), str):
                raise DataError(path, "expected text", field=f"steps.{index}.{key}")
        if step["stage"] not in STAGES or step["stage"] == "run":
            raise unknown_name(f"stage in recipe {path}", step["stage"], [name for name in STAGES if name != "run"])
        if not re.fullmatch(r"[a-z0-9_-]+", step["name"]) or step["name"] in ("data", "results"):
            raise DataError(
                path, f"{step['name']!r} can't name a step; use small letters, not data or results", field=f"steps.{index}.name"
            )
        if step["name"] in names:
            raise DataError(path, f"the name {step['name']!r} is given twice", field=f"steps.{index}.name")
        for reference in sorted(_references(step)):
            if reference not in names:
                raise unknown_name(f"earlier step in recipe {path}", reference, names)
        names.append(step["name"])
    possible = {item.name for step in recipe.steps for item in dataclasses.fields(_config_class(step["stage"]))}
    for key in recipe.defaults:
        if key not in possible:
            raise unknown_name(f"setting in the defaults of recipe {path}", key, possible)
    for name in recipe.fast:
        if name not in names:
            raise unknown_name(f"step of recipe {path}", name, names)
    return recipe


def _config_class(stage: str) -> Any:
    return importlib.import_module(STAGES[stage]).Config


def _references(value: Any) -> set[str]:
    """The step names in braces anywhere in `value`."""
    if isinstance(value, str):
        try:
            found = {name for _, name, _, _ in string.Formatter().parse(value) if name is not None}
        except ValueError as error:
            raise ConfigError(f"recipe: {value!r}: {error}; braces stand for a step's name") from None
        return found - {"data", "results"}
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return {name for part in parts for name in _references(part)}


def _overrides(config: Config, recipe: Recipe) -> list[tuple[str, str, Any]]:
    """(step or stage, setting, value) of `--fast` and then each `--set`."""
    found = [(name, key, value) for name, values in recipe.fast.items() for key, value in values.items()] if config.fast else []
    names = {step["name"] for step in recipe.steps} | {step["stage"] for step in recipe.steps}
    for text in config.set:
        target, equals, raw = text.partition("=")
        name, dot, key = target.rpartition(".")
        if not (equals and dot and name and key):
            raise ConfigError(f"--set {text!r}: write STEP.SETTING=VALUE")
        if name not in names:
            raise unknown_name(f"step of recipe '{config.recipe}'", name, names)
        try:
            found.append((name, key.replace("-", "_"), yaml.safe_load(raw)))
        except yaml.YAMLError:
            raise ConfigError(f"--set {text!r}: the value is not YAML") from None
    return found


def _jobs(config: Config, recipe: Recipe, overrides: list[tuple[str, str, Any]], seed: int) -> list[Job]:
    prefix = f"seed{seed}/" if config.seeds > 1 else ""
    data, results = (folder / prefix if prefix else folder for folder in (config.data_dir, config.results_dir))
    jobs: list[Job] = []
    for step in recipe.steps:
        kind = _config_class(step["stage"])
        known = {item.name for item in dataclasses.fields(kind)}
        values: dict[str, Any] = {key: value for key, value in recipe.defaults.items() if key in known}
        values |= {key: value for key, value in step.items() if key not in ("name", "stage")}
        values |= {key: value for name, key, value in overrides if name in (step["name"], step["stage"])}
        if shared := sorted(WHOLE_RUN & values.keys()):
            raise ConfigError(f"step '{step['name']}': {shared[0]} is one for the whole run; set it with {flag(shared[0])}")
        values |= {"data_dir": data, "results_dir": results, "seed": seed, "force": config.force}
        for key in values:
            if key not in known:
                raise unknown_name(f"setting of step '{step['name']}' ({step['stage']})", key, known)
        earlier_data = {job.name for job in jobs if job.stage in DATA_STAGES}
        earlier = [job.name.removeprefix(prefix) for job in jobs if job.prefix == prefix]
        for reference in sorted(_references(values)):
            if reference not in earlier:
                raise unknown_name(f"step before '{step['name']}'", reference, earlier)
        after = {prefix + name for name in _references(values)} | earlier_data
        jobs.append(Job(prefix + step["name"], step["stage"], values, frozenset(after), prefix))
    return jobs


def _all_curves(jobs: list[Job], reports: Mapping[str, Report]) -> dict[str, Any]:
    """Settings of a plot of every curve in every seed's plot steps, as the first of them says; empty without one."""
    told = [read_json(reports[job.name].folder / "config.json")["settings"] for job in jobs if job.stage == "plot"]
    told = [settings for settings in told if settings["runs"]]
    if not told:
        return {}
    first = {name: told[0][name] for name in ("figure", "against", "smooth")}
    return first | {"runs": [text for settings in told for text in settings["runs"]]}
