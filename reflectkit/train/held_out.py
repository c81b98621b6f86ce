"""What training did to held-out problems: their outcomes before and after it, next to a random
player's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from reflectkit.agents.scripted import RandomAgent
from reflectkit.console import Table
from reflectkit.envs import cluster_of
from reflectkit.errors import DataError
from reflectkit.evals.stats import by_cluster, mean_interval, rate_interval
from reflectkit.jsonl import read_json, write_json
from reflectkit.rollouts.episode import rollout
from reflectkit.text import pluralize
from reflectkit.train.curriculum import Level, validation_episodes
from reflectkit.train.trainer import Trainer
from reflectkit.types import Status, Trajectory, reports_success

OUTCOMES = "held_out.json"
"""The outcomes in the run's folder, by player."""
BEFORE, AFTER, RANDOM = "before", "after", "random"


def measure(
    level: Level,
    player: str,
    folder: Path,
    trainer: Trainer,
) -> None:
    """Play `level` greedily and add the outcomes of `player`, BEFORE or AFTER, to the file; the
    first time also those of a random player, where actions are choices.
    """
    trajectories_of = {player: trainer.play_greedily(level)}
    if not trainer.processes.first:
        return
    path = folder / OUTCOMES
    offers_choices = all(
        turn.observation.choices for each in trajectories_of[player] for turn in each.turns[:1]
    )
    if player == BEFORE and offers_choices:
        episodes = validation_episodes(level, trainer.config.seed)
        trajectories_of[RANDOM] = rollout(
            episodes, level.make, RandomAgent(), width=trainer.config.width
        )
    outcomes = {} if player == BEFORE else earlier(folder, level)
    for name, trajectories in trajectories_of.items():
        outcomes[name] = [_outcome(trajectory) for trajectory in trajectories]
    write_json(path, outcomes)


def earlier(folder: Path, level: Level) -> dict[str, Any]:
    """The outcomes on `level` that the file in `folder` has; empty if it is missing or damaged."""
    try:
        outcomes = read_json(folder / OUTCOMES)
    except DataError:
        return {}
    tasks = sorted(task.id for task in level.tasks)
    is_whole = (
        isinstance(outcomes, dict)
        and outcomes.keys() <= {BEFORE, AFTER, RANDOM}
        and all(_are_outcomes(rows, tasks) for rows in outcomes.values())
    )
    return outcomes if is_whole else {}


def _are_outcomes(rows: object, tasks: Sequence[str]) -> bool:
    """Whether `rows` are what `_outcome` gives, one for each of `tasks`, which are sorted."""
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        return False
    for row in rows:
        has_types = (
            isinstance(row.get("task"), str)
            and isinstance(row.get("success"), bool | None)
            and type(row.get("return")) in (int, float)
            and row.get("status") in [status.value for status in Status]
        )
        if not has_types:
            return False
    return sorted(row["task"] for row in rows) == tasks


def _outcome(trajectory: Trajectory) -> dict[str, Any]:
    """success: None where the env does not say."""
    return {
        "task": trajectory.task.id,
        "success": None if trajectory.reported_success is None else trajectory.success,
        "return": trajectory.total_return,
        "status": trajectory.status.value,
    }


