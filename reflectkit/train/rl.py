"""What rlft trains and with what: its problems, the trainer, a trainer resumed from a checkpoint, and its records."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reflectkit.console import Progress
from reflectkit.data.episodes import episode_to_json
from reflectkit.data.trajectories import read_records
from reflectkit.envs import cluster_of
from reflectkit.envs.setup import at_level, not_repeatable
from reflectkit.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    DivergedError,
    EnvironmentFailure,
    ReflectkitError,
)
from reflectkit.eventloop import result_of
from reflectkit.jsonl import append, intact, read_json, rewrite, write_jsonl
from reflectkit.prompts import policy_prompt
from reflectkit.rollout.checked import checked
from reflectkit.runs.folders import checkpoints
from reflectkit.runs.identity import recorded_defaults
from reflectkit.sampling.base import Opening
from reflectkit.sampling.config import LOCAL
from reflectkit.text import pluralize
from reflectkit.train.reflector import FOLDER, JUDGEMENT, ReflectorSchedule, ReflectorTrainer
from reflectkit.types import Task, to_json

if TYPE_CHECKING:
    from reflectkit.agents.comments import CommentSource
    from reflectkit.models.load import LoadedModel
    from reflectkit.train.learner import Learner, Settings
    from reflectkit.train.loop import Level, Trainer
    from reflectkit.train.processes import Processes
    from reflectkit.train.rl_config import RLConfig


CHECKED = 8  # problems of each level whose prompts are checked before any weights are loaded


def levels_of(config: RLConfig, tasks: list[Task], source: Path) -> list[Level]:
    """The curriculum's stages with their problems."""
    from reflectkit.train.loop import Level

    levels = []
    for names in config.curriculum.stages(config.env.kind.levels[-1]):
        problems = {task.id: task for name in names for task in at_level(config.env.name, tasks, name, source)}
        chosen = list(problems.values())[: config.curriculum.few_data or None]
        levels.append(Level("+".join(names), chosen, config.setup.maker(names[-1]), config.env.kind.max_concurrency))
    return levels


def validation_of(config: RLConfig, source: Path) -> Level | None:
    """The validation problems at the curriculum's last level; None without validation."""
    from reflectkit.train.loop import Level

    if not config.validate_steps:
        return None
    path = source.with_name("validate.json")
    tasks = [record.task for record in read_records(path, config.setup.env_name)]
    name = config.curriculum.stages(config.env.kind.levels[-1])[-1][-1]
    return Level(
        name, at_level(config.env.name, tasks, name, path), config.setup.maker(name), config.env.kind.max_concurrency
    )


def check_prompts(config: RLConfig, levels: list[Level]) -> None:
    """Raises ConfigError or CheckpointError if the policy's tokenizer or context, or the reflector's reward, does not
    fit these problems, or they begin otherwise each time.

    Only its tokenizer and config are loaded, not its weights. Problems whose env fails are left out: their episodes
    will be ABORTED.
    """
    from reflectkit.models.checkpoint_metadata import context_of, load_tokenizer
    from reflectkit.models.labels import trie
    from reflectkit.models.tokens import choice_ids, prompt_ids

    answer = config.sampler.answer_of(config.policy.start)
    tokenizer, context = load_tokenizer(config.policy.start), context_of(config.policy.start)
    for level in levels:
        for task in level.tasks[:CHECKED]:
            with closing(checked(level.make())) as env:
                try:
                    observation, again = (result_of(env.reset(task, config.run.seed)) for _ in range(2))
                except EnvironmentFailure:
                    continue
            if again != observation:
                raise not_repeatable(config.setup.env_name, task.id, 0)
            if (
                config.reflector_training.every
                and config.reflector_training.reward == JUDGEMENT
                and not observation.choices
            ):
                raise ConfigError(
                    "--reflector-reward judgement compares enumerated actions, and task"
                    f" '{task.id}' begins without; use --reflector-reward return"
                )
            tokens = len(prompt_ids(tokenizer, policy_prompt(observation, None, answer)))
            if observation.choices:
                tokens += trie(choice_ids(tokenizer, observation.choices, answer)).depth
            if context is not None and tokens > context:
                raise ConfigError(
                    f"the first prompt of task '{task.id}' is {tokens} tokens, and {config.policy.start} reads"
                    f" {context}; use a model with a longer context, or train one with a larger --max-length"
                )


