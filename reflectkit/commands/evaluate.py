"""evaluate: compare several players on the same held-out problems, each with or without a reflector. Reports success
with 95 % intervals.
"""

from __future__ import annotations

import contextlib
import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean
from typing import Any, Self

from pydantic import model_validator
from typing_extensions import override

from reflectkit.agents.deciding import Foreteller
from reflectkit.agents.players import (
    Player,
    Players,
    PlayersSetup,
    model_folders,
    parse_policy,
    warn_of,
)
from reflectkit.chat.config import (
    HISTORY_HELP,
    HISTORY_TOKENS,
    ORACLE,
    ChatConfig,
    DecisionConfig,
    Endpoint,
    address_in_use,
    key_of,
)
from reflectkit.commands import Traits
from reflectkit.config import Config, flag, non_default, option
from reflectkit.console import Progress, Report
from reflectkit.data.episodes import SUCCESS, episode_to_json, read_compared
from reflectkit.data.problems import Problems, draw_problems, read_records
from reflectkit.env import SUCCEEDS, Agent
from reflectkit.envs import cluster_of
from reflectkit.envs.setup import EnvConfig, EnvSetup, RolloutConfig, check_level, refuse_uncounted
from reflectkit.errors import ConfigError, DataError, EnvironmentFailure, memory_explained, refuse
from reflectkit.evals import tables
from reflectkit.evals.calibration import (
    ACTION,
    ASKED,
    FIRST_VALUE,
    Advised,
    Forecast,
    action_forecasts,
    answer_forecasts,
    best_choices,
    event_forecast,
)
from reflectkit.jsonl import json_line, read_json, replacing, salvaged, write_json, write_text
from reflectkit.models.checkpoint_metadata import load_tokenizer
from reflectkit.models.refs import TEACHER
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.rollouts.tool_errors import ToolErrors
from reflectkit.runs.run import Run, RunConfig, differing_settings, digest, open_run, read_record
from reflectkit.sampling.base import Truncation
from reflectkit.sampling.config import SamplerConfig
from reflectkit.seeding import derive
from reflectkit.text import pluralize
from reflectkit.types import Decision, Task, Trajectory

EXAMPLES = (
    "reflectkit evaluate --env taxi --policy oracle --policy random",
    'reflectkit evaluate --env taxi --policy "SFT=results/taxi-tiny/plain/checkpoint-600"'
    ' --policy "Reflect-RL=results/taxi-tiny/reflect-rl/checkpoint-36+results/taxi-tiny/reflector/checkpoint-700"',
)
TRAITS = Traits(reports=True, arms=("policy",))
KEPT_FIELDS = {"task": str, "seed": int, "status": str, "return": int | float, "turns": list}


