"""rlft: online RL with REINFORCE, PPO or GRPO, where a reflector comments on each state before the policy acts.

The reflector is frozen, or learns in turns with the policy (`--train-reflector`). Without one it is the "SFT + RL" arm.
If killed and started again, it resumes from its last checkpoint. With `--processes N`, or under torchrun or `accelerate
launch`, several processes play and learn together, with the same result.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from reflectkit.core.config import identifying, with_values
from reflectkit.core.console import Progress, Quiet
from reflectkit.core.errors import ConfigError, ReflectkitError
from reflectkit.core.identity import digest
from reflectkit.core.jsonl import write_jsonl
from reflectkit.core.memory import memory_explained
from reflectkit.core.reports import Report, figures_table
from reflectkit.core.text import counted
from reflectkit.data.trajectories import read_records
from reflectkit.models.hub import PACKAGED, hub_options
from reflectkit.stages import Traits
from reflectkit.stages.shared.environments import model_source
from reflectkit.stages.shared.players import (
    model_folders,
    newest_checkpoint,
    newest_name,
    place_of,
)
from reflectkit.stages.tuning.distributed import shared_run, start_processes
from reflectkit.stages.tuning.launching import check_launch, launched
from reflectkit.stages.tuning.rl_config import RLConfig as RLConfig
from reflectkit.stages.tuning.rlft_plan import plan_of
from reflectkit.stages.tuning.rlft_problems import check_prompts, levels_of, validation_of
from reflectkit.stages.tuning.rlft_records import history_of, keep_episodes, with_rows
from reflectkit.stages.tuning.rlft_resuming import resumed_trainer
from reflectkit.stages.tuning.trackers import require_trackers, tracking

if TYPE_CHECKING:
    from reflectkit.rl.loop import Level, Trainer

EXAMPLES = (
    "reflectkit rlft --env taxi --load-dir results/taxi-tiny/policy/checkpoint-250 --reflect-load-dir"
    " results/taxi-tiny/reflector/checkpoint-700",
    "reflectkit rlft --env taxi --load-dir results/taxi-tiny/plain/checkpoint-600 --algo ppo --curriculum pickup"
    " --curriculum full",
    "reflectkit rlft --env auto_explore --model gpt2-xl --lora-r 16 --quantize 8bit --algo grpo --group-size 8",
    "reflectkit rlft --env taxi --load-dir results/taxi-tiny/plain/checkpoint-600 --lora-r 16 --sampler"
    " vllm:http://localhost:8000 --max-staleness 1",
    "reflectkit rlft --env taxi --load-dir results/taxi-tiny/plain/checkpoint-600 --processes 2",
    "reflectkit rlft --env taxi --load-dir results/taxi-tiny/policy/checkpoint-250 --reflect-load-dir"
    " results/taxi-tiny/reflector/checkpoint-700 --train-reflector 2",
)
TRAITS = Traits(trains=True, makes_arm=True)


@memory_explained("lower --width or --max-tokens-per-batch, or use --lora-r, --quantize or a smaller model")
def run(config: RLConfig, progress: Progress) -> Report:
    """Train and write `metrics.jsonl` and `checkpoint-<step>/`.

    Raises CheckpointError, DataError, DivergedError, and ConfigError if the model cannot read the prompts.
    """
    check_launch(config.processes)
    if config.processes > 1 and not config.checkpoints.plan:
        return launched("rlft", config, config.processes, progress)
    require_trackers(config.checkpoints.report_to)
    source = config.task_file or config.setup.folder / "train.json"
    tasks = [record.task for record in read_records(source, config.setup.env_name)]
    if config.policy.model not in PACKAGED:
        hub_options(config.policy.start)  # whether it can be fetched is known before torch is imported
    progress.news(f"rlft ({config.algo.name}): loading torch for {counted(len(tasks), 'problem')} of {source}")
    levels = levels_of(config, tasks, source)
    processes = start_processes(config.policy.device, config.run.threads)
    if processes.sharded and config.reflector.share_base:
        raise ConfigError(
            "--share-base needs an unsharded base in each process; omit it, or use `accelerate launch --config_file"
            ' "$(reflectkit list --configs multi_gpu)"`'
        )
    if processes.kind == "DEEPSPEED" and config.algo.target_kl:
        raise ConfigError(
            "--target-kl cannot discard gradients under DeepSpeed; omit it, or use `accelerate launch --config_file"
            ' "$(reflectkit list --configs fsdp2)"`'
        )
    if processes.sharded and config.optim.optimizer != "adamw":
        raise ConfigError(f"--optimizer {config.optim.optimizer} needs the whole policy in each process; use adamw")
    progress = progress if processes.first else Quiet()
    with processes.first_then_rest():
        reflector = place_of(config.reflector.load_dir, config.run.data_dir, progress, reflects=True)
        model = model_source(
            newest_name(config.policy.model) if config.policy.model else "", config.run.data_dir, progress
        )
        policy = config.policy.load_dir and newest_checkpoint(config.policy.load_dir)
        config = with_values(config, model=model, load_dir=policy, reflect_load_dir=reflector)
    models = [path for path in (config.policy.load_dir, *model_folders([reflector]), config.resume_from) if path]
    if Path(config.policy.model).is_dir() and config.policy.model:
        models.append(Path(config.policy.model))
    check_prompts(config, levels)
    if config.checkpoints.plan:
        return plan_of(config, levels, processes, progress)
    held_out = [source.with_name("validate.json")] if config.validate_steps else []
    with shared_run(
        "rlft",
        config,
        [
            source,
            *held_out,
            *models,
            *config.setup.input_files(tasks),
            *config.algo.code_files,
            *config.sampler.comment_files(config.setup.folder),
        ],
        processes,
    ) as current:
        if current.done:
            return current.done
        settings = identifying(config) | {"problems": digest(source)}
        trainer = resumed_trainer(config, levels, current.folder, settings, processes, progress)
        progress.news(f"rlft ({config.algo.name}): {counted(len(tasks), 'problem')} of {source} → {current.folder}")
        try:
            target = _loop(config, trainer, validation_of(config, source), current.folder, settings, progress)
        except ReflectkitError as error:
            raise with_rows(error, current.folder, trainer) from None
        finally:
            trainer.close()
        history = history_of(current.folder / "metrics.jsonl", trainer.step, Quiet())
        last = history[-max(1, len(history) // 10) :]
        figures: dict[str, Any] = {
            "steps": config.max_steps,
            "episodes": trainer.counters["episodes"],
            "success_rate": fmean(row["success_rate"] for row in last) if last else None,
            "return": fmean(row["return"] for row in last) if last else None,
        }
        current.tables.append(figures_table(f"RL in {target} (rates: last tenth, training problems)", "value", figures))
        if asked := config.setup.asked(progress):
            figures["asked"] = asked
        if not processes.first:
            return Report("rlft", current.folder, figures, (target,))
        return current.finish(figures, [target, current.folder / "metrics.jsonl"])


def _loop(
    config: RLConfig,
    trainer: Trainer,
    validation: Level | None,
    folder: Path,
    settings: Mapping[str, Any],
    progress: Progress,
) -> Path:
    """Make the remaining updates, writing metrics and checkpoints. Returns the last checkpoint."""
    from reflectkit.rl import checkpoint

    processes, metrics = trainer.processes, folder / "metrics.jsonl"
    history = history_of(metrics, trainer.step, progress)
    lost = trainer.step - len(history)
    if config.resume_from is None and lost > 0:
        figures_lost = f"the figures of {counted(lost, 'update')} are lost"
        progress.news(f"{metrics}: {figures_lost}, though what they learned is not; --force trains again")
    if processes.first:
        write_jsonl(metrics, history)
    facts = {"env": config.env.name, "reflector": str(config.reflector.load_dir) if config.reflector.load_dir else None}
    target = folder / f"checkpoint-{trainer.step}"
    title = "Reflect-RL" if config.reflector.load_dir else "SFT + RL"
    with (
        tracking(config.checkpoints.report_to, folder, settings) as log,
        progress.bar(title, config.max_steps, trainer.step) as bar,
    ):
        while trainer.step < config.max_steps:
            figures = trainer.advance()
            if validation and (trainer.step % config.validate_steps == 0 or trainer.step == config.max_steps):
                figures |= trainer.validate(validation)
            history.append(figures)
            due = trainer.step % config.checkpoints.save_steps == 0 or trainer.step == config.max_steps
            if processes.first:
                write_jsonl(metrics, history)
            if due and config.keep_episodes and processes.first:
                keep_episodes(config, trainer, folder / "episodes.jsonl", progress)
            if due:
                target = checkpoint.save(folder, trainer, settings, facts, config.checkpoints.keep_checkpoints)
                processes.wait()
            log(figures, trainer.step)
            recent = [row["success_rate"] for row in history[-10:]]
            shown_figures = {"success": sum(recent) / len(recent)}
            if isinstance(entropy := figures.get("entropy"), float):  # missing if there was nothing to learn
                shown_figures["entropy"] = entropy
            bar.advance(1, **shown_figures)
    return target
