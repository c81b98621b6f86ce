"""Results of runs, kept by game, learner, budget, seed and the code that made them, and their tables."""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import inspect
import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import reflectkit
from benchmarks.learning import games, texts, values
from benchmarks.learning.games import GAMES
from benchmarks.learning.learners import Budget
from benchmarks.learning.measure import LEARNERS, Run, plays
from benchmarks.learning.texts import TEXTS
from reflectkit.jsonl import append, dumps, rewrite, salvaged

OUR_CODE = ("agents", "models", "rollouts", "sampling", "train", "commands/rlft.py", "data/problems.py",
    "envs/adapters", "envs/setup.py", "prompts.py", "seeding.py")  # fmt: skip
"""What of the package decides how our learners learn."""
TOLERANCE = 0.1
"""A rival is measured again when our default takes more or fewer steps than it did, by more than this share."""


@dataclass(frozen=True)
class Result:
    """What a run gave. code: digest of what decides the result. sampled, greedy: scores; the rest as in `Training`."""

    game: str
    learner: str
    budget: str
    seed: int
    code: str
    sampled: float
    greedy: float
    steps: int
    cpu_seconds: float
    idle_updates: int | None = None
    entropy: float | None = None
    tokens: int | None = None

    @property
    def run(self) -> Run:
        """What was measured."""
        return Run(self.budget, self.seed, self.learner, self.game)


FIELDS = {"game": str, "learner": str, "budget": str, "seed": int, "code": str, "sampled": float, "greedy": float,
    "steps": int, "cpu_seconds": float}  # fmt: skip
"""What each row has; a line that a kill cut off has not."""


class Results:
    """The rows of a file. A row counts if its digest is that of today's code."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.by_code: dict[tuple[Run, str], Result] = {}
        self.newest: dict[Run, Result] = {}
        self.rows = [row for row in salvaged(path, FIELDS) if row is not None]
        for row in self.rows:
            self._remember(Result(**row))

    def repair(self) -> None:
        """Write the file again without a line that a kill cut off."""
        if self.rows:
            rewrite(self.path, self.rows)

    def _remember(self, result: Result) -> None:
        self.by_code[result.run, result.code] = self.newest[result.run] = result

    def add(self, run: Run, figures: dict[str, Any]) -> None:
        """Keep the figures of `run`, made by today's code."""
        result = Result(run.game, run.learner, run.budget, run.seed, code_digest(run), **figures)
        append(self.path, [asdict(result)], sync=True)
        self._remember(result)

    def steps_of_default(self, run: Run) -> int | None:
        """Environment steps of our default's newest result with the game, budget and seed of `run`, if there is one."""
        result = self.newest.get(run._replace(learner="default"))
        return result.steps if result else None

    def current(self, run: Run) -> Result | None:
        """The result of `run` with today's code and settings; None: it has to be measured."""
        result = self.by_code.get((run, code_digest(run)))
        if result and LEARNERS[run.learner].rival:
            steps = self.steps_of_default(run)
            if steps is None or abs(result.steps - steps) > TOLERANCE * steps:
                return None
        return result


REGISTRIES = ("GAMES", "OURS", "RIVALS", "TRL")
"""Tables whose rows do not concern each other."""


def code_digest(run: Run) -> str:
    """A digest of what decides the result of `run`: the learner's settings and code, the game, and how it is scored.
    Comments, docstrings, other games and other learners do not count.
    """
    learner = LEARNERS[run.learner]
    parts = [
        dumps(dict(learner.settings)),
        importlib.metadata.version(learner.package) if learner.package else "",
        file_digest(Path(inspect.getfile(learner.train)), REGISTRIES),
        game_digest(run.game),
        "" if learner.rival else package_digest(),
    ]
    return digest("\0".join(parts))


def game_digest(game: str) -> str:
    """Of the code of a game, and of how it is scored."""
    if game in TEXTS:
        return file_digest(Path(texts.__file__), ())
    others = tuple(kind.__name__ for name, kind in GAMES.items() if name != game)
    return file_digest(Path(games.__file__), (*REGISTRIES, *others)) + file_digest(Path(values.__file__), ())


@cache
def package_digest() -> str:
    """Of the code that our learners run."""
    package = Path(reflectkit.__file__).parent
    files = [file for name in OUR_CODE for file in python_files(package / name)]
    return digest("\0".join(file_digest(file, ()) for file in files))