def build_trainer(
    config: RLConfig,
    levels: list[Level],
    place: Path | None,
    processes: Processes,
    progress: Progress,
    chat: CommentSource | None = None,
) -> Trainer:
    """A trainer whose players are those of checkpoint `place`, or else the ones to start from. chat: a chat model that
    comments.

    Raises CheckpointError, and ConfigError for what the processes or the models cannot do.
    """
    from reflectkit.agents.two_player import Reflector, TwoPlayerAgent
    from reflectkit.train.loop import Trainer, TrainerConfig

    if processes.sharded and config.sampler.policy != LOCAL:
        raise ConfigError(
            f"--sampler {config.sampler.policy}: a policy spread over processes samples locally; leave it out"
        )
    if processes.count > 1 and config.sampler.remote:
        raise ConfigError(f"--sampler {config.sampler.policy} trains in one process; leave out torchrun or accelerate")
    if processes.count > 1 and config.reflector_training.every:
        raise ConfigError(
            f"--train-reflector {config.reflector_training.every}: runs in one process; leave out torchrun or"
            " accelerate"
        )
    if processes.count > 1 and chat is not None:
        raise ConfigError(
            f"--reflector {config.reflector.load_dir} is asked by one process; leave out torchrun or accelerate"
        )
    device = config.policy.device
    if device == "auto" or processes.count > 1:
        device = str(processes.accelerator.device)
    policy, reflecting = _players(config, place, device)
    learner = _policy_learner(config, policy, device, processes, progress)
    scorer, team = (learner.scorer, processes) if processes.sharded else (None, None)
    sampler = config.sampler.open_policy(
        Opening(str(place or config.policy.start), device, policy, scorer=scorer, team=team, watch=learner.observe)
    )
    reflector = second = None
    if config.reflector.load_dir is not None and chat is None:
        opened = config.sampler.open_reflector(
            str(config.reflector.load_dir), device, reflecting, frozen=not config.reflector_training.every
        )
        reflector = Reflector(opened, temperature=config.reflector.temperature)
    if config.reflector_training.every and reflecting is not None:
        second = _second_player(config, reflecting, device, progress)
    commentator = chat or reflector
    agent = TwoPlayerAgent(
        sampler,
        commentator and config.sampler.swapped(commentator, config.setup.folder),
        answer=policy.answer,
        temperature=config.policy.temperature,
        reflect_prob=config.reflector.prob,
        max_new_tokens=config.policy.max_new_tokens,
        episode_tokens=config.sampler.episode_tokens,
        thinking=config.sampler.thinking,
    )
    plan = TrainerConfig(
        levels,
        config.max_steps,
        config.episodes,
        config.algo.objective,
        config.run.seed,
        config.rollout.width,
        config.algo.repeats,
        config.optim.schedule,
        config.optim.warmup_steps or 0,
        config.staleness.max_staleness,
        config.staleness.oversample,
        config.staleness.episode_timeout_s,
    )
    return Trainer(
        plan,
        agent,
        learner,
        replay_size=config.algo.replay_size,
        threshold=config.curriculum.advance_at or None,
        processes=processes,
        second=second,
    )


