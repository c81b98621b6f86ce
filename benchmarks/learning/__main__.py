"""`python -m benchmarks.learning`: which learner learns which game, at which budget. The same command resumes a killed
one; what is there is not measured again unless the code or the settings that decide it have changed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.learning import run_command
from benchmarks.learning.games import GAMES
from benchmarks.learning.learners import Budget
from benchmarks.learning.measure import LEARNERS, Run, Task, missing_package, plays, workers
from benchmarks.learning.results import Results, tables
from benchmarks.learning.texts import TEXTS
from reflectkit.jsonl import locked

FOLDER = Path(__file__).parents[2] / "research" / "learning"
"""Where results are kept."""
SLOW = ("smollm2",)
"""Learners that have to be asked for: a run takes minutes."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is missing, or print the tables. Returns 1 if a run failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning", description=__doc__)
    everything = [*GAMES, *TEXTS]
    listed = ", ".join(everything)
    parser.add_argument("--games", nargs="+", choices=everything, default=everything, metavar="GAME", help=listed)
    quick = [name for name in LEARNERS if name not in SLOW]
    parser.add_argument(
        "--learners",
        nargs="+",
        choices=LEARNERS,
        default=quick,
        metavar="LEARNER",
        help=f"{', '.join(LEARNERS)}; default: all but {', '.join(SLOW)}",
    )
    parser.add_argument(
        "--budgets",
        nargs="+",
        type=Budget.parse,
        default=[Budget(20, 32), Budget(60, 128)],
        metavar="UPDATESxEPISODES",
        help="updates, and episodes of each; default: 20x32 60x128",
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(5)), help="of training; default: 0 to 4")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no run after this time")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once, each with one thread")
    parser.add_argument("--table", action="store_true", help="only print the tables, as Markdown")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where results are kept")
    options = parser.parse_args(arguments)

    # 1. Leave out what needs a package that is missing.
    names = []
    for name in options.learners:
        if package := missing_package(name):
            print(f"{name} is left out, since {package} is not installed", file=sys.stderr)
        else:
            names.append(name)

    # 2. Show what is there.
    results = Results(options.folder / "results.jsonl")
    if options.table:
        played = [game for game in options.games if any(plays(name, game) for name in names)]
        print(tables(results, names, played, options.budgets, options.seeds))
        return 0

    # 3. Or measure what is not.
    options.folder.mkdir(parents=True, exist_ok=True)
    with locked(options.folder):
        results.repair()
        failures = 0
        deadline = time.time() + 60 * options.minutes
        for budget in options.budgets:
            runs = [
                Run(str(budget), seed, name, game)
                for seed in options.seeds
                for name in names
                for game in options.games
                if plays(name, game)
            ]
            failures += measure_all(results, runs, options.jobs, deadline)
    return 1 if failures else 0


def measure_all(results: Results, runs: Sequence[Run], jobs: int, deadline: float) -> int:
    """Measure those of `runs` that have no current result; returns how many failed. deadline: of `time.time()`."""
    rivals = [run for run in runs if LEARNERS[run.learner].rival]
    ours = [run for run in runs if not LEARNERS[run.learner].rival]

    # Rivals take as many steps as our default, so ours come first.
    first = [run for run in ours if results.current(run) is None]
    defaults = [run._replace(learner="default") for run in rivals]
    first += [run for run in defaults if results.steps_of_default(run) is None]
    failures = measure_each(results, list(dict.fromkeys(first)), jobs, deadline)
    second = [run for run in rivals if results.current(run) is None and results.steps_of_default(run)]
    return failures + measure_each(results, second, jobs, deadline)


def measure_each(results: Results, runs: Sequence[Run], jobs: int, deadline: float) -> int:
    """Measure `runs`, keep each result when it is there, and tell of it; returns how many failed."""
    failures = late = 0
    tasks = [Task(run, results.steps_of_default(run) or 0, deadline) for run in runs]
    with workers(jobs) as measured:
        for number, (run, figures, error) in enumerate(measured(tasks), 1):
            if figures:
                results.add(run, figures)
                scores = f"{figures['sampled']:.2f} sampled, {figures['greedy']:.2f} greedy"
                print(f"[{number}/{len(runs)}] {run}: {scores}, {figures['cpu_seconds']:.0f} s", flush=True)
            elif error:
                failures += 1
                print(f"[{number}/{len(runs)}] {run}: failed: {error}", file=sys.stderr, flush=True)
            else:
                late += 1
    if late:
        print(f"--minutes are over: {late} runs are left")
    return failures


if __name__ == "__main__":
    run_command(main)
