"""Build, the second of rlft's four steps: the `Trainer` of an `RLRun`, at its start or from a
checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from reflectkit.agents.two_player import CommentSource, TeacherComments, TwoPlayerAgent
from reflectkit.agents.typed import TypedReflector, reflector_of
from reflectkit.chat.client import Budget, client_at
from reflectkit.chat.players import ChatReflector
from reflectkit.console import Progress, Report
from reflectkit.errors import CheckpointError, ConfigError, DataError, refuse
from reflectkit.eventloop import run_sync
from reflectkit.models.checkpoint_metadata import (
    REFLECTOR_FOLDER,
    check_role,
    load_tokenizer,
    model_facts,
)
from reflectkit.models.fast_pass import compile_notice
from reflectkit.models.hub import same_model
from reflectkit.models.load import (
    LoadedModel,
    averaged_player,
    load_pair,
    load_player,
    starting_player,
    with_adapter,
)
from reflectkit.models.processor import dtype_advice
from reflectkit.models.scoring import logits_at_once
from reflectkit.prompts import PROMPT_VERSION
from reflectkit.runs.run import Run, checkpoints, damage_told, verify
from reflectkit.sampling.base import Opening, Sampler
from reflectkit.sampling.config import LOCAL
from reflectkit.sampling.service import (
    RememberingAdapter,
    ServiceBase,
    ServiceSampler,
    base_on_service,
    open_service,
    opened_adapter,
    record_of,
    sampler_of,
)
from reflectkit.sampling.service_interface import TrainingService
from reflectkit.text import pluralize
from reflectkit.train import checkpoint
from reflectkit.train.critic import Critic
from reflectkit.train.learner import Learner, LearnerSettings
from reflectkit.train.local_learner import LocalLearner
from reflectkit.train.meter import Meter, MeteredService
from reflectkit.train.plan import plan_report, tokens_a_pass
from reflectkit.train.processes import Processes
from reflectkit.train.reflector import ReflectorTrainer
from reflectkit.train.resolve import RLRun
from reflectkit.train.rl_config import LIMITS
from reflectkit.train.service_learner import ServiceLearner
from reflectkit.train.service_plan import service_plan
from reflectkit.train.settings import OptimizerConfig
from reflectkit.train.trainer import Trainer, TrainerConfig
from reflectkit.types import SCORE, Trajectory

JOURNAL = "reflector.jsonl"
"""The answers of a chat model that comments, in the run's folder."""
MAY_DIFFER = {
    "resume_from", "learning_rate", "reflector_rate", "save_steps", "keep_episodes", "device", "report_to",
    "gradient_checkpointing", "data_dir", "sampler", "reflector_sampler", "engine", *LIMITS,
}  # fmt: skip
"""Settings, by the names of their flags, that may differ from those of the checkpoint that
--resume-from names.
"""


@contextmanager
def chat_comments(
    run: RLRun,
    folder: Path,
    progress: Progress,
) -> Iterator[ChatReflector | None]:
    """The chat model that comments, with its journal in `folder`; None if none does."""
    if run.endpoint is None:
        yield None
        return
    temperature = run.config.reflector.temperature
    with client_at(
        run.config.chat, run.endpoint, folder / JOURNAL, temperature=temperature
    ) as client:
        client.report(progress)
        yield ChatReflector(client)
        for note in client.notes:
            progress.news(note)


def resumed_trainer(
    run: RLRun,
    current: Run,
    processes: Processes,
    progress: Progress,
    chat: CommentSource | None,
) -> Trainer:
    """The trainer: resumed from the latest undamaged checkpoint of run `current`, from
    --resume-from, or at its start.

    chat: a chat model that comments. Damaged checkpoints are told of, and stay until an update
    replaces them. Raises CheckpointError, and ConfigError for models that cannot be trained.
    """
    origin = run.config.resume_from

    def built(place: Path | None) -> Trainer:
        return build_trainer(run, processes, progress, chat, place, current.earlier_steps)

    def tell(error: CheckpointError, place: Path) -> None:
        has_earlier = place != places[0] or origin is not None
        progress.news(damage_told(error, has_earlier=has_earlier))

    # 1. From the newest checkpoint of this run that is undamaged
    places = checkpoints(current.folder)
    for place in reversed(places):
        try:
            verify(place)
        except CheckpointError as error:
            tell(error, place)
            continue
        there = checkpoint.settings_of(place)
        checkpoint.check_settings(place, there, run.settings, LIMITS)
        _check_prompt_version(place, "start anew with --force")
        trainer = built(place)
        try:
            checkpoint.restore(place, trainer)
        except CheckpointError as error:  # as where a training service holds other weights
            tell(error, place)
            continue
        return trainer

    # 2. From a checkpoint of another run
    if origin is not None:
        there = checkpoint.settings_of(origin)  # refuses what is no checkpoint of rlft
        verify(origin)
        checkpoint.check_settings(origin, there, run.settings, MAY_DIFFER)
        _check_prompt_version(origin, f"start anew with --policy {origin}")
        trainer = built(origin)
        checkpoint.restore(origin, trainer)
        if trainer.step >= run.config.max_steps:
            raise ConfigError(
                f"{origin} is after {pluralize(trainer.step, 'update')}; raise --max-steps above"
                " that"
            )
        return trainer

    # 3. At its start
    return built(None)


