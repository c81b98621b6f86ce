"""evaluate: compare several players on the same held-out problems, each with or without a reflector. Reports success
with 95 % intervals.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from pydantic import model_validator
from typing_extensions import override

from reflectkit.agents.players import (
    TEACHER,
    Players,
    PlayersSetup,
    chat_models,
    chat_parts,
    mismatch,
    model_folders,
    parse_policy,
    resolve_model_path,
    trained_elsewhere,
)
from reflectkit.chat.config import ORACLE, ChatConfig
from reflectkit.chat.endpoints import address_in_use, key_of
from reflectkit.chat.templates import HISTORY_HELP, HISTORY_TOKENS
from reflectkit.commands import Traits
from reflectkit.config import Config, flag, non_default, option
from reflectkit.console import Progress, Report
from reflectkit.data.episodes import episode_line, episode_to_json, read_compared, write_episodes
from reflectkit.data.sft_rows import FILE_OF_ROLE
from reflectkit.data.trajectories import read_records
from reflectkit.envs import cluster_of, listed
from reflectkit.envs.setup import (
    EnvConfig,
    EnvSetup,
    RolloutConfig,
    at_level,
    check_level,
    refuse_uncounted,
)
from reflectkit.errors import ConfigError, DataError, EnvironmentFailure, memory_explained
from reflectkit.evals.breakdowns import aspect_tables, passes_table
from reflectkit.evals.estimate import estimate
from reflectkit.evals.oracle_scores import advised, known_scores, oracle_scores
from reflectkit.evals.tables import (
    counted_as_0,
    csv_text,
    differences_over_seeds,
    differences_table,
    figures_tables,
    lean,
    markdown,
    pooled,
    rows_of,
    table,
)
from reflectkit.jsonl import read_json, replacing, salvaged, write_json, write_text
from reflectkit.rollout.episode import Episode, rollout
from reflectkit.runs.folders import RunConfig
from reflectkit.runs.identity import digest
from reflectkit.runs.run import Run, finished, open_run
from reflectkit.sampling.base import Truncation
from reflectkit.sampling.config import SamplerConfig
from reflectkit.seeding import derive, generator
from reflectkit.text import pluralize
from reflectkit.types import Task, Trajectory

EXAMPLES = (
    "reflectkit evaluate --env taxi --policy oracle --policy random",
    'reflectkit evaluate --env taxi --policy "SFT=results/taxi-tiny/plain/checkpoint-600"'
    ' --policy "Reflect-RL=results/taxi-tiny/reflect-rl/checkpoint-36+results/taxi-tiny/reflector/checkpoint-700"',
)
SFT = "sft"
HELD_OUT = "test.json"


@dataclass(frozen=True, slots=True)
class SavedEpisode:
    """An episode whose line is on disk."""

    line: dict[str, Any]
    """Its `lean` line of episodes.jsonl."""
    path: Path
    """The file with the whole line."""
    place: int
    """Where the line begins, in bytes."""

    def whole(self) -> dict[str, Any]:
        """The whole line, with the level and the figures of the lean one."""
        with self.path.open("rb") as file:
            file.seek(self.place)
            row: dict[str, Any] = json.loads(file.readline())
        return row | {name: self.line[name] for name in ("level", "figures") if name in self.line}


Played = dict[tuple[int, int, str, int], tuple[Task, SavedEpisode]]
"""Tasks and their episodes, by player, horizon, task id and seed."""


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
    )
    task_file: Path | None = option(
        None,
        help="Held-out problems; default: test.json in the env's data folder, or before a"
        " split the env's own list, if it has one.",
    )
    level: tuple[str, ...] = option((), help="Levels to play (repeat the flag); default: the last.")
    problems: int = option(
        0,
        help="Play only this many problems of a level, drawn by --seed as evenly as may be from its clusters; 0: all.",
        ge=0,
    )
    eval_reps: int = option(1, help="Episodes per problem; more of them narrow the interval if play is random.", ge=1)
    episodes: tuple[Path, ...] = option(
        (),
        name="from_",
        help="Play nothing, but recompute the tables from these evaluation runs or episodes.jsonl files (repeat the"
        " flag; several are pooled like seeds).",
    )
    temperature: float = option(0.0, help="Sampling temperature of the policy; 0 takes the most likely action.", ge=0)
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

    @property
    def players(self) -> PlayersSetup:
        """What the players are made with."""
        return PlayersSetup(
            self.env.kind,
            self.setup.env_folder,
            self.setup.folder,
            self.sampler,
            self.chat,
            self.policy,
            self.temperature,
            self.max_new_tokens,
            self.history_tokens,
            self.device,
            Truncation(self.top_p, self.top_k, self.min_p),
        )

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
        kind = self.env.kind
        if self.score_oracle:
            self.env.require_teacher("action")
        if not self.policy:
            raise ConfigError("evaluate needs at least one --policy NAME=CHECKPOINT")
        parsed = [parse_policy(text, self.baselines, kind.methods) for text in self.policy]
        if self.sampler.swap_comments and not any(reflector for _, _, reflector in parsed):
            raise ConfigError("--swap-comments needs comments; give a --policy NAME=CHECKPOINT+REFLECTOR")
        self._check_truncation()
        names = [name for name, _, _ in parsed]
        if ORACLE in names:
            self.env.require_teacher("action")
        if any(reflector == TEACHER for _, _, reflector in parsed):
            self.env.require_teacher("comment")
        if twice := [name for name in names if names.count(name) > 1]:
            raise ConfigError(f"--policy: the name {twice[0]!r} is given twice")
        for level in self.level:
            check_level(self.env.name, level)
        for text in self.policy:
            for part in chat_models(text, kind.methods):
                self.chat.check_budget(self.players.endpoint_of(part))
        return self

    def _check_truncation(self) -> None:
        """Raises ConfigError where --top-p, --top-k or --min-p would do nothing."""
        given = non_default(self, "top_p", "top_k", "min_p")
        if given and not self.temperature:
            raise ConfigError(f"{flag(given[0])} is for sampling; add --temperature 1, or leave it out")
        chat = next((text for text in self.policy if chat_parts(text, self.env.kind.methods)), None)
        if given and chat:
            raise ConfigError(f"{flag(given[0])} is for checkpoints, not for --policy {chat}; leave one of them out")

    @property
    @override
    def environment(self) -> dict[str, str]:
        parts = [part for text in self.policy for part in chat_models(text, self.env.kind.methods)]
        return address_in_use(map(self.players.endpoint_of, parts))

    @property
    def baselines(self) -> tuple[str, ...]:
        """The named players: the env's baselines, and SFT."""
        return (SFT, *self.env.kind.baselines)


