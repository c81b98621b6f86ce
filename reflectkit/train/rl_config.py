"""The settings of rlft. Contradictory ones raise errors before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import field_validator, model_validator
from typing_extensions import override

from reflectkit.agents.player_refs import refuse_without_model
from reflectkit.chat.config import (
    OF_CHAT_MODELS,
    ChatConfig,
    Endpoint,
    address_in_use,
    parse_endpoint,
)
from reflectkit.config import Config, Rule, build_known, flag, leaves, non_default, option
from reflectkit.console import Quiet
from reflectkit.data.problems import Problems
from reflectkit.env import check_teacher
from reflectkit.envs import env_class
from reflectkit.envs.python_classes import env_text
from reflectkit.envs.setup import (
    EnvConfig,
    EnvSetup,
    RolloutConfig,
    chat_settings,
    check_level,
    refuse_uncounted,
)
from reflectkit.errors import ReflectkitError
from reflectkit.models.checkpoint_metadata import SERVICE
from reflectkit.models.hub import TINY
from reflectkit.models.refs import TEACHER, ModelRef
from reflectkit.runs.run import RunConfig
from reflectkit.sampling.base import COLDEST
from reflectkit.sampling.config import LOCAL, SamplerConfig
from reflectkit.sampling.engine import LOCAL_ENGINE, EngineConfig, is_service
from reflectkit.train.algorithms import AlgorithmConfig, GrpoSettings
from reflectkit.train.settings import (
    LEARNING_RATE,
    RATE_FROM_SCRATCH,
    CheckpointConfig,
    LoraConfig,
    OptimizerConfig,
)
from reflectkit.types import SCORE

LIMITS = ("max_steps", "patience")
"""Settings that say only when training ends; a run may be continued with others."""


WITHOUT_SFT: dict[str, Any] = {
    "algo": "ppo",
    "epochs": 4,
    "minibatch": 128,
    "max_kl": 0.5,
    "gae_lambda": 0.95,
}
"""What learns to choose from reward alone in most games of `python -m benchmarks.learning`. GRPO
makes fewer and worse steps there: it compares episodes of few problems, and whole episodes at once.
Where a game is solved, returns hardly differ, and advantages are noise, divided by its own
deviation. Such an update can undo what was learned; it ends at a divergence that others stay below.
"""
EXPLORING: dict[str, Any] = {"novelty": 3.0}
"""What random weights add, which know no better than to try everything."""
REMEMBERING: dict[str, Any] = {"table_coef": 1.0}
"""What they add where their loss is computed in this process."""
WITHOUT_CRITIC: dict[str, Any] = {"algo": "grpo", "epochs": 4, "minibatch": 128}
"""What learns to choose from reward alone on a training service, which has no critic."""
AFTER_SFT: dict[str, Any] = {"target_kl": 0.01}
"""With PPO. Its critic starts from nothing beside a policy that is nearly certain, which full steps
would ruin.
"""
ONE_UPDATE: dict[str, Any] = {"algo": "reinforce", "max_steps": 1, "entropy_coef": 0.0}
"""How recorded decisions are learned from: they have no groups, and are of the policy before the
first update. Only their rewards change it.
"""


def _offers_choices(values: Mapping[str, Any]) -> bool:
    """Whether the env has choices with the settings in `values`; not if these are wrong, as another
    check tells.
    """
    try:
        kind = env_class(str(values.get("env", "")))
        return kind.action_kind(build_known(kind.Settings, values)) == "choice"
    except ReflectkitError:
        return False


def _is_on_service(values: Mapping[str, Any]) -> bool:
    """Whether the policy is on a training service with the settings in `values`."""
    return is_service(str(values.get("engine", LOCAL_ENGINE)))


def _defaults_without_sft(values: Mapping[str, Any]) -> dict[str, Any]:
    """What a model without SFT learns to choose by. Nothing, if the user has said how it learns, or
    it is to write.

    values: the settings that are given, by flat name; a `model` is among them.
    """
    is_random = values["model"] in TINY
    on_service = _is_on_service(values)

    # 1. The user wants another algorithm, or PPO where there is no critic, which is refused
    names_of_grpo = {leaf.name for leaf in leaves(GrpoSettings)}
    is_other = values.get("algo", "ppo") != "ppo" or not names_of_grpo.isdisjoint(values)
    is_refused = on_service and "algo" in values
    if is_other or is_refused:
        return {}

    # 2. A critic does not see the choices of --answer score, and these defaults are for choices,
    #    which is all that random weights can learn
    answer = values.get("answer")
    writes = not is_random and (answer == "text" or not _offers_choices(values))
    if answer == SCORE or writes:
        return {}

    # 3. Random weights explore. A new adapter has nothing to forget
    defaults = WITHOUT_CRITIC if on_service else WITHOUT_SFT
    has_adapter = str(values.get("lora_r", 0)) != "0"
    if is_random:
        return defaults | EXPLORING | ({} if on_service else REMEMBERING)
    return defaults | ({"learning_rate": RATE_FROM_SCRATCH} if has_adapter else {})


class PolicyConfig(Config):
    """Policy: the model to train, and how it answers."""

    load_dir: ModelRef | None = option(
        None,
        name="policy",
        help=(
            "Checkpoint of the policy to train, or a run, for its best or newest one;"
            " alternatively --model."
        ),
        essential=True,
    )
    model: str = option(
        "",
        help="Instead of --policy, a model without SFT: tiny or tiny-hybrid (random weights),"
        " smollm2-135m, a folder or a Hugging Face id.",
        essential=True,
    )
    # How it is loaded
    dtype: Literal["", "float32", "bfloat16", "float16"] = option(
        "",
        help="float32; bfloat16, faster on GPUs and CPUs with AMX or AVX-512 BF16; or float16."
        " Default: that of the checkpoint, or float32.",
    )
    quantize: Literal["", "none", "8bit", "4bit"] = option(
        "", help="Quantise the base weights: 8bit, 4bit or none; default: as in the checkpoint."
    )
    # How it answers
    temperature: float = option(
        1.0, help="Sampling temperature of the policy, in rollouts and in the loss.", ge=COLDEST
    )
    max_new_tokens: int = option(
        128,
        help="Maximum length of an answer in tokens, in environments without enumerated actions.",
        ge=1,
    )
    device: str = option("auto", help="auto, cpu, cuda, …")

    @override
    def contradictions(self) -> Iterator[Rule]:
        both = "--policy and --model both name the model to train; give one of them"
        yield self.load_dir and self.model, both
        needs = (
            "rlft needs a model to train: --policy CHECKPOINT, --model FOLDER_OR_ID for one"
            " without SFT, or"
        )
        neither = not self.load_dir and not self.model
        yield neither, f"{needs} --model tiny, with random weights and no download"
        refuse_without_model(self.load_dir)

    @property
    def start(self) -> ModelRef:
        """Where the policy comes from."""
        return self.load_dir or ModelRef.parse(self.model)


class ReflectorConfig(Config):
    """Reflector: the model that comments on each state."""

    load_dir: ModelRef | None = option(
        None,
        name="reflector",
        help="Checkpoint of the reflector, a run in which both players learned, or a chat model"
        " (openai:MODEL, azure:DEPLOYMENT, local:MODEL), or oracle, the env's teacher; without one"
        " it is plain RL.",
        essential=True,
    )
    share_base: bool = option(
        False, help="Load the base once for a policy and a reflector that are LoRA adapters on it."
    )
    prob: float = option(
        1.0,
        name="reflect_prob",
        help="Probability that the policy sees the comment at a step.",
        ge=0,
        le=1,
    )
    temperature: float = option(
        0.0,
        name="reflect_temperature",
        help=(
            "Sampling temperature of the comments that the policy reads; 0 is greedy, and comments"
            " are cached. For those from which the reflector learns: --reflector-temperature."
        ),
        ge=0,
    )

    @field_validator("load_dir")
    @classmethod
    def _is_model(cls, load_dir: ModelRef | None) -> ModelRef | None:
        refuse_without_model(load_dir if load_dir != TEACHER else None)
        return load_dir


class ReflectorTrainingConfig(Config):
    """Training the reflector: it learns in turns with the policy."""

    # When it learns, from what
    every: int = option(
        0,
        name="train_reflector",
        help=(
            "Updates of the policy to one of the reflector, which learns what its comments did;"
            " 0: it is frozen."
        ),
        ge=0,
    )
    states: int = option(
        32,
        name="reflector_states",
        help="States of the latest episodes that it comments on in a turn.",
        ge=1,
    )
    comments: int = option(
        4,
        name="reflector_comments",
        help="Comments on each of these states, which are compared with each other.",
        ge=2,
    )
    temperature: float = option(
        1.0,
        name="reflector_temperature",
        help=(
            "Sampling temperature of the comments from which the reflector learns; for those that"
            " the policy reads: --reflect-temperature."
        ),
        ge=COLDEST,
    )
    # How it learns
    learning_rate: float = option(
        1e-4,
        name="reflector_rate",
        help="Peak learning rate of the reflector; 0 measures its comments only.",
        ge=0,
    )
    kl: float = option(
        0.05,
        name="reflector_kl",
        help="Weight of the KL divergence from the reflector that training started from.",
        ge=0,
    )
    length_cost: float = option(
        0.0,
        name="reflector_length_cost",
        help="What each token of a comment takes off its reward.",
        ge=0,
    )

    @override
    def contradictions(self) -> Iterator[Rule]:
        turns = "is a setting of the reflector's turns; add --train-reflector 1"
        for name in non_default(self):
            yield not self.every, f"{flag(name)} {turns}"


class StalenessConfig(Config):
    """Asynchronous play: a server plays while the policy learns."""

    max_staleness: int = option(
        0,
        help="Play with a server while the policy learns: most updates between the weights that play"
        " and those that learn; 0: in turns.",
        ge=0,
    )
    importance_weight_max: float = option(
        2.0,
        help=(
            "Maximum importance weight (policy / sampler) in the loss and in the KL term, with"
            " --max-staleness."
        ),
        ge=1,
    )
    episode_timeout_s: float = option(
        0.0, help="Seconds after which an episode is truncated; 0: no limit.", ge=0
    )

    @override
    def contradictions(self) -> Iterator[Rule]:
        ahead = (
            "--importance-weight-max is a setting of play that is ahead of learning; add"
            " --max-staleness"
        )
        yield not self.max_staleness and non_default(self, "importance_weight_max"), ahead


class DistillConfig(Config):
    """Distillation: the policy plays without the comments, and learns to act as it would if it read
    them.
    """

    weight: float = option(
        0.0,
        name="distill_comments",
        help="The policy plays without the --reflector's comments, and learns from itself with them:"
        " weight of the divergence between the two; 0: off.",
        ge=0,
        essential=True,
    )
    divergence: Literal["forward", "reverse", "js"] = option(
        "forward",
        name="distill_divergence",
        help=(
            "forward, KL(with comments, without); reverse, KL(without, with); or js"
            " (Jensen-Shannon)."
        ),
    )
    ema: float = option(
        0.0,
        name="distill_ema",
        help="Who reads the comments: 0, the frozen policy that training started from; else a moving"
        " average of the policy, which keeps this share of itself in an update, e.g. 0.99.",
        ge=0,
        lt=1,
    )
    comments_on: Literal["all", "failed"] = option(
        "all",
        help=(
            "Learn from the comments in all groups of episodes, or only in those without a"
            " success (failed)."
        ),
    )
    joint: float = option(
        0.0,
        name="distill_joint",
        help="Share of the decisions at which the policy does read the comment, so that it learns to"
        " act with and without.",
        ge=0,
        lt=1,
    )

    @override
    def contradictions(self) -> Iterator[Rule]:
        for name in non_default(self):
            reason = "is a setting of distillation; add --distill-comments 1"
            yield not self.weight, f"{flag(name)} {reason}"


class CurriculumConfig(Config):
    """Curriculum: which problems come first."""

    levels: tuple[str, ...] = option(
        (),
        name="curriculum",
        help="Levels to train on, in order (repeat the flag); default: the last.",
    )
    merge_first_two: bool = option(False, help="Merge the curriculum's first two levels into one.")
    merge_after: int = option(
        0, help="Merge the curriculum's levels after the first N into one; 0: none.", ge=0
    )
    few_data: int = option(
        0, help="Train on the first N problems of each level only; 0: on all.", ge=0
    )
    advance_at: float = option(
        0.0,
        help=(
            "Adaptive curriculum: success rate (mean of 3 updates) that ends a level; 0: equal"
            " steps per level."
        ),
        ge=0,
        le=1,
    )

    @override
    def contradictions(self) -> Iterator[Rule]:
        # `stages` says what merging does
        levels = len(self.levels) - self.merge_first_two
        needs_two = "needs a --curriculum of at least two levels"
        yield self.merge_first_two and levels < 1, f"--merge-first-two {needs_two}"
        fewer = "--merge-after leaves fewer than two levels of the --curriculum to merge; lower it"
        yield self.merge_after and self.merge_after >= levels - 1, fewer
        yield self.advance_at and levels < 2, f"--advance-at {needs_two} to advance through"

    def stages(self, last: str) -> list[tuple[str, ...]]:
        """The levels of each stage of the curriculum. last: the env's last level, the default."""
        levels: list[tuple[str, ...]] = [(level,) for level in self.levels] or [(last,)]
        if self.merge_first_two:
            levels = [tuple(level for names in levels[:2] for level in names), *levels[2:]]
        separate = self.merge_after or len(levels)
        rest = tuple(level for names in levels[separate:] for level in names)
        return [*levels[:separate], rest] if rest else levels