def _check_prompt_version(place: Path, fix: str) -> None:
    """Raises OtherSettingsError if the run that wrote checkpoint `place` read another version of
    the prompts.

    fix: how to train without it.
    """
    version = model_facts(place).get("prompts", 0)
    if version != PROMPT_VERSION:
        raise checkpoint.OtherSettingsError(
            f"{place} was trained on version {version} of the prompts and cannot go on with version"
            f" {PROMPT_VERSION}; evaluate it as it is, or {fix}"
        )


def build_trainer(
    run: RLRun,
    processes: Processes,
    progress: Progress,
    chat: CommentSource | None = None,
    place: Path | None = None,
    earlier_steps: tuple[int, ...] = (),
) -> Trainer:
    """A trainer whose players are those of checkpoint `place`, or else the ones to start from.

    chat: a chat model that comments. earlier_steps: see `TrainerConfig`. Raises CheckpointError,
    and ConfigError for models that cannot be trained.
    """
    config = run.config
    if config.engine.remote:
        return _service_trainer(run, progress, chat, place, earlier_steps)
    device = config.policy.device
    if device == "auto" or processes.count > 1:
        device = str(processes.accelerator.device)

    # 1. The models
    policy, reflector_model = _load_models(run, place, device)
    advice = dtype_advice(policy)
    if advice:
        progress.news(advice)
    recompute = config.gradient_checkpointing
    if not recompute and (notice := compile_notice(policy.model)):
        progress.news(notice)
    max_tokens = config.max_tokens_per_batch or tokens_a_pass(policy.model, recompute=recompute)
    memory: dict[str, Any] = {"max_tokens": max_tokens, "gradient_checkpointing": recompute}

    # 2. The learner of the policy, and the sampler of its actions
    learner = _learner(run, policy, device, memory, processes, progress)
    opening = Opening(
        str(place or run.policy),
        device,
        policy,
        scorer=learner.scorer if processes.sharded else None,
        team=processes if processes.sharded else None,
        watch=learner.observe if learner.has_critic else None,
    )
    sampler = config.sampler.open_policy(opening)

    # 3. Who comments, and the trainer of a reflector that learns
    training = config.reflector_training
    commentator = _commentator(
        run,
        chat,
        lambda source: config.sampler.open_reflector(
            source, device, reflector_model, frozen=not training.every
        ),
    )
    if isinstance(commentator, TypedReflector):
        fault = "asks a typed reflector, whose answers are neither trained nor drawn; leave it out"
        refuse(training.every, f"--train-reflector {training.every} {fault}")
        refuse(config.reflector.temperature, f"--reflect-temperature {fault}")
    reflector_trainer = None
    if training.every and reflector_model is not None:
        reflector_trainer = _reflector_trainer(run, reflector_model, device, memory, progress)

    # 4. The trainer
    trainer = _trainer(
        run,
        learner,
        sampler,
        commentator,
        policy.answer,
        earlier_steps,
        processes,
        reflector_trainer,
    )
    if config.recorded is not None:
        trainer.recorded = _tokenised(run.problems.recorded, trainer.agent, config.recorded)
    return trainer


