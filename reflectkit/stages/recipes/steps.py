"""The steps of a recipe, one after the other in this process, so that torch is imported once."""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reflectkit.core.config import Config, build
from reflectkit.core.console import Progress
from reflectkit.core.errors import ConfigError, ReflectkitError
from reflectkit.core.reports import Report
from reflectkit.core.runs import finished_as
from reflectkit.stages import config_class, stage_module
from reflectkit.stages.recipes.ablations import references


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
