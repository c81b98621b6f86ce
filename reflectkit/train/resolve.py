"""Resolve, the first of rlft's four steps: what the settings leave open is decided once, in a
frozen `RLRun`.

Its problems are found without torch, so that a mistake in them is told at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from reflectkit.agents import mismatches
from reflectkit.agents.player_refs import model_folders
from reflectkit.agents.scripted import AnyAction
from reflectkit.chat.config import Endpoint, key_of
from reflectkit.config import identifying, with_values
from reflectkit.console import Progress
from reflectkit.data.problems import HELD_OUT_SEEDS, Problems, digest_of, draw_problems
from reflectkit.data.recorded import read_recorded
from reflectkit.envs import cluster_of
from reflectkit.envs.setup import EnvConfig, EnvSetup, chat_settings, not_repeatable
from reflectkit.errors import ConfigError, DataError, EnvironmentFailure, refuse
from reflectkit.eventloop import result_of
from reflectkit.models.checkpoint_metadata import check_model_folder, context_of, load_tokenizer
from reflectkit.models.labels import choice_ids, prompt_ids
from reflectkit.models.refs import ModelRef, resolved
from reflectkit.prompts import PROMPT_VERSION, policy_prompt
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.rollouts.wrappers import checked
from reflectkit.runs.run import Identity, digest, named_runs, read_record, runs_of
from reflectkit.sampling.base import SampleRequest
from reflectkit.text import pluralize
from reflectkit.train.curriculum import Level
from reflectkit.train.processes import Processes
from reflectkit.train.rl_config import LIMITS, RLConfig
from reflectkit.train.settings import require_trackers
from reflectkit.types import SCORE, Task, Trajectory

PROMPTS_CHECKED = 8
"""Problems of each level whose prompts are checked before any weights are loaded."""


@dataclass(frozen=True)
class RLProblems:
    """What rlft plays."""

    config: RLConfig
    """The settings, whose curriculum has only levels with problems."""
    stages: tuple[tuple[str, ...], ...]
    """The names of the levels in each stage of the curriculum."""
    levels: tuple[Level, ...]
    """The problems of each stage."""
    validation: Level | None
    """The problems of --validate-steps, at the curriculum's last level."""
    held_out: Level | None
    """Those of them that are played before the first and after the last update."""
    recorded: tuple[Trajectory, ...] = ()
    """Decisions of an earlier policy, which are learned from instead of playing."""

    @property
    def tasks(self) -> list[Task]:
        """The training problems of all levels."""
        return [task for level in self.levels for task in level.tasks]

    @property
    def is_endless(self) -> bool:
        """Whether new problems follow once the training problems have been played."""
        return all(level.dealt for level in self.levels)

    @property
    def summary(self) -> str:
        """How many training problems there are, and where they are from."""
        source = self.config.problems.source("train")
        if self.is_endless:
            return f"new problems in each update, of {source}"
        count = pluralize(len({task.id for task in self.tasks}), "problem")
        return f"{count} of {source}"

    @property
    def disturbance(self) -> str:
        """That episodes change one another; empty if they do not."""
        hardest = self.stages[-1][-1]
        tasks = [task for task in self.levels[-1].tasks if task.level == hardest]
        return self.config.problems.disturbance(hardest, tasks)

    @cached_property
    def overlap(self) -> str:
        """Why the held-out problems are training problems; empty if they are not."""
        problems, env, hardest = self.config.problems, self.config.env.name, self.stages[-1][-1]
        if problems.file("train") is None and not problems.holds_out(hardest):
            why = "lists too few different problems"
            if problems.by_seed:
                why = "ignores the seed of reset, or begins in several ways with one seed"
            return f"env '{env}' {why}: its held-out problems are its training problems"
        training_ids = {task.id for task in self.tasks}
        if self.held_out is not None and any(
            task.id in training_ids for task in self.held_out.tasks
        ):
            return (
                f"level '{hardest}' of the split: its held-out problems are training problems, too"
            )
        return ""

    @property
    def notes(self) -> list[str]:
        """What the user should know of them before training begins."""
        return [note for note in (self.overlap, self.disturbance) if note]

    def with_settings(self, **values: Any) -> RLProblems:
        """These problems, with other settings by flat name."""
        return replace(self, config=with_values(self.config, **values))


