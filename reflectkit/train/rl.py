"""Online RL as rlft runs it: a trainer from settings or from a checkpoint, and all its updates, with their records."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from statistics import fmean, variance
from typing import Any

from reflectkit.agents import players
from reflectkit.agents.scripted import RandomAgent
from reflectkit.agents.two_player import CommentSource, Reflector, TeacherComments, TwoPlayerAgent
from reflectkit.chat.client import client_at
from reflectkit.chat.config import Endpoint
from reflectkit.chat.players import ChatReflector
from reflectkit.config import flag, identifying, with_values
from reflectkit.console import Progress, Report, Table
from reflectkit.data.episodes import episode_to_json
from reflectkit.data.problems import HELD_OUT_SEEDS, draw_problems
from reflectkit.env import DEFAULT_HORIZON
from reflectkit.envs import cluster_of
from reflectkit.envs.setup import EnvConfig, not_repeatable
from reflectkit.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    DivergedError,
    EnvironmentFailure,
    ReflectkitError,
    refuse,
)
from reflectkit.evals.calibration import Advised, best_choices, fit_temperature, log_scores
from reflectkit.evals.estimate import SAMPLED, PlannedCalls, comment_alone, estimate
from reflectkit.evals.stats import by_cluster, mean_interval, rate_interval
from reflectkit.eventloop import result_of
from reflectkit.jsonl import append, read_json, rewrite, rows_until, write_json, write_jsonl
from reflectkit.models.checkpoint_metadata import (
    BETTER,
    CALIBRATION,
    REFLECTOR_FOLDER,
    best_checkpoint,
    context_of,
    load_tokenizer,
    model_facts,
)
from reflectkit.models.labels import choice_ids, prompt_ids, trie
from reflectkit.models.load import LoadedModel, averaged_player, load_pair, load_player, starting_player, with_adapter
from reflectkit.models.refs import TEACHER, ModelKind, resolved
from reflectkit.models.scoring import logits_at_once
from reflectkit.prompts import policy_prompt
from reflectkit.rollouts.episode import rollout
from reflectkit.rollouts.wrappers import checked
from reflectkit.runs.run import (
    Identity,
    Run,
    checkpoints,
    digest,
    named_runs,
    read_record,
    recorded_defaults,
    runs_of,
    verify,
)
from reflectkit.sampling.base import Opening
from reflectkit.sampling.config import LOCAL
from reflectkit.text import pluralize
from reflectkit.train import checkpoint, scratch
from reflectkit.train.critic import Critic
from reflectkit.train.estimate import plan_report, tokens_a_pass
from reflectkit.train.learner import Learner, Settings
from reflectkit.train.processes import Processes, stopped_between
from reflectkit.train.reflector import ReflectorTrainer
from reflectkit.train.rl_config import LIMITS, RLConfig
from reflectkit.train.settings import tracking
from reflectkit.train.trainer import Level, Trainer, TrainerConfig, is_flat, validation_episodes
from reflectkit.types import Status, Task, reports_success, to_json

CHECKED = 8  # problems of each level whose prompts are checked before any weights are loaded
HELD_OUT = "held_out.json"
"""The outcomes on held-out problems before and after training, in the run's folder."""
JOURNAL = "reflector.jsonl"
"""The answers of a chat model that comments, in the run's folder."""


def levels_of(config: RLConfig) -> list[Level]:
    """The curriculum's stages with their problems."""
    few = config.curriculum.few_data or None
    return [_level(config, names, "train", few) for names in config.curriculum.stages(config.env.kind.levels[-1])]


def validation_of(config: RLConfig, progress: Progress) -> Level | None:
    """The validation problems at the curriculum's last level; None without validation, or if nobody asked for it and
    there are none.
    """
    if not (config.validate_steps or config.held_out):
        if config.validate_problems:
            progress.news("success on held-out problems is not measured here, as it would cost money; see evaluate")
        return None
    try:
        names = config.curriculum.stages(config.env.kind.levels[-1])[-1][-1:]
        return _level(config, names, "validate", seeds=max(HELD_OUT_SEEDS, config.held_out))
    except DataError as error:
        if config.validate_steps or config.calibrate:
            raise
        progress.news(f"success on held-out problems is not measured: {error}")
        return None


def _level(config: RLConfig, names: Sequence[str], split: str, few: int | None = None, seeds: int = 0) -> Level:
    problems = config.problems
    tasks = {task.id: task for name in names for task in problems.tasks(split, name, "--curriculum", seeds)}
    make, dealt = config.setup.maker(names[-1]), None
    if split == "train" and few is None and all(map(problems.is_endless, names)):

        @cache
        def dealt(turn: int) -> list[Task]:
            return [task for name in names for task in problems.dealt(name, turn)]

    return Level("+".join(names), list(tasks.values())[:few], make, config.env.kind.max_concurrency, dealt)


