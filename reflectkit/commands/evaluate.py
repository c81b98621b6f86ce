"""evaluate: compare several players on the same held-out problems, each with or without a reflector. Reports success
with 95 % intervals.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from pydantic import model_validator
from typing_extensions import override

from reflectkit.agents.players import (
    TEACHER,
    Player,
    Players,
    PlayersSetup,
    mismatch,
    model_folders,
    parse_policy,
    trained_elsewhere,
    unknown_call_forms,
)
from reflectkit.chat.config import HISTORY_HELP, HISTORY_TOKENS, ORACLE, ChatConfig
from reflectkit.chat.endpoints import Endpoint, address_in_use, key_of
from reflectkit.commands import Traits
from reflectkit.config import Config, flag, non_default, option
from reflectkit.console import Progress, Report
from reflectkit.data.episodes import read_compared, write_episodes
from reflectkit.data.problems import Problems
from reflectkit.envs import cluster_of
from reflectkit.envs.setup import EnvConfig, EnvSetup, RolloutConfig, check_level, refuse_uncounted
from reflectkit.errors import ConfigError, DataError, memory_explained
from reflectkit.evals.evaluate import Evaluation, Match, draw_problems
from reflectkit.evals.tables import (
    aspect_tables,
    counted_as_0,
    csv_text,
    differences_over_seeds,
    differences_table,
    figures_tables,
    lean,
    markdown,
    passes_table,
    pooled,
    rows_of,
    table,
)
from reflectkit.jsonl import read_json, write_json, write_text
from reflectkit.runs.run import Run, RunConfig, digest, finished, open_run
from reflectkit.sampling.base import Truncation
from reflectkit.sampling.config import SamplerConfig
from reflectkit.text import pluralize
from reflectkit.types import Task

EXAMPLES = (
    "reflectkit evaluate --env taxi --policy oracle --policy random",
    'reflectkit evaluate --env taxi --policy "SFT=results/taxi-tiny/plain/checkpoint-600"'
    ' --policy "Reflect-RL=results/taxi-tiny/reflect-rl/checkpoint-36+results/taxi-tiny/reflector/checkpoint-700"',
)
SFT = "sft"


TRAITS = Traits(reports=True, arms=("policy",))


class EvaluateConfig(Config):
    """Settings of evaluate."""

    env: EnvConfig
    policy: tuple[str, ...] = option(
        (),
        help="NAME=MODEL or NAME=MODEL+REFLECTOR (each a checkpoint, a run of sft or rlft, or a hub id; +oracle: the"
        " env's teacher comments; +nothing: empty comments; +openai:MODEL, +azure:… or +local:…: a chat model's),"
        " oracle,"
        " random, sft (the result of `sft --role plain` on the current rows), a baseline of the env, or a chat model"
        " (openai:MODEL, azure:DEPLOYMENT, local:MODEL) or two of them as ACTOR+REFLECTOR; METHOD:MODEL plays a"
        " published method of the env with any model, e.g. memagent:openai:MODEL (repeat the flag).",
        essential=True,
    )
    task_file: Path | None = option(
        None,
        help="Held-out problems; default: test.json in the env's data folder, or before a"
        " split those that rlft does not train on.",
        essential=True,
    )
    level: tuple[str, ...] = option((), help="Levels to play (repeat the flag); default: the last.", essential=True)
    problems: int = option(
        0,
        help="Play only this many problems of a level, drawn by --seed as evenly as may be from its clusters; 0: all,"
        " or 100 where each seed is a problem.",
        ge=0,
        essential=True,
    )
    eval_reps: int = option(
        1, help="Episodes per problem; more of them narrow the interval if play is random.", ge=1, essential=True
    )
    episodes: tuple[Path, ...] = option(
        (),
        name="from_",
        help="Play nothing, but recompute the tables from these evaluation runs or episodes.jsonl files (repeat the"
        " flag; several are pooled like seeds).",
    )
    temperature: float = option(
        0.0, help="Sampling temperature of the policy; 0 takes the most likely action.", ge=0, essential=True
    )
    top_p: float = option(
        1.0,
        help="Draw only from the likeliest choices, or tokens of a text, that together have this probability; for"
        " checkpoints.",
        gt=0,
        le=1,
    )
    top_k: int = option(0, help="Draw only from this many of the likeliest; 0: all.", ge=0)
    min_p: float = option(
        0.0, help="Draw only what is at least this many times as likely as the likeliest.", ge=0, le=1
    )
    max_new_tokens: int = option(
        128, help="Maximum length of an answer in tokens, in environments without enumerated actions.", ge=1
    )
    score_oracle: bool = option(
        False,
        help="Also compare each choice with the oracle's: agreement, and choice_nll, the mean negative log-probability"
        " of the oracle's choice in nats.",
    )
    device: str = option("auto", help="auto, cpu, cuda, …")
    history_tokens: int = option(HISTORY_TOKENS, help=HISTORY_HELP, ge=0)
    rollout: RolloutConfig = RolloutConfig()
    sampler: SamplerConfig = SamplerConfig()
    chat: ChatConfig = ChatConfig()
    run: RunConfig = RunConfig()

    @property
    def setup(self) -> EnvSetup:
        """The environment."""
        return EnvSetup.of(self.env, self.run, self.rollout.horizon, self.chat)

    @cached_property
    def held_out(self) -> Problems:
        """The problems to play."""
        return Problems(self.setup, {"test": self.task_file} if self.task_file else {})

    @property
    def players(self) -> PlayersSetup:
        """What the players are made with."""
        return PlayersSetup(
            self.env.kind,
            self.setup.env_folder,
            self.setup.folder,
            self.sampler,
            self.chat,
            tuple(self.entrants),
            self.temperature,
            self.max_new_tokens,
            self.history_tokens,
            self.device,
            Truncation(self.top_p, self.top_k, self.min_p),
        )

    @property
    def baselines(self) -> tuple[str, ...]:
        """The named players: the env's baselines, and SFT."""
        return (SFT, *self.env.kind.baselines)

    @property
    def entrants(self) -> list[Player]:
        """The players."""
        return [parse_policy(text, self.baselines, self.env.kind.methods) for text in self.policy]

    @property
    def endpoints(self) -> list[Endpoint]:
        """The chat models that play or comment."""
        players = self.players
        return [players.endpoint_of(part) for player in players.players for part in player.asked]

    @property
    @override
    def environment(self) -> dict[str, str]:
        return address_in_use(self.endpoints)

    @model_validator(mode="after")
    def _check(self) -> Self:
        refuse_uncounted(self.env, dry_run=self.chat.dry_run, max_cost_usd=self.chat.max_cost_usd)
        if self.episodes:
            if self.policy or self.task_file or self.level or self.problems or self.chat.dry_run or self.score_oracle:
                raise ConfigError(
                    "--from plays nothing: omit --policy, --task-file, --level, --problems, --score-oracle and"
                    " --dry-run"
                )
            return self
        if not self.policy:
            raise ConfigError("evaluate needs at least one --policy: NAME=CHECKPOINT, random, …")
        entrants = self.entrants
        names, reflectors = [player.name for player in entrants], [player.reflector for player in entrants]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ConfigError(f"--policy: the name {twice[0]!r} is given twice")
        if self.score_oracle or ORACLE in names:
            self.env.require_teacher("action")
        if TEACHER in reflectors:
            self.env.require_teacher("comment")
        if self.sampler.swap_comments and not any(reflectors):
            raise ConfigError("--swap-comments needs comments; give a --policy NAME=CHECKPOINT+REFLECTOR")
        if given := non_default(self, "top_p", "top_k", "min_p"):
            if not self.temperature:
                raise ConfigError(f"{flag(given[0])} is for sampling; add --temperature 1, or leave it out")
            if chat := next((player.name for player in entrants if player.chat), None):
                raise ConfigError(
                    f"{flag(given[0])} is for checkpoints, not for --policy {chat}; leave one of them out"
                )
        for level in self.level:
            check_level(self.env.name, level)
        for endpoint in self.endpoints:
            self.chat.check_budget(endpoint)
        return self