@cache
def file_digest(path: Path, without: tuple[str, ...]) -> str:
    """Of the code in a file, without the classes and tables that have these names."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body if defined_name(node) not in without]
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [each for each in body if not is_text(each)]  # type: ignore[attr-defined]
    return digest(ast.dump(tree))


def defined_name(node: ast.stmt) -> str:
    """The name that a statement gives to a class or a table; empty for another statement."""
    if isinstance(node, ast.ClassDef):
        return node.name
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0])
    return ast.unparse(node.target) if isinstance(node, ast.AnnAssign) else ""


def digest(text: str) -> str:
    """Twelve hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def python_files(path: Path) -> list[Path]:
    """The file itself, or all Python files below a folder."""
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


def is_text(node: ast.stmt) -> bool:
    """Whether a statement is only a string, as docstrings are."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


MISSING = "–"
"""A cell without a result."""


def tables(
    results: Results, names: Sequence[str], played: Sequence[str], budgets: Sequence[Budget], seeds: Sequence[int]
) -> str:
    """Markdown: scores of games × learners, sampled and greedy, and what each run took, for each budget."""
    parts = []
    for budget in budgets:
        # 1. Today's results, or the newest of earlier code
        cells = Cells(Cell)
        total = missing = earlier = 0
        for name, game in itertools.product(names, played):
            if not plays(name, game):
                continue
            runs = [Run(str(budget), seed, name, game) for seed in seeds]
            today = [results.current(run) for run in runs]
            newest = [result or results.newest.get(run) for run, result in zip(runs, today, strict=True)]
            found = [result for result in newest if result]
            total += len(runs)
            missing += newest.count(None)
            earlier += today.count(None) - newest.count(None)
            if len(found) == len(runs):
                cells[game, name] = Cell(found, is_earlier=None in today)

        # 2. Their tables, and what they lack
        title = f"{budget.updates} updates of {budget.episodes} episodes"
        for play in ("sampled", "greedy"):
            parts += [f"## {title}, {play}", "", *score_table(cells, names, played, play), ""]
        parts += [f"## {title}: what a run takes", "", *cost_table(cells, names, played), ""]
        if missing:
            parts += [f"{missing} of {total} runs are not measured; their cells are empty.", ""]
        if earlier:
            parts += [f"{earlier} of {total} runs are of earlier code; a star marks their cells.", ""]
    return "\n".join(parts)


@dataclass(frozen=True)
class Cell:
    """The results of all seeds, empty unless all are there. is_earlier: whether earlier code made one of them."""

    results: Sequence[Result] = ()
    is_earlier: bool = False


Cells = defaultdict[tuple[str, str], Cell]
"""By game and learner."""


def score_table(cells: Cells, names: Sequence[str], played: Sequence[str], play: str) -> list[str]:
    """Lines with the mean score over seeds and, in brackets, the worst."""
    lines = [markdown_row(["game", *names]), markdown_row(["---"] * (len(names) + 1))]
    for game in played:
        row = []
        for name in names:
            cell = cells[game, name]
            scores = [getattr(result, play) for result in cell.results]
            star = " *" if cell.is_earlier else ""
            row.append(f"{fmean(scores):.2f} ({min(scores):.2f}){star}" if scores else MISSING)
        lines.append(markdown_row([game, *row]))
    means = []
    for name in names:
        by_game = [mean_of(cells[game, name], play) for game in played]
        known = [score for score in by_game if score is not None]
        games_short = f", {len(known)} of {len(played)} games" if len(known) < len(played) else ""
        means.append(f"{fmean(known):.2f} ({min(known):.2f}{games_short})" if known else MISSING)
    return [*lines, markdown_row(["mean (worst game)", *means])]


COSTS = ("idle_updates", "entropy", "cpu_seconds", "tokens", "steps")
"""What a run takes, and how it went, in the order of the columns."""


def cost_table(cells: Cells, names: Sequence[str], played: Sequence[str]) -> list[str]:
    """Lines with the means over seeds, one for each game and learner."""
    heads = ["updates without anything to learn", "entropy at the end", "CPU seconds", "tokens", "environment steps"]
    lines = [markdown_row(["game", "learner", *heads]), markdown_row(["---"] * (len(heads) + 2))]
    for game in played:
        for name in names:
            if not plays(name, game):
                continue
            figures = [mean_of(cells[game, name], cost) for cost in COSTS]
            lines.append(markdown_row([game, name, *map(rounded, figures)]))
    return lines


def mean_of(cell: Cell, name: str) -> float | None:
    """The mean of a figure over the seeds; None without one."""
    figures = [getattr(result, name) for result in cell.results]
    return None if not figures or None in figures else fmean(figures)


def rounded(figure: float | None) -> str:
    """A figure with three digits or more."""
    if figure is None:
        return MISSING
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"


def markdown_row(cells: Iterable[Any]) -> str:
    """A line of a table."""
    return f"| {' | '.join(map(str, cells))} |"