def with_models(config: RLConfig, levels: Sequence[Level], validation: Level | None, progress: Progress) -> RLConfig:
    """`config` with the checkpoints that runs stand for, and converted or new models."""
    data_dir = config.run.data_dir
    config = with_values(config, reflector=resolved(config.reflector.load_dir, data_dir, progress, reflects=True))
    if config.policy.load_dir is not None:
        return with_values(config, policy=config.policy.load_dir.checkpoint(progress))
    if config.policy.start.kind is ModelKind.TINY:
        model = _recorded_model(config, levels, validation) or str(scratch.tiny_model(config, levels, progress))
    else:
        model = config.policy.start.source(data_dir, progress).text
    return with_values(config, model=model)


def _recorded_model(config: RLConfig, levels: Sequence[Level], validation: Level | None) -> str:
    """The model that an earlier run with these settings and inputs made of --model tiny; empty if there is none."""
    for folder in named_runs(config.run) if config.run.name else runs_of(config.run.results_dir, "rlft"):
        record = read_record(folder)
        model = Path(record.get("settings", {}).get("model", ""))
        made = model.parent == config.setup.env_folder / "models" and model.name.startswith(f"{config.policy.model}-")
        if made and (model / "config.json").is_file():
            same = with_values(config, model=str(model))
            inputs = {str(path): digest(path) for path in input_files(same, levels, validation)}
            if Identity("rlft", identifying(same), inputs, same, LIMITS).fits(record, but_for_limits=True):
                return str(model)
    return ""


def input_files(config: RLConfig, levels: Sequence[Level], validation: Level | None) -> list[Path]:
    """The files and folders that a run reads."""
    start = config.policy.start.path
    splits = ["train"] if validation is None else ["train", "validate"]
    files = [file for split in splits if (file := config.problems.file(split))]
    if any(level.dealt for level in levels):  # new seeds are those that no split has
        files += [file for file in config.problems.split_files if file not in files]
    tasks = [task for level in levels for task in level.tasks]
    return [
        *files,
        *([start] if config.policy.load_dir or start.is_dir() else []),
        *players.model_folders([config.reflector.load_dir]),
        *([config.resume_from] if config.resume_from else []),
        *config.setup.input_files(tasks),
        *config.algo.code_files,
        *config.sampler.input_files(config.setup.folder),
    ]


def warnings_of(config: RLConfig) -> list[str]:
    """What the policy and the reflector were trained for, where that is not what they do here."""
    start, reflector = config.policy.start, config.reflector.load_dir
    folders = players.model_folders([start, reflector])
    add = f"add --reflector {start.facts.get('reflector') or 'REFLECTOR'}"
    unlike = players.unlike_training(start, reflector, add, "leave out --reflector")
    if unlike and reflector is not None and config.distill.weight:
        unlike = f"{start} was trained without comments, and its teacher is itself with them"
    texts = [*filter(None, [unlike]), *players.trained_elsewhere(config.env.name, folders)]
    texts += players.other_settings(config.env, folders)
    return texts + players.template_warnings(config.env, [start])


def check_processes(config: RLConfig, processes: Processes) -> None:
    """Raises ConfigError for settings that do not work in the way in which the processes were started."""
    sharded, several, sampler = processes.sharded, processes.count > 1, config.sampler.policy
    whole = "needs the whole policy in each process, which FSDP2 and ZeRO spread; use"
    refuse(sharded and config.reflector.share_base, f"--share-base {whole} `list --configs multi_gpu`")
    refuse(sharded and config.optim.optimizer != "adamw", f"--optimizer {config.optim.optimizer} {whole} adamw")
    refuse(sharded and sampler != LOCAL, f"--sampler {sampler} {whole} local")
    refuse(sharded and config.distill.weight, f"--distill-comments {config.distill.weight:g} {whole}")
    kept = "--target-kl cannot discard gradients under DeepSpeed; leave it out, or use `list --configs fsdp2`"
    refuse(processes.kind == "DEEPSPEED" and config.algo.target_kl, kept)
    alone = "runs in one process; leave out torchrun or accelerate"
    refuse(several and config.sampler.remote, f"--sampler {sampler} {alone}")
    refuse(several and config.reflector_training.every, f"--train-reflector {alone}")
    refuse(several and config.chat_reflector, f"--reflector {config.reflector.load_dir} {alone}")