@dataclass(frozen=True)
class RLRun:
    """A run of rlft, in which nothing is left open: `train.build` makes its trainer."""

    config: RLConfig
    """The settings, with the places of its models."""
    problems: RLProblems
    policy: ModelRef
    """The model to train."""
    reflector: ModelRef | None
    """The model that comments, or the env's teacher."""
    endpoint: Endpoint | None
    """The chat model that comments, if one does."""
    inputs: tuple[Path, ...]
    """The files and folders that it reads."""
    settings: Mapping[str, Any]
    """What a checkpoint records; only a run with the same settings resumes from it."""
    facts: Mapping[str, Any]
    """What is saved with the policy."""
    warnings: tuple[str, ...]


def prepare(config: RLConfig, progress: Progress) -> RLProblems:
    """What can be told before torch is imported: whether all that is named is there, and the
    problems.

    Raises CheckpointError, ConfigError and DataError.
    """
    # 1. Trackers, models, and the checkpoint to resume from
    require_trackers(config.checkpoints.report_to)
    for model in (config.policy.start, config.reflector.load_dir):
        if model is not None:
            model.require()
    if config.resume_from is not None:
        check_model_folder(config.resume_from)

    # 2. The problems
    problems = resolve_problems(config, progress)

    # 3. The key of a chat model that comments, unless it is not asked
    if config.chat_reflector is not None and not config.chat.dry_run:
        key_of(config.chat_reflector)
    return problems


def resolve_problems(config: RLConfig, progress: Progress) -> RLProblems:
    """The problems of all levels. Raises ConfigError and DataError."""
    # 1. The levels that have problems
    last_level = config.env.kind.levels[-1]
    names = config.curriculum.levels or (last_level,)
    with_problems = config.problems.levels_with("train", names, progress, "--curriculum")
    playable = config
    if len(with_problems) < len(names):
        playable = with_values(config, curriculum=tuple(with_problems))
    recorded: tuple[Trajectory, ...] = ()
    if config.recorded is not None and config.outcomes is not None:
        episodes, without = read_recorded(config.recorded, config.outcomes, config.env.kind.name)
        decisions = pluralize(len(episodes), "decision")
        progress.news(f"{config.recorded}: {decisions} with outcomes, {without:,} without")
        recorded = tuple(episodes)
        rewards = {turn.reward for episode in episodes for turn in episode.turns}
        if len(rewards) == 1:
            progress.news(
                f"warning: each outcome in {config.outcomes} has the reward {rewards.pop():g}; a"
                " baseline leaves nothing to learn"
            )
    else:
        _play_once(config.setup, config.problems, with_problems[0], config.run.seed)

    # 2. Training problems by stage
    problems, setup = config.problems, config.setup
    stages = tuple(playable.curriculum.stages(last_level))
    few = config.curriculum.few_data or None
    levels = tuple(_training_level(problems, setup, stage, few) for stage in stages)

    # 3. Problems for validation, and those of them that are played before and after training
    hardest, validation, held_out = stages[-1][-1], None, None
    if config.validate_steps or config.held_out:
        try:
            count = max(HELD_OUT_SEEDS, config.held_out)
            by_id = {
                task.id: task for task in problems.tasks("validate", hardest, "--curriculum", count)
            }
            validation = Level(
                hardest, list(by_id.values()), setup.maker(hardest), setup.kind.max_concurrency
            )
        except DataError as error:
            if config.validate_steps or config.calibrate:
                raise
            progress.news(f"success on held-out problems is not measured: {error}")
    elif config.validate_problems:
        progress.news(
            "success on held-out problems is not measured here, as it would cost money; see"
            " evaluate"
        )
    if validation is not None and config.held_out:
        clusters = [cluster_of(config.env.name, task) for task in validation.tasks]
        places = draw_problems(clusters, config.held_out, config.run.seed)
        held_out = replace(validation, tasks=[validation.tasks[place] for place in places])
    return RLProblems(playable, stages, levels, validation, held_out, recorded)