def plain_sft(setup: EnvSetup, results_dir: Path) -> Path:
    """The checkpoint of the only finished SFT without reflections on the env's current rows.

    Raises
    ------
    ConfigError: there is none, or more than one. DataError: the rows are missing.
    """
    from reflectkit.data.sft_rows import FILE_OF_ROLE

    rows = setup.folder / FILE_OF_ROLE["plain"]
    setup.require(rows)
    checkpoints = [
        str(output)
        for report in finished(results_dir, "sft", {"role": "plain"}, digest(rows))
        for output in report.outputs
    ]
    if len(checkpoints) == 1:
        return Path(checkpoints[0])
    if checkpoints:
        raise ConfigError(f"--policy sft could be any of {', '.join(checkpoints)}; write --policy sft=CHECKPOINT")
    raise ConfigError(
        f"--policy sft: {results_dir} has no finished SFT on {rows}; create it with `reflectkit sft --env"
        f" {setup.env} --role plain`, or write --policy sft=CHECKPOINT"
    )


@memory_explained("lower --max-concurrency, or use a smaller model")
def run(config: EvaluateConfig, progress: Progress) -> Report:
    """Write `eval.json`, `eval.md` and `eval.csv` (a row per policy and level), and `episodes.jsonl`.

    Episodes are saved as they end and are not played again by a restarted run. Raises CheckpointError, DataError.
    """
    if config.episodes:
        return _recompute(config, progress)
    setup, env = config.setup, config.env
    levels = tuple(dict.fromkeys(config.level)) or (env.kind.levels[-1],)
    levels = tuple(config.held_out.levels_with("test", levels, progress))
    problems = _problems(config, levels)
    entrants = [
        replace(player, policy=plain_sft(setup, config.run.results_dir)) if player == Player(SFT) else player
        for player in config.entrants
    ]
    if not config.chat.dry_run:
        entrants = [player.resolved(config.run.data_dir, progress) for player in entrants]
    matches = [
        Match(number, player, level, problems[level]) for number, player in enumerate(entrants) for level in levels
    ]
    if config.chat.dry_run:
        from reflectkit.evals.estimate import estimate

        return estimate(
            setup,
            config.players,
            matches,
            progress,
            seed=config.run.seed,
            repeats=config.eval_reps,
            width=config.rollout.width,
        )
    for endpoint in config.endpoints:
        key_of(endpoint)
    for player in entrants:
        if player.policy is not None:
            config.sampler.answer_of(player.policy)
    models = model_folders(path for player in entrants for path in (player.policy, player.reflector))
    inputs = [
        *([source] if (source := config.held_out.file("test")) else []),
        *models,
        *setup.input_files([task for level in levels for task in problems[level]]),
        *config.sampler.code_files,
        *config.sampler.comment_files(setup.folder),
    ]
    with open_run("evaluate", config, inputs) as current, contextlib.closing(Players(config.players)) as players:
        warnings = [text for player in entrants if (text := mismatch(player))]
        warnings += trained_elsewhere(env.name, models)
        warnings += unknown_call_forms(env, [player.policy for player in entrants])
        for text in warnings:
            progress.news(f"warning: {text}")
        if current.done:
            return current.done
        count = sum(len(match.tasks) for match in matches) * config.eval_reps
        progress.news(
            f"evaluate: {pluralize(count, 'episode')} of {pluralize(len(entrants), 'player')} → {current.folder}"
        )
        evaluation = Evaluation(
            setup,
            players,
            current.folder / "episodes",
            progress,
            seed=config.run.seed,
            repeats=config.eval_reps,
            width=config.rollout.width,
            score_oracle=config.score_oracle,
        )
        played = [(match.player.name, match.level, evaluation.play(match)) for match in matches]
        saved = [episode for _, _, episodes in played for episode in episodes]
        rows = rows_of(
            setup.env_name, [(name, level, [one.line for one in episodes]) for name, level, episodes in played]
        )
        if not evaluation.reports_success:
            progress.news(f"env '{env.name}' reports no success (info['success']), which counts as 0; compare returns")
        players.report_damage(progress)
        path = current.folder / "episodes.jsonl"
        write_episodes(path, (episode.whole() for episode in saved))
        asked = players.usage | setup.asked(progress)
        title = _title(config, problems)
        outputs = _write_tables(current, title, rows, [[episode.line for episode in saved]], {"asked": asked})
        extra = {name: value for name, value in (("asked", asked), ("warnings", warnings)) if value}
        report = current.finish({"rows": rows} | extra, [*outputs, path])
        shutil.rmtree(evaluation.folder, ignore_errors=True)
        return report