class EvaluateConfig(Config):
    """Settings of evaluate."""

    env: EnvConfig
    policy: tuple[str, ...] = option(
        (),
        help="NAME=MODEL or NAME=MODEL+REFLECTOR (each a checkpoint, a run of sft or rlft, or a hub id; +oracle: the"
        " env's teacher comments; +nothing: empty comments; +openai:MODEL, +azure:… or +local:…: a chat model's),"
        " oracle, random, a baseline of the env, or, with or without NAME=, a chat model"
        " (openai:MODEL, azure:DEPLOYMENT, local:MODEL) or two of them as ACTOR+REFLECTOR, or a decision model"
        " (decisions:MODEL in OpenAI's form, systemone:MODEL); METHOD:MODEL plays a"
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
        essential=True,
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
        help="Also compare each choice with the oracle's: agreement; choice_nll, the mean negative log-probability"
        " of the oracle's choice in nats; choice_brier, the Brier score of the probabilities; and their calibration.",
    )
    predict_success: bool = option(
        False,
        help="Also predict at the start of each episode whether it will succeed, by a question to the player and by its"
        " checkpoint's critic, and report how well these predictions are calibrated.",
    )
    device: str = option("auto", help="auto, cpu, cuda, …")
    history_tokens: int = option(HISTORY_TOKENS, help=HISTORY_HELP, ge=0)
    rollout: RolloutConfig = RolloutConfig()
    sampler: SamplerConfig = SamplerConfig()
    chat: ChatConfig = ChatConfig()
    decisions: DecisionConfig = DecisionConfig()
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
        folders, drawn = (self.setup.env_folder, self.setup.folder), Truncation(self.top_p, self.top_k, self.min_p)
        return PlayersSetup(self, tuple(self.entrants), self.env.kind, *folders, self.history_tokens, drawn)

    @property
    def entrants(self) -> list[Player]:
        """The players."""
        return [parse_policy(text, tuple(self.env.kind.baselines), self.env.kind.methods) for text in self.policy]

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
            for name in non_default(
                self, "policy", "task_file", "level", "problems", "score_oracle", "predict_success", "dry_run"
            ):
                raise ConfigError(f"--from plays nothing: leave out {flag(name)}")
            for path in self.episodes:
                refuse(self.episodes.count(path) > 1, f"--from {path} is given twice")
            return self
        refuse(not self.policy, "evaluate needs at least one --policy: NAME=CHECKPOINT, random, …")
        entrants = self.entrants
        names, reflectors = [player.name for player in entrants], [player.reflector for player in entrants]
        for name in names:
            refuse(names.count(name) > 1, f"--policy: the name {name!r} is given twice")
        if self.score_oracle or ORACLE in names:
            self.env.require_teacher("action")
        if TEACHER in reflectors:
            self.env.require_teacher("comment")
        needs = "--swap-comments needs comments; give a --policy NAME=CHECKPOINT+REFLECTOR"
        refuse(self.sampler.swap_comments and not any(reflectors), needs)
        for name in non_default(self, "top_p", "top_k", "min_p"):
            refuse(not self.temperature, f"{flag(name)} is for sampling; add --temperature 1, or leave it out")
            chat = [player.name for player in entrants if player.is_chat]
            refuse(chat, f"{flag(name)} is for checkpoints, not --policy {' '.join(chat)}; leave one of them out")
        for level in self.level:
            check_level(self.env.name, level)
        for endpoint in self.endpoints:
            self.chat.check_budget(endpoint)
        return self


Saved = tuple[dict[str, Any], int]
"""An episode whose line is on disk: its `lean` line, and where it begins in its file, in bytes."""


CONFIG = EvaluateConfig


