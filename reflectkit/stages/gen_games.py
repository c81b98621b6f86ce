"""What gen-task does for env alfworld: games, generated and proved winnable, or those that are in an ALFWORLD_DATA
folder.
"""

from __future__ import annotations

import shutil
import statistics
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from reflectkit.core.console import Progress
from reflectkit.core.errors import DataError
from reflectkit.core.jsonl import TEMPORARY_PREFIX, sweep, write_json, write_text
from reflectkit.core.runs import Report, Table, held, open_run, write_permission
from reflectkit.core.types import Task
from reflectkit.data.trajectories import Record, record_to_json
from reflectkit.envs.alfworld.engine import GAME, HANDCODED, PLANNER, RECORD
from reflectkit.envs.alfworld.expert import TYPES
from reflectkit.envs.alfworld.games import SPLITS, VERSION, find, read, task, usable
from reflectkit.envs.alfworld.generate import Game, draw, levels, trial_name
from reflectkit.envs.alfworld.prove import Proof, prove
from reflectkit.stages.common import EnvConfig

SIDE_BY_SIDE = 2  # games that are proved at once
DRAWS = 20  # of one game, until it is given up
VALID = "valid"
RECORDS_OF = {"data": SPLITS[:1], VALID: SPLITS[1:]} | {split: (split,) for split in SPLITS[1:]}
"""File of records → the splits whose games it lists. The paper evaluates on all that begin with "valid"
(`_write_records`).
"""
ALIKE = "like another game"


def gen_games(config: EnvConfig, number: int, patterns: tuple[str, ...], progress: Progress) -> Report:
    """Make `number` games whose names match one of `patterns`, the types in turn, and write `data.json`.

    A finished game is a folder that is there, so that a killed run goes on where it was. Raises ConfigError, DataError.
    """
    root, path = config.games_folder, config.folder / "data.json"
    write_permission(root)
    write_permission(config.folder)
    with open_run("gen-task", config) as current:
        if current.done:
            return current.done
        maker = Maker(root, config.seed, patterns)
        made = maker.make(number, progress)
        if not made:
            ((usual, _),) = maker.thrown.most_common(1)
            raise DataError(
                root, f"none of {number} games could be won, each drawn {DRAWS} times ({usual}); widen --games"
            )
        write_json(path, [record_to_json(Record(task(folder), ())) for folder in made])
        figures, table = _made(made, root)
        current.tables.append(table)
        figures["given_up"] = number - len(made)
        return current.finish(figures, [path, config.games_folder / VERSION])


def list_games(config: EnvConfig, root: Path, patterns: tuple[str, ...], progress: Progress) -> Report:
    """Write the usable games of folder `root`: `data.json` for training, `valid.json`, and one file a valid split.

    Raises DataError.
    """
    folders = find(root, patterns)
    write_permission(config.folder)
    with open_run(
        "gen-task", config, [root / VERSION / split for split in SPLITS if (root / VERSION / split).is_dir()]
    ) as current:
        if current.done:
            return current.done
        left_out: dict[str, list[str]] = {}
        tasks = []
        with progress.bar("Games", len(folders)) as bar:
            for folder in folders:
                found = usable(folder)
                if isinstance(found, str):
                    left_out.setdefault(found, []).append(str(folder.relative_to(root / VERSION)))
                else:
                    tasks.append(found)
                bar.advance()
        if not tasks:
            reason, names = next(iter(left_out.items()))
            raise DataError(root, f"none of {len(folders)} games can be used, e.g. {names[0]}: {reason}")
        outputs = _write_records(config, tasks)
        figures = {
            "games": len(tasks),
            "by_split": dict(Counter(str(task.data["split"]) for task in tasks)),
            "by_type": {level: sum(task.level == level for task in tasks) for level in TYPES},
            "left_out": left_out,
        }
        current.tables.append(_listed(tasks, root))
        if left_out:
            rows = tuple((str(len(names)), reason, names[0]) for reason, names in left_out.items())
            current.tables.append(Table("Games left out", ("games", "reason", "the first"), rows))
        return current.finish(figures, outputs)