def _problems(config: EvaluateConfig, levels: Sequence[str]) -> dict[str, tuple[Task, ...]]:
    """The problems to play, by level."""
    drawn = {}
    for level in levels:
        tasks = config.held_out.tasks("test", level, seeds=config.problems)
        clusters = [cluster_of(config.env.name, task) for task in tasks]
        drawn[level] = tuple(tasks[place] for place in draw_problems(clusters, config.problems, config.run.seed))
    return drawn


def _read_tasks(path: Path, env: str) -> list[Task]:
    from reflectkit.data.trajectories import read_records

    return [record.task for record in read_records(path, env)]


def _title(config: EvaluateConfig, problems: Mapping[str, Sequence[Task]]) -> str:
    """The title of the table; it says if the problems are not held out."""
    held_out = config.held_out
    source = held_out.file("test")
    if source is None:
        if all(map(held_out.holds_out, problems)):
            return f"Held-out problems of {held_out.source('test')}"
        return f"Problems of {held_out.source('test')}, none held out from training"
    training = source.with_name("train.json")
    trains = training.is_file() and read_json(training) != []  # a split may leave nothing to train on
    trained = _read_tasks(training, config.setup.env_name) if trains else []
    for level, played in problems.items():
        moved = [config.env.kind.taskset.at_level(task, level) for task in trained]
        if {task.id for task in moved if task is not None} & {task.id for task in played}:
            return f"Problems of {source}, not held out from training"
    return f"Held-out problems of {source}"


