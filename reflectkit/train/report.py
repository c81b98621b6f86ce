"""Report, the last of rlft's four steps: the figures and tables of a run, and what to try if it
learned nothing.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, variance
from typing import Any

from reflectkit.chat.config import Endpoint
from reflectkit.chat.players import ChatReflector
from reflectkit.config import command_words, non_default
from reflectkit.console import Progress, Report, figures_table
from reflectkit.envs.python_classes import class_in
from reflectkit.evals.estimate import SAMPLE_SIZE, PlannedCalls, comment_requests, estimate
from reflectkit.models.checkpoint_metadata import best_checkpoint, model_facts
from reflectkit.runs.run import Run, checkpoints
from reflectkit.train import held_out
from reflectkit.train.loop import FitState
from reflectkit.train.resolve import RLProblems, RLRun
from reflectkit.train.rl_config import WITHOUT_SFT, RLConfig
from reflectkit.types import NAMED


def report(
    state: FitState,
    current: Run,
    chat: ChatReflector | None,
) -> Report:
    """The report of a run that has ended; the first process writes it.

    chat: the chat model that commented, if one did.
    """
    run, trainer, is_first = state.run, state.trainer, state.trainer.processes.first

    # 1. Means over the last tenth of the updates, and the best checkpoint
    counts = {"steps": trainer.step, "episodes": trainer.counters["episodes"]}
    figures = counts | recent_figures(state.history)
    best = best_checkpoint(checkpoints(current.folder))
    if best is not None:
        figures["best_checkpoint"] = best.name
        figures["best_validation_return"] = model_facts(best)["validation_return"]
    figures |= state.figures
    title = f"RL in {state.checkpoint} (rates: last tenth, training problems, sampled actions)"
    current.tables.append(figures_table(title, "value", figures))

    # 2. What training did to held-out problems
    level = run.problems.held_out
    if level is not None and is_first:
        env, source = run.config.env.name, run.config.problems.source("validate")
        is_held_out = not run.problems.overlap
        table, outcomes = held_out.table(
            current.folder, level, env, trainer.step, source, is_held_out=is_held_out
        )
        current.tables.append(table)
        figures["held_out"] = outcomes
        gap = held_out.gap(outcomes, figures, run.config.policy.temperature)
        if gap and not run.problems.overlap:
            state.progress.news(gap)
        if shortfall := held_out.shortfall(outcomes):
            returns = [row["return"] for row in state.history if row["return"] is not None]
            state.progress.news(f"{shortfall}: try {advice(run.config, returns)}")

    # 3. What chat models were asked
    usage = run.config.setup.asked(state.progress)
    if chat is not None:
        usage |= {f"reflector {chat.client.endpoint}": chat.client.usage}
    if usage:
        figures["asked"] = usage
        current.tables += [
            figures_table(f"Asked: {model}", "value", numbers) for model, numbers in usage.items()
        ]

    output = best or state.checkpoint
    if not is_first:
        return Report("rlft", current.folder, figures, (output,))
    finished = current.finish(figures, [output, state.metrics])
    return replace(finished, closing=next_commands(run, current.folder))


def next_commands(run: RLRun, folder: Path) -> tuple[str, ...]:
    """What to type after a run in `folder`; nothing for a class that a Python program made."""
    config = run.config
    if class_in(config.env.name):
        return ()
    # 1. The settings of the run that others need, too
    shared = command_words(config.env, non_default(config.env))
    shared += command_words(config.rollout, non_default(config.rollout, "horizon"))
    shared += command_words(config.run, non_default(config.run, "data_dir"))

    # 2. Compare it, watch it, and see how it learned
    policy = str(folder)
    if run.reflector is not None and not config.distill.weight:
        learned = config.reflector_training.every > 0
        policy += f"+{folder if learned else run.reflector}"
    rival = ["--policy", "random"] if config.env.offers_choices else []
    commands = [
        ["evaluate", *shared, "--policy", policy, *rival],
        ["play", *shared, "--policy", policy, "--auto"],
        ["plot", "--runs", str(folder), "--out", str(folder / "curve.png")],
    ]
    return ("Next:", *(f"  reflectkit {shlex.join(words)}" for words in commands))


def recent_figures(history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means over the last tenth of the updates: of success, if each update has it, of the return,
    and of the env's own figures.
    """
    count = max(1, len(history) // 10)
    recent = history[-count:]
    # 1. What every environment has
    has_success = all("success_rate" in row for row in history)
    names = ["success_rate", "return"] if has_success else ["return"]
    figures = {name: fmean(row[name] for row in recent) if recent else None for name in names}
    # 2. What this one counts; an update without it has 0
    env_names = [name for row in recent for name in row.get(NAMED, ())]
    for name in dict.fromkeys(env_names):
        figures.setdefault(name, fmean(row.get(name, 0.0) for row in recent))
    return figures


def advice(config: RLConfig, returns: Sequence[float]) -> str:
    """What to try after a run that learned nothing, what helped most often in `benchmarks.learning`
    first.

    returns: the mean return of each update.
    """
    options = []
    # What helped most often comes first
    chooses = config.env.offers_choices
    best = WITHOUT_SFT["algo"]
    if config.policy.model and chooses and config.algo.name != best:
        options.append(f"--algo {best} instead of {config.algo.name}")
    if has_risen(returns):
        options.append(f"--max-steps {3 * config.max_steps}, as the return still rises")
    options += ["more --episodes", "demonstrations first"]
    return ", or ".join(options)


def has_risen(returns: Sequence[float]) -> bool:
    """Whether the last third is above the first by more than two standard errors of the difference.

    >>> has_risen([0.0, 0.2, 0.1, 0.4, 0.8, 0.9]), has_risen([0.0, 0.2, 0.1, 0.1, 0.0, 0.2])
    (True, False)
    """
    # A standard error takes two values
    count = len(returns) // 3
    if count < 2:
        return False
    first, last = returns[:count], returns[-count:]
    error = math.sqrt((variance(first) + variance(last)) / count)
    return fmean(last) - fmean(first) > 2 * error


def cost_of_comments(
    problems: RLProblems,
    endpoint: Endpoint,
    progress: Progress,
) -> Report:
    """What the comments of a chat model would cost (--dry-run)."""
    config, planned = problems.config, list[PlannedCalls]()

    def plan(
        level: str,
        tasks: Sequence[Any],
        episodes: float,
    ) -> None:
        planned.append(
            PlannedCalls(
                str(endpoint), level, tasks[:SAMPLE_SIZE], episodes, [endpoint], comment_requests
            )
        )

    # 1. Training, with equally many updates at each level
    episodes = config.max_steps * config.episodes / len(problems.levels)
    for names, level in zip(problems.stages, problems.levels, strict=True):
        plan(names[-1], level.tasks, episodes)

    # 2. Validation; the last update is followed by one
    validation = problems.validation
    if validation is not None and config.validate_steps:
        times = -(-config.max_steps // config.validate_steps)
        plan(validation.name, validation.tasks, times * len(validation.tasks))
    return estimate("rlft", config.setup, config.chat, planned, progress, config.run.seed)
