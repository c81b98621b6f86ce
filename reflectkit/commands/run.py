"""run: a whole pipeline from a recipe. Each step is a stage; finished steps are skipped and killed ones resume.

Each step is a run in the recipe's folder, e.g. results/taxi-tiny/reflect-rl; `--name` chooses another folder. A step
whose settings have changed does not replace the earlier run but is made next to it, as reflect-rl.2.

The steps run in order, in one process. With `--seeds N` the pipeline runs N times in separate folders, and the
evaluations and curves are pooled. With `--ablate`, steps are repeated with an ingredient changed, as the recipe says,
and the evaluation has an additional row for each ablation.

A recipe may have parameters, which are flags of this command: `reflectkit run RECIPE --help` and `reflectkit list` show
them.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_origin

from reflectkit.commands import config_class, plot, stage_module, traits
from reflectkit.config import (
    Config,
    Leaf,
    build,
    chosen_by,
    flag,
    flat,
    leaves,
    non_default,
    option,
    parse_yaml,
    with_values,
    without_foreign,
)
from reflectkit.console import Progress, Report
from reflectkit.data.episodes import no_share
from reflectkit.envs.setup import share_models
from reflectkit.errors import ConfigError, ReflectkitError, unknown_name
from reflectkit.evals import tables as eval_tables
from reflectkit.jsonl import read_json, read_jsonl, write_json
from reflectkit.models.hub import PACKAGED
from reflectkit.recipe import (
    DEFAULTS,
    MARK,
    RECORD,
    Ablation,
    Recipe,
    compared,
    folder_label,
    follow,
    leaves_of,
    load_recipe,
    names,
    overrides,
    recipe_names,
    references,
    settings_class,
    settings_of,
    with_arms,
    with_copies,
)
from reflectkit.runs.folders import RunConfig, check_run_name
from reflectkit.runs.run import finished_as, open_run

CHECK = "This was a quick check that every step runs. Its models are hardly trained, so their figures mean nothing."
DECIDED = ("name", "keep", "force", "threads", "device", "task", "count", "from_", "reflector")
"""Settings that a suggested command leaves at their defaults."""


def closing(
    in_full: Sequence[str],
    fast: bool,
    fast_shows: str,
    full_shows: str,
    jobs: Sequence[Job],
    reports: Mapping[str, Report],
) -> tuple[str, ...]:
    """The lines. in_full: the arguments of `run` for the full recipe. fast_shows: what the fast variant is; empty: a
    check. full_shows: what the full run takes and shows.

    jobs, reports: of the whole run; the commands are about the first evaluation.
    """
    lines: list[str] = []
    if fast:
        full = f" The full run, `{_program()} run {shlex.join(in_full)}`, {full_shows}." if full_shows else ""
        lines.append((fast_shows or CHECK) + full)
    job = next((job for job in jobs if job.stage == "evaluate"), None)
    if job is None:
        return tuple(lines)
    outputs = outputs_of(job, reports)
    values = {name: resolved(value, job, outputs) for name, value in job.values.items()}
    players = [entry for entry in values.get("policy", ()) if "=" in entry]
    lines += ["Next:", f"  {_command('view', {})} {shlex.quote(str(reports[job.name].folder))}"]
    if players:
        best = next((entry for entry in reversed(players) if "+" in entry.partition("=")[2]), players[-1])
        levels = values.get("level") or [""]
        lines.append(f"  {_command('play', values | {'policy': best, 'level': _last(levels)})}")
        lines.append(f"  {_command('evaluate', values | {'policy': ['oracle', best]})}")
    return tuple(lines)


def _last(levels: Sequence[str]) -> str:
    return "" if levels[-1] == "all" else levels[-1]


def _command(stage: str, values: Mapping[str, Any]) -> str:
    """The command of `stage` with those of `values` that are its settings and not its defaults."""
    parts = [_program(), stage]
    for item in leaves(config_class(stage), values):
        value = values.get(item.name)
        if item.name in DECIDED or value is None or str(value) == str(item.default) or value in ("", [], ()):
            continue
        name = flag(item.name)
        if isinstance(value, bool):
            parts.append(name if value else f"--no-{name[2:]}")
            continue
        for one in value if isinstance(value, list | tuple) else [value]:
            parts += [name, shlex.quote(str(one))]
    return " ".join(parts)


def _program() -> str:
    """How to call reflectkit in this shell: by name if that finds it, else by the path in its environment."""
    script = Path(sys.executable).parent / "reflectkit"
    if shutil.which("reflectkit") or not script.is_file():
        return "reflectkit"
    relative = os.path.relpath(script)
    return shlex.quote(str(script) if relative.startswith("..") else relative)


@dataclass(frozen=True)
class Job:
    """One step. values: its settings, in which `{step}` stands for that step's first output. prefix: put before a name
    in braces if several seeds run.
    """

    name: str
    stage: str
    values: Mapping[str, Any]
    prefix: str = ""


def check_settings(jobs: Sequence[Job]) -> None:
    """Raises ConfigError, naming the step, if one has a wrong setting. Outputs of earlier steps are stand-ins."""
    for job in jobs:
        name = job.name.removeprefix(job.prefix)
        try:
            _config(job, {step: job.values["results_dir"] / step for step in references(dict(job.values))})
        except ReflectkitError as error:
            place = f"step '{name}'"
            raise ConfigError(str(error) if place in str(error) else f"{place}: {error}") from None


def perform(jobs: Sequence[Job], progress: Progress) -> dict[str, Report]:
    """Run every job that is not finished; returns the reports by name. Raises what the stages raise."""
    reports: dict[str, Report] = {}
    for number, job in enumerate(jobs, 1):
        config = _config(job, outputs_of(job, reports))
        report = finished_as(job.stage, config)
        if report is None:
            progress.news(f"step {number} of {len(jobs)}: {job.name} ({job.stage})")
            report = stage_module(job.stage).run(config, progress)
            _forget()
        reports[job.name] = report
        progress.news(f"{job.name}: {'already finished' if report.skipped else 'done'} ({report.folder})")
    return reports


def outputs_of(job: Job, reports: Mapping[str, Report]) -> dict[str, Any]:
    """What `{step}` stands for in the settings of `job`: the step's first output, or its folder if it has none."""
    earlier = {name.removeprefix(job.prefix): one for name, one in reports.items() if name.startswith(job.prefix)}
    return {name: report.outputs[0] if report.outputs else report.folder for name, report in earlier.items()}


