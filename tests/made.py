"""Which files commands and recipes make, told from their settings alone: nothing runs. `test_run` compares with a
run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reflectkit.cli.command import stage_command
from reflectkit.commands import config_class
from reflectkit.commands.run import Job, PipelineConfig, outputs_of, planned, resolved
from reflectkit.config import build
from reflectkit.data.sft_rows import FILES
from reflectkit.envs.setup import RECORDS
from reflectkit.recipe import load_recipe

EVALUATED = ("eval.json", "eval.md", "eval.csv", "episodes.jsonl")
WITHOUT_RUN = ("view",)


def made_by(stage: str, values: dict[str, Any]) -> list[str]:
    """The paths that `stage` makes with these settings, its first output first."""
    config = build(config_class(stage), values, stage)
    folder = config.run.results_dir / (config.run.name or f"<number>_{stage}")
    outputs: list[Path] = []
    if stage in ("sft", "rlft"):
        outputs = [folder / f"checkpoint-{config.max_steps}", folder / "metrics.jsonl"]
    elif stage == "evaluate":
        outputs = [folder / name for name in EVALUATED]
    elif stage == "plot":
        outputs = [config.out or folder / ("curves.png" if config.runs else "bars.png")]
    elif stage == "play":
        outputs = [folder / "episodes.jsonl"]
    elif stage == "export":
        outputs = [config.out_dir]
    elif stage == "view" and config.paths:
        outputs = [config.out or (config.paths[0] / ("inspect" if config.inspect else "view.html"))]
    elif stage == "filter-repo":
        outputs = [config.setup.repos_folder]
    elif stage == "gen-task":
        explores = config.setup.env_name == "auto_explore"
        outputs = [config.setup.env_folder / "tasks"] if explores else [config.setup.folder / "data.json"]
        outputs += [config.setup.env_folder / "games"] if config.setup.env_name == "alfworld" else []
        outputs += [config.setup.folder / "valid.json"] if getattr(config.settings, "games_dir", None) else []
    elif stage == "filter-task":
        outputs = [config.setup.folder / "data.json"]
    elif stage == "gen-trajectory":
        source = config.task_file or config.setup.folder / "train.json"
        outputs = [
            source.with_name(f"{source.stem}_visited.json") if config.states_of else config.setup.folder / RECORDS
        ]
    elif stage == "split":
        names = ("train", "validate", "test", *(["unseen"] if config.unseen_rooms else []))
        outputs = [config.setup.folder / f"{name}.json" for name in names]
    elif stage == "gen-sft":
        outputs = [(config.out_dir or config.setup.folder) / f"{name}.jsonl" for name in FILES]
    run = [] if stage in WITHOUT_RUN else [folder, folder / "config.json", folder / "report.json"]
    return [str(path) for path in [*outputs, *run]]


def made_by_run(recipe: str, **settings: Any) -> dict[str, list[str]]:
    """The paths that each step of a recipe makes, all its ablations included, by the step's name; and those of the
    whole.
    """
    loaded = load_recipe(recipe)
    config = PipelineConfig.from_flat(recipe=recipe, ablate=tuple(loaded.ablations), **settings)
    made: dict[str, list[str]] = {}
    for job in planned(config)[0]:
        made[job.name] = made_by(job.stage, _with_places(job, made))
    record = config.run.results_dir / config.folder / "run"
    pooled = ["eval.json", "differences.json", "curves.png"] if config.seeds > 1 else []
    return made | {"run": [str(record / name) for name in ("config.json", "report.json", *pooled)]}


def _with_places(job: Job, made: dict[str, list[str]]) -> dict[str, Any]:
    class Made:
        def __init__(self, paths: Sequence[str]) -> None:
            self.outputs = paths

    reports: Any = {name: Made(paths) for name, paths in made.items()}
    return {key: resolved(value, job, outputs_of(job, reports)) for key, value in job.values.items()}


def made_by_command(words: list[str]) -> list[str]:
    """The paths that `reflectkit WORDS` makes. Its flags and values are checked as the command line does it."""
    stage = words[0]
    if stage == "run" and any(word.endswith(".yaml") for word in words):
        return []  # a file of one's own, whose parameters are not known
    context = stage_command(stage, words[1:]).make_context(stage, words[1:])
    given = {
        name: value
        for name, value in context.params.items()
        if name != "config" and getattr(context.get_parameter_source(name), "name", "") != "DEFAULT"
    }
    if stage != "run":
        return made_by(stage, given)
    given = {
        name: tuple(value) if isinstance(value, list) else value for name, value in given.items() if name != "ablate"
    }
    return [path for paths in made_by_run(**given).values() for path in paths]