def entrant(config: EvaluateConfig, text: str) -> tuple[str, Path | None, Path | None]:
    """(name, policy, reflector) of a --policy, with the checkpoint of "sft" filled in. Raises ConfigError."""
    return (
        (SFT, plain_sft(config), None) if text == SFT else parse_policy(text, config.baselines, config.env.kind.methods)
    )


def plain_sft(config: EvaluateConfig) -> Path:
    """The checkpoint of the only finished SFT without reflections on the current rows in the env's folder.

    Raises
    ------
    ConfigError: there is none, or more than one. DataError: the rows are missing.
    """
    rows = config.setup.folder / FILE_OF_ROLE["plain"]
    checkpoints = [
        str(output)
        for report in finished(config.run.results_dir, "sft", {"role": "plain"}, digest(rows))
        for output in report.outputs
    ]
    if len(checkpoints) == 1:
        return Path(checkpoints[0])
    if checkpoints:
        raise ConfigError(f"--policy sft could be any of {', '.join(checkpoints)}; write --policy sft=CHECKPOINT")
    raise ConfigError(
        f"--policy sft: {config.run.results_dir} has no finished SFT on {rows}; create it with `reflectkit sft --env"
        f" {config.env.name} --role plain`, or write --policy sft=CHECKPOINT"
    )