def resolved(value: Any, job: Job, outputs: Mapping[str, Any]) -> Any:
    """`value` with `{step}`, `{data}` and `{results}` filled in."""
    if isinstance(value, str):
        return value.format(**outputs, data=job.values["data_dir"], results=job.values["results_dir"])
    return [resolved(part, job, outputs) for part in value] if isinstance(value, list | tuple) else value


def _config(job: Job, outputs: Mapping[str, Any]) -> Config:
    values = {key: resolved(value, job, outputs) for key, value in job.values.items()}
    return build(config_class(job.stage), values, f"step '{job.name}'")


def _forget() -> None:
    """Drop what a step leaves in libraries: models in reference cycles, and accelerate's process-wide settings."""
    gc.collect()
    if "accelerate.state" in sys.modules:
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()


EXAMPLES = (
    "reflectkit run taxi-tiny",
    "reflectkit run taxi-tiny --seeds 3 --set reflect-rl.max_steps=200",
    "reflectkit run taxi-tiny --name taxi-long --set reflect-rl.max_steps=200",
    "reflectkit run taxi-tiny --ablate reflection,negatives,curriculum",
    "reflectkit run auto-explore-tiny --repo-dir ~/projects",
    "reflectkit run my_recipe.yaml --fast",
)
WHOLE_RUN = frozenset(RunConfig.model_fields)
TAKEN = ("config", "help", "context", "traceback")  # names of arguments of `run` that are no settings


def _parameters(recipe: str) -> type[Config]:
    """The settings that a recipe's parameters are. Raises what `load_recipe` raises, and ConfigError for a name that
    cannot be a flag.
    """
    parameters = load_recipe(recipe).resolved
    for name in parameters:
        if name in TAKEN or hasattr(Config, name):
            raise ConfigError(f"recipe '{recipe}': a parameter can't have the name {name!r}; `run` uses it already")
    return settings_class(recipe, parameters)


