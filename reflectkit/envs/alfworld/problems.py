"""The problems of env `alfworld`: generated games, each checked to be winnable, or those of an
ALFWORLD_DATA folder.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import override

from reflectkit.config import Config, Rule, option
from reflectkit.console import Progress, Table
from reflectkit.envs.alfworld.engine import HANDCODED, PLANNER
from reflectkit.envs.alfworld.games import (
    FOLDER,
    SPLITS,
    TYPES,
    VERSION,
    Generation,
    find,
    read,
    task,
)
from reflectkit.envs.alfworld.generate import DrawnGame, draw, levels, trial_name
from reflectkit.envs.alfworld.pool import pool
from reflectkit.envs.problems import Generated, ProblemGenerator
from reflectkit.errors import DataError, EnvironmentFailure
from reflectkit.eventloop import run_sync
from reflectkit.jsonl import TEMPORARY_PREFIX, locked, sweep, write_text
from reflectkit.text import pluralize
from reflectkit.types import Task

GAMES = 180  # default of --instances
DRAWS = 20  # attempts at one game before it is given up
STEPS = 100  # within which a game must be won
SECONDS = 60.0  # for each answer of the engine
ALIKE = "like another game"


class GameSettings(Config):
    """The generator's settings."""

    instances: int | None = option(None, help=f"Games to generate; default: {GAMES}.", ge=1)
    games_dir: Path | None = option(
        None,
        help="List the games in this folder (from alfworld-download) instead of generating some.",
    )
    games: tuple[str, ...] = option(
        (), help="Only games whose name matches, e.g. 'pick_heat_*-Egg-*' (repeat the flag)."
    )

    @override
    def contradictions(self) -> Iterator[Rule]:
        both = "--instances generates games and --games-dir lists existing ones; leave one out"
        yield self.games_dir is not None and self.instances is not None, both


class Games(ProblemGenerator):
    """Generated games, the types in turn, or the games of a folder."""

    Settings: ClassVar[type[Config]] = GameSettings
    noun: ClassVar[str] = "games"
    settings: GameSettings

    def inputs(self) -> list[Path]:
        """The splits of the listed folder."""
        root = self.settings.games_dir
        if root is None:
            return []
        find(root, self.settings.games)
        return [root / VERSION / split for split in SPLITS if (root / VERSION / split).is_dir()]

    def outputs(self) -> list[Path]:
        """The folder for generated games."""
        return [] if self.settings.games_dir else [self.folder / FOLDER]

    def generate(self, progress: Progress) -> Generated:
        """Generate games, or list those of a folder. Raises ConfigError, DataError."""
        root = self.settings.games_dir
        return self._make(progress) if root is None else self._list(root, progress)

    def _make(self, progress: Progress) -> Generated:
        """The generated games, as `data.json`."""
        root, number = self.folder / FOLDER, self.settings.instances or GAMES
        maker = Maker(root, self.seed, self.settings.games)
        folders = maker.make(number, progress)
        if not folders:
            ((usual, _),) = maker.rejections.most_common(1)
            raise DataError(
                root,
                (
                    f"none of {pluralize(number, 'game')} could be won, with {DRAWS} tries each"
                    f" ({usual}); widen --games"
                ),
            )
        figures, table = _summary(folders, root)
        figures["given_up"] = number - len(folders)
        return Generated(
            {"data": [task(folder) for folder in folders]},
            figures,
            (table,),
            (root / VERSION,),
        )

    def _list(self, root: Path, progress: Progress) -> Generated:
        """The usable games of folder `root`: `data.json` for training, one file for each valid
        split, and `valid.json` with all of these, on which the paper evaluates; without games of
        train, unless all are.
        """
        # 1. The games of each split, and those that cannot be used, by reason
        folders = find(root, self.settings.games)
        left_out: dict[str, list[str]] = {}
        of_split: dict[str, list[Task]] = {split: [] for split in SPLITS}
        with progress.bar("Games", len(folders)) as bar:
            for folder in folders:
                try:
                    of_split[folder.parent.parent.name].append(task(folder))
                except DataError as error:
                    name = str(folder.relative_to(root / VERSION))
                    left_out.setdefault(error.message, []).append(name)
                bar.advance()
        train, *valid = of_split.values()
        evaluated = [game for games in valid for game in games]
        tasks = [*train, *evaluated]
        if not tasks:
            reason, names = next(iter(left_out.items()))
            raise DataError(
                root,
                f"none of {pluralize(len(folders), 'game')} can be used, e.g. {names[0]}: {reason}",
            )
        # 2. The files
        train_ids = {game.id for game in train}
        unseen = [game for game in evaluated if game.id not in train_ids]
        records = {"data": train, "valid": unseen or evaluated}
        # 3. Figures and tables
        figures = {
            "games": len(tasks),
            "by_split": {split: len(games) for split, games in of_split.items() if games},
            "by_type": {level: sum(game.level == level for game in tasks) for level in TYPES},
            "left_out": left_out,
        }
        counts = Counter((game.level, game.data["split"]) for game in tasks)
        rows = [(level, *(str(counts[level, split]) for split in SPLITS)) for level in TYPES]
        heads = ("type", *(split.replace("_", " ") for split in SPLITS))
        why = tuple((str(len(names)), reason, names[0]) for reason, names in left_out.items())
        tables = (
            Table(f"Games of {root}", heads, tuple(rows)),
            Table("Left out", ("games", "reason", "the first"), why),
        )
        return Generated(
            records | dict(zip(SPLITS[1:], valid, strict=True)),
            figures,
            tables[: 2 if why else 1],
        )


