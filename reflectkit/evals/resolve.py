"""Resolve, the first of evaluate's four steps: the settings become a frozen `EvaluationRun`.

It has the problems to play, the folders of all models and the files that the run reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from reflectkit.agents.mismatches import length_mismatches, playing_mismatches
from reflectkit.agents.player_refs import Player, model_folders, player_files
from reflectkit.chat.config import key_of
from reflectkit.console import Progress
from reflectkit.data.problems import draw_problems, read_records
from reflectkit.envs import cluster_of
from reflectkit.evals.config import EvaluateConfig
from reflectkit.jsonl import read_json
from reflectkit.runs.run import digest, read_record
from reflectkit.text import pluralize
from reflectkit.types import Task


@dataclass(frozen=True)
class EvaluationRun:
    """A run of evaluate, with everything that its settings determine."""

    config: EvaluateConfig
    tasks: Mapping[str, Sequence[Task]]
    """The problems to play, by level."""
    players: tuple[Player, ...]
    """The players, with the folders of their models."""
    model_folders: tuple[Path, ...]
    """The folders of the models that play and comment."""
    inputs: tuple[Path, ...]
    """The files and folders that the run reads, with `model_folders`."""
    warnings: tuple[str, ...]
    """Reasons why its figures may mislead."""

    @property
    def title(self) -> str:
        """The title of the first table, see `title_of`."""
        return title_of(self.config, self.tasks, self.model_folders)

    @property
    def episode_count(self) -> int:
        """The number of episodes that are played, over all players."""
        problems = sum(len(tasks) for tasks in self.tasks.values())
        return problems * len(self.players) * self.config.eval_reps

    @property
    def summary(self) -> str:
        """The numbers of episodes and players, in words."""
        episodes = pluralize(self.episode_count, "episode")
        players = pluralize(len(self.players), "player")
        return f"{episodes} of {players}"


def resolve_tasks(config: EvaluateConfig, progress: Progress) -> dict[str, list[Task]]:
    """The problems to play, by level. Raises DataError."""
    problems = config.held_out
    env = config.env
    levels = tuple(dict.fromkeys(config.level)) or env.kind.levels[-1:]
    by_level: dict[str, list[Task]] = {}
    for level in problems.levels_with("test", levels, progress):
        tasks = problems.tasks("test", level, seeds=config.problems)
        clusters = [cluster_of(env.name, task) for task in tasks]
        indices = draw_problems(clusters, config.problems, config.run.seed)
        by_level[level] = [tasks[index] for index in indices]
    return by_level


def resolve(
    config: EvaluateConfig,
    tasks: Mapping[str, Sequence[Task]],
    progress: Progress,
) -> EvaluationRun:
    """The run that plays `tasks`, the problems by level.

    Raises CheckpointError and DataError. Raises ConfigError if the key of a chat model is missing,
    or a sampler cannot answer in the form in which a policy was trained.
    """
    # 1. Find the players' models, and check that they can be asked
    players = tuple(player.resolved(config.run.data_dir, progress) for player in config.players)
    for endpoint in config.endpoints:
        key_of(endpoint)  # raises
    for player in players:
        if player.checkpoint is not None:
            config.sampler.answer_of(player.checkpoint)  # raises
    folders = model_folders(
        model for player in players for model in (player.policy, player.reflector)
    )

    # 2. List the inputs
    setup = config.setup
    test_file = config.held_out.file("test")
    all_tasks = [task for level_tasks in tasks.values() for task in level_tasks]
    inputs = [] if test_file is None else [test_file]
    inputs += folders
    inputs += setup.input_files(all_tasks)
    inputs += config.sampler.input_files(setup.folder)
    inputs += player_files(players)

    # 3. Warn if the figures may mislead
    warnings = playing_mismatches(config.env, players, folders)
    if not config.env.offers_choices:
        warnings += length_mismatches(config.max_new_tokens, folders)
    for warning in warnings:
        progress.news(f"warning: {warning}")
    return EvaluationRun(
        config,
        tasks,
        players,
        tuple(folders),
        tuple(inputs),
        tuple(warnings),
    )


def title_of(
    config: EvaluateConfig,
    tasks: Mapping[str, Sequence[Task]],
    folders: Iterable[Path],
) -> str:
    """The title of the first table. It says whether the problems were held out, if that is certain.

    tasks: the problems by level. folders: of the models that play.
    """
    # 1. What the models were trained on, as far as their runs say
    records = [read_record(folder.parent) for folder in folders]
    rl_inputs = [record.get("inputs", {}) for record in records if record.get("stage") == "rlft"]
    problems = config.held_out
    test_file = config.held_out.file("test")
    source = problems.source("test")

    # 2. Problems of the env itself: RL may have read other data, or played these problems
    if test_file is None:
        code = config.setup.code_files
        data_files = [
            path
            for path in config.setup.input_files([])
            if path not in code and path.suffix != ".py"
        ]
        data = {digest(path) for path in data_files}
        for inputs in rl_inputs:
            if data - set(inputs.values()):
                return f"Problems of {source}; a player was trained on other data"
        if all(problems.holds_out(level) for level in tasks):
            return f"Held-out problems of {source}"
        return f"Problems of {source}, none held out from training"

    # 3. Problems of a file, which is part of a split if there are training problems next to it
    train_file = test_file.with_name("train.json")
    if not train_file.is_file():
        return f"Problems of {source}"
    train_digest = digest(train_file)

    # 4. RL must have trained on the split, or on a file train_NAME.json that adds problems to it
    additions = {str(path) for path in train_file.parent.glob(f"{train_file.stem}_*.json")}
    for inputs in rl_inputs:
        if not additions & inputs.keys() and train_digest not in inputs.values():
            return f"Problems of {source}; a player was trained without this split"
    for record in records:
        if record.get("inputs", {}).get(str(train_file), train_digest) != train_digest:
            return f"Problems of {source}; a player was trained without this split"

    # 5. No problem may be in both parts; the part for training may be empty
    training_tasks: list[Task] = []
    if read_json(train_file):
        records_of_file = read_records(train_file, config.setup.env_name)
        training_tasks = [record.task for record in records_of_file]
    for level, level_tasks in tasks.items():
        at_level = [config.env.kind.taskset.at_level(task, level) for task in training_tasks]
        training_ids = {task.id for task in at_level if task is not None}
        test_ids = {task.id for task in level_tasks}
        if training_ids & test_ids:
            return f"Problems of {source}, not held out from training"
    return f"Held-out problems of {source}"