def check_prompts(config: RLConfig, levels: list[Level]) -> None:
    """Raises ConfigError or CheckpointError if the policy's tokenizer or context does not fit these problems, or
    they begin otherwise each time.

    Only its tokenizer and config are loaded, not its weights. Problems whose env fails are left out: their episodes
    will be ABORTED.
    """
    answer = config.sampler.answer_of(config.policy.start)
    start = config.policy.start.text
    tokenizer, context = load_tokenizer(start), context_of(start)
    for level in levels:
        for task in level.tasks[:CHECKED]:
            with closing(checked(level.make())) as env:
                try:
                    observation, again = (result_of(env.reset(task, config.run.seed)) for _ in range(2))
                except EnvironmentFailure:
                    continue
            if again != observation:
                raise not_repeatable(config.setup.env_name, task.id, 0)
            tokens = len(prompt_ids(tokenizer, policy_prompt(observation, None, answer)))
            if observation.choices:
                tokens += trie(choice_ids(tokenizer, observation.choices, answer)).depth
            if context is not None and tokens > context:
                raise ConfigError(
                    f"the first prompt of task '{task.id}' is {tokens} tokens, and {config.policy.start} reads"
                    f" {context}; shorten what the env shows, or train a model with a longer context, as --model"
                    " tiny makes for this env"
                )


def build_trainer(
    config: RLConfig,
    levels: list[Level],
    place: Path | None,
    processes: Processes,
    progress: Progress,
    chat: CommentSource | None = None,
    earlier_steps: tuple[int, ...] = (),
) -> Trainer:
    """A trainer whose players are those of checkpoint `place`, or else the ones to start from. chat: a chat model that
    comments. earlier_steps: see `TrainerConfig`.

    Raises CheckpointError, and ConfigError for models that cannot be trained.
    """
    training = config.reflector_training
    device = config.policy.device
    if device == "auto" or processes.count > 1:
        device = str(processes.accelerator.device)
    policy, reflecting = _load_players(config, place, device)
    memory: dict[str, Any] = {
        "max_tokens": config.max_tokens_per_batch
        or tokens_a_pass(policy.model, recompute=config.gradient_checkpointing),
        "gradient_checkpointing": config.gradient_checkpointing,
    }

    own, distill = config.algo.critic, config.distill
    starts = config.algo.kl or (distill.weight and not distill.ema)
    start = starting_player(policy, config.policy.start.text, bool(config.lora.r), device) if starts else None
    learner = Learner(
        policy,
        Settings.of(
            config.algo,
            config.optim,
            distill,
            loss=config.algo.loss,
            mean=config.algo.loss_mean,
            temperature=config.policy.temperature,
            is_cap=config.staleness.importance_weight_max if config.staleness.max_staleness else 0.0,
            agrees_with=config.sampler.policy if config.sampler.remote and not config.staleness.max_staleness else "",
            mismatch=config.sampler.remote,
            distill=distill.weight,
            **({"critic_rate": own.critic_rate, "value_clip": own.value_clip} if own else {}),
            **memory,
        ),
        Critic(policy, own.head, own.critic_trunk, config.run.seed) if own else None,
        start if config.algo.kl else None,
        processes,
        progress.news,
        (averaged_player(policy) if distill.ema else start) if distill.weight else None,
    )
    scorer, team = (learner.scorer, processes) if processes.sharded else (None, None)
    watch = learner.observe if own else None
    sampler = config.sampler.open_policy(
        Opening(str(place or config.policy.start), device, policy, scorer=scorer, team=team, watch=watch)
    )

    reflector = reflector_trainer = None
    if config.reflector.load_dir == TEACHER:
        chat = TeacherComments()
    if config.reflector.load_dir is not None and chat is None:
        source = config.reflector.load_dir.text
        opened = config.sampler.open_reflector(source, device, reflecting, frozen=not training.every)
        reflector = Reflector(opened, temperature=config.reflector.temperature)
        if training.every and reflecting is not None:
            settings = Settings.of(
                config.optim, training, clip=config.algo.clip, minibatch=config.algo.minibatch, entropy=0.0, **memory
            )
            reference = starting_player(reflecting, source, False, device, "reflection") if training.kl else None
            reflector_trainer = ReflectorTrainer(
                Learner(reflecting, settings, reference=reference, notify=progress.news),
                training,
                config.algo.normalize,
            )
    commentator = chat or reflector
    agent = TwoPlayerAgent(
        sampler,
        commentator and config.sampler.swapped(commentator, config.setup.folder),
        answer=policy.answer,
        temperature=config.policy.temperature,
        reflect_prob=distill.joint if distill.weight else config.reflector.prob,
        distills=distill.weight > 0,
        max_new_tokens=config.policy.max_new_tokens,
        episode_tokens=config.sampler.episode_tokens,
        thinking=config.sampler.thinking,
    )
    trainer_config = TrainerConfig(
        levels,
        config.max_steps,
        config.episodes,
        config.algo,
        config.run.seed,
        config.rollout.width,
        config.curriculum.advance_at,
        config.optim,
        config.staleness,
        distill,
        earlier_steps,
    )
    return Trainer(trainer_config, agent, learner, processes=processes, reflector_trainer=reflector_trainer)