def table(
    folder: Path,
    level: Level,
    env: str,
    steps: int,
    source: str,
    *,
    is_held_out: bool,
) -> tuple[Table, dict[str, Any]]:
    """What training did to success on the problems of `level`, and to the return where that differs
    from success; to the return alone where the env does not report success.

    steps: updates that were made. source: where the problems are from. is_held_out: whether
    training does not use them.
    """
    # 1. The outcomes of episodes that were not aborted, and what is measured
    outcomes = read_json(folder / OUTCOMES)
    rows: dict[str, list[dict[str, Any]]] = {}
    for name, player_rows in outcomes.items():
        rows[name] = [row for row in player_rows if row["status"] != Status.ABORTED]
    measures = _measures([row for player_rows in rows.values() for row in player_rows])
    clusters = {task.id: cluster_of(env, task) for task in level.tasks}

    # 2. The means of each player, with intervals
    labels = {
        RANDOM: "random player",
        BEFORE: "before training",
        AFTER: f"after {pluralize(steps, 'update')}",
    }
    figures: dict[str, dict[str, Any]] = {}
    cells = []
    for name, label in labels.items():
        if not rows.get(name):
            continue
        problems = len({row["task"] for row in rows[name]})
        figures[name] = {"problems": problems}
        texts = []
        for figure in measures:
            # The mean and its interval
            by_task = {row["task"]: float(row[figure] or 0) for row in rows[name]}
            groups = by_cluster(by_task, clusters)
            mean = fmean(value for group in groups for value in group)
            low, high = rate_interval(groups) if figure == "success" else mean_interval(groups)

            # As text
            interval = ""
            if len(groups) > 1 and low < high:
                interval = f"{_text(low, figure)} to {_text(high, figure)}"
            texts += [_text(mean, figure), interval]

            # As figures
            figures[name][figure] = mean
            prefix = "" if figure == measures[0] else "return_"
            if math.isfinite(low):
                figures[name][f"{prefix}low"] = low
                figures[name][f"{prefix}high"] = high
        aborted = len(outcomes[name]) - len(rows[name])
        counts = f"{problems} + {aborted} aborted" if aborted else str(problems)
        cells.append((label, *texts, counts))

    # 3. The table
    which = "Held-out problems" if is_held_out else "Training problems"
    columns = []
    for name in measures:
        columns += [name, "95 % interval"]
    title = f"{which}, most likely actions ({source})"
    return Table(title, ("player", *columns, "problems"), tuple(cells)), figures


def _measures(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is measured of these episodes: success, the return, or both; see `table`."""
    if not reports_success((row["status"], row["success"]) for row in rows):
        return ["return"]
    if any(row["return"] != row["success"] for row in rows):
        return ["success", "return"]
    return ["success"]


def _text(value: float, figure: str) -> str:
    """A success rate in percent, or a return."""
    if figure == "success":
        return f"{value:.0%}".replace("%", " %")
    return f"{value:.3g}"


def shortfall(figures: Mapping[str, Any]) -> str:
    """What a random player does as well, from the figures of `table`; "" for nothing.

    >>> after = {"success": 0.0, "low": 0.0, "return": -0.2, "return_low": -0.3}
    >>> shortfall({"random": {"success": 0.1, "return": -1.0}, "after": after})
    'fewer successes than a random player'
    """
    if not {RANDOM, AFTER} <= figures.keys():
        return ""
    random, after = figures[RANDOM], figures[AFTER]
    if random.get("success") == 1:  # nobody can be better
        return ""
    # 1. Whether the intervals of success, if the env reports it, and of the return, which may say
    #    more, begin below the random player's means
    mean = random["success" if "success" in random else "return"]
    is_low = after.get("low", -math.inf) <= mean
    if is_low and after.get("return_low", -math.inf) <= random.get("return", 0.0):
        return "not measurably better than a random player"
    # 2. A return can rise because a policy no longer tries
    if after.get("success", 1) < random.get("success", 0):
        return "fewer successes than a random player"
    return ""


def gap(figures: Mapping[str, Any], sampled: Mapping[str, Any], temperature: float) -> str:
    """A sentence where the most likely actions on held-out problems do worse than sampled ones did
    in training; "" where that is not shown.

    figures: of `table`. sampled: success_rate and return of the last updates. temperature: of their
    sampling.

    >>> gap({"after": {"return": -2.0, "low": -2.3, "high": -1.7}}, {"return": 1.2}, 1.0)[:68]
    'the most likely actions have return -2 on held-out problems, sampled'
    """
    after = figures.get(AFTER, {})
    name = "success" if "success" in after else "return"
    reached = sampled.get("success_rate" if name == "success" else "return")
    if reached is None or "high" not in after or reached <= after["high"]:
        return ""
    return (
        f"the most likely actions have {name} {_text(after[name], name)} on held-out problems,"
        f" sampled ones had {_text(reached, name)} in training:"
        f" `evaluate --temperature {temperature:g}` shows whether that is due to the actions or to"
        " the problems"
    )
