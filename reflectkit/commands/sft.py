"""sft: supervised fine-tuning of one player with TRL's SFTTrainer, with the loss on the completions
only.

Rows are tokenised by the same functions as prompts at inference; a row that is too long is an error
rather than cut off. A killed run resumes from its last trainer checkpoint with valid checksums.
With `--processes N`, or under torchrun or `accelerate launch`, several processes train together,
with the same result. With `--engine`, a training service holds the weights.
"""

from __future__ import annotations

import os

from reflectkit.commands import Traits
from reflectkit.console import Progress, Quiet, Report
from reflectkit.errors import memory_explained
from reflectkit.models.hub import silence_libraries
from reflectkit.runs.run import Run
from reflectkit.text import pluralize
from reflectkit.train.processes import (
    Processes,
    check_launch,
    launch,
    shared_run,
    start_processes,
)
from reflectkit.train.settings import require_trackers
from reflectkit.train.sft.config import SFTConfig as SFTConfig
from reflectkit.train.sft.resolve import SFTRun, resolve, resolve_rows

EXAMPLES = (
    "reflectkit sft --env taxi --role reflection --max-steps 700",
    "reflectkit sft --env taxi --role reflection --typed",
    "reflectkit sft --env taxi --role policy --model results/taxi-tiny/reflector/checkpoint-700"
    " --task-file data/taxi/both/sft_policy.jsonl",
    "reflectkit sft --env taxi --role plain --model smollm2-135m --lora-r 16 --learning-rate 5e-4"
    " --max-length 512",
    "reflectkit sft --env taxi --role policy --model gpt2-xl --lora-r 16 --learning-rate 2e-4"
    " --dtype bfloat16",
    "reflectkit sft --env taxi --role policy --model Qwen/Qwen3-8B --lora-r 16"
    " --engine tinker:http://localhost:8123",
)
TRAITS = Traits(trains=True, makes_arm=True)


CONFIG = SFTConfig


def run(config: SFTConfig, progress: Progress) -> Report:
    """Train and write `checkpoint-<steps>/`.

    Raises
    ------
    DataError: a row is too long. CheckpointError: the model cannot be loaded. DivergedError: a loss
    or a weight became NaN or infinite. ReflectkitError: out of memory.
    """
    check_launch(config.processes)
    if config.processes > 1 and not config.checkpoints.plan:
        return launch("sft", config, run)

    # 1. Resolve: mistakes are told before torch is imported
    require_trackers(config.checkpoints.report_to)
    rows = resolve_rows(config)
    is_launched = "RANK" in os.environ  # by torchrun, accelerate or `launch`
    processes = Processes()
    if is_launched:
        processes = start_processes("sft", config.device, config.run.threads)
    progress = progress if processes.first else Quiet()
    sft_run = resolve(config, rows, processes, progress)
    if config.checkpoints.plan:
        return _plan(sft_run, progress)

    with shared_run("sft", sft_run.config, list(sft_run.inputs), processes) as current:
        if current.done:
            return current.done
        count = pluralize(len(rows.every), "row")
        progress.news(f"sft ({config.role}): {count} of {rows.source} → {current.folder}")
        if sft_run.start is not None:
            sft_run.start.require()
        with memory_explained(config.memory_advice):
            return _train(sft_run, current, processes, progress)


def _plan(sft_run: SFTRun, progress: Progress) -> Report:
    """What training takes (--plan): memory here, or tokens of a training service."""
    silence_libraries()  # some libraries warn when they are imported
    from reflectkit.train.sft import build, on_service

    if sft_run.config.engine.remote:
        return on_service.plan(sft_run)
    return build.plan(sft_run, progress)


def _train(sft_run: SFTRun, current: Run, processes: Processes, progress: Progress) -> Report:
    """The three steps after `resolve`, here or on a training service."""
    silence_libraries()  # some libraries warn when they are imported
    from reflectkit.train.sft import build, fit, on_service, report

    if sft_run.config.engine.remote:
        on_engine = on_service.build(sft_run, current.folder, progress)
        return report.report(on_service.fit(on_engine, progress), current)
    # 2. Build
    training = build.build(sft_run, current.folder, processes, progress)
    # 3. Fit
    result = fit.fit(training, progress)
    # 4. Report
    return report.report(result, current)
