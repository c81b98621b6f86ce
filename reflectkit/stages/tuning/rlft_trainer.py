"""From the settings of rlft to a `rl.loop.Trainer`: the players, what learns, and who samples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from reflectkit.core.console import Progress
from reflectkit.core.errors import ConfigError
from reflectkit.models.sampler import Opening
from reflectkit.rl.reflector import FOLDER, SecondPlayer, Turns
from reflectkit.stages.shared.sampling import LOCAL

if TYPE_CHECKING:
    from reflectkit.agents.commentators import Commentator
    from reflectkit.models.load import Player
    from reflectkit.rl.learner import Learner, Settings
    from reflectkit.rl.loop import Level, Trainer
    from reflectkit.rl.processes import Processes
    from reflectkit.stages.rlft import Config


def trainer_of(
    config: Config,
    levels: list[Level],
    place: Path | None,
    processes: Processes,
    progress: Progress,
    chat: Commentator | None = None,
) -> Trainer:
    """A trainer whose players are those of checkpoint `place`, or else the ones to start from. chat: a chat model that
    comments.

    Raises CheckpointError, and ConfigError for what the processes or the models cannot do.
    """
    from reflectkit.agents.two_player import Reflector, TwoPlayerAgent
    from reflectkit.rl.loop import Plan, Trainer

    if processes.sharded and config.sampler != LOCAL:
        raise ConfigError(f"--sampler {config.sampler}: a policy spread over processes samples locally; leave it out")
    if processes.count > 1 and config.remote:
        raise ConfigError(f"--sampler {config.sampler} trains in one process; leave out torchrun or accelerate")
    if processes.count > 1 and config.train_reflector:
        raise ConfigError(
            f"--train-reflector {config.train_reflector}: runs in one process; leave out torchrun or accelerate"
        )
    if processes.count > 1 and chat is not None:
        raise ConfigError(
            f"--reflect-load-dir {config.reflect_load_dir} is asked by one process; leave out torchrun or accelerate"
        )
    device = str(processes.accelerator.device) if config.device == "auto" or processes.count > 1 else config.device
    policy, reflecting = _players(config, place, device)
    learner = _policy_learner(config, policy, device, processes, progress)
    scorer, team = (learner.scorer, processes) if processes.sharded else (None, None)
    sampler = config.open_sampler(
        Opening(str(place or config.start), device, policy, scorer=scorer, team=team, watch=learner.observe)
    )
    reflector = second = None
    if config.reflect_load_dir is not None and chat is None:
        opened = config.open_reflector(
            str(config.reflect_load_dir), device, reflecting, frozen=not config.train_reflector
        )
        reflector = Reflector(opened, temperature=config.reflect_temperature)
    if config.train_reflector and reflecting is not None:
        second = _second_player(config, reflecting, device, progress)
    commentator = chat or reflector
    agent = TwoPlayerAgent(
        sampler,
        commentator and config.swapped(commentator),
        answer=policy.answer,
        temperature=config.temperature,
        reflect_prob=config.reflect_prob,
        max_new_tokens=config.max_new_tokens,
        episode_tokens=config.episode_tokens,
        thinking=config.thinking,
    )
    plan = Plan(
        levels,
        config.max_steps,
        config.episodes,
        config.objective,
        config.seed,
        config.width,
        config.repeats,
        config.schedule,
        config.warmup_steps,
        config.max_staleness,
        config.oversample,
        config.episode_timeout_s,
    )
    return Trainer(
        plan,
        agent,
        learner,
        replay_size=config.replay_size,
        threshold=config.advance_at or None,
        processes=processes,
        second=second,
    )


def _players(config: Config, place: Path | None, device: str) -> tuple[Player, Player | None]:
    """The policy, and the reflector where this process holds it."""
    from reflectkit.models.load import load_pair, load_player, with_adapter

    dtype, quantize = config.dtype or None, config.quantize or None
    comments = None if config.chat_reflector else config.reflect_load_dir
    if comments is not None and config.train_reflector and place is not None:
        comments = place / FOLDER
    reflector: Player | None = None
    if config.share_base and comments is not None:
        policy, reflector = load_pair(place or config.start, comments, device=device, dtype=dtype, quantize=quantize)
    else:
        policy = load_player(place or config.start, "policy", device=device, dtype=dtype, quantize=quantize)
        if config.lora_r and place is None:
            policy = with_adapter(policy, config.lora_r, config.lora_alpha, config.seed, targets=config.lora_targets)
        if comments is not None and config.reflector_sampler == LOCAL:
            reflector = load_player(comments, "reflection", device=device)
    _refuse_quantised(policy, "the policy's weights", "; add --lora-r 16")
    if reflector is not None and config.train_reflector:
        _refuse_quantised(reflector, f"{config.reflect_load_dir}: its weights", ", unless it has a LoRA adapter")
    return replace(policy, answer=config.answer_of(config.start)), reflector


def _refuse_quantised(player: Player, whose: str, fix: str) -> None:
    if player.quantize != "none" and not hasattr(player.model, "peft_config"):
        raise ConfigError(f"{whose} are quantised to {player.quantize} and cannot be trained{fix}")


def _settings(config: Config, learning_rate: float) -> Settings:
    """What both players' learners have in common."""
    from reflectkit.rl.learner import Settings

    return Settings(
        learning_rate=learning_rate,
        optimizer=config.optimizer,
        weight_decay=config.weight_decay,
        clip=config.clip,
        max_grad_norm=config.max_grad_norm,
        minibatch=config.minibatch,
        max_tokens=config.max_tokens_per_batch,
        gradient_checkpointing=config.gradient_checkpointing,
    )