def _load_players(config: RLConfig, place: Path | None, device: str) -> tuple[LoadedModel, LoadedModel | None]:
    """The policy, and the reflector where this process holds it."""
    source = str(place or config.policy.start)
    options: Any = {"device": device, "dtype": config.policy.dtype or None, "quantize": config.policy.quantize or None}
    commentator = config.reflector.load_dir
    comments = commentator.text if commentator is not None and commentator.has_weights else None
    if comments is not None and config.reflector_training.every and place is not None:
        comments = str(place / REFLECTOR_FOLDER)
    reflector: LoadedModel | None = None
    if config.reflector.share_base and comments is not None:
        policy, reflector = load_pair(source, comments, **options)
    else:
        policy = load_player(source, "policy", **options)
        if config.lora.r and place is None:
            policy = with_adapter(
                policy, config.lora.r, config.lora.alpha, config.run.seed, targets=config.lora.targets
            )
        if comments is not None and config.sampler.reflector == LOCAL:
            reflector = load_player(comments, "reflection", device=device)
    frozen = "is quantised and cannot be trained"
    refuse(_is_quantised(policy), f"the policy {frozen}; add --lora-r 16")
    if reflector is not None and config.reflector_training.every:
        refuse(_is_quantised(reflector), f"{config.reflector.load_dir} {frozen}, unless it has a LoRA adapter")
    return replace(policy, answer=config.sampler.answer_of(config.policy.start)), reflector


def _is_quantised(player: LoadedModel) -> bool:
    return player.quantize != "none" and not hasattr(player.model, "peft_config")


MAY_DIFFER = {
    "resume_from", "learning_rate", "reflector_rate", "save_steps", "keep_episodes", "device", "report_to",
    "gradient_checkpointing", "data_dir", "sampler", "reflector_sampler", *LIMITS,
}  # fmt: skip
"""Settings that may differ from those of the checkpoint that a run resumes from."""


def resumed_trainer(
    config: RLConfig,
    levels: list[Level],
    run: Run,
    settings: Mapping[str, Any],
    processes: Processes,
    progress: Progress,
    chat: CommentSource | None = None,
) -> Trainer:
    """The trainer: resumed from the latest undamaged checkpoint of `run`, from --resume-from, or at its start. chat: a
    chat model that comments.
    """
    defaults, place, earlier_steps = recorded_defaults(config), config.resume_from, run.earlier_steps
    own_checkpoints = checkpoints(run.folder)
    for own in reversed(own_checkpoints):
        try:
            checkpoint.check_settings(own, settings, defaults, LIMITS)
            verify(own)
            check_prompt_version(own, config.env, "start anew with --force")
            trainer = build_trainer(config, levels, own, processes, progress, chat, earlier_steps)
            checkpoint.restore(own, trainer)
            return trainer
        except checkpoint.OtherSettingsError:
            raise
        except CheckpointError as error:
            earlier = own != own_checkpoints[0] or place is not None
            progress.news(f"{error}; {'resuming from an earlier state' if earlier else 'training starts anew'}")
    if place is None:
        return build_trainer(config, levels, None, processes, progress, chat, earlier_steps)
    checkpoint.check_settings(place, settings, defaults, MAY_DIFFER)
    verify(place)
    check_prompt_version(place, config.env, f"start anew with --policy {place}")
    trainer = build_trainer(config, levels, place, processes, progress, chat, earlier_steps)
    checkpoint.restore(place, trainer)
    if trainer.step >= config.max_steps:
        raise ConfigError(f"{place} is after {pluralize(trainer.step, 'update')}; raise --max-steps above that")
    return trainer


def check_prompt_version(place: Path, env: EnvConfig, fix: str) -> None:
    """Raises OtherSettingsError if the run that wrote checkpoint `place` read another version of the prompts of `env`.

    fix: how to train without it.
    """
    there, here = model_facts(place).get("prompts", 0), env.kind.prompt_version
    if there != here:
        raise checkpoint.OtherSettingsError(
            f"{place} was trained on version {there} of the prompts of '{env.name}' and cannot go on with version"
            f" {here}; evaluate it as it is, or {fix}"
        )


STOPPED = "stopped after {}; the same command goes on from there"


