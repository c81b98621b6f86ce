"""Resolve, the first of evaluate's four steps: what the settings leave open is decided once, in a frozen
`EvaluationRun`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from reflectkit.agents.mismatches import length_mismatches, playing_mismatches
from reflectkit.agents.player_refs import Player, model_folders
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
    """A run of evaluate, in which nothing is left open."""

    config: EvaluateConfig
    tasks: Mapping[str, Sequence[Task]]
    """The problems to play, by level."""
    players: tuple[Player, ...]
    """Who plays, with the places of their models."""
    model_folders: tuple[Path, ...]
    """The folders of the models that play and comment."""
    inputs: tuple[Path, ...]
    """The files and folders that it reads, these among them."""
    warnings: tuple[str, ...]

    @property
    def title(self) -> str:
        """The title of its first table, see `title_of`."""
        return title_of(self.config, self.tasks, self.model_folders)

    @property
    def episode_count(self) -> int:
        """How many episodes are played."""
        problems = sum(len(tasks) for tasks in self.tasks.values())
        return problems * len(self.players) * self.config.eval_reps

    @property
    def summary(self) -> str:
        """How much is played."""
        return f"{pluralize(self.episode_count, 'episode')} of {pluralize(len(self.players), 'player')}"


def resolve_tasks(config: EvaluateConfig, progress: Progress) -> dict[str, list[Task]]:
    """The problems to play, by level. Raises DataError."""
    problems = config.held_out
    env = config.env
    names = tuple(dict.fromkeys(config.level)) or env.kind.levels[-1:]
    by_level: dict[str, list[Task]] = {}
    for level in problems.levels_with("test", names, progress):
        tasks = problems.tasks("test", level, seeds=config.problems)
        clusters = [cluster_of(env.name, task) for task in tasks]
        places = draw_problems(clusters, config.problems, config.run.seed)
        by_level[level] = [tasks[place] for place in places]
    return by_level


def resolve(
    config: EvaluateConfig,
    tasks: Mapping[str, Sequence[Task]],
    progress: Progress,
) -> EvaluationRun:
    """The run that plays `tasks`, the problems by level.

    Raises CheckpointError, ConfigError if a key is missing or a sampler cannot answer as a policy was trained, and
    DataError.
    """
    # 1. The players
    players = tuple(player.resolved(config.run.data_dir, progress) for player in config.players)
    for endpoint in config.endpoints:
        key_of(endpoint)
    for player in players:
        if player.checkpoint is not None:
            config.sampler.answer_of(player.checkpoint)
    folders = model_folders(
        model for player in players for model in (player.policy, player.reflector)
    )

    # 2. What is read
    setup = config.setup
    test_file = config.held_out.file("test")
    inputs = [*([] if test_file is None else [test_file]), *folders]
    inputs += setup.input_files([task for level_tasks in tasks.values() for task in level_tasks])
    inputs += config.sampler.input_files(setup.folder)

    # 3. What makes its figures mislead
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
    """The title of the table. It says whether the problems are held out from training, where that is certain. tasks:
    the problems by level. folders: those of the models that play.
    """
    records = [read_record(folder.parent) for folder in folders]
    rl_inputs = [record.get("inputs", {}) for record in records if record.get("stage") == "rlft"]
    problems = config.held_out
    test_file = config.held_out.file("test")
    source = problems.source("test")

    # 1. Problems of the env itself: RL may have drawn them from another file of rows, or from the same few
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

    # 2. Those of a file: it is a split if the training problems are next to it
    train_file = test_file.with_name("train.json")
    if not train_file.is_file():
        return f"Problems of {source}"
    train_digest = digest(train_file)
    additions = {str(path) for path in train_file.parent.glob(f"{train_file.stem}_*.json")}
    for inputs in rl_inputs:  # rlft trains on the split, or on a file that says what it adds to it
        if not additions & inputs.keys() and train_digest not in inputs.values():
            return f"Problems of {source}; a player was trained without this split"
    for record in records:
        if record.get("inputs", {}).get(str(train_file), train_digest) != train_digest:
            return f"Problems of {source}; a player was trained without this split"

    # 3. No problem may be in both parts
    training: list[Task] = []
    if read_json(train_file):  # a split may leave nothing to train on
        training = [record.task for record in read_records(train_file, config.setup.env_name)]
    for level, level_tasks in tasks.items():
        at_level = [config.env.kind.taskset.at_level(task, level) for task in training]
        training_ids = {task.id for task in at_level if task is not None}
        if training_ids & {task.id for task in level_tasks}:
            return f"Problems of {source}, not held out from training"
    return f"Held-out problems of {source}"
