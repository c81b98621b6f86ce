"""rlft: online RL with REINFORCE, PPO or GRPO, where a reflector comments on each state before the policy acts.

The reflector is frozen, or learns in turns with the policy (`--train-reflector`). Without one it is the "SFT + RL" arm.
If killed and started again, it resumes from its last checkpoint. With `--processes N`, or under torchrun or `accelerate
launch`, several processes play and learn together, with the same result.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import override

from reflectkit.chat.client import ChatClient
from reflectkit.chat.endpoints import Endpoint, address_in_use, key_of, parse_endpoint
from reflectkit.chat.players import ChatReflector
from reflectkit.core.appended import append, rewrite
from reflectkit.core.config import DTYPES, PACKAGED, QUANTIZE, TINY, above, flag, fraction, one_of, option, within
from reflectkit.core.console import Progress, Quiet
from reflectkit.core.errors import ConfigError, ReflectkitError
from reflectkit.core.identity import digest, plain_settings
from reflectkit.core.memory import memory_explained
from reflectkit.core.reports import Report, figures_table
from reflectkit.core.text import counted
from reflectkit.data.trajectories import read_records
from reflectkit.models.facts import model_facts
from reflectkit.models.hub import hub_options
from reflectkit.stages.shared.chat import OF_CHAT_MODELS, ChatConfig, report_damage
from reflectkit.stages.shared.environments import check_level, model_source
from reflectkit.stages.shared.eval_estimate import estimate_comments
from reflectkit.stages.shared.players import (
    is_chat,
    model_folders,
    newest_checkpoint,
    newest_name,
    place_of,
    refuse_without_model,
    trained_elsewhere,
    trained_with_comments,
)
from reflectkit.stages.shared.sampling import LOCAL
from reflectkit.stages.tuning.algorithm import AlgorithmConfig
from reflectkit.stages.tuning.distributed import shared_run, start_processes
from reflectkit.stages.tuning.estimate import plan_report
from reflectkit.stages.tuning.launching import check_launch, launched
from reflectkit.stages.tuning.rlft_problems import check_prompts, levels_of, validation_of
from reflectkit.stages.tuning.rlft_records import history_of, keep_episodes, restore_episodes, with_rows
from reflectkit.stages.tuning.rlft_resuming import resumed_trainer
from reflectkit.stages.tuning.rlft_trainer import trainer_of
from reflectkit.stages.tuning.second_player import SecondPlayerConfig
from reflectkit.stages.tuning.trackers import require_trackers, tracking
from reflectkit.stages.tuning.training import TrainingConfig

if TYPE_CHECKING:
    from reflectkit.rl.loop import Level, Trainer
    from reflectkit.rl.processes import Processes

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
LIMITS = {
    "max_steps": (1, 10**9),
    "episodes": (1, 2**20),
    "learning_rate": (0, 1000),
    "temperature": (0.001, 1000),
    "reflect_temperature": (0, 1000),
    "max_new_tokens": (1, 2**20),
    "max_tokens_per_batch": (1, 2**30),
    "lora_r": (0, 2**16),
    "lora_alpha": (1, 2**16),
    "save_steps": (1, 10**9),
    "validate_steps": (0, 10**9),
    "keep_episodes": (0, 2**20),
    "processes": (1, 1024),
}
"""The range of each of these settings."""
JOURNAL = "reflector.jsonl"
"""The answers of a chat model that comments, in the run's folder."""
OF_COMMENTS = ("reflect_prob", "reflect_temperature", "swap_comments", "reflector_sampler")
"""Settings that do nothing without a reflector."""