def train(
    config: RLConfig,
    trainer: Trainer,
    validation: Level | None,
    held_out: Level | None,
    folder: Path,
    settings: Mapping[str, Any],
    progress: Progress,
) -> tuple[Path, list[dict[str, Any]]]:
    """Make the remaining updates, writing metrics and checkpoints. Returns the last checkpoint and all figures.

    validation: problems for --validate-steps. held_out: those to play before the first update and after the last.

    Raises DivergedError, which names a file with the rows of the update, and what `Trainer.train_step` raises.
    """
    processes, metrics, kept = trainer.processes, folder / "metrics.jsonl", folder / "episodes.jsonl"
    history, damaged = rows_until(metrics, trainer.step, {"return": int | float})
    if damaged:
        progress.news(f"{metrics}: damaged lines dropped: {damaged}; training itself is not affected")
    lost = trainer.step - len(history)
    if config.resume_from is None and lost > 0:
        figures_lost = f"the figures of {pluralize(lost, 'update')} are lost"
        progress.news(f"{metrics}: {figures_lost}, though what they learned is not; --force trains again")
    if processes.first:
        rewrite(metrics, history)
        if kept.is_file():
            rewrite(kept, rows_until(kept, trainer.step, {})[0])
    read = config.reflector.load_dir if not config.distill.weight or config.distill.joint else None
    facts = {"env": config.env.name, "prompts": config.env.kind.prompt_version}
    facts |= {"reflector": str(read) if read else None}
    if config.env.kind.action_kind(config.env.settings) == "choice":
        facts["acts"] = "choice"
    if read and (config.distill.joint or config.reflector.prob < 1):
        facts["acts_alone"] = True
    target = folder / f"checkpoint-{trainer.step}"
    title = "Reflect-RL" if read else "RL"
    ends = (*trainer.config.earlier_steps, config.max_steps)
    keep, patience = config.checkpoints.keep_checkpoints, config.patience
    if held_out is not None and trainer.step == 0:
        _measure(held_out, "before", folder, trainer)
    flat, saved = 0, trainer.step
    several = processes.count > 1

    def is_validated(step: int) -> bool:
        return bool(config.validate_steps) and (step in ends or step % config.validate_steps == 0)

    # The last update may have been saved when its validation was interrupted
    interrupted = bool(history) and history[-1]["step"] == trainer.step and not _is_validated(history[-1])
    if validation and interrupted and is_validated(trainer.step):
        history[-1] |= trainer.validate(validation)
        if processes.first:
            rewrite(metrics, history)
        target = checkpoint.save(folder, trainer, settings, facts | _marks(history[-1]), keep)
        processes.wait()
    with (
        tracking(config.checkpoints.report_to, folder, settings) as log,
        progress.bar(title, config.max_steps, trainer.step) as bar,
        stopped_between("update", progress, several) as stop,
    ):
        while trainer.step < config.max_steps and not (patience and _since_best(history) >= patience):
            figures = {}
            try:
                figures = trainer.train_step()
                if validation and is_validated(trainer.step):
                    figures |= trainer.validate(validation)
            except DivergedError as error:
                raise _with_rows(error, folder, trainer) from None
            except BaseException:
                if saved < trainer.step and processes.first:
                    told = f"updates {saved + 1} to {trainer.step} are lost; a lower --save-steps loses less"
                    if trainer.playing and processes.count == 1 and trainer.rollouts is None:
                        append(metrics, [figures] if figures else [])
                        trainer.forget_comments()
                        checkpoint.save(folder, trainer, settings, facts, keep)
                        told = STOPPED.format(pluralize(trainer.step, "update"))
                    progress.news(told)
                raise
            history.append(figures)
            ends_here = trainer.step in ends or (patience and _since_best(history) >= patience)
            regular = ends_here or trainer.step % config.checkpoints.save_steps == 0
            is_best = bool(_marks(figures)) and figures["validation_return"] == max(_validation_returns(history))
            stopping = several and any(processes.gather(bool(stop)))
            due = regular or is_best or stopping
            if processes.first:
                append(metrics, [figures], sync=due)
                if regular and config.keep_episodes:
                    name, cluster = f"update {trainer.step}", partial(cluster_of, config.env.name)
                    episodes = [
                        episode_to_json(name, each, advantages, cluster(each.task)) | {"step": trainer.step}
                        for each, advantages in trainer.latest[: config.keep_episodes]
                    ]
                    append(kept, episodes, sync=True)
            if due:
                target = checkpoint.save(folder, trainer, settings, facts | _marks(figures), keep)
                saved = trainer.step
                processes.wait()
            if stopping:
                progress.news(STOPPED.format(pluralize(trainer.step, "update")))
                raise KeyboardInterrupt
            log(figures, trainer.step)
            shown = _progress_of(history)
            if isinstance(entropy := figures.get("entropy"), float):  # missing if there was nothing to learn
                shown["entropy"] = entropy
            bar.advance(1, **shown)
            taught = figures.get("commented_decisions") or not is_flat([trajectory for trajectory, _ in trainer.latest])
            flat = 0 if taught else flat + 1
            _warn_if_flat(config, trainer, flat, progress)
            if trainer.step == 1 and "success_rate" not in figures:
                _warn_of_successes(config, progress)
    if trainer.step < config.max_steps:
        progress.news(
            f"ended by --patience {patience} after {pluralize(trainer.step, 'update')}:"
            f" {pluralize(_since_best(history), 'validation')} without a better return"
        )
    if held_out is not None:
        _measure(held_out, "after", folder, trainer)
    return target, history