def _training_level(
    problems: Problems,
    setup: EnvSetup,
    names: Sequence[str],
    few: int | None,
) -> Level:
    """The problems of a stage with these levels. few: how many of them; None: all, and then new
    ones.
    """
    # Levels may share problems
    by_id = {
        task.id: task for name in names for task in problems.tasks("train", name, "--curriculum")
    }
    dealt = None
    if few is None and all(map(problems.is_endless, names)):

        @cache
        def dealt(turn: int) -> list[Task]:
            return [task for name in names for task in problems.dealt(name, turn)]

    tasks = list(by_id.values())[:few]
    return Level("+".join(names), tasks, setup.maker(names[-1]), setup.kind.max_concurrency, dealt)


def _play_once(
    setup: EnvSetup,
    problems: Problems,
    level: str,
    seed: int,
) -> None:
    """A random player plays a problem of a user's own environment: what it returns wrongly is
    refused before torch is imported. An env that is in another process, or asks a chat model, is
    not started for this, nor is one in each of several processes.
    """
    is_launched = "RANK" in os.environ
    if is_launched or not setup.code_files or setup.kind.remote or chat_settings(setup.settings):
        return
    task = problems.tasks("train", level, "--curriculum")[0]
    rollout([Episode(task, seed)], setup.maker(level), AnyAction())


def resolve(
    problems: RLProblems,
    processes: Processes,
    progress: Progress,
) -> RLRun:
    """The run that plays `problems`. A packaged or a tiny model is made first, by one process.

    Raises CheckpointError; and ConfigError for settings that do not fit the processes, or prompts
    that the policy's tokenizer or context do not fit.
    """
    several, sharded = processes.count > 1, processes.sharded
    rules = problems.config.contradictions_of_processes(several=several, sharded=sharded)
    for applies, mistake in rules:
        refuse(applies, mistake)

    # 1. The models
    with processes.first_then_rest():
        placed = _with_models(problems, progress)
    config = placed.config
    policy, reflector = config.policy.start, config.reflector.load_dir

    # 2. What is read, and what identifies the run
    inputs = _input_files(placed)
    train_file = config.problems.file("train")
    settings = identifying(config) | {
        "problems": digest(train_file) if train_file else digest_of(placed.tasks)
    }

    # 3. What is saved with the policy
    reads_comments = reflector is not None and bool(
        not config.distill.weight or config.distill.joint
    )
    facts = {
        "env": config.env.name,
        "prompts": PROMPT_VERSION,
        "reflector": str(reflector) if reads_comments else None,
    }
    if config.env.offers_choices:
        facts["acts"] = "choice"
    if reads_comments and (config.distill.joint or config.reflector.prob < 1):
        facts["acts_alone"] = True

    # 4. What the user should know before it starts
    distills = bool(config.distill.weight)
    warnings = tuple(_warnings(config.env, policy, reflector, distills=distills))
    for warning in warnings:
        progress.news(f"warning: {warning}")
    run = RLRun(
        config,
        placed,
        policy,
        reflector,
        config.chat_reflector,
        inputs,
        settings,
        facts,
        warnings,
    )
    _check_prompts(run)
    return run


def _with_models(problems: RLProblems, progress: Progress) -> RLProblems:
    """`problems`, whose settings name the places of the models instead of runs that have them, or
    models that are yet to be made.
    """
    named = problems.config
    # 1. The reflector
    reflector = resolved(named.reflector.load_dir, named.run.data_dir, progress, reflects=True)
    with_reflector = problems.with_settings(reflector=reflector)

    # 2. The policy
    if named.policy.load_dir is not None:
        return with_reflector.with_settings(policy=named.policy.load_dir.checkpoint(progress))
    model = _model_without_sft(with_reflector, progress)
    return with_reflector.with_settings(model=model.text)


def _model_without_sft(problems: RLProblems, progress: Progress) -> ModelRef:
    """The place of --model: a tiny one is made for these problems, unless an earlier run of the
    same settings has.
    """
    config, model = problems.config, problems.config.policy.start
    if not model.is_tiny:
        return model.source(config.run.data_dir, progress)
    recorded = _recorded_model(problems)
    if recorded is not None:
        return recorded
    from reflectkit.train.scratch import tiny_model  # imports torch

    folder = tiny_model(
        model.text,
        config.env.name,
        problems.levels,
        config.setup.env_folder / "models",
        form=config.sampler.answer,
        seed=config.run.seed,
        reads_comments=config.reflector.load_dir is not None,
        learns_by=f"--algo {config.algo.name}, --learning-rate {config.optim.rate:g}",
        progress=progress,
    )
    return ModelRef(str(folder))