def _learner(
    run: RLRun,
    policy: LoadedModel,
    device: str,
    memory: Mapping[str, Any],
    processes: Processes,
    progress: Progress,
) -> LocalLearner:
    """The learner of `policy`, in this process. memory: what its passes may take, as settings.

    Raises ConfigError if the critic cannot read the states.
    """
    # 1. The policy that training started from, for a KL penalty or as the teacher of distillation
    config = run.config
    distill = config.distill
    start = None
    if config.algo.kl or (distill.weight and not distill.ema):
        start = starting_player(policy, run.policy.text, bool(config.lora.r), device)

    # 2. The critic
    critic = None
    critic_settings: dict[str, Any] = {}
    critic_config = config.algo.critic
    if critic_config is not None:
        unseen = "the critic reads a state without its choices, which the policy scores alone"
        fault = f"--algo {config.algo.name}: {unseen}; use --algo grpo or reinforce"
        refuse(policy.answer == SCORE, fault)
        critic = Critic(policy, critic_config.head, critic_config.critic_trunk, config.run.seed)
        critic_settings["critic_rate"] = critic_config.critic_rate
        critic_settings["value_clip"] = critic_config.value_clip

    # 3. The teacher of distillation
    teacher = None
    if distill.weight:
        teacher = averaged_player(policy) if distill.ema else start

    # 4. The learner
    settings = LearnerSettings(
        **_policy_settings(run),
        distill=distill.weight,
        divergence=distill.divergence,
        ema=distill.ema,
        has_targets=config.algo.table_coef > 0,
        **critic_settings,
        **memory,
    )
    reference = start if config.algo.kl else None
    return LocalLearner(policy, settings, critic, reference, processes, progress.news, teacher)


def _commentator(
    run: RLRun,
    chat: CommentSource | None,
    open_sampler: Callable[[str], Sampler],
) -> CommentSource | None:
    """Who comments: the env's teacher, a chat model, or a reflector; None if nobody does.

    chat: the chat model. open_sampler: opens the sampler of a reflector by its name.
    """
    reflector = run.reflector
    if reflector is not None and reflector.is_teacher:
        return TeacherComments()
    if reflector is None or chat is not None:
        return chat
    temperature = run.config.reflector.temperature
    return reflector_of(open_sampler(reflector.text), reflector.facts, reflector.text, temperature)


def _policy_settings(run: RLRun) -> dict[str, Any]:
    """Settings of the policy's learner, wherever that is."""
    config = run.config
    algo, staleness, sampler = config.algo, config.staleness, config.sampler
    remote = sampler.remote or config.engine.remote
    other = config.engine.name if config.engine.remote else sampler.policy
    return {
        **_optimizer_settings(config.optim, config.optim.rate),
        "loss": algo.loss,
        "mean": algo.loss_mean,
        "clip": algo.clip,
        "clip_high": algo.clip_high,
        "mask": algo.mask,
        "mask_ratio": algo.mask_ratio,
        "entropy": algo.entropy,
        "kl": algo.kl,
        "epochs": algo.epochs,
        "minibatch": algo.minibatch,
        "target_kl": algo.target_kl,
        "max_kl": algo.max_kl,
        "temperature": config.policy.temperature,
        "is_cap": staleness.importance_weight_max if staleness.max_staleness else 0.0,
        "agrees_with": other if remote and not staleness.max_staleness else "",
        "mismatch": remote,
    }


