"""`python -m benchmarks.learning.imitation`: what `sft` without flags learns from an optimal player's demonstrations.

Two tables: scores by number of demonstrations, and, for the policy of a pair, scores with the teacher's comments and
with comments on other states. Scores are exact. The same command resumes.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

import reflectkit
from benchmarks.learning import run_command
from benchmarks.learning.games import GAMES, Game, Outcome, State
from benchmarks.learning.learners import choice_env, read_choices
from benchmarks.learning.results import MISSING, digest, file_digest, game_digest, markdown_row, python_files
from benchmarks.learning.values import FIRST_SEED, STARTS, Values
from reflectkit.commands import sft
from reflectkit.console import Quiet
from reflectkit.data.sft_rows import Lesson, plain_row, usual_form
from reflectkit.jsonl import append, locked, rewrite, salvaged, write_jsonl
from reflectkit.models.checkpoint_metadata import model_facts
from reflectkit.models.hub import silence_libraries
from reflectkit.models.load import load_player
from reflectkit.prompts import REFLECTION_MARKER, label
from reflectkit.seeding import generator
from reflectkit.types import Message, Observation

FOLDER = Path(__file__).parents[2] / "research" / "learning"
"""Where results are kept."""
PAIR_GAMES = ("search", "door", "diary", "taxi")
PAIR_DEMONSTRATIONS = 200
SENTENCES = ("I would choose {}.", "Now {} is right.", "The best choice here is {}.")
"""What a teacher says of the best choice."""
COMMENTS, PLAY = ("teacher", "mismatched"), ("sampled", "greedy")
"""Whose comments the policy of a pair reads, and how it acts."""
NEW_EPISODES = 200
"""Episodes of the optimal player from held-out starts, whose actions are compared with those of a trained one."""
OUR_CODE = ("models", "agents", "train/sft", "commands/sft.py", "data/sft_rows.py",
    "prompts.py", "seeding.py")  # fmt: skip
"""What of the package decides how `sft` learns."""


@dataclass(frozen=True)
class Step:
    """A step of a demonstration. best: the number of the best option, the first of equals."""

    state: State
    options: tuple[str, ...]
    best: int


class Demonstrator:
    """The optimal player of a game, from the starts of these seeds."""

    def __init__(self, game: Game, seeds: Sequence[int]) -> None:
        self.game, self.seeds = game, seeds
        values = Values(game, starts=0)
        for seed in seeds:
            game.reset(seed)
            values.starts.append(game.state)
        self.best: dict[State, int] = {}
        """The number of the best option in each state that can be reached."""

        def choose(state: State, options: Sequence[float]) -> float:
            most = max(options)
            self.best[state] = next(number for number, value in enumerate(options) if value > most - 1e-9)
            return most

        values.expected(choose)  # backwards, so the choices with most steps to go remain

    def steps(self, seeds: Sequence[int]) -> Iterator[Step]:
        """The steps of an episode from each seed."""
        for seed in seeds:
            self.game.reset(seed)
            for _ in range(self.game.horizon):
                step = self._step(self.game.state)
                yield step
                if self.game.step(step.options[step.best])[2]:
                    break

    def _step(self, state: State) -> Step:
        return Step(state, tuple(self.game.options(state)), self.best[state])

    def comments(self, states: Sequence[State], name: str) -> dict[State, str]:
        """What a teacher says in each state. name: of the draw of sentences."""
        chance = generator(0, name)
        steps = map(self._step, states)
        return {step.state: chance.choice(SENTENCES).format(step.options[step.best]) for step in steps}


class Commented(Game):
    """A game that shows a comment after its text, as the prompt of a pair's policy does."""

    def __init__(self, game: Game, comments: dict[State, str]) -> None:
        super().__init__()
        self.game, self.comments = game, comments
        self.horizon = game.horizon  # type: ignore[misc]

    def start(self, chance: Any) -> State:
        """A first state."""
        return self.game.start(chance)

    def outcomes(self, state: State, choice: str) -> Sequence[Outcome]:
        """What can follow `choice` in `state`."""
        return self.game.outcomes(state, choice)

    def options(self, state: State) -> Sequence[str]:
        """The legal choices in `state`."""
        return self.game.options(state)

    def text(self, state: State) -> str:
        """What a player reads."""
        return f"{self.game.text(state)}\n{REFLECTION_MARKER} {self.comments[state]}"


@dataclass(frozen=True)
class Training:
    """What `sft` made of demonstrations. held_out: share of the answers in held-out rows that are the most likely."""

    checkpoint: Path
    rows: int
    steps: int
    cpu_seconds: float
    held_out: float | None