@dataclass(frozen=True)
class Config(SecondPlayerConfig, AlgorithmConfig, TrainingConfig, ChatConfig):
    """Settings of rlft."""

    TRAINS: ClassVar[bool] = True
    MAKES_ARM: ClassVar[bool] = True
    load_dir: Path | None = option(
        None, help="Checkpoint of the policy to train, or a run, for its newest one; alternatively --model."
    )
    model: str = option(
        "", help="Instead of --load-dir, a model without SFT: smollm2-135m, a folder or a Hugging Face id."
    )
    reflect_load_dir: Path | None = option(
        None,
        help="Checkpoint of the reflector, a run in which both players learned, or a chat model (openai:MODEL,"
        " azure:DEPLOYMENT, local:MODEL); without one it is the SFT + RL arm.",
    )
    share_base: bool = option(
        False, help="Load the base once for a policy and a reflector that are LoRA adapters on it."
    )
    resume_from: Path | None = option(
        None, help="Checkpoint of another rlft run to resume from; the other settings must match."
    )
    task_file: Path | None = option(None, help="Problems to train on; default: train.json in the env's data folder.")
    max_steps: int = option(60, help="Number of updates.")
    episodes: int = option(128, help="Episodes per update, over all processes.")
    learning_rate: float = option(2.5e-4, help="Peak learning rate.")
    warmup_steps: int = option(0, help="Updates in which the learning rate rises to its peak.")
    max_grad_norm: float = option(0.3, help="Gradients are clipped to this norm.")
    temperature: float = option(1.0, help="Sampling temperature of the policy, in rollouts and in the loss.")
    reflect_prob: float = option(1.0, help="Probability that the policy sees the comment at a step.")
    reflect_temperature: float = option(
        0.0, help="Sampling temperature of the comments; 0 is greedy, and comments are cached."
    )
    max_new_tokens: int = option(
        128, help="Maximum length of an answer in tokens, in environments without enumerated actions."
    )
    lora_r: int = option(0, help="Rank of a new LoRA adapter; 0 trains all weights, or the existing adapter.")
    lora_alpha: int = option(16, help="Scale of the LoRA adapter.")
    lora_targets: str = option(
        "", help="Layers that a new LoRA adapter changes: all-linear, or names like q_proj,v_proj; default: peft's."
    )
    dtype: str = option("", help="float32, bfloat16 or float16; default: that of the checkpoint, or float32.")
    quantize: str = option("", help="Quantise the base weights: 8bit, 4bit or none; default: as in the checkpoint.")
    gradient_checkpointing: bool = option(False, help="Save memory by recomputing activations; about a third slower.")
    max_tokens_per_batch: int = option(
        16384, help="Tokens per forward pass, padding included; halved if memory runs out.", identity=False
    )
    share_prefixes: bool = option(
        False, help="Read what rows of an update begin with once; faster on transcripts, and changes rounding."
    )
    save_steps: int = option(20, help="Updates between checkpoints.")
    keep_episodes: int = option(0, help="Episodes to keep for `view` at each checkpoint; 0: none.")
    validate_steps: int = option(
        0, help="Updates between greedy validations on validate.json, next to the problems; 0: none."
    )
    processes: int = option(
        1, help="Processes on this machine that share the work; changes rounding alone.", identity=False
    )
    device: str = option("auto", help="auto, cpu, cuda, …")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, (low, high) in LIMITS.items():
            within(name, getattr(self, name), low, high)
        for name in ("learning_rate", "max_grad_norm"):
            above(name, getattr(self, name), 0)
        fraction("reflect_prob", self.reflect_prob)
        one_of("dtype", self.dtype or DTYPES[0], DTYPES)
        one_of("quantize", self.quantize or QUANTIZE[0], QUANTIZE)
        for level in self.curriculum:
            check_level(self.env, level)
        if bool(self.load_dir) == bool(self.model):
            raise ConfigError(
                "give the policy to train with either --load-dir CHECKPOINT or --model FOLDER_OR_ID, not both"
            )
        if self.model in TINY:
            raise ConfigError(
                f"--model {self.model} has no weights yet; train it with `reflectkit sft --model {self.model}`"
            )
        if self.episodes % self.repeats:
            near = max(1, round(self.episodes / self.repeats)) * self.repeats
            raise ConfigError(
                f"--episodes {self.episodes} is not a multiple of the group size {self.repeats}; use {near}"
            )
        if self.processes > 1 and self.remote:
            raise ConfigError(f"--sampler {self.sampler} trains in one process; leave out --processes")
        if self.max_staleness and self.share_base and self.reflector_sampler == LOCAL:
            raise ConfigError(
                "--max-staleness lets the reflector comment while the policy learns, which two adapters on one base in"
                " this process cannot; leave out --share-base, or give --reflector-sampler"
            )
        if self.share_base and (self.reflect_load_dir is None or self.load_dir is None or self.lora_r):
            raise ConfigError(
                "--share-base needs --load-dir and --reflect-load-dir, two LoRA adapters on the same base, and no"
                " --lora-r"
            )
        if self.share_prefixes and self.gradient_checkpointing:
            raise ConfigError(
                "--share-prefixes needs the keys and values that --gradient-checkpointing drops; leave out one of them"
            )
        critic = self.critic_settings
        if (
            critic is not None
            and critic.critic_trunk == "separate"
            and (self.lora_r or self.quantize not in ("", "none"))
        ):
            raise ConfigError(
                "--critic-trunk separate trains a full copy of the trunk, but --lora-r an adapter; use detached"
            )
        refuse_without_model(self.load_dir, self.reflect_load_dir)
        self.refuse_uncounted(dry_run=self.dry_run, max_cost_usd=self.max_cost_usd)
        if self.chat_reflector is not None:
            self._check_chat_reflector(self.chat_reflector)
        elif given := self.departed(OF_CHAT_MODELS):
            raise ConfigError(f"{flag(given[0])} is for --reflect-load-dir openai:MODEL; leave it out")
        if self.reflect_load_dir is None and (given := self.departed(OF_COMMENTS)):
            raise ConfigError(f"{flag(given[0])} needs comments; add --reflect-load-dir, or leave it out")
        if not self.lora_r and (given := self.departed(("lora_alpha", "lora_targets"))):
            raise ConfigError(f"{flag(given[0])} is a setting of a new adapter; add --lora-r, or leave it out")

    def _check_chat_reflector(self, endpoint: Endpoint) -> None:
        """Raises ConfigError for what a chat model as the reflector cannot be combined with."""
        self.check_budget(endpoint)
        refused = {
            "--train-reflector": bool(self.train_reflector),
            "--share-base": self.share_base,
            "--reflector-sampler": self.reflector_sampler != LOCAL,
            "--processes": self.processes > 1,
            "--plan": self.plan,
            "--max-staleness with --validate-steps": bool(self.max_staleness and self.validate_steps),
        }
        if given := [name for name, applies in refused.items() if applies]:
            raise ConfigError(f"--reflect-load-dir {endpoint} is a chat model; leave out {given[0]}")

    @property
    def chat_reflector(self) -> Endpoint | None:
        """The chat model that comments, if one does. Raises ConfigError."""
        if not is_chat(self.reflect_load_dir):
            return None
        return parse_endpoint(str(self.reflect_load_dir), self.base_url, "--reflect-load-dir", "CHECKPOINT, ")

    @property
    @override
    def environment(self) -> dict[str, str]:
        return super().environment | address_in_use([self.chat_reflector] if self.chat_reflector else [])

    @property
    def start(self) -> Path | str:
        """Where the policy comes from."""
        return self.load_dir or self.model

    @property
    def stages(self) -> list[tuple[str, ...]]:
        """The levels of each stage of the curriculum."""
        levels: list[tuple[str, ...]] = [(level,) for level in self.curriculum] or [(self.kind.levels[-1],)]
        if self.merge_first_two:
            levels = [levels[0] + levels[1], *levels[2:]]
        kept = self.merge_after or len(levels)
        rest = tuple(level for names in levels[kept:] for level in names)
        return [*levels[:kept], rest] if rest else levels