def _trainer(
    run: RLRun,
    learner: Learner,
    sampler: Sampler,
    commentator: CommentSource | None,
    answer: str,
    earlier_steps: tuple[int, ...],
    processes: Processes,
    reflector_trainer: ReflectorTrainer | None = None,
) -> Trainer:
    """The trainer of these parts. answer: what the policy answers where it chooses."""
    # 1. The agent that plays: the policy's sampler and who comments
    config, distill = run.config, run.config.distill
    agent = TwoPlayerAgent(
        sampler,
        commentator and config.sampler.swapped(commentator, config.setup.folder),
        answer=answer,
        temperature=config.policy.temperature,
        reflect_prob=distill.joint if distill.weight else config.reflector.prob,
        distills=distill.weight > 0,
        max_new_tokens=config.policy.max_new_tokens,
        episode_tokens=config.sampler.episode_tokens,
        thinking=config.sampler.thinking,
    )
    # 2. What it plays and learns
    trainer_config = TrainerConfig(
        run.problems.levels,
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
    return Trainer(
        trainer_config, agent, learner, processes=processes, reflector_trainer=reflector_trainer
    )


def _service_trainer(
    run: RLRun,
    progress: Progress,
    chat: CommentSource | None,
    place: Path | None,
    earlier_steps: tuple[int, ...],
) -> Trainer:
    """A trainer whose policy is on a training service; see `build_trainer`. `checkpoint.restore`
    loads its weights.
    """
    config = run.config
    engine, seed = config.engine, config.run.seed
    budget = Budget(config.chat.max_cost_usd)
    if isinstance(chat, ChatReflector):
        budget = chat.client.budget
    meter = Meter(engine.settings.prices, budget)
    service = MeteredService(open_service(engine.name, engine.settings, progress.news), meter)

    # 1. The base on the service, and the adapter that learns; a policy that was trained there is
    # loaded
    record = record_of(run.policy.text)
    names = run_sync(service.models())
    base_name = record.get("base") or run.policy.text
    base = base_on_service(names, base_name, engine.settings.service_model, service.url)
    rank = int(record.get("rank") or config.lora.r)
    source = run.policy.text
    tokenizer, role = load_tokenizer(source), run.policy.facts.get("role")

    # Where training resumes, the checkpoint's weights are loaded later
    first_weights = record if place is None else {}
    opening = opened_adapter(service, base, rank, seed, first_weights, tokenizer)
    adapter = RememberingAdapter(run_sync(opening))
    progress.news(f"{service.url}: a LoRA adapter of rank {rank} on {base}")
    start = None
    if config.algo.kl:
        start = run_sync(opened_adapter(service, base, rank, seed, record, tokenizer))

    # 2. The learner and the sampler of the policy
    answer = config.sampler.answer_of(run.policy)
    learner = ServiceLearner(
        adapter,
        tokenizer,
        source,
        LearnerSettings(**_policy_settings(run)),
        {
            "engine": engine.name,
            "rows": engine.settings.service_rows,
            "base": base,
            "rank": rank,
        },
        role=role,
        answer=answer,
        start=start,
        clips=config.algo.clips,
        meter=meter,
        notify=progress.news,
    )
    sampler = sampler_of(adapter, source, role, service.url)

    # 3. Who comments: on the service what is there, else in this process
    commentator = _commentator(
        run,
        chat,
        lambda source: (
            _service_reflector(run, service, names)
            or config.sampler.open_reflector(source, config.policy.device, frozen=True)
        ),
    )
    trainer = _trainer(run, learner, sampler, commentator, answer, earlier_steps, Processes())
    if config.recorded is not None:
        trainer.recorded = _tokenised(run.problems.recorded, trainer.agent, config.recorded)
    return trainer


def _service_reflector(
    run: RLRun,
    service: TrainingService,
    names: Sequence[str],
) -> Sampler | None:
    """The sampler of a reflector that is on the service: an adapter that was trained there, or a
    base; else None.
    """
    reflector = run.reflector
    if reflector is None or not reflector.has_weights:
        return None
    source = reflector.text
    record = record_of(source)
    base = next((name for name in names if same_model(name, source)), None)
    if record:
        rank, seed, here = int(record["rank"]), run.config.run.seed, ServiceBase.of(source)
        role = check_role(source, "reflection")
        opening = opened_adapter(service, record["base"], rank, seed, record, here.tokenizer)
        return ServiceSampler(run_sync(opening), here, role, service.url)
    if base is not None:
        adapter = run_sync(service.writer(base))
    else:
        return None
    return sampler_of(adapter, source, check_role(source, "reflection"), service.url)


def _tokenised(
    trajectories: Sequence[Trajectory],
    agent: TwoPlayerAgent,
    source: Path,
) -> list[Trajectory]:
    """Recorded decisions with the tokens of the options that were taken. source: their file.

    Raises DataError if the policy of `agent` reads them as other tokens than the one that made
    them.
    """
    tokenised: list[Trajectory] = []
    for trajectory in trajectories:
        (turn,) = trajectory.turns
        decision, labels = turn.decision, agent.labels(turn.observation.choices)
        if agent.prompt(turn.observation, None) != decision.prompt_ids:
            fault = "the --policy reads the prompt as other tokens; use its own"
            raise DataError(source, f"{trajectory.task.id}: {fault}")
        assert isinstance(decision.action, int)
        decision = replace(decision, token_ids=labels[decision.action])
        tokenised.append(replace(trajectory, turns=(replace(turn, decision=decision),)))
    return tokenised


def _reflector_trainer(
    run: RLRun,
    model: LoadedModel,
    device: str,
    memory: dict[str, Any],
    progress: Progress,
) -> ReflectorTrainer:
    """The trainer of the reflector `model`. memory: what its passes may take, as settings of a
    learner.
    """
    algo, training = run.config.algo, run.config.reflector_training
    settings = LearnerSettings(
        **_optimizer_settings(run.config.optim, training.learning_rate),
        clip=algo.clip,
        minibatch=algo.minibatch,
        entropy=0.0,
        kl=training.kl,
        temperature=training.temperature,
        **memory,
    )
    reference = None
    if training.kl:
        reference = starting_player(model, str(run.reflector), False, device, "reflection")
    learner = LocalLearner(model, settings, reference=reference, notify=progress.news)
    return ReflectorTrainer(learner, training, algo.normalize)


def _optimizer_settings(optim: OptimizerConfig, rate: float) -> dict[str, Any]:
    """Settings of a learner for its optimizer. rate: the peak learning rate."""
    return {
        "learning_rate": rate,
        "weight_decay": optim.weight_decay,
        "max_grad_norm": optim.max_grad_norm,
    }


def _load_models(
    run: RLRun,
    place: Path | None,
    device: str,
) -> tuple[LoadedModel, LoadedModel | None]:
    """The policy, and the reflector where this process holds it. place: a checkpoint of training."""
    # 1. Where the weights are: at the start in the models that were named, then in the checkpoint
    config = run.config
    policy_source, reflector_source = str(place or run.policy), None
    if run.reflector is not None and run.reflector.has_weights:
        reflector_source = run.reflector.text
        if config.reflector_training.every and place is not None:
            reflector_source = str(place / REFLECTOR_FOLDER)

    options: Any = {
        "device": device,
        "dtype": config.policy.dtype or None,
        "quantize": config.policy.quantize or None,
    }
    # 2. Load them; a new adapter is only put on at the start
    reflector: LoadedModel | None = None
    if config.reflector.share_base and reflector_source is not None:
        policy, reflector = load_pair(policy_source, reflector_source, **options)
    else:
        policy = load_player(policy_source, "policy", **options)
        if config.lora.r and place is None:
            lora, seed = config.lora, config.run.seed
            policy = with_adapter(policy, lora.r, lora.alpha, seed, targets=lora.targets)
        if reflector_source is not None and config.sampler.reflector == LOCAL:
            reflector = load_player(reflector_source, "reflection", device=device)

    # 3. Quantised weights are frozen
    cannot = "is quantised and cannot be trained"
    refuse(_is_frozen(policy), f"the policy {cannot}; add --lora-r 16")
    if reflector is not None and config.reflector_training.every:
        refuse(_is_frozen(reflector), f"{run.reflector} {cannot}, unless it has a LoRA adapter")
    return replace(policy, answer=config.sampler.answer_of(run.policy)), reflector


def _is_frozen(player: LoadedModel) -> bool:
    """Whether the weights are quantised, and there is no adapter that learns."""
    return player.quantize != "none" and not hasattr(player.model, "peft_config")


def plan(
    run: RLRun,
    processes: Processes,
    progress: Progress,
) -> Report:
    """What training takes in one process, by arithmetic; of a training service, which tokens."""
    config = run.config
    if config.engine.remote:
        return service_plan(run, progress)
    # 1. The models as training would have them
    trainer = build_trainer(run, processes, progress)
    trainer.close()
    learner, agent = trainer.learner, trainer.agent
    assert isinstance(learner, LocalLearner)
    reflector = getattr(agent.reflector and agent.reflector.sampler, "player", None)
    frozen = (
        learner.critic,
        reflector and reflector.model,
        learner.reference and learner.reference.copy,
    )
    # 2. Their memory, and what the policy ends its texts with
    chooses = config.env.offers_choices and not agent.thinks
    return plan_report(
        "rlft",
        config.run.results_dir,
        [learner.player.model, *(model for model in frozen if model is not None)],
        learner.max_tokens,
        0 if chooses else logits_at_once(learner.player.model, learner.max_tokens),
        recompute=config.gradient_checkpointing,
        tokens={
            "tokens_a_pass": learner.max_tokens,
            "episodes": config.max_steps * config.episodes,
        },
        stop_tokens=() if chooses else agent.dialogue.stop_tokens,
    )