class Maker:
    """Makes games in `root`, two side by side, and takes up those that are there. judge: whether one can be won."""

    def __init__(
        self, root: Path, seed: int, patterns: tuple[str, ...], judge: Callable[[Path], Proof] = prove
    ) -> None:
        self.train = root / VERSION / SPLITS[0]
        self.root, self.seed, self.patterns, self.judge = root, seed, patterns, judge
        self.levels = levels(patterns)
        self.lock = threading.Lock()
        self.contents: dict[str, str] = {}  # of a game → its name
        self.thrown: Counter[str] = Counter()  # why games were thrown away

    def make(self, number: int, progress: Progress) -> list[Path]:
        """The folders of games 0 … `number` - 1, in that order, without those that were given up.

        Raises DataError: one that was made before was damaged since. ConfigError: another process makes games in
        `root`.
        """
        with held(self.root):
            sweep(self.root)
            names = [trial_name(self.seed, which, self.patterns) for which in range(number)]
            there = {folder.name: folder for folder in self.train.glob("*/trial_*")}
            kept = {which: there[name] for which, name in enumerate(names) if name in there}
            for folder in kept.values():
                self._alike(_problem(folder), folder.name)
            missing = [which for which in range(number) if which not in kept]
            players = ThreadPoolExecutor(SIDE_BY_SIDE)
            try:
                with progress.bar("Games", number, len(kept)) as bar:
                    waiting = {players.submit(self._one, which): which for which in missing}
                    for done in as_completed(waiting):
                        if made := done.result():
                            kept[waiting[done]] = made
                        bar.advance()
            finally:
                players.shutdown(cancel_futures=True)
            return [kept[which] for which in sorted(kept)]

    def _one(self, which: int) -> Path | None:
        """Game `which`: the first of its draws that can be won; None where none of them can."""
        level = self.levels[which % len(self.levels)]
        thrown: list[str] = []
        for attempt in range(DRAWS):
            game = draw(self.seed, which, attempt, level, self.patterns)
            name = str(game.trajectory["task_id"])
            staged = self.root / f"{TEMPORARY_PREFIX}{name}"
            reason = ALIKE if self._alike(game.problem, name) else ""
            if not reason:
                _write(staged, game, ())
                proof = self.judge(staged)
                reason = proof.reason
            if reason:
                thrown.append(reason)
                with self.lock:
                    self.thrown[reason] += 1
                continue
            game.trajectory["generation"] = {"seed": self.seed, "number": which, "thrown": thrown, "won_by": proof.by}
            _write(staged, game, proof.walkthrough)
            target = self.train / game.goal.name / name
            target.parent.mkdir(parents=True, exist_ok=True)
            staged.rename(target)
            return target
        shutil.rmtree(staged, ignore_errors=True)
        return None

    def _alike(self, problem: str, name: str) -> bool:
        """Whether a game of another name has the same room, goal and placement. problem: PDDL, named on its
        first line.
        """
        with self.lock:
            return self.contents.setdefault(problem.partition("\n")[2], name) != name


def _problem(folder: Path) -> str:
    """What a game that was made before is like, in PDDL. Raises DataError: it was damaged since."""
    try:
        trajectory, playable = read(folder)
    except DataError as error:
        trajectory, playable, reason = {}, {}, str(error).removeprefix(f"{folder}/")
    else:
        reason = f"{RECORD} or {GAME} does not tell how it was made"
    making = trajectory.get("generation")
    if not isinstance(making, dict) or not {"thrown", "won_by"} <= making.keys() or not playable["walkthrough"]:
        raise DataError(
            folder, f"was damaged ({reason}); delete this folder, and the same command makes the game again"
        )
    problem: str = playable["pddl_problem"]
    return problem


def _write(folder: Path, game: Game, walkthrough: Sequence[str]) -> None:
    for name, text in game.files(walkthrough).items():
        write_text(folder / name, text)


def _write_records(config: EnvConfig, tasks: Sequence[Task]) -> list[Path]:
    """All that RECORDS_OF says; but `valid.json` has no game that is one of train's, unless it would have
    none at all.
    """
    outputs = []
    trained = {task.id for task in tasks if task.data["split"] == SPLITS[0]}
    for name, splits in RECORDS_OF.items():
        listed = [task for task in tasks if task.data["split"] in splits]
        if name == VALID:
            listed = [task for task in listed if task.id not in trained] or listed
        records = [record_to_json(Record(task, ())) for task in listed]
        path = config.folder / f"{name}.json"
        if records:
            write_json(path, records)
            outputs.append(path)
        else:
            path.unlink(missing_ok=True)  # of another folder's games
    return outputs


def _made(folders: Sequence[Path], root: Path) -> tuple[dict[str, Any], Table]:
    """Figures and a table of generated games, from what each says of its making."""
    figures: dict[str, Any] = {"games": len(folders), "by_type": {}}
    rows = []
    told = [read(folder) for folder in folders]
    for level in TYPES:
        of_level = [(trajectory, playable) for trajectory, playable in told if trajectory["task_type"] == level]
        if not of_level:
            continue
        steps = sorted(len(playable["walkthrough"]) for _, playable in of_level)
        making = [trajectory["generation"] for trajectory, _ in of_level]
        thrown = Counter(reason for one in making for reason in one["thrown"])
        won_by = Counter(one["won_by"] for one in making)
        figures["by_type"][level] = {
            "games": len(of_level),
            "won_by": dict(won_by),
            "thrown_away": dict(thrown),
            "steps": {"least": steps[0], "median": statistics.median(steps), "most": steps[-1]},
        }
        rows.append(
            (level, len(of_level), won_by[HANDCODED], won_by[PLANNER], f"{steps[0]} to {steps[-1]}", thrown.total())
        )
    heads = ("type", "games", HANDCODED, PLANNER, "steps", "thrown away")
    return figures, Table(f"Games in {root}", heads, tuple(tuple(map(str, row)) for row in rows))


def _listed(tasks: Sequence[Task], root: Path) -> Table:
    counts = Counter((task.level, task.data["split"]) for task in tasks)
    rows = [(level, *(str(counts[level, split]) for split in SPLITS)) for level in TYPES]
    return Table(f"Games of {root}", ("type", *(split.replace("_", " ") for split in SPLITS)), tuple(rows))