@memory_explained("lower --max-concurrency, or use a smaller model")
def run(config: EvaluateConfig, progress: Progress) -> Report:
    """Write `eval.json`, `eval.md` and `eval.csv` (a row per policy and level), and `episodes.jsonl`.

    Episodes are saved as they end and are not played again by a restarted run. Raises CheckpointError, DataError, and
    EnvironmentFailure if all episodes of a player were aborted, after the tables of the others are written.
    """
    if config.episodes:
        return _recompute(config, progress)
    setup, env, held_out = config.setup, config.env, config.held_out
    levels = held_out.levels_with("test", tuple(dict.fromkeys(config.level)) or env.kind.levels[-1:], progress)
    problems: dict[str, list[Task]] = {}
    for level in levels:
        tasks = held_out.tasks("test", level, seeds=config.problems)
        clusters = [cluster_of(env.name, task) for task in tasks]
        problems[level] = [tasks[place] for place in draw_problems(clusters, config.problems, config.run.seed)]
    if config.chat.dry_run:
        from reflectkit.evals.estimate import asked_of, estimate

        asked_for = [
            asked_of(player, config.players, level, tasks, config.eval_reps)
            for player in config.entrants
            for level, tasks in problems.items()
        ]
        return estimate("evaluate", setup, config.chat, asked_for, progress, config.run.seed)
    entrants = [player.resolved(config.run.data_dir, progress) for player in config.entrants]
    for endpoint in config.endpoints:
        key_of(endpoint)
    for player in entrants:
        if player.checkpoint is not None:
            config.sampler.answer_of(player.checkpoint)
    models = model_folders(path for player in entrants for path in (player.policy, player.reflector))
    source = held_out.file("test")
    inputs = [*([source] if source else []), *models]
    inputs += setup.input_files([task for tasks in problems.values() for task in tasks])
    inputs += config.sampler.input_files(setup.folder)
    with open_run("evaluate", config, inputs) as current, contextlib.closing(Players(config.players)) as players:
        warnings = warn_of(env, entrants, models, progress)
        if env.kind.action_kind(env.settings) != "choice":
            for model in models:
                trained = read_record(model.parent).get("settings", {}).get("max_new_tokens")
                if trained not in (None, config.max_new_tokens):
                    limits = f"--max-new-tokens {trained}, but plays with {config.max_new_tokens}"
                    warnings.append(f"{model} was trained with {limits}")
                    progress.news(f"warning: {warnings[-1]}")
        if current.done:
            return current.done
        count = sum(map(len, problems.values())) * len(entrants) * config.eval_reps
        progress.news(
            f"evaluate: {pluralize(count, 'episode')} of {pluralize(len(entrants), 'player')} → {current.folder}"
        )
        kept = current.folder / "episodes"
        saved: dict[Path, list[Saved]] = {}
        for number, player in enumerate(entrants):
            for level, tasks in problems.items():
                path = kept / f"{number}-{level}.jsonl"
                saved[path] = play(config, player, level, tasks, players, path, progress)
        lines: list[dict[str, Any]] = []
        lost: list[str] = []
        for episodes in saved.values():
            these = [line for line, _ in episodes]
            if all(line["status"] == "aborted" for line in these):
                who, why = these[0]["name"], these[0].get("reason")
                lost.append(f"every episode of {who} was aborted ({len(these)}): {why}")
            else:
                lines += these
        players.report(progress)
        if not lines:
            raise EnvironmentFailure(lost[0])
        for note in _success_notes(config, lines):
            progress.news(note)
        whole = current.folder / "episodes.jsonl"
        with replacing(whole) as file:
            for path, episodes in saved.items():
                with path.open("rb") as part:
                    for _, place in episodes:
                        part.seek(place)
                        file.write(part.readline())
        asked = players.usage | setup.asked(progress)
        rows, outputs = _write_tables(current, _title(config, problems, models), [lines], {"asked": asked})
        if lost:
            others = f"the tables of the others are in {current.folder / 'eval.md'}"
            raise EnvironmentFailure(f"{'; '.join(lost)}; {others}; once that is mended, repeat the command")
        extra = {name: value for name, value in (("asked", asked), ("warnings", warnings)) if value}
        report = current.finish({"rows": rows} | extra, [*outputs, whole])
        shutil.rmtree(kept, ignore_errors=True)
        return report


