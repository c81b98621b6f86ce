"""The problems of env `alfworld`: generated games, each checked to be winnable, or those of an ALFWORLD_DATA folder."""

from __future__ import annotations

import shutil
import statistics
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import model_validator

from reflectkit.config import Config, option
from reflectkit.console import Progress, Table
from reflectkit.envs.alfworld.engine import GAME, HANDCODED, PLANNER, RECORD
from reflectkit.envs.alfworld.expert import TYPES
from reflectkit.envs.alfworld.games import FOLDER, SPLITS, VERSION, find, read, task, usable
from reflectkit.envs.alfworld.generate import Game, draw, levels, trial_name
from reflectkit.envs.alfworld.solution import Solution, find_solution
from reflectkit.envs.problems import Generated, ProblemGenerator
from reflectkit.errors import ConfigError, DataError
from reflectkit.jsonl import TEMPORARY_PREFIX, sweep, write_text
from reflectkit.runs.locks import locked
from reflectkit.text import pluralize
from reflectkit.types import Task

GAMES = 180  # default of --instances
SIDE_BY_SIDE = 2  # games that are checked concurrently
DRAWS = 20  # attempts at one game before it is given up
VALID = "valid"
RECORDS_OF = {"data": SPLITS[:1], VALID: SPLITS[1:]} | {split: (split,) for split in SPLITS[1:]}
"""File of records → the splits whose games it lists. The paper evaluates on all that begin with "valid"
(`_records`).
"""
ALIKE = "like another game"