@memory_explained("lower --width or --max-tokens-per-batch, or use --lora-r, --quantize or a smaller model")
def run(config: Config, progress: Progress) -> Report:
    """Train and write `metrics.jsonl` and `checkpoint-<step>/`.

    Raises CheckpointError, DataError, DivergedError, and ConfigError if the model cannot read the prompts.
    """
    check_launch(config.processes)
    if config.processes > 1 and not config.plan:
        return launched("rlft", config, config.processes, progress)
    require_trackers(config.report_to)
    source = config.task_file or config.folder / "train.json"
    tasks = [record.task for record in read_records(source, config.env_name)]
    if config.model not in PACKAGED:
        hub_options(config.start)  # whether it can be fetched is known before torch is imported
    progress.news(f"rlft ({config.algo}): loading torch for {counted(len(tasks), 'problem')} of {source}")
    levels = levels_of(config, tasks, source)
    if config.chat_reflector is not None:
        if config.dry_run:
            return _estimate(config, config.chat_reflector, levels, validation_of(config, source), progress)
        key_of(config.chat_reflector)
    processes = start_processes(config.device, config.threads)
    if processes.sharded and config.share_base:
        raise ConfigError(
            "--share-base needs an unsharded base in each process; omit it, or use `accelerate launch --config_file"
            ' "$(reflectkit list --configs multi_gpu)"`'
        )
    if processes.kind == "DEEPSPEED" and config.target_kl:
        raise ConfigError(
            "--target-kl cannot discard gradients under DeepSpeed; omit it, or use `accelerate launch --config_file"
            ' "$(reflectkit list --configs fsdp2)"`'
        )
    if processes.sharded and config.optimizer != "adamw":
        raise ConfigError(f"--optimizer {config.optimizer} needs the whole policy in each process; use adamw")
    progress = progress if processes.first else Quiet()
    with processes.first_then_rest():
        reflector = place_of(config.reflect_load_dir, config, progress, reflects=True)
        model = model_source(newest_name(config.model) if config.model else "", config.data_dir, progress)
        policy = config.load_dir and newest_checkpoint(config.load_dir)
        config = replace(config, model=model, load_dir=policy, reflect_load_dir=reflector)
    for text in _warnings(config):
        progress.news(f"warning: {text}")
    models = [path for path in (config.load_dir, *model_folders([reflector]), config.resume_from) if path]
    if Path(config.model).is_dir() and config.model:
        models.append(Path(config.model))
    check_prompts(config, levels)
    if config.plan:
        return _plan(config, levels, processes, progress)
    held_out = [source.with_name("validate.json")] if config.validate_steps else []
    with (
        shared_run(
            "rlft", config, [source, *held_out, *models, *config.input_files(tasks), *config.comment_files], processes
        ) as current,
        contextlib.ExitStack() as stack,
    ):
        if current.done:
            return current.done
        chat = None
        if config.chat_reflector is not None:
            client = stack.enter_context(_client(config, config.chat_reflector, current.folder, progress))
            chat = ChatReflector(client)
        settings = plain_settings(config) | {"problems": digest(source)}
        trainer = resumed_trainer(config, levels, current.folder, settings, processes, progress, chat)
        progress.news(f"rlft ({config.algo}): {counted(len(tasks), 'problem')} of {source} → {current.folder}")
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
        asked = config.asked(progress)
        if chat is not None:
            asked |= {f"reflector {chat.client.endpoint}": chat.client.usage}
        if asked:
            figures["asked"] = asked
        if not processes.first:
            return Report("rlft", current.folder, figures, (target,))
        return current.finish(figures, [target, current.folder / "metrics.jsonl"])