class PipelineConfig(Config):
    """Settings of run."""

    recipe: str = option(help="Name of a packaged recipe, or a YAML file.", argument=True)
    parameters: Any = chosen_by("recipe", settings=_parameters, names=recipe_names)
    set: tuple[str, ...] = option(
        (), help="STEP.SETTING=VALUE overrides the recipe (repeat the flag); STEP may also be a stage or defaults."
    )
    ablate: tuple[str, ...] = option(
        (), help="Ablations of the recipe to run as well, separated by commas (or repeat the flag)."
    )
    seeds: int = option(1, help="Number of seeds to run, starting at --seed; several use folders seed0, seed1, …", ge=1)
    fast: bool = option(
        False,
        help="Short variant of the recipe, with a check that every step runs or with what `reflectkit list` says.",
    )
    run: RunConfig = RunConfig()

    @property
    def ablated(self) -> list[str]:
        """The names in --ablate, each once."""
        return list(dict.fromkeys(name.strip() for text in self.ablate for name in text.split(",") if name.strip()))

    @property
    def folder(self) -> str:
        """The folder of all steps in --results-dir: --name, or the recipe's name, with the label of its own folders and
        -fast appended.
        """
        own = re.sub(r"[^A-Za-z0-9_.@-]+", "-", Path(self.recipe).stem).lstrip(".@-")[:40] or "recipe"
        return self.run.name or "-".join([own, *self._marks])

    @property
    def own_folders(self) -> tuple[str, Any]:
        """The parameter whose values have folders of their own, and its value here; ("", None) without one."""
        parameters = load_recipe(self.recipe).parameters
        name = next((name for name, parameter in parameters.items() if parameter.own_folders), "")
        return name, getattr(self.parameters, name, None)

    @property
    def label(self) -> str:
        """What tells these data from those of other values of a parameter with folders of its own; "" without one."""
        name, value = self.own_folders
        return folder_label(value, str(load_recipe(self.recipe).resolved[name].default), name) if name else ""

    @property
    def _marks(self) -> list[str]:
        """What is appended to the names of folders that other variants of the recipe must not share."""
        return [*([self.label] if self.label else []), *(["fast"] if self.fast else [])]

    @property
    def data_folder(self) -> Path:
        """The data folder of all steps: --data-dir, or a folder in it for --fast and for a label."""
        return self.run.data_dir / "-".join(self._marks)

    @property
    def in_full(self) -> list[str]:
        """The arguments of `run` for the full recipe with the same parameters and settings, in folders of its own."""
        arguments, values = [self.recipe], flat(self)
        for name in non_default(self):
            value = values[name]
            if name in ("recipe", "fast", "name", "force", "keep"):
                continue
            if isinstance(value, bool):
                arguments.append(flag(name) if value else f"--no-{flag(name)[2:]}")
                continue
            for part in value if isinstance(value, tuple) else [value]:
                arguments += [flag(name), str(part)]
        return arguments


def help_lines(choices: Mapping[str, Any]) -> Sequence[str]:
    """What the help shows above its examples: the ablations of the recipe, for --ablate."""
    name = choices.get("recipe")
    recipe = load_recipe(name) if isinstance(name, str) else None
    if recipe is None or not recipe.ablations:
        return ()
    lines = [f"  {key}: {one.description}" if one.description else f"  {key}" for key, one in recipe.ablations.items()]
    return (f"Ablations of {name}, for --ablate:", *lines)


