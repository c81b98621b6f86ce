"""rlft: online RL with REINFORCE, PPO or GRPO, where a reflector comments on each state before the policy acts.

The reflector is frozen, or learns in turns with the policy (`--train-reflector`). Without one it is plain RL.
If killed and started again, it resumes from its last checkpoint. With `--processes N`, or under torchrun or `accelerate
launch`, several processes play and learn together, with the same result.
"""

from __future__ import annotations

import os
from contextlib import closing
from statistics import fmean
from typing import Any

from reflectkit.agents.scripted import AnyAction
from reflectkit.chat.config import key_of
from reflectkit.commands import Traits
from reflectkit.config import identifying, with_values
from reflectkit.console import Progress, Quiet, Report, figures_table
from reflectkit.data.problems import digest_of
from reflectkit.envs.setup import chat_settings
from reflectkit.errors import memory_explained
from reflectkit.models.checkpoint_metadata import best_checkpoint, model_facts
from reflectkit.models.hub import hub_options
from reflectkit.models.refs import ModelKind
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.runs.run import checkpoints, digest
from reflectkit.text import pluralize
from reflectkit.train.processes import check_launch, launch, shared_run, start_processes
from reflectkit.train.rl_config import LIMITS
from reflectkit.train.rl_config import RLConfig as RLConfig
from reflectkit.train.settings import require_trackers
from reflectkit.types import NAMED

EXAMPLES = (
    "reflectkit rlft --env corridor --model tiny",
    "reflectkit rlft --env taxi --policy results/taxi-tiny/policy/checkpoint-250 --reflector"
    " results/taxi-tiny/reflector/checkpoint-700",
    "reflectkit rlft --env taxi --policy results/taxi-tiny/plain/checkpoint-600 --algo ppo --curriculum pickup"
    " --curriculum full",
    "reflectkit rlft --env auto_explore --model gpt2-xl --lora-r 16 --quantize 8bit --algo grpo --group-size 8",
    "reflectkit rlft --env taxi --policy results/taxi-tiny/plain/checkpoint-600 --lora-r 16 --sampler"
    " vllm:http://localhost:8000 --max-staleness 1",
    "reflectkit rlft --env taxi --policy results/taxi-tiny/plain/checkpoint-600 --processes 2",
    "reflectkit rlft --env taxi --policy results/taxi-tiny/plain/checkpoint-600 --calibrate",
    "reflectkit rlft --env taxi --policy results/taxi-tiny/policy/checkpoint-250 --reflector"
    " results/taxi-tiny/reflector/checkpoint-700 --train-reflector 2",
)
TRAITS = Traits(trains=True, makes_arm=True)


def play_once(config: RLConfig, level: str) -> None:
    """A random player plays a problem of a user's own environment: what it returns wrongly is refused before torch is
    imported. An env that is in another process, or asks a chat model, is not started for this, nor is one in each of
    several processes.
    """
    setup, launched = config.setup, "RANK" in os.environ
    if launched or not setup.code_files or setup.kind.remote or chat_settings(setup.settings):
        return
    task = config.problems.tasks("train", level, "--curriculum")[0]
    rollout([Episode(task, config.run.seed)], setup.maker(level), AnyAction())