def _plan(config: Config, levels: list[Level], processes: Processes, progress: Progress) -> Report:
    """What training takes in one process, by arithmetic."""
    trainer = trainer_of(config, levels, None, processes, progress)
    trainer.close()
    learner, reflector = trainer.learner, trainer.agent.reflector
    reflecting = getattr(reflector and reflector.sampler, "player", None)
    others = (learner.critic, reflecting and reflecting.model, learner.reference and learner.reference.copy)
    tokens = {"tokens_a_pass": config.max_tokens_per_batch, "episodes": config.max_steps * config.episodes}
    return plan_report(
        "rlft",
        config.results_dir,
        [learner.player.model, *(model for model in others if model is not None)],
        config.optimizer,
        config.max_tokens_per_batch,
        recompute=config.gradient_checkpointing,
        tokens=tokens,
    )


@contextlib.contextmanager
def _client(config: Config, endpoint: Endpoint, folder: Path, progress: Progress) -> Iterator[ChatClient]:
    """The client of a chat model that comments, with its journal in the run's folder."""
    with config.client_at(endpoint, folder / JOURNAL, temperature=config.reflect_temperature) as client:
        report_damage(client, progress)
        yield client


def _estimate(
    config: Config, endpoint: Endpoint, levels: Sequence[Level], validation: Level | None, progress: Progress
) -> Report:
    """What the comments of a chat model would cost."""
    count = config.max_steps * config.episodes / len(levels)
    parts = [(names[-1], level.tasks, count) for names, level in zip(config.stages, levels, strict=True)]
    if validation is not None:
        times = -(-config.max_steps // config.validate_steps)
        parts.append((validation.name, validation.tasks, times * len(validation.tasks)))
    return estimate_comments("rlft", config, endpoint, parts, progress)


def _warnings(config: Config) -> list[str]:
    """What the policy and the reflector were trained for, where that is not what they do here."""
    start, reflector = Path(config.start), config.reflect_load_dir
    commented, texts = trained_with_comments(start), []
    if commented and reflector is None:
        recorded = model_facts(start).get("reflector") or "REFLECTOR"
        texts.append(f"{start} was trained with comments but plays without; add --reflect-load-dir {recorded}")
    if commented is False and reflector is not None:
        texts.append(f"{start} was trained without comments but plays with them; leave out --reflect-load-dir")
    return texts + trained_elsewhere(config.env, (start, reflector))


def _loop(
    config: Config,
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
        rewrite(metrics, history)
        restore_episodes(folder / "episodes.jsonl", trainer.step, progress)
    facts = {"env": config.env, "reflector": str(config.reflect_load_dir) if config.reflect_load_dir else None}
    target = folder / f"checkpoint-{trainer.step}"
    title = "Reflect-RL" if config.reflect_load_dir else "SFT + RL"
    with (
        tracking(config.report_to, folder, settings) as log,
        progress.bar(title, config.max_steps, trainer.step) as bar,
    ):
        while trainer.step < config.max_steps:
            figures = trainer.advance()
            if validation and (trainer.step % config.validate_steps == 0 or trainer.step == config.max_steps):
                figures |= trainer.validate(validation)
            history.append(figures)
            due = trainer.step % config.save_steps == 0 or trainer.step == config.max_steps
            if processes.first:
                append(metrics, [figures], sync=due)
            if due and config.keep_episodes and processes.first:
                keep_episodes(config, trainer, folder / "episodes.jsonl")
            if due:
                target = checkpoint.save(folder, trainer, settings, facts, config.keep_checkpoints)
                processes.wait()
            log(figures, trainer.step)
            recent = [row["success_rate"] for row in history[-10:]]
            shown_figures = {"success": sum(recent) / len(recent)}
            if isinstance(entropy := figures.get("entropy"), float):  # missing if there was nothing to learn
                shown_figures["entropy"] = entropy
            bar.advance(1, **shown_figures)
    return target