def _write_tables(
    current: Run,
    title: str,
    rows: list[dict[str, Any]],
    parts: Sequence[Sequence[dict[str, Any]]],
    extra: dict[str, Any],
) -> list[Path]:
    """Make the tables and write their files, whose paths are returned. parts: the episodes of each seed."""
    compared = differences_over_seeds(parts)
    episodes = [episode for part in parts for episode in part]
    write_json(current.folder / "eval.json", {"rows": rows, "differences": compared} | extra)
    current.tables += [table(title, rows), *passes_table(rows), *aspect_tables(episodes), *figures_tables(rows)]
    if any(one["difference"] for one in compared if one["figure"] == "success"):
        current.tables.append(differences_table(compared, "success"))
    write_text(current.folder / "eval.md", markdown(current.tables))
    write_text(current.folder / "eval.csv", csv_text(rows))
    return [current.folder / name for name in ("eval.json", "eval.md", "eval.csv")]


def _recompute(config: EvaluateConfig, progress: Progress) -> Report:
    """The tables of saved episodes, computed by this version. Raises DataError."""
    parts = [list(map(lean, read_compared(path))) for path in config.episodes]
    for path, part in zip(config.episodes, parts, strict=True):
        if others := {episode["env"] for episode in part if "env" in episode} - {config.setup.env_name}:
            raise DataError(
                path, f"has episodes of env '{min(others)}', not of '{config.setup.env_name}'; choose it with --env"
            )
    for text in counted_as_0(dict(zip(map(str, config.episodes), parts, strict=True))):
        progress.news(text)
    with open_run("evaluate", config, config.episodes, again=True) as current:
        rows = pooled(parts)
        title = f"Episodes of {' and '.join(map(str, config.episodes))}"
        return current.finish({"rows": rows}, _write_tables(current, title, rows, parts, {}))