def words_needed(model: str, env: str) -> str:
    """Why a model with random weights cannot play `env`, which takes words, and which ones can."""
    # A program that a policy answers may ask for decisions alone
    asks = (
        ", or --only-decisions if the program asks for nothing else"
        if env.startswith("program:")
        else ""
    )
    return (
        f"--model {model} starts from random weights, which learn to choose but not to write, and"
        f" env '{env_text(env)}' has states without choices; give --model FOLDER_OR_ID,"
        " --model smollm2-135m, which needs no hub (`make smollm2`), or as --policy what `reflectkit sft` made of"
        f" demonstrations{asks}"
    )


class RLConfig(Config):
    """Settings of rlft."""

    # Who plays what
    env: EnvConfig
    policy: PolicyConfig
    reflector: ReflectorConfig = ReflectorConfig()
    resume_from: Path | None = option(
        None, help="Checkpoint of another rlft run to resume from; the other settings must match."
    )
    task_file: Path | None = option(
        None,
        help="Problems to train on, with validate.json next to it; default: train.json in the env's"
        " data folder, or before a split the env's own problems.",
    )
    # Decisions that were made before
    recorded: Path | None = option(
        None,
        help=(
            "Learn from decisions that `serve --record` kept, in one importance-weighted update,"
            " instead of playing."
        ),
    )
    outcomes: Path | None = option(
        None,
        help='With --recorded, what came of them, a line {"id", "reward"} each; "question" names one'
        " of a request, and"
        ' "choice" the option that was taken, if not the likeliest.',
    )
    # How long
    max_steps: int = option(60, help="Number of updates.", ge=1, essential=True)
    episodes: int = option(
        128, help="Episodes per update, over all processes.", ge=1, essential=True
    )
    # What is measured
    validate_steps: int = option(
        0, help="Updates between greedy validations on all problems held out for it; 0: none.", ge=0
    )
    patience: int = option(
        0,
        help=(
            "Validations in a row without a better return that end training; 0: none do. Needs"
            " --validate-steps."
        ),
        ge=0,
    )
    validate_problems: int = option(
        100,
        help=(
            "Held-out problems that are played greedily before the first and after the last"
            " update; 0: none."
        ),
        ge=0,
    )
    calibrate: bool = option(
        False,
        help="After training, fit one temperature to the decisions on held-out problems, by the"
        " teacher's actions, and store it in the checkpoint; evaluate, play, serve and load_agent"
        " apply it to probabilities, training never does.",
    )
    keep_episodes: int = option(
        0, help="Episodes to keep for `view` at each checkpoint; 0: none.", ge=0
    )
    # Memory and speed
    max_tokens_per_batch: int = option(
        0,
        help="Tokens per forward pass, padding included; halved if memory runs out. 0: 16,384, or on"
        " a CPU as many as take 2 GiB.",
        ge=0,
        identity=False,
    )
    gradient_checkpointing: bool = option(
        False, help="Save memory by recomputing activations; about a third slower."
    )
    processes: int = option(
        1,
        help="Processes on this machine that share the work; changes rounding alone.",
        ge=1,
        identity=False,
    )
    # How it learns
    algo: AlgorithmConfig = AlgorithmConfig()
    distill: DistillConfig = DistillConfig()
    curriculum: CurriculumConfig = CurriculumConfig()
    optim: OptimizerConfig = OptimizerConfig()
    lora: LoraConfig = LoraConfig()
    # How it plays, and on which machine
    rollout: RolloutConfig = RolloutConfig()
    sampler: SamplerConfig = SamplerConfig()
    engine: EngineConfig = EngineConfig()
    staleness: StalenessConfig = StalenessConfig()
    reflector_training: ReflectorTrainingConfig = ReflectorTrainingConfig()
    # What is written, and what it may cost
    checkpoints: CheckpointConfig = CheckpointConfig()
    chat: ChatConfig = ChatConfig()
    run: RunConfig = RunConfig()

    @classmethod
    @override
    def implied(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """What learns well from what is given: recorded decisions, a model without SFT, or a critic
        after SFT. On a training service, texts have no entropy bonus.

        These are defaults of several flags at once. Those of one flag are in `_fill_unset`.
        """
        # 1. How it learns
        defaults: dict[str, Any] = {}
        if values.get("recorded"):
            defaults = ONE_UPDATE
        elif values.get("model"):
            defaults = _defaults_without_sft(values)
        elif values.get("algo") == "ppo":
            defaults = AFTER_SFT

        # 2. What a training service cannot do
        if _is_on_service(values) and not _offers_choices(values):
            return defaults | {"entropy_coef": 0.0}
        return defaults

    @model_validator(mode="before")
    @classmethod
    def _fill_unset(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Settings that are None, by whose default the model or the environment decides."""
        optim, policy, env, algo = (
            dict(values.get(name, {})) for name in ("optim", "policy", "env", "algo")
        )
        # 1. Random weights may learn faster
        if optim.get("learning_rate") is None:
            is_random = policy.get("model") in TINY
            optim["learning_rate"] = RATE_FROM_SCRATCH if is_random else LEARNING_RATE

        # 2. GRPO compares what the environment says is comparable
        if "name" in env and algo.get("name", "grpo") == "grpo":
            own = dict(algo.get("settings", {}))
            if own.get("advantages") is None:
                own["advantages"] = env_class(env["name"]).advantages
            algo["settings"] = own
        return values | {"optim": optim, "algo": algo}

    @property
    def setup(self) -> EnvSetup:
        """The environment."""
        return EnvSetup.of(self.env, self.run, self.rollout.horizon, self.chat)

    @property
    def held_out(self) -> int:
        """How many held-out problems to play before and after training; none where comments or the
        env cost money.
        """
        endpoints = [setting.endpoint for setting in chat_settings(self.env.settings)]
        asks = self.chat_reflector or any(endpoints)
        return 0 if asks else self.validate_problems

    @cached_property
    def problems(self) -> Problems:
        """The problems to train on and to validate on."""
        file = self.task_file
        return Problems(
            self.setup, {"train": file, "validate": file.with_name("validate.json")} if file else {}
        )

    @override
    def contradictions(self) -> Iterator[Rule]:
        yield from self._contradictions_of_problems()
        yield from self._contradictions_of_learning()
        yield from self._contradictions_of_sampling()
        yield from self._contradictions_of_comments()

    def _contradictions_of_problems(self) -> Iterator[Rule]:
        """The environment and its problems."""
        model = self.policy.start
        writes = not self.env.offers_choices
        yield model.is_tiny and writes, words_needed(model.text, self.env.name)
        for level in self.curriculum.levels:
            check_level(self.env.name, level)
        refuse_uncounted(self.env, dry_run=self.chat.dry_run, max_cost_usd=self.chat.max_cost_usd)
        never = f"--patience {self.patience} needs --validate-steps N"
        yield self.patience and not self.validate_steps, never

    def _contradictions_of_learning(self) -> Iterator[Rule]:
        """What is learned from, and what is measured of it."""
        # 1. Recorded decisions
        writes = not self.env.offers_choices
        is_half = (self.recorded is None) != (self.outcomes is None)
        yield is_half, "--recorded and --outcomes need each other"
        if self.recorded is not None:
            yield from self._contradictions_of_recorded()
        if self.engine.remote:
            yield from self._contradictions_of_engine(writes=writes)

        # 2. A table of what choices led to
        has_table = self.algo.table_coef > 0
        for_choices = f"--table-coef is for choices, and env '{self.env.name}' is answered in words"
        yield has_table and writes, f"{for_choices}; leave it out"
        unrewarded = f"--table-coef needs rewards; leave it out, or --algo {self.algo.name}"
        yield has_table and not self.algo.learns_from_reward, unrewarded

        # 3. Calibration
        if self.calibrate:
            self.env.require_teacher("action")
            in_words = f"--calibrate is for choices, and env '{self.env.name}' is answered in words"
            yield writes, f"{in_words}; leave it out"
            unmeasured = "--calibrate needs held-out problems that cost nothing to play"
            fix = "--validate-problems 100, or leave it out"
            yield not (self.validate_steps or self.held_out), f"{unmeasured}: {fix}"

        # 4. Groups of episodes
        repeats = self.algo.repeats
        near = max(1, round(self.episodes / repeats)) * repeats
        uneven = f"--episodes {self.episodes} is not a multiple of the group size {repeats}"
        yield self.episodes % repeats, f"{uneven}; use {near}"

    def _contradictions_of_sampling(self) -> Iterator[Rule]:
        """Who samples, and where."""
        # 1. A server
        sampler, reflector = self.sampler, self.reflector
        several = self.processes > 1 and sampler.remote
        yield several, f"--sampler {sampler.policy} trains in one process; leave out --processes"
        stale = self.staleness.max_staleness
        server = "plays with other weights than those that learn, which takes a server"
        fix = "--sampler vllm:URL; or leave it out"
        yield stale and not sampler.remote, f"--max-staleness {stale} {server}: {fix}"

        # 2. One base for both players
        on_one_base = stale and reflector.share_base and sampler.reflector == LOCAL
        ahead = "lets the reflector comment while the policy learns"
        cannot = "which two adapters on one base cannot"
        fix = "leave out --share-base, or give --reflector-sampler"
        yield on_one_base, f"--max-staleness {ahead}, {cannot}; {fix}"
        is_pair = (
            reflector.load_dir is not None and self.policy.load_dir is not None and not self.lora.r
        )
        two = "two LoRA adapters on the same base, and no --lora-r"
        needs = f"--share-base needs --policy and --reflector, {two}"
        yield reflector.share_base and not is_pair, needs

    def _contradictions_of_comments(self) -> Iterator[Rule]:
        """Who comments, and what is learned from it."""
        # 1. Settings of what is not there
        chat, comments = self.chat_reflector, self.reflector.load_dir
        of_comments = ("reflect_prob", "reflect_temperature", "swap_comments", "reflector_sampler")
        has_price = chat or self.engine.remote
        for name in non_default(self, *OF_CHAT_MODELS):
            is_used = has_price if name == "max_cost_usd" else chat
            yield not is_used, f"{flag(name)} is for --reflector openai:MODEL; leave it out"
        for name in non_default(self, *of_comments):
            yield not comments, f"{flag(name)} needs comments; add --reflector, or leave it out"

        # 2. Who comments
        if chat is not None:
            yield from self._contradictions_of_chat_reflector(chat)
        if self.reflector_training.every:
            yield from self._contradictions_of_reflector_training()

        # 3. What is learned from comments
        if self.distill.weight:
            yield from self._contradictions_of_distillation()
        else:
            nothing = f"--algo {self.algo.name} learns from comments alone"
            fix = "add --distill-comments 1 and --reflector"
            yield not self.algo.learns_from_reward, f"{nothing}; {fix}"
        if comments == TEACHER:
            check_teacher(self.env.kind.teacher_type, self.setup.env_name, "comment")

    def contradictions_of_processes(self, *, several: bool, sharded: bool) -> Iterator[Rule]:
        """The rules for settings that do not work in the way in which the processes were started,
        as known once they run.

        several: whether there is more than one. sharded: whether each holds a shard of the policy
        (FSDP2).
        """
        sampler, distill = self.sampler.policy, self.distill.weight

        # 1. What a shard is too little for
        whole = "needs the whole policy in each process, which FSDP2 spreads"
        one_base = f"--share-base {whole}; use `list --configs multi_gpu`"
        yield sharded and self.reflector.share_base, one_base
        yield sharded and sampler != LOCAL, f"--sampler {sampler} {whole}; use local"
        yield sharded and distill, f"--distill-comments {distill:g} {whole}; leave it out"

        # 2. What one process does for all
        alone = "runs in one process; leave out torchrun or accelerate"
        chat = f"--reflector {self.reflector.load_dir} {alone}"
        yield several and self.sampler.remote, f"--sampler {sampler} {alone}"
        yield several and self.reflector_training.every, f"--train-reflector {alone}"
        yield several and self.chat_reflector, chat

    def _contradictions_of_recorded(self) -> Iterator[Rule]:
        """What recorded decisions cannot be combined with."""
        refused: list[Rule] = [
            (self.max_steps != 1, f"make one update; leave out --max-steps {self.max_steps}"),
            (
                self.algo.repeats > 1,
                f"have no groups to compare; leave out --algo {self.algo.name}",
            ),
            (self.policy.load_dir is None, "need the policy that made them: --policy CHECKPOINT"),
            (self.processes > 1, "are learned in one process; leave out --processes"),
            (self.staleness.max_staleness, "are not played; leave out --max-staleness"),
            (self.reflector_training.every, "are not played; leave out --train-reflector"),
            (self.distill.weight, "are not played; leave out --distill-comments"),
        ]
        for applies, reason in refused:
            yield applies, f"--recorded {self.recorded}: recorded decisions {reason}"

    def _contradictions_of_engine(self, *, writes: bool) -> Iterator[Rule]:
        """What a training service cannot do. writes: whether the policy writes texts."""
        algo, temperature = self.algo, self.policy.temperature
        # A policy that was trained on a service goes on with its adapter
        trained_there = self.policy.start.checkpoint(Quiet()).facts.get(SERVICE)
        refused: list[Rule] = [
            (
                algo.critic,
                f"has no critic; leave out --algo {algo.name}, or give --algo grpo or reinforce",
            ),
            (
                self.distill.weight,
                "returns the log-probabilities of single tokens, which distillation needs of all; leave"
                " out --distill-comments",
            ),
            (
                not self.lora.r and not trained_there,
                "trains a LoRA adapter, not all weights; add --lora-r 16",
            ),
            (algo.table_coef, "computes the loss itself; leave out --table-coef"),
            (self.processes > 1, "is asked by one process; leave out --processes"),
            (
                self.policy.quantize not in ("", "none"),
                "holds the base itself; leave out --quantize",
            ),
            (self.policy.dtype, "holds the base itself; leave out --dtype"),
            (
                non_default(self.lora, "lora_alpha", "lora_targets"),
                "chooses the adapter's scale and layers; leave out --lora-alpha and --lora-targets",
            ),
            (self.reflector.share_base, "holds the policy; leave out --share-base"),
            (
                self.sampler.policy != LOCAL,
                f"samples what it trains; leave out --sampler {self.sampler.policy}",
            ),
            (
                self.staleness.max_staleness,
                "plays in turns with learning; leave out --max-staleness",
            ),
            (self.reflector_training.every, "trains the policy alone; leave out --train-reflector"),
            (self.sampler.answer == SCORE, "cannot score choices alone; leave out --answer score"),
            (
                writes and temperature != 1,
                "returns log-probabilities of texts at temperature 1; leave out --temperature",
            ),
            (writes and algo.entropy, "knows no entropy of texts; give --entropy-coef 0"),
        ]
        for applies, reason in refused:
            yield applies, f"--engine {self.engine.name} {reason}"
        # The price of comments is in --price-in and --price-out
        unknown = not any(self.engine.settings.prices.values()) and self.chat_reflector is None
        prices = (
            "--max-cost-usd needs the prices of the training service: --price-read,"
            " --price-sampled and"
        )
        yield self.chat.max_cost_usd is not None and unknown, f"{prices} --price-trained"

    def _contradictions_of_distillation(self) -> Iterator[Rule]:
        """What distillation cannot be combined with."""
        reflector, joint = self.reflector, self.distill.joint
        where = "--reflector CHECKPOINT, openai:MODEL or oracle (the env's teacher)"
        refused: list[Rule] = [
            (reflector.load_dir is None, f"needs comments; add {where}"),
            (
                reflector.prob != 1,
                "decides when comments are read; use --distill-joint instead of --reflect-prob",
            ),
            (
                self.reflector_training.every,
                "needs a frozen reflector; leave out --train-reflector",
            ),
            (
                joint and not self.algo.learns_from_reward,
                f"--distill-joint {joint:g} needs rewards to learn with comments; leave out --algo"
                f" {self.algo.name}",
            ),
        ]
        for applies, reason in refused:
            yield applies, f"--distill-comments {self.distill.weight:g}: {reason}"

    def _contradictions_of_chat_reflector(self, chat: Endpoint) -> Iterator[Rule]:
        """What a chat model as the reflector cannot be combined with."""
        self.chat.check_budget(chat)
        refused: list[Rule] = [
            (self.reflector_training.every, "--train-reflector"),
            (self.reflector.share_base, "--share-base"),
            (self.sampler.reflector != LOCAL, "--reflector-sampler"),
            (self.processes > 1, "--processes"),
            (self.checkpoints.plan, "--plan"),
            (
                self.staleness.max_staleness and self.validate_steps,
                "--max-staleness with --validate-steps",
            ),
        ]
        for applies, name in refused:
            yield applies, f"--reflector {chat} is a chat model; leave out {name}"

    def _contradictions_of_reflector_training(self) -> Iterator[Rule]:
        """Settings under which the reflector cannot learn."""
        training, sampler = self.reflector_training, self.sampler
        refused: list[Rule] = [
            (
                self.reflector.load_dir in (None, TEACHER),
                "needs a reflector: give --reflector CHECKPOINT",
            ),
            (
                sampler.reflector != LOCAL,
                f"trains it in this process; leave out --reflector-sampler {sampler.reflector}",
            ),
            (
                self.staleness.max_staleness,
                "takes turns with the policy; leave out --max-staleness",
            ),
            (
                training.every > self.max_steps,
                f"does nothing in --max-steps {self.max_steps}; give at most that",
            ),
            (
                self.reflector.prob == 0,
                "learns from comments that the policy reads; leave out --reflect-prob 0",
            ),
            (self.processes > 1, "runs in one process; leave out --processes"),
            (
                sampler.swap_comments,
                "cannot compare comments on other states; leave out --swap-comments",
            ),
            (
                self.checkpoints.plan,
                "--plan does not know the reflector's turns; leave out one of the two",
            ),
        ]
        for applies, reason in refused:
            yield applies, f"--train-reflector {training.every}: {reason}"

    @property
    @override
    def notes(self) -> list[str]:
        """What a training service learns by, where this process would use a critic."""
        chooses = self.env.kind.action_kind(self.env.settings) == "choice"
        by_default = (
            self.engine.remote
            and chooses
            and self.algo.name == WITHOUT_CRITIC["algo"]
            and self.policy.model
        )
        return (
            [(f"--engine {self.engine.name} has no critic: it learns by --algo {self.algo.name}")]
            if by_default
            else []
        )

    @property
    def chat_reflector(self) -> Endpoint | None:
        """The chat model that comments, if one does. Raises ConfigError."""
        model = self.reflector.load_dir
        if model is None or not model.is_asked:
            return None
        return parse_endpoint(str(model), self.chat.base_url, "--reflector", "CHECKPOINT, ")

    @property
    @override
    def environment(self) -> dict[str, str]:
        return address_in_use([self.chat_reflector] if self.chat_reflector else [])
