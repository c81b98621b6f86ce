"""Play, the third of evaluate's four steps: episodes of each player and level, saved as they end."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, BinaryIO

from reflectkit.agents.deciding import Foreteller
from reflectkit.agents.player_refs import Player
from reflectkit.agents.players import Players
from reflectkit.console import Bar, Progress
from reflectkit.data.episodes import episode_to_json
from reflectkit.env import SUCCEEDS, Agent
from reflectkit.envs import cluster_of
from reflectkit.evals.calibration import (
    ACTION,
    BY_PLAYER,
    FIRST_VALUE,
    Advised,
    Forecast,
    action_forecasts,
    answer_forecasts,
    best_choices,
    event_forecast,
)
from reflectkit.evals.config import EvaluateConfig
from reflectkit.evals.resolve import EvaluationRun
from reflectkit.evals.rows import ABORTED, EpisodeRow, TurnCounts
from reflectkit.jsonl import json_line, replacing, salvaged
from reflectkit.models.checkpoint_metadata import load_tokenizer
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.rollouts.tool_errors import ToolErrors
from reflectkit.seeding import derive
from reflectkit.text import pluralize
from reflectkit.types import Decision, Trajectory

LINE_FIELDS = {"task": str, "seed": int, "status": str, "return": int | float, "turns": list}
"""What an intact line has."""
EpisodeKey = tuple[str, int]
"""The id of the task and the seed of the episode."""


@dataclass(frozen=True, slots=True)
class SavedEpisode:
    """An episode whose line is on disk."""

    row: EpisodeRow
    offset: int
    """Where it begins in its file, in bytes."""


@dataclass(frozen=True)
class PlayedLevel:
    """The episodes of a player at a level."""

    player: Player
    level: str
    path: Path
    """The file with their lines, in the order in which they ended."""
    episodes: Sequence[SavedEpisode]
    """In the order of the problems."""

    @property
    def rows(self) -> list[EpisodeRow]:
        """What the tables need of them."""
        return [episode.row for episode in self.episodes]


def play(
    run: EvaluationRun,
    players: Players,
    folder: Path,
    progress: Progress,
) -> list[PlayedLevel]:
    """Episodes of all players at all levels. folder: for the files of their lines; what an earlier process saved there
    is not played again.

    Raises BudgetSpentError if the budget runs out.
    """
    parts = []
    for number, player in enumerate(run.players):
        for level in run.tasks:
            path = folder / f"{number}-{level}.jsonl"
            part = _play_level(
                run,
                players,
                player,
                level,
                path,
                progress,
            )
            _report_oddities(run.config, part, len(run.tasks[level]), progress)
            parts.append(part)
    return parts


def _play_level(
    run: EvaluationRun,
    players: Players,
    player: Player,
    level: str,
    path: Path,
    progress: Progress,
) -> PlayedLevel:
    """An episode of each problem and repeat, added to `path` as they end."""
    config = run.config
    setup = run.config.setup
    episodes = []
    for task in run.tasks[level]:
        for repeat in range(config.eval_reps):
            episodes.append(Episode(task, derive(config.run.seed, "evaluate", task.id, repeat)))

    # 1. Those that an earlier process saved
    saved = _saved_episodes(path, progress)
    remaining = [episode for episode in episodes if (episode.task.id, episode.seed) not in saved]
    path.parent.mkdir(parents=True, exist_ok=True)
    title = f"{player.name} ({level})"
    with (
        progress.bar(title, len(episodes), len(episodes) - len(remaining)) as bar,
        path.open("ab") as file,
    ):
        # 2. The player, and what is measured next to its play
        if remaining:
            agent = players.agent(player)
            critic = None
            if (
                config.predict_success
                and (player.checkpoint or player.decides)
                and not player.method
            ):
                critic = _critic_of(player, agent)
                agent = Foreteller(agent)
            make = setup.maker(level)
            make_env = (lambda: Advised(make())) if config.score_oracle else make
            recorder = _Recorder(
                config,
                player,
                level,
                critic,
                saved,
                file,
                bar,
                ToolErrors(progress.news),
            )

            # 3. The others
            width = config.rollout.width
            if (
                player.is_asked and config.chat.max_cost_usd is not None
            ):  # so that the budget pays for whole episodes
                width = min(width, config.chat.concurrency)
            rollout(
                remaining,
                make_env,
                agent,
                width=width,
                on_end=recorder.record,
                keep=False,
            )
            players.stop_if_spent(player)
    return PlayedLevel(
        player, level, path, [saved[episode.task.id, episode.seed] for episode in episodes]
    )


@dataclass(frozen=True)
class _Recorder:
    """Writes the line of each episode as it ends."""

    config: EvaluateConfig
    player: Player
    level: str
    critic: Callable[[Sequence[int]], float] | None
    saved: dict[EpisodeKey, SavedEpisode]
    file: BinaryIO
    bar: Bar
    tool_errors: ToolErrors

    def record(self, trajectory: Trajectory) -> None:
        """Write the line of an episode."""
        self.tool_errors.see(trajectory)
        line = self._line(trajectory)
        key = trajectory.task.id, trajectory.seed
        self.saved[key] = SavedEpisode(EpisodeRow.read(line), self.file.tell())
        self.file.write(json_line(line))
        self.file.flush()
        self.bar.advance()

    def _line(self, trajectory: Trajectory) -> dict[str, Any]:
        """The episode as a line of episodes.jsonl."""
        setup = self.config.setup
        task = trajectory.task
        line = episode_to_json(self.player.name, trajectory, cluster=cluster_of(setup.env, task))
        line["level"] = self.level
        aspects = dict(setup.kind.taskset.aspects(task))
        if aspects:
            line["aspects"] = aspects
        if self.config.score_oracle:
            has_probabilities = self.player.checkpoint is not None or self.player.decides
            scores = oracle_scores(trajectory, has_probabilities=has_probabilities)
            line["figures"] = {**line.get("figures", {}), **scores}
        if self.critic is not None and trajectory.turns:
            line[FIRST_VALUE] = self.critic(trajectory.turns[0].decision.prompt_ids)
        forecasts = _forecasts(trajectory)
        if forecasts:
            line["forecasts"] = {
                kind: [forecast.numbers for forecast in group] for kind, group in forecasts.items()
            }
        return line


def _saved_episodes(path: Path, progress: Progress) -> dict[EpisodeKey, SavedEpisode]:
    """The intact lines that a killed run left. Damaged ones and those of aborted episodes are removed from the file:
    both are played again.
    """
    saved: dict[EpisodeKey, SavedEpisode] = {}
    if not path.is_file():
        return saved
    damaged = 0
    with replacing(
        path
    ) as file:  # even if only the last newline is missing, since more lines follow
        for line in salvaged(path, LINE_FIELDS):
            if line is None:
                damaged += 1
            elif line["status"] != ABORTED:
                saved[line["task"], line["seed"]] = SavedEpisode(EpisodeRow.read(line), file.tell())
                file.write(json_line(line))
    if damaged:
        progress.news(
            f"{path}: damaged lines dropped: {damaged}; their episodes will be played again"
        )
    return saved


def _report_oddities(
    config: EvaluateConfig,
    part: PlayedLevel,
    task_count: int,
    progress: Progress,
) -> None:
    """Report what makes the figures of these episodes mislead. task_count: the number of problems."""
    setup = config.setup
    player = part.player
    rows = part.rows
    title = f"{player.name} ({part.level})"

    # 1. Repeats that tell nothing new
    is_greedy = not config.temperature and not player.is_asked and player.name != "random"
    if is_greedy and len({row.outcome for row in rows}) == task_count < len(rows):
        progress.news(
            f"{title}: the episodes of a problem all went alike, so more of them tell nothing new"
        )

    # 2. Answers that reached the limit of their length
    counts = TurnCounts.total(row.counts for row in rows)
    if player.checkpoint is not None and counts.cut:
        from reflectkit.agents.two_player import cut_report

        load = partial(load_tokenizer, player.checkpoint.text)
        role = player.checkpoint.facts.get("role")
        report = cut_report(counts.cut, counts.turns, config.max_new_tokens, load, role)
        if report:
            progress.news(f"{title}: {report}")

    # 3. A limit of steps that no episode stayed below
    horizon = setup.horizon_at(part.level)
    is_default = not config.rollout.horizon and part.level in setup.kind.horizons
    if not is_default and not any(row.success or row.counts.turns < horizon for row in rows):
        progress.news(
            f"{title}: no episode ended within {pluralize(horizon, 'step')}, the limit; see --horizon"
        )

    # 4. Episodes that did not end by themselves
    aborted = [row.reason for row in rows if row.is_aborted]
    truncated = [row.reason for row in rows if row.status == "truncated" and row.reason]
    for how, reasons in (("aborted", aborted), ("ended early", truncated)):
        if reasons:
            progress.news(
                f"{title}: {pluralize(len(reasons), 'episode')} {how}, the first for: {reasons[0]}"
            )


def oracle_scores(trajectory: Trajectory, *, has_probabilities: bool = True) -> dict[str, float]:
    """Figures of an episode played in an `Advised` env, means over its turns; several best actions count as one.

    agreement: share of turns with a best action. With the player's probabilities also choice_nll: negative
    log-probability of the best actions, in nats; choice_brier: the Brier score. See `Forecast`. An episode that ended
    before its first turn, since the prompt was too long, has those of an even guess that was wrong.
    """
    turns = [turn for turn in trajectory.turns if best_choices(turn.info)]
    if not turns:
        count = len(trajectory.final.choices) if trajectory.final else 0
        if not count:
            return {}
        scores = {"agreement": 0.0}
        if has_probabilities:
            scores |= {"choice_nll": math.log(count), "choice_brier": 1 - 1 / count}
        return scores
    scores = {"agreement": fmean(turn.decision.action in best_choices(turn.info) for turn in turns)}
    forecasts = action_forecasts(trajectory)
    if len(forecasts) == len(turns):
        scores["choice_nll"] = fmean(forecast.log_score for forecast in forecasts)
        scores["choice_brier"] = fmean(forecast.brier for forecast in forecasts)
    return scores


def _forecasts(trajectory: Trajectory) -> dict[str, list[Forecast]]:
    """The forecasts of an episode, by what is foretold."""
    forecasts = {ACTION: action_forecasts(trajectory), **answer_forecasts(trajectory)}
    first = trajectory.turns[0].decision if trajectory.turns else Decision(0)
    shares = first.answers.get(SUCCEEDS.name)
    if trajectory.reported_success is not None and shares:
        forecasts[BY_PLAYER] = [event_forecast(shares[0], trajectory.success)]
    return {kind: group for kind, group in forecasts.items() if group}


def _critic_of(player: Player, agent: Agent) -> Callable[[Sequence[int]], float] | None:
    """The value of a prompt by the critic in the checkpoint of `player`, if that has one and plays in this process."""
    model = getattr(getattr(agent, "policy", None), "player", None)
    if player.checkpoint is None or model is None:
        return None
    from reflectkit.train.checkpoint import saved_critic

    critic = saved_critic(player.checkpoint.path, model)
    return None if critic is None else partial(critic.value, model)