def _players(config: RLConfig, place: Path | None, device: str) -> tuple[LoadedModel, LoadedModel | None]:
    """The policy, and the reflector where this process holds it."""
    from reflectkit.models.load import load_pair, load_player, with_adapter

    dtype, quantize = config.policy.dtype or None, config.policy.quantize or None
    comments = None if config.chat_reflector else config.reflector.load_dir
    if comments is not None and config.reflector_training.every and place is not None:
        comments = place / FOLDER
    reflector: LoadedModel | None = None
    if config.reflector.share_base and comments is not None:
        policy, reflector = load_pair(
            place or config.policy.start, comments, device=device, dtype=dtype, quantize=quantize
        )
    else:
        policy = load_player(place or config.policy.start, "policy", device=device, dtype=dtype, quantize=quantize)
        if config.lora.r and place is None:
            policy = with_adapter(
                policy, config.lora.r, config.lora.alpha, config.run.seed, targets=config.lora.targets
            )
        if comments is not None and config.sampler.reflector == LOCAL:
            reflector = load_player(comments, "reflection", device=device)
    _refuse_quantised(policy, "the policy's weights", "; add --lora-r 16")
    if reflector is not None and config.reflector_training.every:
        _refuse_quantised(reflector, f"{config.reflector.load_dir}: its weights", ", unless it has a LoRA adapter")
    return replace(policy, answer=config.sampler.answer_of(config.policy.start)), reflector


def _refuse_quantised(player: LoadedModel, whose: str, fix: str) -> None:
    if player.quantize != "none" and not hasattr(player.model, "peft_config"):
        raise ConfigError(f"{whose} are quantised to {player.quantize} and cannot be trained{fix}")


def _settings(config: RLConfig, learning_rate: float) -> Settings:
    """What both players' learners have in common."""
    from reflectkit.train.learner import Settings

    return Settings(
        learning_rate=learning_rate,
        optimizer=config.optim.optimizer,
        weight_decay=config.optim.weight_decay,
        clip=config.algo.clip,
        max_grad_norm=config.optim.max_grad_norm,
        minibatch=config.algo.minibatch,
        max_tokens=config.max_tokens_per_batch,
        gradient_checkpointing=config.gradient_checkpointing,
    )


def _policy_learner(
    config: RLConfig, policy: LoadedModel, device: str, processes: Processes, progress: Progress
) -> Learner:
    """What trains the policy, with a critic and the starting policy where they are needed."""
    from reflectkit.models.load import starting_player
    from reflectkit.train.critic import Critic
    from reflectkit.train.learner import Learner

    own = config.algo.critic
    settings = replace(
        _settings(config, config.optim.learning_rate),
        loss=config.algo.objective.loss,
        entropy=config.algo.entropy,
        kl=config.algo.kl,
        epochs=config.algo.epochs,
        target_kl=config.algo.target_kl,
        critic_rate=own.critic_rate if own else 0.0,
        value_clip=own.value_clip if own else 0.0,
        mean=config.algo.loss_mean,
        temperature=config.policy.temperature,
        is_cap=config.staleness.importance_weight_max if config.staleness.max_staleness else 0.0,
        agrees_with=config.sampler.policy if config.sampler.remote and not config.staleness.max_staleness else "",
        mismatch=config.sampler.remote,
        share_prefixes=config.share_prefixes,
    )
    critic = Critic(policy, own.head, own.critic_trunk, config.run.seed) if own else None
    reference = starting_player(policy, config.policy.start, bool(config.lora.r), device) if config.algo.kl else None
    return Learner(policy, settings, critic, reference, processes, progress.news)


def _second_player(config: RLConfig, reflector: LoadedModel, device: str, progress: Progress) -> ReflectorTrainer:
    """What trains the reflector: one pass over a turn's comments, with PPO's loss."""
    from reflectkit.models.load import starting_player
    from reflectkit.train.learner import Learner

    assert config.reflector.load_dir is not None
    settings = replace(
        _settings(config, config.reflector_training.learning_rate),
        entropy=0.0,
        kl=config.reflector_training.kl,
        temperature=config.reflector_training.temperature,
    )
    reference = None
    if config.reflector_training.kl:
        reference = starting_player(reflector, config.reflector.load_dir, False, device, "reflection")
    learner = Learner(reflector, settings, reference=reference, notify=progress.news)
    turns = ReflectorSchedule(
        config.reflector_training.every,
        config.reflector_training.states,
        config.reflector_training.comments,
        config.reflector_training.reward,
        config.reflector_training.temperature,
        config.algo.normalize,
        config.reflector_training.length_cost,
    )
    return ReflectorTrainer(learner, turns)


