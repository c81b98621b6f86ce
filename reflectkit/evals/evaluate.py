"""Plays the matches of an evaluation, and collects their episodes as they end."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from reflectkit.agents.players import Player, Players
from reflectkit.console import Progress
from reflectkit.data.episodes import episode_line, episode_to_json
from reflectkit.env import StepResult, Wrapper
from reflectkit.envs import cluster_of
from reflectkit.envs.setup import EnvSetup
from reflectkit.errors import ConfigError, EnvironmentFailure
from reflectkit.evals.tables import lean
from reflectkit.eventloop import followed
from reflectkit.jsonl import replacing, salvaged
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.seeding import derive, generator
from reflectkit.text import pluralize
from reflectkit.types import Observation, Status, Task, ToolUse, Trajectory

ORACLE_CHOICE = "oracle"  # in a step's info


class Advised(Wrapper):
    """Records the oracle's choice in each state as `oracle` in the step's info."""

    def reset(self, task: Task, seed: int) -> Observation | Awaitable[Observation]:
        """Begin `task`. Raises ConfigError if there are no enumerated choices."""
        return followed(self.env.reset(task, seed), self._checked)

    def step(self, action: int | str | ToolUse) -> StepResult | Awaitable[StepResult]:
        """One step, with the oracle's choice in the state before it."""
        told = {ORACLE_CHOICE: self.env.teacher().action()}
        return followed(self.env.step(action), lambda result: replace(result, info=result.info | told))

    def _checked(self, observation: Observation) -> Observation:
        if not observation.choices:
            raise ConfigError(
                f"--score-oracle compares enumerated choices, which env '{self.name}' does not have; leave it out"
            )
        return observation


def oracle_scores(trajectory: Trajectory) -> dict[str, float]:
    """Figures of an episode played in an `Advised` env, means over its turns.

    agreement: share of turns with the oracle's choice. choice_nll: negative log-probability of the oracle's choice, in
    nats, if the player's probabilities are known. An episode that ended before its first turn, since the prompt was too
    long, has those of an even guess that was wrong.
    """
    turns = [turn for turn in trajectory.turns if ORACLE_CHOICE in turn.info]
    if not turns:
        choices = trajectory.final.choices if trajectory.final else ()
        return {"agreement": 0.0, "choice_nll": math.log(len(choices))} if choices else {}
    scores = {"agreement": fmean(turn.decision.action == turn.info[ORACLE_CHOICE] for turn in turns)}
    if all(turn.decision.probabilities for turn in turns):
        shares = [turn.decision.probabilities[turn.info[ORACLE_CHOICE]] for turn in turns]
        scores["choice_nll"] = -fmean(math.log(max(share, sys.float_info.min)) for share in shares)
    return scores


def draw_problems(clusters: Sequence[str], count: int, seed: int) -> list[int]:
    """The places of `count` problems (0: all), given each one's cluster: a random one of each, then a second one, …"""
    order = generator(seed, "problems").sample(range(len(clusters)), len(clusters))
    taken: Counter[str] = Counter()
    rank = {}
    for place in order:
        rank[place] = taken[clusters[place]]
        taken[clusters[place]] += 1
    return sorted(sorted(order, key=rank.__getitem__)[: count or None])


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


@dataclass(frozen=True)
class Match:
    """A player on a level."""

    number: int
    """Number of the player, from 0."""
    player: Player
    level: str
    """The level to play."""
    tasks: tuple[Task, ...]
    """The problems of that level."""


@dataclass
class Evaluation:
    """Plays matches. What the tables do not need of the episodes is on disk only."""

    setup: EnvSetup
    players: Players
    folder: Path
    """For a file of each match's episodes."""
    progress: Progress
    seed: int = 0
    repeats: int = 1
    """Episodes of each problem."""
    width: int = 1
    """Episodes played at once."""
    score_oracle: bool = False
    """Whether to compare each choice with the oracle's."""
    reports_success: bool = True
    """Whether the env says at the end of its episodes if they succeeded."""
    played: dict[tuple[int, int, str, int], tuple[Task, SavedEpisode]] = field(default_factory=dict)
    """Finished episodes, by player, horizon, task id and seed."""

    def play(self, match: Match) -> list[SavedEpisode]:
        """An episode of each problem and repeat.

        Episodes saved in `folder` are not played again, nor those played at another level with the same task and
        horizon. Raises EnvironmentFailure if all are aborted, BudgetSpentError if the budget runs out.
        """
        path = self.folder / f"{match.number}-{match.level}.jsonl"
        episodes = [
            Episode(task, derive(self.seed, "evaluate", task.id, repeat))
            for task in match.tasks
            for repeat in range(self.repeats)
        ]
        same = match.number, self.setup.horizon_at(match.level)
        done = {}
        for episode in episodes:
            task, saved = self.played.get((*same, episode.task.id, episode.seed), (None, None))
            if saved and task == episode.task:
                done[episode.task.id, episode.seed] = replace(saved, line=saved.line | {"level": match.level})
        done |= _kept(path, self.progress)
        remaining = [episode for episode in episodes if (episode.task.id, episode.seed) not in done]
        title = f"{match.player.name} ({match.level})"
        with self.progress.bar(title, len(episodes), len(episodes) - len(remaining)) as bar:
            if remaining:
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("ab") as file:

                    def on_end(trajectory: Trajectory) -> None:
                        line = self._line(match, trajectory)
                        if trajectory.status is Status.COMPLETED and "success" not in trajectory.turns[-1].info:
                            self.reports_success = False
                        done[trajectory.task.id, trajectory.seed] = SavedEpisode(lean(line), path, file.tell())
                        file.write(episode_line(line).encode("utf-8"))
                        file.flush()
                        bar.advance()

                    agent = self.players.agent(match.player)
                    make = self.setup.maker(match.level)
                    maker = (lambda: Advised(make())) if self.score_oracle else make
                    rollout(remaining, maker, agent, width=self.width, on_end=on_end, keep=False)
                    self.players.stop_if_spent(match.player)
        played = [done[episode.task.id, episode.seed] for episode in episodes]
        if self.score_oracle and not any(saved.line["turns"]["probabilities"] for saved in played):
            # nobody's probabilities are known: the guesses of episodes without a turn would be the only ones
            played = [_without_nll(saved) for saved in played]
        aborted = [saved.line.get("reason") for saved in played if saved.line["status"] == "aborted"]
        if aborted and len(aborted) == len(played):
            raise EnvironmentFailure(f"every episode of {match.player.name} was aborted ({len(played)}): {aborted[0]}")
        if aborted:
            self.progress.news(f"{title}: {pluralize(len(aborted), 'episode')} aborted, the first for: {aborted[0]}")
        for episode, saved in zip(episodes, played, strict=True):
            if saved.line["status"] != "aborted":
                self.played[*same, episode.task.id, episode.seed] = episode.task, saved
        return played

    def _line(self, match: Match, trajectory: Trajectory) -> dict[str, Any]:
        cluster = cluster_of(self.setup.env, trajectory.task)
        line = episode_to_json(match.player.name, trajectory, cluster=cluster) | {"level": match.level}
        if aspects := dict(self.setup.kind.taskset.aspects(trajectory.task)):
            line["aspects"] = aspects
        if self.score_oracle:
            line["figures"] = {**line.get("figures", {}), **oracle_scores(trajectory)}
        return line


def _without_nll(saved: SavedEpisode) -> SavedEpisode:
    figures = {name: value for name, value in saved.line.get("figures", {}).items() if name != "choice_nll"}
    return replace(saved, line=saved.line | {"figures": figures})


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