@memory_explained("lower --max-concurrency, or use a smaller model")
def run(config: EvaluateConfig, progress: Progress) -> Report:
    """Write `eval.json`, `eval.md` and `eval.csv` (a row per policy and level), and `episodes.jsonl`.

    Episodes are saved as they end and are not played again by a restarted run. Raises CheckpointError, DataError.
    """
    if config.episodes:
        return _recompute(config, progress)
    levels = tuple(dict.fromkeys(config.level)) or (config.env.kind.levels[-1],)
    source, problems = _problems(config, levels)
    entrants = [entrant(config, text) for text in config.policy]
    if not config.chat.dry_run:
        entrants = [
            (
                name,
                resolve_model_path(policy, config.run.data_dir, progress),
                resolve_model_path(reflector, config.run.data_dir, progress, reflects=True),
            )
            for name, policy, reflector in entrants
        ]
    matches = [
        Match(number, name, policy, reflector, level, problems[level])
        for number, (name, policy, reflector) in enumerate(entrants)
        for level in levels
    ]
    if config.chat.dry_run:
        return estimate(config, matches, progress)
    if source is None:
        progress.news(
            f"{config.setup.folder / HELD_OUT} does not exist: playing all problems that env '{config.env.name}' lists,"
            " none of them held out from training; create it with `reflectkit gen-trajectory` and `reflectkit split`"
        )
    for text in config.policy:
        for part in chat_models(text, config.env.kind.methods):
            key_of(config.players.endpoint_of(part))
    tasks = [task for level in levels for task in problems[level]]
    for _, policy, _ in entrants:
        if policy is not None:
            config.sampler.answer_of(policy)
    models = model_folders(path for _, *paths in entrants for path in paths)
    with (
        open_run(
            "evaluate",
            config,
            [
                *([source] if source else []),
                *models,
                *config.setup.input_files(tasks),
                *config.sampler.code_files,
                *config.sampler.comment_files(config.setup.folder),
            ],
        ) as current,
        contextlib.closing(Players(config.players)) as players,
    ):
        warnings = [text for player in entrants if (text := mismatch(*player))]
        warnings += trained_elsewhere(config.env.name, models)
        for text in warnings:
            progress.news(f"warning: {text}")
        if current.done:
            return current.done
        count = sum(len(match.tasks) for match in matches) * config.eval_reps
        progress.news(
            f"evaluate: {pluralize(count, 'episode')} of {pluralize(len(entrants), 'player')} → {current.folder}"
        )
        episodes_folder = current.folder / "episodes"
        already: Played = {}
        played = [
            (match.name, match.level, play_match(config, match, episodes_folder, players, progress, already))
            for match in matches
        ]
        rows = rows_of(
            config.setup.env_name, [(name, level, [one.line for one in part]) for name, level, part in played]
        )
        players.report_damage(progress)
        write_episodes(current.folder / "episodes.jsonl", (one.whole() for _, _, part in played for one in part))
        episodes = [one.line for _, _, part in played for one in part]
        title = _title(config, source, problems)
        asked = players.usage | config.setup.asked(progress)
        outputs = _write_tables(current, title, rows, [episodes], {"asked": asked})
        outputs.append(current.folder / "episodes.jsonl")
        extra: dict[str, Any] = {"asked": asked} if asked else {}
        extra |= {"warnings": warnings} if warnings else {}
        report = current.finish({"rows": rows} | extra, outputs)
        shutil.rmtree(episodes_folder, ignore_errors=True)
        return report


def _problems(config: EvaluateConfig, levels: Sequence[str]) -> tuple[Path | None, dict[str, tuple[Task, ...]]]:
    """(file of held-out problems, problems by level). There is no file if none was given or made and the env lists its
    own.
    """
    source = config.task_file or config.setup.folder / HELD_OUT
    if config.task_file is None and not source.exists() and config.env.kind.taskset.has("tasks"):
        return None, {level: _drawn(config, listed(config.env.name, level)) for level in levels}
    tasks = [record.task for record in read_records(source, config.setup.env_name)]
    return source, {level: _drawn(config, at_level(config.env.name, tasks, level, source)) for level in levels}


def _drawn(config: EvaluateConfig, tasks: Sequence[Task]) -> tuple[Task, ...]:
    chosen = drawn([cluster_of(config.env.name, task) for task in tasks], config.problems, config.run.seed)
    return tuple(tasks[place] for place in chosen)


def drawn(clusters: Sequence[str], count: int, seed: int) -> list[int]:
    """The places of `count` problems (0: all), given each one's cluster: a random one of each, then a second one, …"""
    order = generator(seed, "problems").sample(range(len(clusters)), len(clusters))
    taken: Counter[str] = Counter()
    rank = {}
    for place in order:
        rank[place] = taken[clusters[place]]
        taken[clusters[place]] += 1
    return sorted(sorted(order, key=rank.__getitem__)[: count or None])


def _title(config: EvaluateConfig, source: Path | None, problems: Mapping[str, Sequence[Task]]) -> str:
    """The title of the table; it says if the problems are not held out."""
    if source is None:
        return f"All problems that {config.env.name} lists, none held out"
    training = source.with_name("train.json")
    trains = training.is_file() and read_json(training) != []  # a split may leave nothing to train on
    trained = [record.task for record in read_records(training, config.setup.env_name)] if trains else []
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
    current.tables.append(table(title, rows))
    current.tables += [*passes_table(rows), *aspect_tables(episodes), *figures_tables(rows)]
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
        outputs = _write_tables(current, title, rows, parts, {})
        return current.finish({"rows": rows}, outputs)