MAY_DIFFER = (
    "resume_from", "learning_rate", "reflector_rate", "save_steps", "keep_episodes", "device", "report_to",
    "gradient_checkpointing", "data_dir", "sampler", "reflector_sampler",
)  # fmt: skip
"""Settings that may differ from those of the checkpoint that a run resumes from."""


def resumed_trainer(
    config: RLConfig,
    levels: list[Level],
    folder: Path,
    settings: Mapping[str, Any],
    processes: Processes,
    progress: Progress,
    chat: CommentSource | None = None,
) -> Trainer:
    """The trainer: resumed from the latest undamaged checkpoint in `folder`, from --resume-from, or at its start. chat:
    a chat model that comments.
    """
    from reflectkit.train import checkpoint

    defaults = recorded_defaults(config)
    for place in reversed(checkpoints(folder)):
        try:
            checkpoint.check_files(place)
            trainer = build_trainer(config, levels, place, processes, progress, chat)
            checkpoint.restore(place, trainer, settings, defaults)
            return trainer
        except checkpoint.OtherSettingsError:
            raise
        except CheckpointError as error:
            progress.news(f"{error}; resuming from an earlier state")
    if config.resume_from is not None:
        state = _state_of(config.resume_from)
        free = (
            *MAY_DIFFER,
            *(
                ("max_steps",)
                if config.optim.schedule == "constant" and (len(levels) < 2 or config.curriculum.advance_at)
                else ()
            ),
        )
        checkpoint.check_settings(
            config.resume_from,
            {name: value for name, value in state.items() if name not in free},
            {name: value for name, value in settings.items() if name not in free},
            defaults,
        )
        checkpoint.check_files(config.resume_from)
        trainer = build_trainer(config, levels, config.resume_from, processes, progress, chat)
        checkpoint.restore(config.resume_from, trainer, state, defaults)
        if trainer.step >= config.max_steps:
            raise ConfigError(
                f"{config.resume_from} is after {pluralize(trainer.step, 'update')}; raise --max-steps above that"
            )
        return trainer
    return build_trainer(config, levels, None, processes, progress, chat)


def _state_of(place: Path) -> dict[str, Any]:
    """The settings that the checkpoint `place` was made with."""
    from reflectkit.train import checkpoint

    if not (place / checkpoint.STATE).is_file():
        raise CheckpointError(
            f"{place} is not a checkpoint of rlft; name one, e.g. results/taxi-tiny/reflect-rl/checkpoint-36"
        )
    try:
        return dict(read_json(place / checkpoint.STATE)["settings"])
    except (DataError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{place}: the training state is damaged ({error})") from None


def read_metrics(path: Path, step: int, progress: Progress) -> list[dict[str, Any]]:
    """The figures in `path` of the updates up to `step`, as they were written."""
    rows, damaged, _ = intact(path, step, {"success_rate": int | float, "return": int | float})
    if damaged:
        progress.news(f"{path}: damaged lines dropped: {damaged}; training itself is not affected")
    return rows


def restore_episodes(path: Path, step: int, progress: Progress) -> None:
    """Remove the kept episodes of lost updates, after `step`, and those that were changed."""
    if not path.is_file():
        return
    rows, damaged, missing = intact(path, step, {})
    if damaged or missing:
        progress.news(f"{path}: damaged lines dropped: {damaged}, lines lost: {missing}")
    rewrite(path, rows)


def keep_episodes(config: RLConfig, trainer: Trainer, path: Path) -> None:
    """Append this update's first episodes to those of earlier updates."""
    new = [
        episode_to_json(f"update {trainer.step}", trajectory, advantages, cluster_of(config.env.name, trajectory.task))
        | {"step": trainer.step}
        for trajectory, advantages in trainer.latest[: config.keep_episodes]
    ]
    append(path, new, sync=True)


def with_rows(error: ReflectkitError, folder: Path, trainer: Trainer) -> ReflectkitError:
    """`error`; if an update diverged, its rows are written to a file that the error names."""

    if not isinstance(error, DivergedError):
        return error
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
