"""`python -m benchmarks.learning.strangers`: games in the form in which strangers write them, to see whether what was
chosen in the yardstick's games holds elsewhere. The same command resumes.

The games are plain classes, and are trained and played through the public functions. A score is (return - random) /
(optimum - random), over 300 held-out problems.
"""

from __future__ import annotations

import argparse
import inspect
import itertools
import random
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

import reflectkit
from benchmarks.learning import earlier_games, later_games, run_command
from benchmarks.learning.learners import Budget
from benchmarks.learning.results import digest, package_digest
from reflectkit.data.problems import FIRST_SEED
from reflectkit.jsonl import append, read_jsonl

FOLDER = Path("results/strangers")
RESULTS = Path("research/learning/strangers.jsonl")
"""A row a run, with mean returns. It counts if its digest is that of today's code."""
LEARNERS: dict[str, dict[str, Any]] = {"default": {}, "no-shrink-values": {"shrink_values": False}}
"""Flags of rlft, by the name of what is compared."""
SETS = {"earlier": earlier_games.OPTIMUM, "later": later_games.OPTIMUM}
"""The optimum of each game, by when the games were written."""
OPTIMUM: dict[type, float] = {**SETS["earlier"], **SETS["later"]}
PROBLEMS = 300
RANDOM_EPISODES = 3000
MOST_STEPS = 128
"""Of an episode, in a game without a horizon of its own."""


@cache
def random_return(kind: type) -> float:
    """The mean return of a random player, over the held-out problems."""
    returns = []
    for episode in range(RANDOM_EPISODES):
        # Its chances must not be those of the game, which begins with the same kind of generator
        game, player = kind(), random.Random(f"player {episode}")
        game.reset(FIRST_SEED["test"] + episode % PROBLEMS)
        total = 0.0
        for _ in range(getattr(kind, "horizon", MOST_STEPS)):
            _, reward, done = game.step(player.choice(list(game.choices)))
            total += reward
            if done:
                break
        returns.append(total)
    return fmean(returns)


def score(kind: type, mean_return: float) -> float:
    """0 for a random player, and 1 for an optimal one."""
    low = random_return(kind)
    return (mean_return - low) / (OPTIMUM[kind] - low)


@cache
def code_of(kind: type) -> str:
    """A digest of what decides a result: the package's code and the game, with the rules that a player reads."""
    return digest(package_digest() + inspect.getsource(kind))


def measure(kind: type, learner: str, budget: Budget, seed: int, folder: Path) -> dict[str, Any]:
    """Train and evaluate; the row of results, with mean returns as sampled and greedy."""
    # 1. Train
    env = f"{inspect.getfile(kind)}:{kind.__name__}"
    data, runs = folder / "data", folder / "runs"
    started = time.process_time()
    run = reflectkit.rlft(
        env=env,
        model="tiny",
        max_steps=budget.updates,
        episodes=budget.episodes,
        seed=seed,
        validate_problems=0,
        name=f"{kind.__name__}-{budget}-{learner}-{seed}",
        data_dir=data,
        results_dir=runs,
        **LEARNERS[learner],
    )
    row = _place(kind, learner, budget, seed)
    row["cpu_seconds"] = round(time.process_time() - started, 1)

    # 2. Play
    for name, temperature in (("sampled", 1.0), ("greedy", 0.0)):
        played = reflectkit.evaluate(
            env=env,
            policy=run.folder,
            problems=PROBLEMS,
            temperature=temperature,
            data_dir=data,
            results_dir=runs,
        )
        row[name] = played.figures["rows"][0]["return"]
    return row


def _place(kind: type, learner: str, budget: Budget, seed: int) -> dict[str, Any]:
    """What identifies a row of results."""
    return {
        "game": kind.__name__,
        "learner": learner,
        "budget": str(budget),
        "seed": seed,
        "code": code_of(kind),
    }


def table(
    rows: Sequence[Mapping[str, Any]],
    kinds: Sequence[type],
    learners: Sequence[str],
    budget: Budget,
) -> str:
    """Mean scores of each game and learner as Markdown, sampled (greedy)."""
    lines = [f"| {budget} | " + " | ".join(learners) + " |", "|---" * (len(learners) + 1) + "|"]
    means: dict[str, list[tuple[float, float]]] = {learner: [] for learner in learners}
    for kind in kinds:
        cells = []
        for learner in learners:
            scores = []
            for row in rows:
                if _place(kind, learner, budget, row["seed"]).items() <= row.items():
                    scores.append((score(kind, row["sampled"]), score(kind, row["greedy"])))
            cells.append(_cell(scores))
            if scores:
                means[learner].append(_means(scores))
        lines.append(f"| {kind.__name__} | " + " | ".join(cells) + " |")
    lines.append("| mean | " + " | ".join(_cell(means[learner]) for learner in learners) + " |")
    return "\n".join(lines)


def _means(scores: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The means of pairs of scores, sampled and greedy."""
    return fmean(sampled for sampled, _ in scores), fmean(greedy for _, greedy in scores)


def _cell(scores: Sequence[tuple[float, float]]) -> str:
    """The means of `scores` as a text; empty without any."""
    return "{:.2f} ({:.2f})".format(*_means(scores)) if scores else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is missing, then print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning.strangers", description=__doc__)
    names = {kind.__name__: kind for kind in OPTIMUM}
    parser.add_argument("--games", nargs="+", choices=names, default=list(names), metavar="GAME", help=", ".join(names))
    parser.add_argument("--learners", nargs="+", choices=LEARNERS, default=["default"], help="default: default")
    parser.add_argument("--budget", type=Budget.parse, default=Budget(20, 32), help="default: 20x32")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="of training; default: 0 to 2")
    parser.add_argument("--table", action="store_true", help="only print the tables")
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"file of the results; default: {RESULTS}")
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"where runs are kept; default: {FOLDER}")
    options = parser.parse_args(arguments)

    # 1. Measure what the file has not
    torch.set_num_threads(1)
    rows = [row for _, row in read_jsonl(options.results)] if options.results.is_file() else []
    wanted = []
    if not options.table:
        wanted = list(itertools.product(options.seeds, options.learners, options.games))
    for seed, learner, name in wanted:
        place = _place(names[name], learner, options.budget, seed)
        if any(place.items() <= row.items() for row in rows):
            continue
        row = measure(names[name], learner, options.budget, seed, options.folder)
        append(options.results, [row])
        rows.append(row)
        sampled, greedy = (score(names[name], row[play]) for play in ("sampled", "greedy"))
        print(f"{name}, {learner}, seed {seed}: {sampled:.2f} sampled, {greedy:.2f} greedy", flush=True)

    # 2. A table for each set of games
    for games in SETS.values():
        kinds = [kind for kind in games if kind.__name__ in options.games]
        if kinds:
            print(table(rows, kinds, options.learners, options.budget), end="\n\n")
    return 0


if __name__ == "__main__":
    run_command(main)
