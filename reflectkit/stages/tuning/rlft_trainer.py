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
    from reflectkit.stages.tuning.rl_config import RLConfig


def trainer_of(
    config: RLConfig,
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
    plan = Plan(
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


def _players(config: RLConfig, place: Path | None, device: str) -> tuple[Player, Player | None]:
    """The policy, and the reflector where this process holds it."""
    from reflectkit.models.load import load_pair, load_player, with_adapter

    dtype, quantize = config.policy.dtype or None, config.policy.quantize or None
    comments = None if config.chat_reflector else config.reflector.load_dir
    if comments is not None and config.reflector_training.every and place is not None:
        comments = place / FOLDER
    reflector: Player | None = None
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


def _refuse_quantised(player: Player, whose: str, fix: str) -> None:
    if player.quantize != "none" and not hasattr(player.model, "peft_config"):
        raise ConfigError(f"{whose} are quantised to {player.quantize} and cannot be trained{fix}")


def _settings(config: RLConfig, learning_rate: float) -> Settings:
    """What both players' learners have in common."""
    from reflectkit.rl.learner import Settings

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


def _policy_learner(config: RLConfig, policy: Player, device: str, processes: Processes, progress: Progress) -> Learner:
    """What trains the policy, with a critic and the starting policy where they are needed."""
    from reflectkit.models.load import starting_player
    from reflectkit.rl.critic import Critic
    from reflectkit.rl.learner import Learner

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


def _second_player(config: RLConfig, reflector: Player, device: str, progress: Progress) -> SecondPlayer:
    """What trains the reflector: one pass over a turn's comments, with PPO's loss."""
    from reflectkit.models.load import starting_player
    from reflectkit.rl.learner import Learner

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
    turns = Turns(
        config.reflector_training.every,
        config.reflector_training.states,
        config.reflector_training.comments,
        config.reflector_training.reward,
        config.reflector_training.temperature,
        config.algo.normalize,
        config.reflector_training.length_cost,
    )
    return SecondPlayer(learner, turns)