def train(
    game: Game, role: str, steps: Sequence[Step], text: Callable[[State], str], seed: int, folder: Path
) -> Training:
    """Train by `sft` in `folder`, without flags. text: what a player reads in a state."""
    # Rows as gen-sft writes them
    lessons = []
    for step in steps:
        observation = Observation((Message("user", text(step.state)),), step.options)
        lessons.append(Lesson(observation, "", label(step.best), "positive"))
    form = usual_form([("", lesson.observation.choices) for lesson in lessons])
    write_jsonl(folder / "rows.jsonl", [plain_row(lesson.answered_in(form)) for lesson in lessons])
    config = sft.SFTConfig.from_flat(
        env=choice_env(Values(game, starts=0)),
        role=role,
        task_file=folder / "rows.jsonl",
        seed=seed,
        name="run",
        data_dir=folder / "data",
        results_dir=folder / "results",
        device="cpu",
    )
    started = time.process_time()
    report = sft.run(config, Quiet())
    cpu_seconds = round(time.process_time() - started, 1)
    (checkpoint,) = report.outputs
    held_out = model_facts(checkpoint).get("validation_accuracy")
    return Training(checkpoint, len(lessons), report.figures["steps"], cpu_seconds, held_out)


def imitate(name: str, demonstrations: int, seed: int, folder: Path) -> dict[str, Any]:
    """The figures of a player that `sft` made of `demonstrations` episodes."""
    game, values = GAMES[name](), Values(GAMES[name]())
    seeds = range(demonstrations)
    steps = list(Demonstrator(game, seeds).steps(seeds))
    training = train(game, "plain", steps, game.text, seed, folder)
    probabilities = read_choices(load_player(training.checkpoint, device="cpu"), values)

    held_out = range(FIRST_SEED, FIRST_SEED + STARTS)
    new = list(Demonstrator(game, held_out).steps(held_out[:NEW_EPISODES]))
    agreed = [step.best == most_likely(probabilities[step.state]) for step in new]
    return figures_of(training) | {
        "accuracy": round(fmean(agreed), 4),
        "sampled": round(values.score(values.sampled(probabilities)), 4),
        "greedy": round(values.score(values.greedy(probabilities)), 4),
    }


def follow(name: str, demonstrations: int, seed: int, folder: Path) -> dict[str, Any]:
    """The figures of the policy of a pair, with the teacher's comments and with comments on other states."""
    game, values = GAMES[name](), Values(GAMES[name]())
    seeds, held_out = range(demonstrations), range(FIRST_SEED, FIRST_SEED + STARTS)
    teacher = Demonstrator(game, seeds)
    steps = list(teacher.steps(seeds))
    shown = Commented(game, teacher.comments([step.state for step in steps], "training"))
    training = train(game, "policy", steps, shown.text, seed, folder)
    player = load_player(training.checkpoint, device="cpu")

    states = list(values.states)
    right = Demonstrator(game, held_out).comments(states, "held out")
    others = generator(0, "others").sample(states, len(states))
    wrong = {state: right[other] for state, other in zip(states, others, strict=True)}
    figures = figures_of(training)
    for whose, comments in zip(COMMENTS, (right, wrong), strict=True):
        read = Values(Commented(game, comments))
        probabilities = read_choices(player, read)
        figures |= {
            f"{whose}_sampled": round(values.score(values.sampled(probabilities)), 4),
            f"{whose}_greedy": round(values.score(values.greedy(probabilities)), 4),
        }
    return figures


def figures_of(training: Training) -> dict[str, Any]:
    """What a row of results says of training."""
    return {"rows": training.rows, "steps": training.steps, "cpu_seconds": training.cpu_seconds,
        "held_out": training.held_out}  # fmt: skip


def most_likely(row: Sequence[float]) -> int:
    """The number of the most likely option."""
    return max(range(len(row)), key=row.__getitem__)


MEASURED = {"imitation": (imitate, tuple(GAMES)), "pair": (follow, PAIR_GAMES)}
"""What is measured, and in which games."""


@dataclass(frozen=True, order=True)
class Run:
    """What is measured at once."""

    kind: str
    demonstrations: int
    seed: int
    game: str


def code_digest(run: Run) -> str:
    """A digest of what decides the result of `run`."""
    package = Path(reflectkit.__file__).parent
    files = [file for name in OUR_CODE for file in python_files(package / name)]
    parts = [file_digest(file, ()) for file in (*files, Path(__file__))]
    return digest("\0".join([*parts, game_digest(run.game)]))


