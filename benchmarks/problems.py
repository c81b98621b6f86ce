"""Problems to measure an environment on, without a file of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from reflectkit.console import Progress
from reflectkit.env import Env
from reflectkit.seeding import generator
from reflectkit.types import Task

COUNT = 64  # conversations, or tasks of the service desk
FILES_IN_A_FOLDER = 20
Problems = tuple[list[Task], dict[str, Any]]
"""The problems, and the settings to play them with."""


def problems_of(kind: type[Env], folder: Path, files: int, seed: int, progress: Progress) -> Problems:
    """The problems of env `kind`: generated, or those that it lists at its last level.

    folder: empty, for what the problems are set in. files: how many files a repository gets. Raises ConfigError where a
    file of problems is needed.
    """
    if kind.name in GENERATORS:
        return GENERATORS[kind.name](folder, files, seed, progress)
    return kind.taskset.tasks(kind.levels[-1]), {}


def _repository(folder: Path, files: int, seed: int, progress: Progress) -> Problems:
    """A repository of `files` files, twenty a folder, two deep, and a question about each."""
    chance = generator(seed, "bench repository")
    vocabulary = [
        "".join(chance.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(chance.randint(3, 9))) for _ in range(2000)
    ]
    tasks = []
    for number in range(files):
        place = number // FILES_IN_A_FOLDER
        path = Path(f"part{place // 8}", f"section{place % 8}", f"{chance.choice(vocabulary)}_{number}.py")
        lines = [" ".join(chance.choice(vocabulary) for _ in range(8)) for _ in range(chance.randint(10, 120))]
        target = folder / "written" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("\n".join(lines), encoding="utf-8")
        data = {"question": f"Where does it say {lines[0]}?", "filename": path.as_posix(), "root": "written"}
        tasks.append(Task(f"written-{number}", "auto_explore", "2", "written", data))
    return tasks, {"repos_dir": folder}


def _games(folder: Path, files: int, seed: int, progress: Progress) -> Problems:
    """A game of each type."""
    from reflectkit.envs.alfworld.games import TYPES, task
    from reflectkit.envs.alfworld.problems import Maker

    return [task(game) for game in Maker(folder, seed, ()).make(len(TYPES), progress)], {"games_dir": folder}


def _conversations(folder: Path, files: int, seed: int, progress: Progress) -> Problems:
    """Conversations of 8 chunks."""
    from reflectkit.envs.memory.generate import conversation

    return [conversation(number, 8, "short", seed) for number in range(COUNT)], {}


def _requests(folder: Path, files: int, seed: int, progress: Progress) -> Problems:
    """Single requests of users of a generated shop."""
    from reflectkit.envs.support.shop import CUSTOMERS, shop
    from reflectkit.envs.support.tasks import ONE, make_task, source_of

    source = source_of(seed % 2**31, CUSTOMERS)
    database = shop(source["seed"], CUSTOMERS)
    return [make_task(seed, number, ONE, database, source) for number in range(COUNT)], {}


GENERATORS: dict[str, Callable[[Path, int, int, Progress], Problems]] = {
    "auto_explore": _repository,
    "alfworld": _games,
    "memory": _conversations,
    "support": _requests,
}