def play(
    config: EvaluateConfig,
    player: Player,
    level: str,
    tasks: Sequence[Task],
    players: Players,
    path: Path,
    progress: Progress,
) -> list[Saved]:
    """An episode of each problem and repeat, added to `path` as they end; those that are there are not played again.

    Raises BudgetSpentError if the budget runs out.
    """
    setup, title = config.setup, f"{player.name} ({level})"
    episodes = [
        Episode(task, derive(config.run.seed, "evaluate", task.id, repeat))
        for task in tasks
        for repeat in range(config.eval_reps)
    ]
    done = _kept(path, progress)
    remaining = [episode for episode in episodes if (episode.task.id, episode.seed) not in done]
    path.parent.mkdir(parents=True, exist_ok=True)
    with progress.bar(title, len(episodes), len(episodes) - len(remaining)) as bar, path.open("ab") as file:
        tool_errors = ToolErrors(progress.news)
        critic: Callable[[Sequence[int]], float] | None = None

        def on_end(trajectory: Trajectory) -> None:
            task = trajectory.task
            tool_errors.see(trajectory)
            line = episode_to_json(player.name, trajectory, cluster=cluster_of(setup.env, task)) | {"level": level}
            if aspects := dict(setup.kind.taskset.aspects(task)):
                line["aspects"] = aspects
            if config.score_oracle:
                scores = oracle_scores(trajectory, likely=player.checkpoint is not None or player.decides)
                line["figures"] = {**line.get("figures", {}), **scores}
            if critic is not None and trajectory.turns:
                line[FIRST_VALUE] = critic(trajectory.turns[0].decision.prompt_ids)
            if forecasts := _forecasts(trajectory):
                line["forecasts"] = {kind: [each.numbers for each in some] for kind, some in forecasts.items()}
            done[task.id, trajectory.seed] = tables.lean(line), file.tell()
            file.write(json_line(line))
            file.flush()
            bar.advance()

        if remaining:
            agent: Agent = players.agent(player)
            if config.predict_success and (player.checkpoint or player.decides) and not player.method:
                critic = _critic_of(player, agent)
                agent = Foreteller(agent)
            make = setup.maker(level)
            maker = (lambda: Advised(make())) if config.score_oracle else make
            width = config.rollout.width
            if player.is_chat and config.chat.max_cost_usd is not None:  # so that the budget pays for whole episodes
                width = min(width, config.chat.concurrency)
            rollout(remaining, maker, agent, width=width, on_end=on_end, keep=False)
            players.stop_if_spent(player)
    played = [done[episode.task.id, episode.seed] for episode in episodes]
    aborted = [line.get("reason") for line, _ in played if line["status"] == "aborted"]
    lines = [line for line, _ in played]
    greedy = not config.temperature and not player.is_chat and player.name != "random"
    if greedy and len({tables.outcome(line) for line in lines}) == len(tasks) < len(lines):
        progress.news(f"{title}: the episodes of a problem all went alike, so more of them tell nothing new")
    written = sum((line["turns"] for line in lines), Counter[str]())
    if player.checkpoint is not None and written["cut"]:
        from reflectkit.agents.two_player import cut_report

        load, role = partial(load_tokenizer, player.checkpoint.text), player.checkpoint.facts.get("role")
        if report := cut_report(written["cut"], written["turns"], config.max_new_tokens, load, role):
            progress.news(f"{title}: {report}")
    limit = setup.horizon_at(level)
    unusual = config.rollout.horizon or level not in setup.kind.horizons
    if unusual and not any(line.get("success") or line["turns"]["turns"] < limit for line in lines):
        progress.news(f"{title}: no episode ended within {pluralize(limit, 'step')}, the limit; see --horizon")
    cut = [line["reason"] for line in lines if line["status"] == "truncated" and line.get("reason")]
    for how, reasons in (("aborted", aborted), ("ended early", cut)):
        if reasons:
            progress.news(f"{title}: {pluralize(len(reasons), 'episode')} {how}, the first for: {reasons[0]}")
    return played