def _policy_learner(config: Config, policy: Player, device: str, processes: Processes, progress: Progress) -> Learner:
    """What trains the policy, with a critic and the starting policy where they are needed."""
    from reflectkit.models.load import starting_player
    from reflectkit.rl.critic import Critic
    from reflectkit.rl.learner import Learner

    own = config.critic_settings
    settings = replace(
        _settings(config, config.learning_rate),
        loss=config.objective.loss,
        entropy=config.entropy,
        kl=config.kl,
        epochs=config.epochs,
        target_kl=config.target_kl,
        critic_rate=own.critic_rate if own else 0.0,
        value_clip=own.value_clip if own else 0.0,
        mean=config.loss_mean,
        temperature=config.temperature,
        is_cap=config.is_cap if config.max_staleness else 0.0,
        agrees_with=config.sampler if config.remote and not config.max_staleness else "",
        mismatch=config.remote,
        share_prefixes=config.share_prefixes,
    )
    critic = Critic(policy, own.head, own.critic_trunk, config.seed) if own else None
    reference = starting_player(policy, config.start, bool(config.lora_r), device) if config.kl else None
    return Learner(policy, settings, critic, reference, processes, progress.news)


def _second_player(config: Config, reflector: Player, device: str, progress: Progress) -> SecondPlayer:
    """What trains the reflector: one pass over a turn's comments, with PPO's loss."""
    from reflectkit.models.load import starting_player
    from reflectkit.rl.learner import Learner

    assert config.reflect_load_dir is not None
    settings = replace(
        _settings(config, config.reflector_rate),
        entropy=0.0,
        kl=config.reflector_kl,
        temperature=config.reflector_temperature,
    )
    reference = None
    if config.reflector_kl:
        reference = starting_player(reflector, config.reflect_load_dir, False, device, "reflection")
    learner = Learner(reflector, settings, reference=reference, notify=progress.news)
    turns = Turns(
        config.train_reflector,
        config.reflector_states,
        config.reflector_comments,
        config.reflector_reward,
        config.reflector_temperature,
        config.normalize,
        config.reflector_length_cost,
    )
    return SecondPlayer(learner, turns)