def run(config: PipelineConfig, progress: Progress) -> Report:
    """Run every step that is not finished. Raises what the stages raise, and UnknownNameError for a step or setting."""
    recipe = load_recipe(config.recipe)
    jobs, ablations = planned(config)
    check_settings(jobs)
    if config.label:
        name = config.own_folders[0]
        progress.news(
            f"{flag(name)} {config.own_folders[1]} has folders of its own: {config.data_folder} and"
            f" {config.run.results_dir / config.folder}"
        )
    if any(str(value) in PACKAGED for job in jobs for value in job.values.values()):
        share_models(config.run.data_dir, dict.fromkeys(job.values["data_dir"] for job in jobs))
    with open_run("run", with_values(config, name=f"{config.folder}/{RECORD}", keep=True)) as current:
        reports = perform(jobs, progress)
        finals = [report for name, report in reports.items() if traits(report.stage).reports]
        figures: dict[str, Any] = {"steps": {name: str(report.folder) for name, report in reports.items()}}
        evaluations: dict[str, list[Report]] = {}  # by step, a report each seed
        for job in jobs:
            if job.stage == "evaluate":
                evaluations.setdefault(job.name.removeprefix(job.prefix), []).append(reports[job.name])
        ablated = []
        if ablations:
            effects = {step: compared(ablations, parts) for step, parts in evaluations.items()}
            figures["ablations"] = [{"step": step} | one for step, entries in effects.items() for one in entries]
            ablated = [
                eval_tables.ablations_table(entries, step, recipe.measure)
                for step, entries in effects.items()
                if entries
            ]
        if config.seeds == 1:
            if check := config.fast and not recipe.fast_shows:  # its differences and curves are noise
                finals = [report for report in finals if report.stage == "evaluate"]
            current.tables += [table for report in finals for table in report.tables[: 1 if check else None]]
            current.tables += [] if check else ablated
            report = current.finish(figures, [path for report in finals for path in report.outputs])
            lines = closing(config.in_full, config.fast, recipe.fast_shows, recipe.full_shows, jobs, reports)
            return dataclasses.replace(report, closing=lines)
        outputs = []
        by_step = {step: [_episodes(report) for report in parts] for step, parts in evaluations.items()}
        for number, (step, episodes) in enumerate(by_step.items()):
            rows = eval_tables.pooled(episodes)
            path = current.folder / (f"eval-{step}.json" if number else "eval.json")
            write_json(path, {"rows": rows})
            outputs.append(path)
            current.tables.append(eval_tables.table(f"{config.recipe}, {step}, {config.seeds} seeds pooled", rows))
            every = [episode for part in episodes for episode in part]
            current.tables += [*eval_tables.passes_table(rows), *eval_tables.aspect_tables(every)]
            current.tables += eval_tables.figures_tables(rows)
        current.tables += ablated
        if outside := no_share([one for parts in by_step.values() for part in parts for one in part], recipe.measure):
            raise ConfigError(
                f"recipe {config.recipe}: the evaluation {outside}; change 'measure', then start it again"
            )
        if apart := eval_tables.seed_differences(by_step, recipe.measure):
            outputs.append(current.folder / "differences.json")
            write_json(outputs[-1], apart)
            current.tables.append(eval_tables.seed_differences_table(apart, recipe.measure))
        if drawn_from := _all_curves(jobs, reports):
            picture = current.folder / "curves.png"
            drawn_from |= {
                "results_dir": config.run.results_dir,
                "name": f"{config.folder}/{RECORD}.curves",
                "keep": True,
            }
            drawn = plot.run(build(plot.PlotConfig, drawn_from | {"out": picture}, "plot"), progress)
            current.tables += drawn.tables
            outputs.append(picture)
        return current.finish(figures, outputs)


def planned(config: PipelineConfig) -> tuple[list[Job], dict[str, Ablation]]:
    """(every job, seed by seed in the recipe's order; the ablations in --ablate by name).

    Raises
    ------
    ConfigError, DataError: the recipe or a setting is wrong; see `load_recipe`.
    """
    recipe = load_recipe(config.recipe)
    if not config.fast:  # what is wrong in it is told now, and not when it is needed
        _jobs(config, recipe, {}, _of_fast(recipe), config.run.seed)
    ablations = _chosen_ablations(config, recipe)
    changes = _overrides(config, recipe, ablations)
    seeds = range(config.run.seed, config.run.seed + config.seeds)
    return [job for seed in seeds for job in _jobs(config, recipe, ablations, changes, seed)], ablations


def _episodes(evaluation: Report) -> list[Mapping[str, Any]]:
    """The episodes of an evaluation."""
    return [episode for _, episode in read_jsonl(evaluation.folder / "episodes.jsonl")]


def _chosen_ablations(config: PipelineConfig, recipe: Recipe) -> dict[str, Ablation]:
    """The ablations in --ablate, by name. Raises ConfigError."""
    if config.ablate and not config.ablated:
        raise ConfigError("--ablate is empty; `reflectkit list` shows the ablations of each recipe")
    if config.ablate and not recipe.ablations:
        raise ConfigError(f"--ablate: recipe '{config.recipe}' has no ablations; add some to it")
    for name in config.ablated:
        if name not in recipe.ablations:
            raise unknown_name(f"ablation of recipe '{config.recipe}'", name, recipe.ablations)
    return {name: recipe.ablations[name].named(name) for name in config.ablated}


def _overrides(config: PipelineConfig, recipe: Recipe, ablations: Mapping[str, Ablation]) -> list[tuple[str, str, Any]]:
    """(step or stage, setting, value) of `--fast`, parameters, `--set` and the ablations; the ablations' steps come
    last.
    """
    changes = [
        (f"{step}{MARK}{name}", key, value)
        for name, ablation in ablations.items()
        for step, settings in ablation.steps.items()
        for key, value in settings.items()
    ]
    changes += _of_fast(recipe) if config.fast else []
    changes += overrides(config.parameters, recipe.resolved)
    steps = with_copies(recipe.steps, ablations)
    targets = {step["name"] for step in steps} | {step["stage"] for step in steps}
    for text in config.set:
        target, equals, raw = text.partition("=")
        name, dot, key = target.rpartition(".")
        if not (equals and dot and name and key):
            raise ConfigError(f"--set {text!r}: write STEP.SETTING=VALUE")
        if name not in targets | {DEFAULTS}:
            raise unknown_name(f"step of recipe '{config.recipe}'", name, targets)
        if name == DEFAULTS and key.replace("-", "_") not in (possible := settings_of(recipe)):
            raise unknown_name(f"setting of recipe '{config.recipe}'", key, possible)
        changes.append((name, key.replace("-", "_"), parse_yaml(raw, f"--set {target}")))
    return sorted(changes, key=lambda entry: MARK in entry[0])


