"""rlft: online RL with REINFORCE, PPO or GRPO, where a reflector comments on each state before the policy acts.

The reflector is frozen, or learns in turns with the policy (`--train-reflector`). Without one it is the "SFT + RL" arm.
If killed and started again, it resumes from its last checkpoint. With `--processes N`, or under torchrun or `accelerate
launch`, several processes play and learn together, with the same result.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from reflectkit.agents.players import (
    model_folders,
    newest_checkpoint,
    newest_name,
    resolve_model_path,
    trained_elsewhere,
    trained_with_comments,
)
from reflectkit.chat.client import ChatClient
from reflectkit.chat.config import report_damage
from reflectkit.chat.endpoints import Endpoint, key_of
from reflectkit.chat.players import ChatReflector
from reflectkit.commands import Traits
from reflectkit.config import identifying, with_values
from reflectkit.console import Progress, Quiet, Report, figures_table
from reflectkit.data.trajectories import read_records
from reflectkit.errors import ConfigError, ReflectkitError, memory_explained
from reflectkit.evals.estimate import estimate_comments
from reflectkit.jsonl import append, rewrite
from reflectkit.models.checkpoint_metadata import model_facts
from reflectkit.models.hub import PACKAGED, hub_options
from reflectkit.models.packaged import model_source
from reflectkit.runs.identity import digest
from reflectkit.text import pluralize
from reflectkit.train.estimate import plan_report
from reflectkit.train.launching import check_launch, launch, shared_run, start_processes
from reflectkit.train.rl import (
    build_trainer,
    check_prompts,
    keep_episodes,
    levels_of,
    read_metrics,
    restore_episodes,
    resumed_trainer,
    validation_of,
    with_rows,
)
from reflectkit.train.rl_config import RLConfig as RLConfig
from reflectkit.train.trackers import require_trackers, tracking

if TYPE_CHECKING:
    from reflectkit.train.loop import Level, Trainer
    from reflectkit.train.processes import Processes

EXAMPLES = (
    "reflectkit rlft --env taxi --policy results/taxi-tiny/policy/checkpoint-250 --reflector"
    " results/taxi-tiny/reflector/checkpoint-700",
    "reflectkit rlft --env taxi --policy results/taxi-tiny/plain/checkpoint-600 --algo ppo --curriculum pickup"
    " --curriculum full",
    "reflectkit rlft --env auto_explore --model gpt2-xl --lora-r 16 --quantize 8bit --algo grpo --group-size 8",
    "reflectkit rlft --env taxi --policy results/taxi-tiny/plain/checkpoint-600 --lora-r 16 --sampler"
    " vllm:http://localhost:8000 --max-staleness 1",
    "reflectkit rlft --env taxi --policy results/taxi-tiny/plain/checkpoint-600 --processes 2",
    "reflectkit rlft --env taxi --policy results/taxi-tiny/policy/checkpoint-250 --reflector"
    " results/taxi-tiny/reflector/checkpoint-700 --train-reflector 2",
)
TRAITS = Traits(trains=True, makes_arm=True)
JOURNAL = "reflector.jsonl"
"""The answers of a chat model that comments, in the run's folder."""