def _recorded_model(problems: RLProblems) -> ModelRef | None:
    """The model that an earlier run with these settings and inputs made of --model tiny."""
    config, name = problems.config, problems.config.policy.model
    folders = named_runs(config.run) if config.run.name else runs_of(config.run.results_dir, "rlft")
    for folder in folders:
        record = read_record(folder)
        model = Path(record.get("settings", {}).get("model", ""))
        is_tiny = model.parent == config.setup.env_folder / "models" and model.name.startswith(
            f"{name}-"
        )
        if not is_tiny or not (model / "config.json").is_file():
            continue
        same = problems.with_settings(model=str(model))
        inputs = {str(path): digest(path) for path in _input_files(same)}
        identity = Identity("rlft", identifying(same.config), inputs, LIMITS)
        if identity.fits(record, but_for_limits=True):
            return ModelRef(str(model))
    return None


def _input_files(problems: RLProblems) -> tuple[Path, ...]:
    """The files and folders that a run reads."""
    config, policy = problems.config, problems.config.policy.start
    splits = ["train"] if problems.validation is None else ["train", "validate"]
    files = [file for split in splits if (file := config.problems.file(split))]
    if any(level.dealt for level in problems.levels):  # new seeds are those that no split has
        files += [file for file in config.problems.split_files if file not in files]
    if config.policy.load_dir or policy.path.is_dir():
        files.append(policy.path)
    return (
        *files,
        *model_folders([config.reflector.load_dir]),
        *(
            path
            for path in (config.resume_from, config.recorded, config.outcomes)
            if path is not None
        ),
        *config.setup.input_files(problems.tasks),
        *config.algo.code_files,
        *config.sampler.input_files(config.setup.folder),
    )


def _warnings(
    env: EnvConfig,
    policy: ModelRef,
    reflector: ModelRef | None,
    *,
    distills: bool,
) -> Iterable[str]:
    """What the policy and the reflector were trained for, where that is not what they do here.

    distills: whether the policy plays without the comments and learns from itself with them.
    """
    add = f"add --reflector {policy.facts.get('reflector') or 'REFLECTOR'}"
    unlike = mismatches.unlike_training(policy, reflector, add, "leave out --reflector")
    if unlike and reflector is not None and distills:
        unlike = f"{policy} was trained without comments, and its teacher is itself with them"
    if unlike:
        yield unlike
    folders = model_folders([policy, reflector])
    yield from mismatches.env_mismatches(env.name, folders)
    yield from mismatches.settings_mismatches(env, folders)
    yield from mismatches.template_mismatches(env, [policy])


def _check_prompts(run: RLRun) -> None:
    """Raises ConfigError or CheckpointError if the policy's tokenizer or context does not fit these
    problems, or they begin otherwise each time.

    Only its tokenizer and config are loaded, not its weights. Problems whose env fails are left
    out: their episodes will be ABORTED.
    """
    # The policy's tokenizer and context, then the first problems of each level
    policy, setup, seed = run.policy, run.config.setup, run.config.run.seed
    answer = run.config.sampler.answer_of(policy)
    tokenizer, context = load_tokenizer(policy.text), context_of(policy.text)
    for level in run.problems.levels:
        for task in level.tasks[:PROMPTS_CHECKED]:
            with closing(checked(level.make())) as env:
                try:
                    observation, again = (result_of(env.reset(task, seed)) for _ in range(2))
                except EnvironmentFailure:
                    continue
            # A problem must begin alike each time, and its prompt and labels must fit
            if again != observation:
                raise not_repeatable(setup.env_name, task.id, 0)
            tokens = len(prompt_ids(tokenizer, policy_prompt(observation, None, answer)))
            if observation.choices:
                labels = choice_ids(tokenizer, observation.choices, answer)
                tokens += SampleRequest((), labels, separately=answer == SCORE).depth
            if context is not None and tokens > context:
                raise ConfigError(
                    f"the first prompt of task '{task.id}' is {tokens} tokens, and {policy} reads"
                    f" {context}; shorten what the env shows, or train a model with a longer"
                    " context, as --model tiny makes for this env"
                )