def _success_notes(config: EvaluateConfig, lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What to tell of levels at which success says nothing about the players. lines: `lean` ones of all players."""
    for level in dict.fromkeys(line["level"] for line in lines):
        played = [line for line in lines if line["level"] == level and line["status"] != "aborted"]
        at = f" of level '{level}'" if len(config.env.kind.levels) > 1 else ""
        if tables.silent_levels(played):
            yield f"env '{config.env.name}' does not say which episodes{at} succeed, so the return is shown"
        elif tables.scores(played) and not any(line.get("success") for line in played):
            yield f"no episode{at} is a success, whoever played: compare returns"


def _kept(path: Path, progress: Progress) -> dict[tuple[str, int], Saved]:
    """The intact lines that a killed run left, by task and seed. Damaged ones and those of aborted episodes are removed
    from the file: both are played again.
    """
    kept: dict[tuple[str, int], Saved] = {}
    if not path.is_file():
        return kept
    damaged = 0
    with replacing(path) as file:  # even if only the last newline is missing, since more lines follow
        for row in salvaged(path, KEPT_FIELDS):
            if row is None:
                damaged += 1
            elif row["status"] != "aborted":
                kept[row["task"], row["seed"]] = tables.lean(row), file.tell()
                file.write(json_line(row))
    if damaged:
        progress.news(f"{path}: damaged lines dropped: {damaged}; their episodes will be played again")
    return kept


def oracle_scores(trajectory: Trajectory, *, likely: bool = True) -> dict[str, float]:
    """Figures of an episode played in an `Advised` env, means over its turns; several best actions count as one.

    agreement: share of turns with a best action. If the player's probabilities are known (`likely`), choice_nll:
    negative log-probability of the best actions, in nats; choice_brier: the Brier score. See `Forecast`. An episode
    that ended before its first turn, since the prompt was too long, has those of an even guess that was wrong.
    """
    turns = [turn for turn in trajectory.turns if best_choices(turn.info)]
    if not turns:
        choices = trajectory.final.choices if trajectory.final else ()
        if not choices:
            return {}
        even = {"choice_nll": math.log(len(choices)), "choice_brier": 1 - 1 / len(choices)}
        return {"agreement": 0.0} | (even if likely else {})
    scores = {"agreement": fmean(turn.decision.action in best_choices(turn.info) for turn in turns)}
    forecasts = action_forecasts(trajectory)
    if len(forecasts) == len(turns):
        scores["choice_nll"] = fmean(forecast.log_score for forecast in forecasts)
        scores["choice_brier"] = fmean(forecast.brier for forecast in forecasts)
    return scores


def _forecasts(trajectory: Trajectory) -> dict[str, list[Forecast]]:
    """What was foretold in an episode, by kind."""
    forecasts = {ACTION: action_forecasts(trajectory), **answer_forecasts(trajectory)}
    first = trajectory.turns[0].decision if trajectory.turns else Decision(0)
    if trajectory.reported_success is not None and (shares := first.answers.get(SUCCEEDS.name)):
        forecasts[ASKED] = [event_forecast(shares[0], trajectory.success)]
    return {kind: some for kind, some in forecasts.items() if some}


def _critic_of(player: Player, agent: Any) -> Callable[[Sequence[int]], float] | None:
    """The value of a prompt by the critic in the checkpoint of `player`, if that has one and plays in this process."""
    model = getattr(getattr(agent, "policy", None), "player", None)
    if player.checkpoint is None or model is None:
        return None
    from reflectkit.train.checkpoint import saved_critic

    critic = saved_critic(player.checkpoint.path, model)
    return None if critic is None else partial(critic.value, model)


def _title(config: EvaluateConfig, problems: Mapping[str, Sequence[Task]], models: Sequence[Path]) -> str:
    """The title of the table; it says if the problems are not held out, or nothing where that is not known. models:
    those that play.
    """
    held_out = config.held_out
    source = held_out.file("test")
    if source is None:
        code = config.setup.code_files
        inputs = [path for path in config.setup.input_files([]) if path not in code]
        data = {digest(path) for path in inputs if path.suffix != ".py"}
        for record in map(read_record, (model.parent for model in models)):
            if record.get("stage") == "rlft" and data - set(record.get("inputs", {}).values()):
                return f"Problems of {held_out.source('test')}; a player was trained on other data"
        if all(map(held_out.holds_out, problems)):
            return f"Held-out problems of {held_out.source('test')}"
        return f"Problems of {held_out.source('test')}, none held out from training"
    training = source.with_name("train.json")
    if not training.is_file():
        return f"Problems of {source}"
    records = [read_record(model.parent) for model in models]
    for record in records:  # rlft trains on the split, or on a file that says what it adds to it
        read = record.get("inputs", {})
        others = {str(path) for path in training.parent.glob(f"{training.stem}_*.json")} & read.keys()
        is_other = record.get("stage") == "rlft" and not others and digest(training) not in read.values()
        if is_other or read.get(str(training), digest(training)) != digest(training):
            return f"Problems of {source}; a player was trained without this split"
    trained: list[Task] = []
    if read_json(training):  # a split may leave nothing to train on
        trained = [record.task for record in read_records(training, config.setup.env_name)]
    for level, played in problems.items():
        moved = [config.env.kind.taskset.at_level(task, level) for task in trained]
        if {task.id for task in moved if task is not None} & {task.id for task in played}:
            return f"Problems of {source}, not held out from training"
    return f"Held-out problems of {source}"


def _write_tables(
    current: Run, title: str, parts: Sequence[Sequence[dict[str, Any]]], extra: dict[str, Any]
) -> tuple[list[dict[str, Any]], list[Path]]:
    """The rows of the tables, and the files that are written. parts: the episodes of each seed."""
    rows, compared = tables.pooled(parts), tables.differences_over_seeds(parts)
    write_json(current.folder / "eval.json", {"rows": rows, "differences": compared} | extra)
    episodes = [episode for part in parts for episode in part]
    current.tables += tables.tables_of(title, rows, episodes)
    for figure in (SUCCESS, *([tables.RETURN] if tables.scores(episodes) else [])):
        if any(gap["difference"] for gap in compared if gap["figure"] == figure):
            current.tables.append(tables.differences_table(compared, figure))
    write_text(current.folder / "eval.md", tables.markdown(current.tables))
    write_text(current.folder / "eval.csv", tables.csv_text(rows))
    return rows, [current.folder / name for name in ("eval.json", "eval.md", "eval.csv")]


def _recompute(config: EvaluateConfig, progress: Progress) -> Report:
    """The tables of saved episodes, computed by this version. Raises DataError."""
    env, parts = config.setup.env_name, [list(map(tables.lean, read_compared(path))) for path in config.episodes]
    for path, part in zip(config.episodes, parts, strict=True):
        if others := {episode["env"] for episode in part if "env" in episode} - {env}:
            raise DataError(path, f"has episodes of env '{min(others)}', not of '{env}'; choose it with --env")
    folders = [path if path.is_dir() else path.parent for path in config.episodes]
    for folder in filter(_is_altered, folders):
        progress.news(f"warning: {folder} has other episodes than evaluate wrote there")
    if apart := differing_settings(folders):
        progress.news(f"warning: the evaluations differ in {', '.join(map(flag, apart))}, not only in seed")
    players = [set(map(str, read_record(folder).get("settings", {}).get("policy") or ())) for folder in folders]
    for text in sorted(set.intersection(*players)) if len(parts) > 1 else ():
        name, equals, _ = text.partition("=")
        outcomes = [{tables.outcome(line) for line in part if line["name"] == name} for part in parts]
        if equals and outcomes[0] and all(found == outcomes[0] for found in outcomes):
            progress.news(f"warning: the episodes of {text} went alike in all evaluations, which are no seeds of it")
    with open_run("evaluate", config, config.episodes, again=True) as current:
        rows, outputs = _write_tables(current, f"Episodes of {' and '.join(map(str, config.episodes))}", parts, {})
        return current.finish({"rows": rows}, outputs)


def _is_altered(folder: Path) -> bool:
    """Whether the run of evaluate in `folder` has other episodes than it wrote."""
    try:
        outputs = read_json(folder / "report.json")["outputs"]
        written = {digested for name, digested in outputs.items() if Path(name).name == "episodes.jsonl"}
        return bool(written) and digest(folder / "episodes.jsonl") not in written
    except (AttributeError, DataError, KeyError, TypeError):  # no report, or a damaged one
        return False