def _is_validated(figures: Mapping[str, Any]) -> bool:
    return any(name.startswith("validation_") for name in figures)


def _marks(figures: Mapping[str, Any]) -> dict[str, Any]:
    """What a checkpoint says of how good it is, if the update with these figures was validated."""
    return {name: figures[name] for name in BETTER if name in figures}


def _validation_returns(history: Iterable[Mapping[str, Any]]) -> list[float]:
    return [row["validation_return"] for row in history if "validation_return" in row]


def _since_best(history: Sequence[Mapping[str, Any]]) -> int:
    """How many validations have followed the one with the best return, the first of equals; 0 without any."""
    returns = _validation_returns(history)
    return len(returns) - 1 - returns.index(max(returns)) if returns else 0


def _progress_of(history: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """What the bar shows of the last ten updates: success, and the return where success is not reported or 0."""
    shown, recent = {}, history[-10:]
    if all("success_rate" in row for row in history):
        shown["success"] = fmean(row["success_rate"] for row in recent)
    if not shown.get("success"):
        shown["return"] = fmean(row["return"] for row in recent)
    return shown


FLAT_UPDATES = 3
"""Updates in a row that must teach nothing before the user is told."""


def _warn_if_flat(config: RLConfig, trainer: Trainer, flat: int, progress: Progress) -> None:
    """Tell the user if the latest updates taught nothing but not all is won by training, or if no episode of the first
    ended or had anything to decide. flat: how many of this process's updates, in a row, taught nothing.
    """
    played = [trajectory for trajectory, _ in trainer.latest]
    level = trainer.config.levels[trainer.curriculum.level].name
    unset = not config.rollout.horizon and level not in config.env.kind.horizons
    cut = (each.status is Status.TRUNCATED and len(each.turns) == DEFAULT_HORIZON for each in played)
    if trainer.step == 1 and unset and all(cut):
        progress.news(
            f"no episode ended within {DEFAULT_HORIZON} steps, the default limit; add --horizon N, or horizon = N to"
            ' the class (horizons = {"LEVEL": N} to an Env)'
        )
    counts = {len(turn.observation.choices) for trajectory in played for turn in trajectory.turns}
    if counts == {1}:
        if trainer.step == 1:
            progress.news("nothing to decide: each state of these episodes offers one choice")
        return
    if flat != min(FLAT_UPDATES, config.max_steps):
        return
    returns = {trajectory.total_return for trajectory in played}
    if len(returns) == 1 and max(returns) > 0:
        if trainer.step == flat:  # otherwise training has come there
            progress.news(
                f"nothing to learn: every episode of update {trainer.step} has a return of {max(returns):.3g}, whatever"
                " the policy did; let the reward depend on its actions, or make the problems harder"
            )
    elif not all(trajectory.success for trajectory in played):
        first = "--no-normalize, if steps cost and success is rare; " if config.algo.normalize else ""
        progress.news(
            f"nothing to learn: all rewards are equal in each group of updates {trainer.step - flat + 1} to"
            f" {trainer.step} (mean return {fmean(trajectory.total_return for trajectory in played):.3g});"
            f" try {first}easier problems, a reward for partial success, a larger --group-size or --temperature, or a"
            " better starting model"
        )


def _warn_of_successes(config: RLConfig, progress: Progress) -> None:
    """Tell the user that success is not reported, and which settings do nothing without it."""
    progress.news(f"env '{config.env.name}' does not say which episodes succeed, so the return is shown")
    for value, name in ((config.curriculum.advance_at, "advance_at"), (config.algo.replay_size, "replay_size")):
        if value:
            progress.news(f"{flag(name)} {value:g} waits for successes; leave it out, or report 'success' in the info")


def held_out_problems(config: RLConfig, validation: Level | None) -> Level | None:
    """The validation problems to play before and after training; None for none."""
    if validation is None or not config.held_out:
        return None
    clusters = [cluster_of(config.env.name, task) for task in validation.tasks]
    drawn = draw_problems(clusters, config.held_out, config.run.seed)
    return replace(validation, tasks=[validation.tasks[place] for place in drawn])


def _measure(level: Level, when: str, folder: Path, trainer: Trainer) -> None:
    """Play `level` greedily and add the outcomes to HELD_OUT, at first with those of a random player. success: None
    where the env does not say.
    """
    played = {when: trainer.play_greedily(level)}
    if not trainer.processes.first:
        return
    path, begun = folder / HELD_OUT, when == "before"
    if begun and all(turn.observation.choices for trajectory in played[when] for turn in trajectory.turns[:1]):
        episodes = validation_episodes(level, trainer.config.seed)
        played["random"] = rollout(episodes, level.make, RandomAgent(), width=trainer.config.width)
    outcomes = read_json(path) if path.is_file() and not begun else {}
    for name, trajectories in played.items():
        outcomes[name] = [
            {
                "task": each.task.id,
                "success": None if each.reported_success is None else each.success,
                "return": each.total_return,
                "status": each.status.value,
            }
            for each in trajectories
        ]
    write_json(path, outcomes)


def calibrate(
    config: RLConfig,
    trainer: Trainer,
    level: Level,
    folder: Path,
    settings: Mapping[str, Any],
    progress: Progress,
    chat: CommentSource | None,
) -> dict[str, float]:
    """Fit a temperature to the decisions of the checkpoint that the run stands for, and store it there. Returns it with
    the log scores at 1 and at it, in nats; empty if nothing was decided.

    level: the problems to play, greedily. The actions do not depend on the temperature.
    """
    # 1. The best checkpoint, or the last one, which the trainer has
    inside = checkpoints(folder)
    place = best_checkpoint(inside) or inside[-1]
    if place.name != f"checkpoint-{trainer.step}":
        levels, processes = list(trainer.config.levels), trainer.processes
        trainer = build_trainer(config, levels, place, processes, progress, chat)
        checkpoint.restore(place, trainer)

    # 2. Its decisions, and what would be right there
    played = trainer.play_greedily(replace(level, make=lambda: Advised(level.make())), show=True)
    rows = [
        (turn.decision.probabilities, best)
        for trajectory in played
        for turn in trajectory.turns
        if len(turn.observation.choices) > 1 and (best := best_choices(turn.info))
    ]
    if not rows:
        return {}

    # 3. The temperature
    temperature = fit_temperature(rows)
    before, after = (fmean(log_scores(rows, value)) for value in (1.0, temperature))
    facts = model_facts(place) | {CALIBRATION: temperature}
    checkpoint.save(folder, trainer, settings, facts, config.checkpoints.keep_checkpoints)
    trainer.processes.wait()
    return {CALIBRATION: temperature, "log_score_before": before, "log_score_after": after, "decisions": len(rows)}


def held_out_table(
    config: RLConfig, folder: Path, level: Level, steps: int, holds_out: bool
) -> tuple[Table, dict[str, Any]]:
    """What training did to success on the problems of `level`, and to the return where that differs from success; to
    the return alone where the env does not report success.

    steps: updates that were made. holds_out: whether training does not use these problems.
    """
    outcomes = read_json(folder / HELD_OUT)
    rows = {name: [row for row in outcomes[name] if row["status"] != Status.ABORTED] for name in outcomes}
    every = [row for own in rows.values() for row in own]
    measure = "success" if reports_success((row["status"], row["success"]) for row in every) else "return"
    partial = measure == "success" and any(row["return"] != row["success"] for row in every)
    clusters = {task.id: cluster_of(config.env.name, task) for task in level.tasks}
    named = {
        "random": "random player",
        "before": "before training",
        "after": f"after {pluralize(steps, 'update')}",
    }
    figures: dict[str, dict[str, Any]] = {}
    cells = []
    for name, shown in named.items():
        if not rows.get(name):
            continue
        aborted = len(outcomes[name]) - len(rows[name])
        problems = len({row["task"] for row in rows[name]})
        figures[name], texts = {"problems": problems}, []
        for figure in (measure, "return") if partial else (measure,):
            grouped = by_cluster({row["task"]: float(row[figure] or 0) for row in rows[name]}, clusters)
            mean = fmean(value for cluster in grouped for value in cluster)
            low, high = (rate_interval if figure == "success" else mean_interval)(grouped)
            form = "{:.0%}" if figure == "success" else "{:.3g}"
            ends = f"{form.format(low)} to {form.format(high)}" if len(grouped) > 1 and low < high else ""
            texts += [form.format(mean).replace("%", " %"), ends.replace("%", " %")]
            prefix = "" if figure == measure else "return_"
            known = {f"{prefix}low": low, f"{prefix}high": high} if math.isfinite(low) else {}
            figures[name] |= {figure: mean} | known
        cells.append((shown, *texts, f"{problems} + {aborted} aborted" if aborted else str(problems)))
    which = "Held-out problems" if holds_out else "Training problems"
    title = f"{which}, most likely actions ({config.problems.source('validate')})"
    columns = ("player", measure, "95 % interval", *(["return", "95 % interval"] if partial else []), "problems")
    return Table(title, columns, tuple(cells)), figures


def no_better_than_random(figures: Mapping[str, Any]) -> bool:
    """Whether the intervals after training, as in `held_out_table`, of success and of the return begin below the random
    player's means.
    """
    if not {"random", "after"} <= figures.keys():
        return False
    random, after = figures["random"], figures["after"]
    mean = random["success" if "success" in random else "return"]
    if random.get("success") == 1:  # nobody can be better
        return False
    return bool(after.get("low", -math.inf) <= mean and after.get("return_low", -math.inf) <= random.get("return", 0.0))


def advice(config: RLConfig, returns: Sequence[float]) -> str:
    """What to try after a run that learned nothing, what helped most often in `benchmarks.learning` first.

    returns: the mean return of each update.
    """
    options = []
    chooses = config.env.kind.action_kind(config.env.settings) == "choice"
    if config.policy.model and chooses and config.algo.name != "ppo":
        options.append(f"--algo ppo instead of {config.algo.name}")
    if has_risen(returns):
        options.append(f"--max-steps {3 * config.max_steps}, as the return still rises")
    options += ["more --episodes", "demonstrations first"]
    return ", or ".join(options)


def has_risen(returns: Sequence[float]) -> bool:
    """Whether the last third is above the first by more than two standard errors of the difference.

    >>> has_risen([0.0, 0.2, 0.1, 0.4, 0.8, 0.9]), has_risen([0.0, 0.2, 0.1, 0.1, 0.0, 0.2])
    (True, False)
    """
    count = len(returns) // 3
    if count < 2:
        return False
    first, last = returns[:count], returns[-count:]
    error = math.sqrt((variance(first) + variance(last)) / count)
    return fmean(last) - fmean(first) > 2 * error


def _with_rows(error: DivergedError, folder: Path, trainer: Trainer) -> ReflectkitError:
    """`error`, naming a file to which the rows of the update that diverged are written."""
    path = folder / f"diverged-{trainer.step + 1}.jsonl"
    if trainer.processes.first:
        write_jsonl(path, _readable(error, trainer))
    last = checkpoints(folder)
    fix = f"resume with --resume-from {last[-1]} and a lower --learning-rate" if last else "lower --learning-rate"
    return DivergedError(f"{error}; {fix} (the rows are in {path})")


def _readable(error: DivergedError, trainer: Trainer) -> Iterator[dict[str, Any]]:
    """The rows with their text; NaN and infinity become text, since JSON does not have them."""
    for sample in error.samples:
        row = to_json(sample) | {"text": trainer.agent.policy.tokenizer.decode(sample.tokens)}
        yield {
            name: [value if not isinstance(value, float) or math.isfinite(value) else str(value) for value in column]
            if isinstance(column, list)
            else column
            for name, column in row.items()
        }


@contextmanager
def chat_reflector(config: RLConfig, folder: Path, progress: Progress) -> Iterator[ChatReflector | None]:
    """The chat model that comments, with its journal in `folder`; None if none does."""
    if config.chat_reflector is None:
        yield None
        return
    temperature = config.reflector.temperature
    with client_at(config.chat, config.chat_reflector, folder / JOURNAL, temperature=temperature) as client:
        client.report(progress)
        yield ChatReflector(client)
        for note in client.notes:
            progress.news(note)


def comments_estimate(
    config: RLConfig, endpoint: Endpoint, levels: Sequence[Level], validation: Level | None, progress: Progress
) -> Report:
    """What the comments of a chat model would cost."""
    stages = config.curriculum.stages(config.env.kind.levels[-1])
    played = [(names[-1], level.tasks, config.max_steps * config.episodes / len(levels))
              for names, level in zip(stages, levels, strict=True)]  # fmt: skip
    if validation is not None and config.validate_steps:
        times = -(-config.max_steps // config.validate_steps)
        played.append((validation.name, validation.tasks, times * len(validation.tasks)))
    parts = [
        PlannedCalls(str(endpoint), level, tasks[:SAMPLED], count, [endpoint], comment_alone)
        for level, tasks, count in played
    ]
    return estimate("rlft", config.setup, config.chat, parts, progress, config.run.seed)


def plan(config: RLConfig, levels: list[Level], processes: Processes, progress: Progress) -> Report:
    """What training takes in one process, by arithmetic."""
    trainer = build_trainer(config, levels, None, processes, progress)
    trainer.close()
    learner, reflector = trainer.learner, trainer.agent.reflector
    reflecting = getattr(reflector and reflector.sampler, "player", None)
    others = (learner.critic, reflecting and reflecting.model, learner.reference and learner.reference.copy)
    agent = trainer.agent
    chooses = config.env.kind.action_kind(config.env.settings) == "choice" and not agent.thinks
    logits = 0 if chooses else logits_at_once(learner.player.model, learner.max_tokens)
    return plan_report(
        "rlft",
        config.run.results_dir,
        [learner.player.model, *(model for model in others if model is not None)],
        config.optim.optimizer,
        learner.max_tokens,
        logits,
        recompute=config.gradient_checkpointing,
        tokens={"tokens_a_pass": learner.max_tokens, "episodes": config.max_steps * config.episodes},
        stop_tokens=() if chooses else agent.dialogue.stop_tokens,
    )