def _summary(folders: Sequence[Path], root: Path) -> tuple[dict[str, Any], Table]:
    """Figures and a table of generated games, from their records."""
    by_type: dict[str, Any] = {}
    rows = []
    games = [read(folder) for folder in folders]
    for level in TYPES:
        # 1. The lengths of its games, and how they came about
        steps = []
        generations = []
        for record, game in games:
            if record.task_type == level:
                steps.append(len(game.walkthrough or ()))
                if record.generation:
                    generations.append(record.generation)
        if not steps:
            continue
        steps.sort()
        rejections: Counter[str] = Counter()
        for generation in generations:
            rejections.update(generation.thrown)
        won_by = Counter(generation.won_by for generation in generations)
        # 2. A row
        by_type[level] = {
            "games": len(steps),
            "won_by": dict(won_by),
            "thrown_away": dict(rejections),
        }
        counts = (
            len(steps),
            won_by[HANDCODED],
            won_by[PLANNER],
            f"{steps[0]} to {steps[-1]}",
            rejections.total(),
        )
        rows.append((level, *map(str, counts)))
    heads = ("type", "games", HANDCODED, PLANNER, "steps", "thrown away")
    return {"games": len(folders), "by_type": by_type}, Table(
        f"Games in {root}",
        heads,
        tuple(rows),
    )


# ----------------------------------------------------------------------------------------------------------
# solutions


@dataclass(frozen=True)
class Solution:
    """walkthrough: the winning commands. by: their author, "handcoded" or "planner". reason: why
    there are none, else empty.
    """

    walkthrough: tuple[str, ...] = ()
    by: str = ""
    reason: str = ""


async def find_solution(folder: Path) -> Solution:
    """Play the game in `folder`: the handcoded expert, and if it does not win, the planner's plan.

    Raises ConfigError if the packages are not installed.
    """
    reason = ""
    # If the engine or the machine fails, once more with a new engine
    for _ in range(2):
        engine = pool().take(folder)
        try:
            # 1. The handcoded expert
            state = await engine.reset(folder, HANDCODED, SECONDS)
            commands: list[str] = []
            while not state.won and len(commands) < STEPS:
                assert state.advice is not None
                commands.append(state.advice)
                state = await engine.step(state.advice, SECONDS)
            if state.won:
                return Solution(tuple(commands), HANDCODED)
            # 2. The planner
            state = await engine.reset(folder, None, SECONDS)
            plan = await engine.plan(SECONDS)
            for command in plan[:STEPS]:
                state = await engine.step(command, SECONDS)
            if state.won:
                return Solution(tuple(plan), PLANNER)
            if not plan:
                return Solution(reason="there is no plan")
            return Solution(reason=f"the plan does not win within {STEPS} steps")
        except DataError as error:
            return Solution(reason=error.message)
        except EnvironmentFailure as error:
            reason = str(error)
        finally:
            pool().give(engine)
    return Solution(reason=reason)


