"""Play, the third of evaluate's four steps: play the episodes of each player, and save them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, BinaryIO

from reflectkit.agents.deciding import SuccessForecaster
from reflectkit.agents.player_refs import Player
from reflectkit.agents.players import Players
from reflectkit.console import Bar, Progress
from reflectkit.data.episodes import episode_to_json
from reflectkit.env import SUCCEEDS, Agent, cut_at_default
from reflectkit.envs import cluster_of
from reflectkit.errors import CheckpointError
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
"""The fields that an intact line has, with their types."""
EpisodeKey = tuple[str, int]
"""The id of an episode's task, and the episode's seed."""


@dataclass(frozen=True, slots=True)
class SavedEpisode:
    """An episode whose line is on disk."""

    row: EpisodeRow
    offset: int
    """The place of the line in its file, in bytes."""


@dataclass(frozen=True)
class PlayedLevel:
    """The episodes of a player at a level."""

    player: Player
    level: str
    path: Path
    """The file with the lines of the episodes, in the order in which they ended."""
    episodes: Sequence[SavedEpisode]
    """The episodes in the order of the problems."""

    @property
    def rows(self) -> list[EpisodeRow]:
        """The rows of the episodes."""
        return [episode.row for episode in self.episodes]


def play(
    run: EvaluationRun,
    players: Players,
    folder: Path,
    progress: Progress,
) -> list[PlayedLevel]:
    """Play all players at all levels.

    players: builds their agents. folder: for the files with the lines of the episodes. An episode
    that an earlier process saved there is not played again. Raises BudgetSpentError if the budget
    runs out.
    """
    results = []
    for number, player in enumerate(run.players):
        for level in run.tasks:
            path = folder / f"{number}-{level}.jsonl"
            result = _play_level(
                run,
                players,
                player,
                level,
                path,
                progress,
            )
            _check_prompts(result)
            _report_oddities(run.config, result, len(run.tasks[level]), progress)
            results.append(result)
    return results


def _play_level(
    run: EvaluationRun,
    players: Players,
    player: Player,
    level: str,
    path: Path,
    progress: Progress,
) -> PlayedLevel:
    """Play an episode of each problem and repeat. Each is added to the file `path` when it ends."""
    config = run.config
    setup = run.config.setup
    episodes = []
    for task in run.tasks[level]:
        for repeat in range(config.eval_reps):
            seed = derive(config.run.seed, "evaluate", task.id, repeat)
            episodes.append(Episode(task, seed))

    # 1. Episodes that an earlier process saved are not played again
    saved = _saved_episodes(path, progress)
    remaining = [episode for episode in episodes if (episode.task.id, episode.seed) not in saved]
    path.parent.mkdir(parents=True, exist_ok=True)
    title = f"{player.name} ({level})"
    with (
        progress.bar(title, len(episodes), len(episodes) - len(remaining)) as bar,
        path.open("ab") as file,
    ):
        if remaining:
            # 2. The agent, which may also predict its success
            agent = players.agent(player)
            critic = None
            has_probabilities = bool(player.checkpoint or player.decides)
            if config.predict_success and has_probabilities and not player.method:
                critic = _critic_of(player, agent)
                agent = SuccessForecaster(agent)

            # 3. The env, which may also say what its oracle would do
            make = setup.maker(level)
            make_env = (lambda: Advised(make())) if config.score_oracle else make

            # 4. With a budget, few episodes at once, so that it pays for whole ones
            width = config.rollout.width
            if player.is_asked and config.chat.max_cost_usd is not None:
                width = min(width, config.chat.concurrency)

            # 5. The episodes
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
            rollout(
                remaining,
                make_env,
                agent,
                width=width,
                on_end=recorder.record,
                keep=False,
            )
            players.stop_if_spent(player)
    in_order = [saved[episode.task.id, episode.seed] for episode in episodes]
    return PlayedLevel(player, level, path, in_order)


@dataclass(frozen=True)
class _Recorder:
    """Writes the line of each episode when it ends."""

    config: EvaluateConfig
    player: Player
    level: str
    critic: Callable[[Sequence[int]], float] | None
    """The critic's value of a prompt's token ids; None without a critic."""
    saved: dict[EpisodeKey, SavedEpisode]
    """All episodes that are on disk; new ones are added."""
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
        # 1. What happened, and what its task is
        setup = self.config.setup
        task = trajectory.task
        line = episode_to_json(self.player.name, trajectory, cluster=cluster_of(setup.env, task))
        line["level"] = self.level
        aspects = dict(setup.kind.taskset.aspects(task))
        if aspects:
            line["aspects"] = aspects

        # 2. How it compares with the oracle
        if self.config.score_oracle:
            has_probabilities = self.player.checkpoint is not None or self.player.decides
            scores = oracle_scores(trajectory, has_probabilities=has_probabilities)
            line["figures"] = {**line.get("figures", {}), **scores}

        # 3. What was predicted
        if self.critic is not None and trajectory.turns:
            line[FIRST_VALUE] = self.critic(trajectory.turns[0].decision.prompt_ids)
        forecasts = _forecasts(trajectory)
        if forecasts:
            numbers_of = {}
            for kind, group in forecasts.items():
                numbers_of[kind] = [forecast.numbers for forecast in group]
            line["forecasts"] = numbers_of
        return line


def _saved_episodes(path: Path, progress: Progress) -> dict[EpisodeKey, SavedEpisode]:
    """The episodes in the file of an earlier process, if there is one.

    Damaged lines, and lines of aborted episodes, are removed from the file: those episodes are
    played again.
    """
    saved: dict[EpisodeKey, SavedEpisode] = {}
    if not path.is_file():
        return saved
    damaged = 0
    # The file is always written anew: its last line may lack a newline, and more lines will follow
    with replacing(path) as file:
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


def _check_prompts(result: PlayedLevel) -> None:
    """Raises CheckpointError if the player could not read the first prompt of any episode."""
    rows = result.rows
    unread = [
        row for row in rows if row.status == "truncated" and row.reason and not row.counts.turns
    ]
    if rows and len(unread) == len(rows) and result.player.checkpoint is not None:
        raise CheckpointError(f"{result.player.name} ({result.level}): {unread[0].reason}")


def _report_oddities(
    config: EvaluateConfig,
    result: PlayedLevel,
    task_count: int,
    progress: Progress,
) -> None:
    """Report why the figures of these episodes may mislead. task_count: the number of problems."""
    setup = config.setup
    player = result.player
    rows = result.rows
    title = f"{player.name} ({result.level})"

    # 1. Repeats of a problem that all went the same way
    is_greedy = not config.temperature and not player.is_asked and player.name != "random"
    if is_greedy and len({row.outcome for row in rows}) == task_count < len(rows):
        progress.news(
            f"{title}: the episodes of a problem all went alike, so more of them tell nothing new"
        )

    # 2. Answers that were cut off at the maximum length
    counts = TurnCounts.total(row.counts for row in rows)
    if player.checkpoint is not None and counts.cut:
        from reflectkit.agents.two_player import cut_report

        load = partial(load_tokenizer, player.checkpoint.text)
        role = player.checkpoint.facts.get("role")
        report = cut_report(counts.cut, counts.turns, config.max_new_tokens, load, role)
        if report:
            progress.news(f"{title}: {report}")

    # 3. A limit of steps that nobody has chosen, or that every episode reached
    horizon = setup.horizon_at(result.level)
    at_limit = [row for row in rows if not row.success and row.counts.turns >= horizon]
    cut = [row for row in at_limit if row.status == "truncated" and not row.reason]
    if cut and not config.rollout.horizon and result.level not in setup.kind.horizons:
        progress.news(f"{title}: {cut_at_default(len(cut), len(rows), horizon)}")
    elif config.rollout.horizon and len(at_limit) == len(rows):
        progress.news(
            f"{title}: no episode ended within {pluralize(horizon, 'step')}, the limit; see --horizon"
        )

    # 4. Episodes that the env did not end
    aborted = [row.reason for row in rows if row.is_aborted]
    truncated = [row.reason for row in rows if row.status == "truncated" and row.reason]
    for how, reasons in (("aborted", aborted), ("ended early", truncated)):
        if reasons:
            progress.news(
                f"{title}: {pluralize(len(reasons), 'episode')} {how}, the first for: {reasons[0]}"
            )


def oracle_scores(trajectory: Trajectory, *, has_probabilities: bool = True) -> dict[str, float]:
    """Means over the turns of an episode in an `Advised` env. Several best actions count as one.

    - agreement: the share of turns with a best action.
    - choice_nll, with the player's probabilities: the negative log-probability of the best actions,
      in nats.
    - choice_brier, with the player's probabilities: the Brier score, see `Forecast`.

    An episode may end before its first turn, because the prompt is too long. It has the scores of
    equal probabilities and a wrong action.
    """
    # 1. An episode without turns
    turns = [turn for turn in trajectory.turns if best_choices(turn.info)]
    if not turns:
        count = len(trajectory.final.choices) if trajectory.final else 0
        if not count:
            return {}
        scores = {"agreement": 0.0}
        if has_probabilities:
            scores |= {"choice_nll": math.log(count), "choice_brier": 1 - 1 / count}
        return scores

    # 2. Means over the turns
    agreements = [turn.decision.action in best_choices(turn.info) for turn in turns]
    scores = {"agreement": fmean(agreements)}
    forecasts = action_forecasts(trajectory)
    if len(forecasts) == len(turns):
        scores["choice_nll"] = fmean(forecast.log_score for forecast in forecasts)
        scores["choice_brier"] = fmean(forecast.brier for forecast in forecasts)
    return scores


def _forecasts(trajectory: Trajectory) -> dict[str, list[Forecast]]:
    """The forecasts of an episode, by kind."""
    forecasts = {ACTION: action_forecasts(trajectory), **answer_forecasts(trajectory)}
    first = trajectory.turns[0].decision if trajectory.turns else Decision(0)
    shares = first.answers.get(SUCCEEDS.name)
    if trajectory.reported_success is not None and shares:
        forecasts[BY_PLAYER] = [event_forecast(shares[0], trajectory.success)]
    return {kind: group for kind, group in forecasts.items() if group}


def _critic_of(player: Player, agent: Agent) -> Callable[[Sequence[int]], float] | None:
    """The critic in the checkpoint of `player`: a function from a prompt's token ids to its value.

    None if the checkpoint has no critic, or its model is not in this process.
    """
    model = getattr(getattr(agent, "policy", None), "player", None)
    if player.checkpoint is None or model is None:
        return None
    from reflectkit.train.checkpoint import saved_critic

    critic = saved_critic(player.checkpoint.path, model)
    return None if critic is None else partial(critic.value, model)