class GameSettings(Config):
    """The generator's settings."""

    instances: int | None = option(None, help=f"Games to generate; default: {GAMES}.", ge=1)
    games_dir: Path | None = option(
        None, help="List the games in this folder (from alfworld-download) instead of generating some."
    )
    games: tuple[str, ...] = option(
        (), help="Only games whose name matches, e.g. 'pick_heat_*-Egg-*' (repeat the flag)."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.games_dir is not None and self.instances is not None:
            raise ConfigError("--instances generates games and --games-dir lists existing ones; leave one out")
        return self

    @property
    def number(self) -> int:
        """Number of games to generate."""
        return GAMES if self.instances is None else self.instances


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
        """The generated games, as `data.json`.

        A game is finished once its folder exists, so a killed run resumes where it stopped.
        """
        root, number = self.folder / FOLDER, self.settings.number
        maker = Maker(root, self.seed, self.settings.games)
        folders = maker.make(number, progress)
        if not folders:
            ((usual, _),) = maker.rejections.most_common(1)
            raise DataError(
                root,
                f"none of {pluralize(number, 'game')} could be won, with {DRAWS} tries each ({usual}); widen --games",
            )
        figures, table = _made(folders, root)
        figures["given_up"] = number - len(folders)
        return Generated({"data": [task(folder) for folder in folders]}, figures, (table,), (root / VERSION,))

    def _list(self, root: Path, progress: Progress) -> Generated:
        """The usable games of folder `root`: `data.json` for training, `valid.json`, and one file per valid split."""
        folders = find(root, self.settings.games)
        left_out: dict[str, list[str]] = {}
        tasks = []
        with progress.bar("Games", len(folders)) as bar:
            for folder in folders:
                game = usable(folder)
                if isinstance(game, str):
                    left_out.setdefault(game, []).append(str(folder.relative_to(root / VERSION)))
                else:
                    tasks.append(game)
                bar.advance()
        if not tasks:
            reason, names = next(iter(left_out.items()))
            raise DataError(root, f"none of {pluralize(len(folders), 'game')} can be used, e.g. {names[0]}: {reason}")
        figures = {
            "games": len(tasks),
            "by_split": dict(Counter(str(task.data["split"]) for task in tasks)),
            "by_type": {level: sum(task.level == level for task in tasks) for level in TYPES},
            "left_out": left_out,
        }
        tables = [_listed(tasks, root)]
        if left_out:
            rows = tuple((str(len(names)), reason, names[0]) for reason, names in left_out.items())
            tables.append(Table("Games left out", ("games", "reason", "the first"), rows))
        return Generated(_records(tasks), figures, tuple(tables))


class Maker:
    """Generates games in `root`, two at a time, and reuses finished ones. find: returns a game's solution."""

    def __init__(
        self, root: Path, seed: int, patterns: tuple[str, ...], find: Callable[[Path], Solution] = find_solution
    ) -> None:
        self.train = root / VERSION / SPLITS[0]
        self.root, self.seed, self.patterns, self.find_solution = root, seed, patterns, find
        self.levels = levels(patterns)
        self.lock = threading.Lock()
        self.contents: dict[str, str] = {}  # of a game → its name
        self.rejections: Counter[str] = Counter()  # why games were discarded

    def make(self, number: int, progress: Progress) -> list[Path]:
        """The folders of games 0 … `number` - 1, in that order, without those that were given up.

        Raises DataError if a finished game has been damaged, ConfigError if another process makes games in `root`.
        """
        with locked(self.root):
            sweep(self.root)
            names = [trial_name(self.seed, index, self.patterns) for index in range(number)]
            existing = {folder.name: folder for folder in self.train.glob("*/trial_*")}
            finished = {index: existing[name] for index, name in enumerate(names) if name in existing}
            for folder in finished.values():
                self._alike(_problem(folder), folder.name)
            missing = [index for index in range(number) if index not in finished]
            players = ThreadPoolExecutor(SIDE_BY_SIDE)
            try:
                with progress.bar("Games", number, len(finished)) as bar:
                    waiting = {players.submit(self._one, index): index for index in missing}
                    for done in as_completed(waiting):
                        if game_folder := done.result():
                            finished[waiting[done]] = game_folder
                        bar.advance()
            finally:
                players.shutdown(cancel_futures=True)
            return [finished[index] for index in sorted(finished)]

    def _one(self, number: int) -> Path | None:
        """Game `which`: the first winnable one of its draws; None if there is none."""
        level = self.levels[number % len(self.levels)]
        rejections: list[str] = []
        for attempt in range(DRAWS):
            game = draw(self.seed, number, attempt, level, self.patterns)
            name = str(game.trajectory["task_id"])
            staged = self.root / f"{TEMPORARY_PREFIX}{name}"
            reason = ALIKE if self._alike(game.problem, name) else ""
            if not reason:
                _write(staged, game, ())
                solution = self.find_solution(staged)
                reason = solution.reason
            if reason:
                rejections.append(reason)
                with self.lock:
                    self.rejections[reason] += 1
                continue
            game.trajectory["generation"] = {
                "seed": self.seed,
                "number": number,
                "thrown": rejections,
                "won_by": solution.by,
            }
            _write(staged, game, solution.walkthrough)
            target = self.train / game.goal.name / name
            target.parent.mkdir(parents=True, exist_ok=True)
            staged.rename(target)
            return target
        shutil.rmtree(staged, ignore_errors=True)
        return None

    def _alike(self, problem: str, name: str) -> bool:
        """Whether a game of another name has the same room, goal and placement. problem: PDDL, with its name on the
        first line.
        """
        with self.lock:
            return self.contents.setdefault(problem.partition("\n")[2], name) != name


def _problem(folder: Path) -> str:
    """The PDDL of a finished game. Raises DataError if it has been damaged."""
    try:
        trajectory, playable = read(folder)
    except DataError as error:
        trajectory, playable, reason = {}, {}, str(error).removeprefix(f"{folder}/")
    else:
        reason = f"{RECORD} or {GAME} does not say how it was generated"
    making = trajectory.get("generation")
    if not isinstance(making, dict) or not {"thrown", "won_by"} <= making.keys() or not playable["walkthrough"]:
        raise DataError(
            folder, f"is damaged ({reason}); delete this folder and run the same command again to recreate the game"
        )
    problem: str = playable["pddl_problem"]
    return problem


def _write(folder: Path, game: Game, walkthrough: Sequence[str]) -> None:
    for name, text in game.files(walkthrough).items():
        write_text(folder / name, text)


def _records(tasks: Sequence[Task]) -> dict[str, list[Task]]:
    """The files of records that RECORDS_OF names; but `valid.json` has no game that is one of train's, unless it would
    have none at all.
    """
    records = {}
    trained = {task.id for task in tasks if task.data["split"] == SPLITS[0]}
    for name, splits in RECORDS_OF.items():
        listed = [task for task in tasks if task.data["split"] in splits]
        if name == VALID:
            listed = [task for task in listed if task.id not in trained] or listed
        records[name] = listed
    return records


def _made(folders: Sequence[Path], root: Path) -> tuple[dict[str, Any], Table]:
    """Figures and a table of generated games, from their records."""
    figures: dict[str, Any] = {"games": len(folders), "by_type": {}}
    rows = []
    games = [read(folder) for folder in folders]
    for level in TYPES:
        of_level = [(trajectory, playable) for trajectory, playable in games if trajectory["task_type"] == level]
        if not of_level:
            continue
        steps = sorted(len(playable["walkthrough"]) for _, playable in of_level)
        making = [trajectory["generation"] for trajectory, _ in of_level]
        rejections = Counter(reason for one in making for reason in one["thrown"])
        won_by = Counter(one["won_by"] for one in making)
        figures["by_type"][level] = {
            "games": len(of_level),
            "won_by": dict(won_by),
            "thrown_away": dict(rejections),
            "steps": {"least": steps[0], "median": statistics.median(steps), "most": steps[-1]},
        }
        rows.append(
            (level, len(of_level), won_by[HANDCODED], won_by[PLANNER], f"{steps[0]} to {steps[-1]}", rejections.total())
        )
    heads = ("type", "games", HANDCODED, PLANNER, "steps", "thrown away")
    return figures, Table(f"Games in {root}", heads, tuple(tuple(map(str, row)) for row in rows))


def _listed(tasks: Sequence[Task], root: Path) -> Table:
    counts = Counter((task.level, task.data["split"]) for task in tasks)
    rows = [(level, *(str(counts[level, split]) for split in SPLITS)) for level in TYPES]
    return Table(f"Games of {root}", ("type", *(split.replace("_", " ") for split in SPLITS)), tuple(rows))