FIELDS = {**dict.fromkeys(("demonstrations", "seed", "rows", "steps"), int), "kind": str, "game": str, "code": str}
"""What each row has; a line that a kill cut off has not."""


class Results:
    """The rows of a file. A row counts if its digest is that of today's code."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = [row for row in salvaged(path, FIELDS) if row is not None]

    def current(self, run: Run) -> dict[str, Any] | None:
        """The figures of `run` with today's code; None: they have to be measured."""
        identity = asdict(run) | {"code": code_digest(run)}
        return next((row for row in self.rows if identity.items() <= row.items()), None)

    def add(self, run: Run, figures: dict[str, Any]) -> None:
        """Keep the figures of `run`, made by today's code."""
        self.rows.append(asdict(run) | {"code": code_digest(run)} | figures)
        append(self.path, self.rows[-1:], sync=True)


def tables(results: Results, runs: Sequence[Run]) -> str:
    """Markdown: a row for each game and number of demonstrations, the means over seeds and the worst in brackets."""
    columns = {
        "imitation": ("sampled", "greedy", "accuracy", "held_out", "rows", "steps", "cpu_seconds"),
        "pair": (*(f"{whose}_{how}" for how in PLAY for whose in COMMENTS), "steps", "cpu_seconds"),
    }
    lines: list[str] = []
    for kind, names in columns.items():
        heads = ["game", "demonstrations", *(name.replace("_", " ") for name in names)]
        lines += ["", f"## {kind.capitalize()}", "", markdown_row(heads), markdown_row(["---"] * len(heads))]
        cells: dict[tuple[str, int], list[dict[str, Any]]] = {}
        for run in runs:
            row = results.current(run)
            if run.kind == kind and row is not None:
                cells.setdefault((run.game, run.demonstrations), []).append(row)
        for (game, demonstrations), rows in cells.items():
            means = [mean_and_worst(name, [row[name] for row in rows]) for name in names]
            lines.append(markdown_row([game, demonstrations, *means]))
    return "\n".join(lines[1:])


def mean_and_worst(name: str, figures: Sequence[float | None]) -> str:
    """A cell."""
    known = [figure for figure in figures if figure is not None]
    if not known:
        return MISSING
    if name in ("rows", "steps", "cpu_seconds"):
        return f"{fmean(known):,.0f}"
    worst = f" ({min(known):.2f})" if len(known) > 1 else ""
    return f"{fmean(known):.2f}{worst}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is missing, or print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning.imitation", description=__doc__)
    parser.add_argument("--games", nargs="+", choices=GAMES, default=list(GAMES), metavar="GAME")
    parser.add_argument("--demonstrations", nargs="+", type=int, default=[50, 200, 1000], help="episodes")
    parser.add_argument("--kinds", nargs="+", choices=MEASURED, default=list(MEASURED), help="what to measure")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1], help="of training; default: 0 and 1")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no run after this time")
    parser.add_argument("--table", action="store_true", help="only print the tables, as Markdown")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where results are kept")
    options = parser.parse_args(arguments)

    runs = []
    for seed in options.seeds:
        for game in options.games:
            if "imitation" in options.kinds:
                runs += [Run("imitation", number, seed, game) for number in options.demonstrations]
            if "pair" in options.kinds and game in PAIR_GAMES:
                runs.append(Run("pair", PAIR_DEMONSTRATIONS, seed, game))
    results = Results(options.folder / "imitation.jsonl")
    if options.table:
        print(tables(results, runs))
        return 0

    silence_libraries()
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    deadline = time.time() + 60 * options.minutes
    with locked(options.folder):
        rewrite(results.path, results.rows)
        missing = [run for run in runs if results.current(run) is None]
        for number, run in enumerate(missing, 1):
            if time.time() > deadline:
                print(f"--minutes are over: {len(missing) - number + 1} runs are left")
                break
            with tempfile.TemporaryDirectory() as folder:
                figures = MEASURED[run.kind][0](run.game, run.demonstrations, run.seed, Path(folder))
            results.add(run, figures)
            told = ", ".join(f"{name} {figure}" for name, figure in figures.items())
            what = f"{run.game}, {run.kind}, {run.demonstrations} demonstrations, seed {run.seed}"
            print(f"[{number}/{len(missing)}] {what}: {told}", flush=True)
    return 0


if __name__ == "__main__":
    run_command(main)