# ---------------------------------------------------------------------------------------------------------
# generation


class Maker:
    """Generates games in `root`, one after the other. find: returns a game's solution.

    A game is finished once its folder exists, so a killed run resumes where it stopped.
    """

    def __init__(
        self,
        root: Path,
        seed: int,
        patterns: tuple[str, ...],
        find: Callable[[Path], Awaitable[Solution]] = find_solution,
    ) -> None:
        self.train = root / VERSION / SPLITS[0]
        self.root, self.seed, self.patterns, self.find_solution = root, seed, patterns, find
        self.levels = levels(patterns)
        self.contents: dict[str, str] = {}  # of a game → its name
        self.rejections: Counter[str] = Counter()  # why games were discarded

    def make(self, number: int, progress: Progress) -> list[Path]:
        """The folders of games 0 … `number` - 1, in that order, without those that were given up.

        Raises DataError if a finished game has been damaged, ConfigError if another process makes
        games in `root`.
        """
        with locked(self.root):
            # 1. The games that an earlier run has finished
            sweep(self.root)
            existing = {folder.name: folder for folder in self.train.glob("*/trial_*")}
            names = [trial_name(self.seed, index, self.patterns) for index in range(number)]
            finished = {}
            for index, name in enumerate(names):
                if name in existing:
                    finished[index] = existing[name]
            for folder in finished.values():
                try:
                    self._is_like_another(read(folder)[1].pddl_problem, folder.name)
                except DataError as error:
                    fix = "delete this folder and run the same command again to recreate the game"
                    raise DataError(folder, f"is damaged ({error.message}); {fix}") from None
            # 2. The others
            missing = [index for index in range(number) if index not in finished]
            with progress.bar("Games", number, len(finished)) as bar:
                for index in missing:
                    game_folder = run_sync(self._make(index))
                    if game_folder:
                        finished[index] = game_folder
                    bar.advance()
            return [finished[index] for index in sorted(finished)]

    async def _make(self, number: int) -> Path | None:
        """Game `number`: the first winnable one of its draws; None if there is none."""
        level = self.levels[number % len(self.levels)]
        rejections: list[str] = []
        for attempt in range(DRAWS):
            game = draw(self.seed, number, attempt, level, self.patterns)
            name = str(game.trajectory["task_id"])
            staged = self.root / f"{TEMPORARY_PREFIX}{name}"
            # 1. A new game that can be won
            if self._is_like_another(game.problem, name):
                solution = Solution(reason=ALIKE)
            else:
                _write(staged, game, ())
                solution = await self.find_solution(staged)
            if solution.reason:
                rejections.append(solution.reason)
                self.rejections[solution.reason] += 1
                continue
            # 2. Its record and its solution, under its final name
            generation = Generation(self.seed, number, rejections, solution.by)
            game.trajectory["generation"] = asdict(generation)
            _write(staged, game, solution.walkthrough)
            target = self.train / game.goal.name / name
            target.parent.mkdir(parents=True, exist_ok=True)
            staged.rename(target)
            return target
        shutil.rmtree(staged, ignore_errors=True)
        return None

    def _is_like_another(self, problem: str, name: str) -> bool:
        """Whether a game of another name has the same room, goal and placement. problem: PDDL, with
        its name on the first line.
        """
        return self.contents.setdefault(problem.partition("\n")[2], name) != name


def _write(folder: Path, game: DrawnGame, walkthrough: Sequence[str]) -> None:
    for name, text in game.files(walkthrough).items():
        write_text(folder / name, text)