@memory_explained("lower --max-concurrency or --max-tokens-per-batch, or use --lora-r, --quantize or a smaller model")
def run(config: RLConfig, progress: Progress) -> Report:
    """Train and write `metrics.jsonl` and `checkpoint-<step>/`.

    Raises CheckpointError, DataError, DivergedError, and ConfigError if the model cannot read the prompts.
    """
    check_launch(config.processes)
    if config.processes > 1 and not config.checkpoints.plan:
        started = time.time()
        launch("rlft", config, config.processes)
        report = run(with_values(config, processes=1, force=False), Quiet())  # the run that they have finished
        return replace(report, skipped=(report.folder / "report.json").stat().st_mtime < started)
    require_trackers(config.checkpoints.report_to)
    source = config.task_file or config.setup.folder / "train.json"
    tasks = [record.task for record in read_records(source, config.setup.env_name)]
    if config.policy.model not in PACKAGED:
        hub_options(config.policy.start)  # whether it can be fetched is known before torch is imported
    progress.news(f"rlft ({config.algo.name}): loading torch for {pluralize(len(tasks), 'problem')} of {source}")
    levels = levels_of(config, tasks, source)
    if config.chat_reflector is not None:
        if config.chat.dry_run:
            return _estimate(config, config.chat_reflector, levels, validation_of(config, source), progress)
        key_of(config.chat_reflector)
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
        reflector = resolve_model_path(config.reflector.load_dir, config.run.data_dir, progress, reflects=True)
        model = model_source(
            newest_name(config.policy.model) if config.policy.model else "", config.run.data_dir, progress
        )
        policy = config.policy.load_dir and newest_checkpoint(config.policy.load_dir)
        config = with_values(config, model=model, policy=policy, reflector=reflector)
    for text in _warnings(config):
        progress.news(f"warning: {text}")
    models = [path for path in (config.policy.load_dir, *model_folders([reflector]), config.resume_from) if path]
    if Path(config.policy.model).is_dir() and config.policy.model:
        models.append(Path(config.policy.model))
    check_prompts(config, levels)
    if config.checkpoints.plan:
        return _plan(config, levels, processes, progress)
    held_out = [source.with_name("validate.json")] if config.validate_steps else []
    with (
        shared_run(
            "rlft",
            config,
            [
                source,
                *held_out,
                *models,
                *config.setup.input_files(tasks),
                *config.algo.code_files,
                *config.sampler.code_files,
                *config.sampler.comment_files(config.setup.folder),
            ],
            processes,
        ) as current,
        contextlib.ExitStack() as stack,
    ):
        if current.done:
            return current.done
        chat = None
        if config.chat_reflector is not None:
            client = stack.enter_context(_client(config, config.chat_reflector, current.folder, progress))
            chat = ChatReflector(client)
        settings = identifying(config) | {"problems": digest(source)}
        trainer = resumed_trainer(config, levels, current.folder, settings, processes, progress, chat)
        progress.news(f"rlft ({config.algo.name}): {pluralize(len(tasks), 'problem')} of {source} → {current.folder}")
        try:
            target = _loop(config, trainer, validation_of(config, source), current.folder, settings, progress)
        except ReflectkitError as error:
            raise with_rows(error, current.folder, trainer) from None
        finally:
            trainer.close()
        history = read_metrics(current.folder / "metrics.jsonl", trainer.step, Quiet())
        last = history[-max(1, len(history) // 10) :]
        figures: dict[str, Any] = {
            "steps": config.max_steps,
            "episodes": trainer.counters["episodes"],
            "success_rate": fmean(row["success_rate"] for row in last) if last else None,
            "return": fmean(row["return"] for row in last) if last else None,
        }
        current.tables.append(figures_table(f"RL in {target} (rates: last tenth, training problems)", "value", figures))
        asked = config.setup.asked(progress)
        if chat is not None:
            asked |= {f"reflector {chat.client.endpoint}": chat.client.usage}
        if asked:
            figures["asked"] = asked
        if not processes.first:
            return Report("rlft", current.folder, figures, (target,))
        return current.finish(figures, [target, current.folder / "metrics.jsonl"])


def _plan(config: RLConfig, levels: list[Level], processes: Processes, progress: Progress) -> Report:
    """What training takes in one process, by arithmetic."""
    trainer = build_trainer(config, levels, None, processes, progress)
    trainer.close()
    learner, reflector = trainer.learner, trainer.agent.reflector
    reflecting = getattr(reflector and reflector.sampler, "player", None)
    others = (learner.critic, reflecting and reflecting.model, learner.reference and learner.reference.copy)
    tokens = {"tokens_a_pass": config.max_tokens_per_batch, "episodes": config.max_steps * config.episodes}
    return plan_report(
        "rlft",
        config.run.results_dir,
        [learner.player.model, *(model for model in others if model is not None)],
        config.optim.optimizer,
        config.max_tokens_per_batch,
        recompute=config.gradient_checkpointing,
        tokens=tokens,
    )


@contextlib.contextmanager
def _client(config: RLConfig, endpoint: Endpoint, folder: Path, progress: Progress) -> Iterator[ChatClient]:
    """The client of a chat model that comments, with its journal in the run's folder."""
    with config.chat.client_at(endpoint, folder / JOURNAL, temperature=config.reflector.temperature) as client:
        report_damage(client, progress)
        yield client


def _estimate(
    config: RLConfig, endpoint: Endpoint, levels: Sequence[Level], validation: Level | None, progress: Progress
) -> Report:
    """What the comments of a chat model would cost."""
    count = config.max_steps * config.episodes / len(levels)
    parts = [
        (names[-1], level.tasks, count)
        for names, level in zip(config.curriculum.stages(config.env.kind.levels[-1]), levels, strict=True)
    ]
    if validation is not None:
        times = -(-config.max_steps // config.validate_steps)
        parts.append((validation.name, validation.tasks, times * len(validation.tasks)))
    return estimate_comments("rlft", config, endpoint, parts, progress)


def _warnings(config: RLConfig) -> list[str]:
    """What the policy and the reflector were trained for, where that is not what they do here."""
    start, reflector = Path(config.policy.start), config.reflector.load_dir
    commented, texts = trained_with_comments(start), []
    if commented and reflector is None:
        recorded = model_facts(start).get("reflector") or "REFLECTOR"
        texts.append(f"{start} was trained with comments but plays without; add --reflector {recorded}")
    if commented is False and reflector is not None:
        texts.append(f"{start} was trained without comments but plays with them; leave out --reflector")
    return texts + trained_elsewhere(config.env.name, (start, reflector))


def _loop(
    config: RLConfig,
    trainer: Trainer,
    validation: Level | None,
    folder: Path,
    settings: Mapping[str, Any],
    progress: Progress,
) -> Path:
    """Make the remaining updates, writing metrics and checkpoints. Returns the last checkpoint."""
    from reflectkit.train import checkpoint

    processes, metrics = trainer.processes, folder / "metrics.jsonl"
    history = read_metrics(metrics, trainer.step, progress)
    lost = trainer.step - len(history)
    if config.resume_from is None and lost > 0:
        figures_lost = f"the figures of {pluralize(lost, 'update')} are lost"
        progress.news(f"{metrics}: {figures_lost}, though what they learned is not; --force trains again")
    if processes.first:
        rewrite(metrics, history)
        restore_episodes(folder / "episodes.jsonl", trainer.step, progress)
    facts = {"env": config.env.name, "reflector": str(config.reflector.load_dir) if config.reflector.load_dir else None}
    target = folder / f"checkpoint-{trainer.step}"
    title = "Reflect-RL" if config.reflector.load_dir else "SFT + RL"
    with (
        tracking(config.checkpoints.report_to, folder, settings) as log,
        progress.bar(title, config.max_steps, trainer.step) as bar,
    ):
        while trainer.step < config.max_steps:
            figures = trainer.train_step()
            if validation and (trainer.step % config.validate_steps == 0 or trainer.step == config.max_steps):
                figures |= trainer.validate(validation)
            history.append(figures)
            due = trainer.step % config.checkpoints.save_steps == 0 or trainer.step == config.max_steps
            if processes.first:
                append(metrics, [figures], sync=due)
            if due and config.keep_episodes and processes.first:
                keep_episodes(config, trainer, folder / "episodes.jsonl")
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