@memory_explained("lower --max-concurrency or --max-tokens-per-batch, or use --lora-r, --quantize or a smaller model")
def run(config: RLConfig, progress: Progress) -> Report:
    """Train and write `metrics.jsonl` and `checkpoint-<step>/`.

    Raises CheckpointError, DataError, DivergedError, and ConfigError if the model cannot read the prompts.
    """
    check_launch(config.processes)
    if config.processes > 1 and not config.checkpoints.plan:
        return launch("rlft", config, run)
    require_trackers(config.checkpoints.report_to)
    given = config.curriculum.levels or config.env.kind.levels[-1:]
    having = config.problems.levels_with("train", given, progress, "--curriculum")
    if len(having) < len(given):
        config = with_values(config, curriculum=tuple(having))
    if config.policy.start.kind is ModelKind.STORED:
        hub_options(config.policy.start.text)  # whether it can be fetched is known before torch is imported
    play_once(config, having[0])
    progress.news(f"rlft ({config.algo.name}): loading torch")
    from reflectkit.train import rl

    levels, validation = rl.levels_of(config), rl.validation_of(config, progress)
    held_out = rl.held_out_problems(config, validation)
    count = len({task.id for level in levels for task in level.tasks})
    problems = f"{pluralize(count, 'problem')} of {config.problems.source('train')}"
    if all(level.dealt for level in levels):
        problems += ", then of new seeds"
    if config.chat_reflector is not None:
        if config.chat.dry_run:
            return rl.comments_estimate(config, config.chat_reflector, levels, validation, progress)
        key_of(config.chat_reflector)
    processes = start_processes("rlft", config.policy.device, config.run.threads)
    rl.check_processes(config, processes)
    progress = progress if processes.first else Quiet()
    with processes.first_then_rest():
        config = rl.with_models(config, levels, validation, progress)
    for warning in rl.warnings_of(config):
        progress.news(f"warning: {warning}")
    rl.check_prompts(config, levels)
    if config.checkpoints.plan:
        return rl.plan(config, levels, processes, progress)
    inputs = rl.input_files(config, levels, validation)
    file = config.problems.file("train")
    settings = identifying(config) | {
        "problems": digest(file) if file else digest_of([task for level in levels for task in level.tasks])
    }
    with shared_run("rlft", config, inputs, processes, LIMITS) as current:
        if current.done:
            made = current.done.figures["steps"]
            if made > config.max_steps:
                more = f"more than --max-steps {config.max_steps}; another --name trains anew"
                progress.news(f"{current.folder} has made {pluralize(made, 'update')}, {more}")
            return current.done
        hardest = config.curriculum.stages(config.env.kind.levels[-1])[-1][-1]
        holds_out = config.problems.file("train") is not None or config.problems.holds_out(hardest)
        if not holds_out:
            why = "lists too few different problems"
            if config.problems.by_seed:
                why = "ignores the seed of reset, or begins in several ways with one seed"
            progress.news(f"env '{config.env.name}' {why}: its held-out problems are its training problems")
        elif held_out and {task.id for level in levels for task in level.tasks} & {task.id for task in held_out.tasks}:
            holds_out = False
            progress.news(f"level '{hardest}' of the split: its held-out problems are training problems, too")
        with rl.chat_reflector(config, current.folder, progress) as chat:
            trainer = rl.resumed_trainer(config, levels, current, settings, processes, progress, chat)
            resumed = f", from update {trainer.step + 1}" if trainer.step else ""
            progress.news(f"rlft ({config.algo.name}): {problems} → {current.folder}{resumed}")
            with closing(trainer):
                target, history = rl.train(config, trainer, validation, held_out, current.folder, settings, progress)
                fitted: dict[str, float] = {}
                if config.calibrate and (level := held_out or validation) is not None:
                    fitted = rl.calibrate(config, trainer, level, current.folder, settings, progress, chat)
        last = history[-max(1, len(history) // 10) :]
        figures: dict[str, Any] = {"steps": trainer.step, "episodes": trainer.counters["episodes"]}
        reported = all("success_rate" in row for row in history)
        for name in ("success_rate", "return") if reported else ("return",):
            figures[name] = fmean(row[name] for row in last) if last else None
        for name in dict.fromkeys(name for row in last for name in row.get(NAMED, ())):
            figures.setdefault(name, fmean(row.get(name, 0.0) for row in last))
        best = best_checkpoint(checkpoints(current.folder))
        if best is not None:
            figures["best_checkpoint"] = best.name
            figures["best_validation_return"] = model_facts(best)["validation_return"]
        figures |= fitted
        title = f"RL in {target} (rates: last tenth, training problems, sampled actions)"
        current.tables.append(figures_table(title, "value", figures))
        if held_out is not None and processes.first:
            held_out_table, figures["held_out"] = rl.held_out_table(
                config, current.folder, held_out, trainer.step, holds_out
            )
            current.tables.append(held_out_table)
            if rl.no_better_than_random(figures["held_out"]):
                advice = rl.advice(config, [row["return"] for row in history if row["return"] is not None])
                progress.news(f"not measurably better than a random player: try {advice}")
        asked = config.setup.asked(progress)
        if chat is not None:
            asked |= {f"reflector {chat.client.endpoint}": chat.client.usage}
        if asked:
            figures["asked"] = asked
            current.tables += [figures_table(f"Asked: {model}", "value", usage) for model, usage in asked.items()]
        if not processes.first:
            return Report("rlft", current.folder, figures, (best or target,))
        return current.finish(figures, [best or target, current.folder / "metrics.jsonl"])