@dataclass(frozen=True)
class Match:
    """One player on one level."""

    number: int
    """Number of the player, from 0."""
    name: str
    """Name of the player."""
    policy: Path | None
    """Its checkpoint; None for a player without one."""
    reflector: Path | None
    """Its reflector's checkpoint, if any."""
    level: str
    """The level to play."""
    tasks: tuple[Task, ...]
    """The problems of that level."""


def play_match(
    config: EvaluateConfig,
    match: Match,
    folder: Path,
    players: Players,
    progress: Progress,
    already: Played,
) -> list[SavedEpisode]:
    """An episode of each problem and repeat. What the tables do not need of them is on disk only.

    Episodes saved in `folder` are not played again, nor those that were `already` played at another level with the same
    task and horizon; new ones are added to `already`. Raises EnvironmentFailure if all are aborted, BudgetSpentError if
    the budget runs out.
    """
    path = folder / f"{match.number}-{match.level}.jsonl"
    episodes = [
        Episode(task, derive(config.run.seed, "evaluate", task.id, repeat))
        for task in match.tasks
        for repeat in range(config.eval_reps)
    ]
    same = match.number, config.setup.horizon_at(match.level)
    done = {}
    for episode in episodes:
        if (earlier := already.get((*same, episode.task.id, episode.seed))) and earlier[0] == episode.task:
            line = earlier[1].line | {"level": match.level}
            done[episode.task.id, episode.seed] = replace(earlier[1], line=line)
    done |= _kept(path, progress)
    remaining = [episode for episode in episodes if (episode.task.id, episode.seed) not in done]
    with progress.bar(f"{match.name} ({match.level})", len(episodes), len(episodes) - len(remaining)) as bar:
        if remaining:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as file:

                def on_end(trajectory: Trajectory) -> None:
                    cluster = cluster_of(config.env.name, trajectory.task)
                    line = episode_to_json(match.name, trajectory, cluster=cluster) | {"level": match.level}
                    if aspects := dict(config.env.kind.taskset.aspects(trajectory.task)):
                        line["aspects"] = aspects
                    if config.score_oracle:
                        line["figures"] = {**line.get("figures", {}), **oracle_scores(trajectory)}
                    done[trajectory.task.id, trajectory.seed] = SavedEpisode(lean(line), path, file.tell())
                    file.write(episode_line(line).encode("utf-8"))
                    file.flush()
                    bar.advance()

                agent = players.agent(match.name, match.policy, match.reflector)
                make = (
                    advised(config.setup.maker(match.level)) if config.score_oracle else config.setup.maker(match.level)
                )
                rollout(remaining, make, agent, width=config.rollout.width, on_end=on_end, keep=False)
                players.stop_if_spent(match.name)
    played = [done[episode.task.id, episode.seed] for episode in episodes]
    if config.score_oracle:
        scored = known_scores([one.line for one in played])
        played = [replace(one, line=line) for one, line in zip(played, scored, strict=True)]
    aborted = [one.line for one in played if one.line["status"] == "aborted"]
    if aborted and len(aborted) == len(played):
        raise EnvironmentFailure(
            f"every episode of {match.name} was aborted ({len(played)}): {aborted[0].get('reason')}"
        )
    if aborted:
        count = pluralize(len(aborted), "episode")
        progress.news(f"{match.name} ({match.level}): {count} aborted, the first for: {aborted[0].get('reason')}")
    for episode, one in zip(episodes, played, strict=True):
        if one.line["status"] != "aborted":
            already[*same, episode.task.id, episode.seed] = episode.task, one
    return played


KEPT_FIELDS = {"task": str, "seed": int, "status": str, "success": bool, "return": int | float, "turns": list}


def _kept(path: Path, progress: Progress) -> dict[tuple[str, int], SavedEpisode]:
    """The intact lines that a killed run left, by task and seed. Damaged ones, e.g. an incomplete last one, and those
    of aborted episodes are removed: both are played again.
    """
    kept: dict[tuple[str, int], SavedEpisode] = {}
    damaged = 0
    if not path.is_file():
        return kept
    with replacing(path) as file:  # even if only the last newline is missing, since more lines follow
        for row in salvaged(path, KEPT_FIELDS):
            if row is None:
                damaged += 1
            elif row["status"] != "aborted":
                kept[row["task"], row["seed"]] = SavedEpisode(lean(row), path, file.tell())
                file.write(episode_line(row).encode("utf-8"))
    if damaged:
        progress.news(f"{path}: damaged lines dropped: {damaged}; their episodes will be played again")
    return kept