def _of_fast(recipe: Recipe) -> list[tuple[str, str, Any]]:
    """(step, setting, value) of `--fast`."""
    return [(name, key, value) for name, values in recipe.fast.items() for key, value in values.items()]


def _jobs(
    config: PipelineConfig,
    recipe: Recipe,
    ablations: Mapping[str, Ablation],
    changes: list[tuple[str, str, Any]],
    seed: int,
) -> list[Job]:
    prefix = f"seed{seed}/" if config.seeds > 1 else ""
    data, results = (folder / prefix if prefix else folder for folder in (config.data_folder, config.run.results_dir))
    jobs: list[Job] = []
    defaults = recipe.defaults | {key: value for name, key, value in changes if name == DEFAULTS}
    for step in with_copies(recipe.steps, ablations):
        base, _, ablation = step["name"].partition(MARK)
        values: dict[str, Any] = {key: value for key, value in step.items() if key not in ("name", "stage")}
        values |= {key: value for name, key, value in changes if name in (step["name"], base, step["stage"])}
        rows, about = leaves_of(step["stage"], defaults | values), traits(step["stage"])
        values = {key: value for key, value in defaults.items() if key in rows} | values
        values = {key: _as_list(value, rows.get(key)) for key, value in values.items()}
        if shared := sorted(WHOLE_RUN & values.keys()):
            raise ConfigError(
                f"step '{step['name']}': {shared[0]} applies to the whole run; set it with {flag(shared[0])}"
            )
        if ablation:
            renamed = names(recipe.steps, ablation, ablations[ablation])
            values = {key: follow(value, renamed) for key, value in values.items()}
            if about.output and values.get(about.output) in [None, *(job.values.get(about.output) for job in jobs)]:
                raise ConfigError(
                    f"step '{step['name']}' writes to the same folder as another; give it its own {about.output}"
                )
        else:
            values |= {
                key: with_arms(values[key], ablations, recipe.steps)
                for key in about.arms
                if isinstance(values.get(key), list)
            }
        values |= {"data_dir": data, "results_dir": results, "name": f"{config.folder}/{step['name']}", "keep": True}
        values |= {"seed": seed, "threads": config.run.threads, "force": config.run.force}
        check_run_name(values["name"])
        values = without_foreign(config_class(step["stage"]), values, f"step '{step['name']}' ({step['stage']})")
        earlier = [job.name.removeprefix(prefix) for job in jobs]
        for reference in sorted(references(values)):
            if reference not in earlier:
                raise unknown_name(f"step before '{step['name']}'", reference, earlier)
        jobs.append(Job(prefix + step["name"], step["stage"], values, prefix))
    played = [
        {entry.partition("=")[0] for entry in job.values.get("policy", ())} for job in jobs if job.stage == "evaluate"
    ]
    for name, one in ablations.items():
        if not any({one.of, one.arm} <= arms for arms in played):
            missing = next((arm for arm in (one.of, one.arm) if not any(arm in arms for arms in played)), one.arm)
            raise ConfigError(f"--ablate {name}: no evaluation in recipe '{config.recipe}' plays {missing!r}")
    return jobs


def _as_list(value: Any, leaf: Leaf | None) -> Any:
    """`value`, a single text for a list setting as a list."""
    return [value] if isinstance(value, str) and leaf is not None and get_origin(leaf.hint) is tuple else value


def _all_curves(jobs: list[Job], reports: Mapping[str, Report]) -> dict[str, Any]:
    """Settings of a plot of all curves in the plot steps of all seeds, in the form of the first; empty without one."""
    plots = [read_json(reports[job.name].folder / "config.json")["settings"] for job in jobs if job.stage == "plot"]
    plots = [settings for settings in plots if settings["runs"]]
    if not plots:
        return {}
    first = {name: plots[0][name] for name in ("figure", "against", "smooth", "reach") if name in plots[0]}
    return first | {"runs": [text for settings in plots for text in settings["runs"]]}
