"""A folder of ALFWorld games, the benchmark's own or ours: which games are there, which can be played, and the task of
each.

A game is `ROOT/json_2.1.1/SPLIT/TYPE-Object-Mrecep-Receptacle-FLOOR/trial_NAME/` with `traj_data.json` and
`game.tw-pddl`. The benchmark's folders without the latter are no games: nobody won them. `json_2.1.1` may be a link;
what is in it stays in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from os.path import realpath
from pathlib import Path
from typing import Any

from reflectkit.envs.alfworld.engine import GAME, RECORD
from reflectkit.envs.alfworld.expert import TYPES
from reflectkit.envs.alfworld.package import BLANK
from reflectkit.errors import DataError
from reflectkit.jsonl import read_json
from reflectkit.types import Task

ENV = "alfworld"
FOLDER = "games"
"""Default folder of the games, in the env's data folder."""
VERSION = "json_2.1.1"
DOWNLOAD = "run `alfworld-download -f`"
SPLITS = ("train", "valid_train", "valid_seen", "valid_unseen")
PROBLEM = "initial_state.pddl"
LARGEST = 20_000_000  # bytes of a file
NAME = re.compile(r"[\w.-]{1,255}(/[\w.-]{1,255}){0,7}", re.ASCII)  # of a game, in its task
WORDING = "move {o} to {r}"  # "put {o} in/on {r}" in older downloads
PARAMETERS = ("object_target", "parent_target", "toggle_target", "mrecep_target")


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether a TYPE-… folder's name fits one of the globs, which may leave out the floor; without any, every name
    does.

    >>> matches("pick_and_place_simple-Tomato-None-Microwave-13", ["pick_and_place_simple-Tomato-*-Microwave"])
    True
    """
    return not patterns or any(fnmatchcase(name, glob) or fnmatchcase(name, f"{glob}-*") for glob in patterns)


def find(root: Path, patterns: Sequence[str] = (), splits: Sequence[str] = SPLITS) -> list[Path]:
    """The folders of the games in `root` whose TYPE-… name matches, by split and name; links that lead out of it are
    not taken.

    Raises DataError: no such folder, no games of that layout in it, or none that matches (it names some that are
    there).
    """
    base = root / VERSION
    if not root.is_dir():
        raise DataError(root, "no such folder; name the one that `alfworld-download` filled, or leave --games-dir out")
    if not base.is_dir() and root.absolute().name == VERSION:
        raise DataError(root, f"name the folder that {VERSION} lies in: --games-dir {root.absolute().parent}")
    if not base.is_dir():
        raise DataError(
            root, f"holds no {VERSION}; run `alfworld-download --data-dir {root}`, or name another --games-dir"
        )
    all_games = [game for split in splits for game in _folders(base / split, root)]
    if not all_games:
        raise DataError(base, f"holds no game of {', '.join(splits)}; run `alfworld-download --data-dir {root} -f`")
    matching = [game for game in all_games if matches(game.parent.name, patterns)]
    if not matching:
        names = ", ".join(sorted({game.parent.name for game in all_games})[:3])
        raise DataError(base, f"no game matches --games {' '.join(patterns)}; there are {names}, …")
    return matching


def inside(root: Path, name: object) -> Path | None:
    """The folder of the game called `name` in `root`, links followed; None for what is no name, or leads out
    of `root`.
    """
    if not isinstance(name, str) or not NAME.fullmatch(name) or ".." in name.split("/"):
        return None
    return Path(realpath(root / name)) if _stays(root / name, root) else None


def usable(folder: Path) -> Task | str:
    """The task of the game in `folder`, or why it cannot be used."""
    try:
        return task(folder)
    except DataError as error:
        return str(error).removeprefix(f"{folder}/").removeprefix(f"{folder}: ")


def task(folder: Path) -> Task:
    """The task that the game in `folder` is. Raises DataError: a file is missing or broken, or the game
    cannot be won.
    """
    name, trial = folder.parent.name, folder.name
    trajectory, _ = read(folder)
    split = folder.parent.parent.name
    data = {
        "game": f"{VERSION}/{split}/{name}/{trial}",
        "room": trajectory["scene"]["floor_plan"],
        "split": split,
    }
    return Task(f"{name}/{trial}", ENV, trajectory["task_type"], f"{name}/{trial}", data)


def read(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The validated contents of traj_data.json and game.tw-pddl in `folder`. Raises DataError."""
    name = f"{folder.parent.name}/{folder.name}"
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name, re.ASCII):
        raise DataError(
            folder, "the name has characters other than letters, digits, '_', '-' and '.'; rename the folder"
        )
    if "movable" in name or "Sliced" in name:
        raise DataError(folder, "movable receptacles and slices are left out, as the benchmark leaves them out")
    trajectory = _object(folder / RECORD)
    _check_trajectory(trajectory, folder / RECORD)
    if not (folder / GAME).exists():
        raise DataError(
            folder / GAME, "is missing, as for what the benchmark leaves out; run `alfworld-download` if all lack it"
        )
    playable = _object(folder / GAME)
    _check_playable(playable, folder / GAME)
    return trajectory, playable


def room_kind(room: str) -> str:
    """What "FloorPlan203" begins with but for its last two digits: kitchens have none, and living rooms 2, bedrooms 3,
    …
    """
    return room[:-2] if room[-3:].isdigit() else room.rstrip("0123456789")


def _folders(split: Path, root: Path) -> Iterator[Path]:
    for named in _visible(split):
        yield from (trial for trial in _visible(named) if _stays(trial, root))


def _stays(folder: Path, root: Path) -> bool:
    """Whether `folder`, with links resolved, is in `root` or in the target of its link `json_2.1.1`."""
    homes = {Path(realpath(root)), Path(realpath(root / VERSION))}
    return not homes.isdisjoint(Path(realpath(folder)).parents)


def _visible(folder: Path) -> list[Path]:
    there = folder.iterdir() if folder.is_dir() else ()
    return sorted(path for path in there if path.is_dir() and not path.name.startswith("."))


def _checked(path: Path) -> Path:
    """`path`, if it is readable. Raises DataError."""
    if not path.is_file():
        raise DataError(path, f"is missing or no file; {DOWNLOAD}")
    if path.resolve().parent != path.parent.resolve():
        raise DataError(path, "is a link out of the game's folder; put the file itself there")
    if not path.stat().st_size:
        raise DataError(path, f"is empty; {DOWNLOAD}")
    if path.stat().st_size > LARGEST:
        raise DataError(path, f"has over {LARGEST // 10**6} MB; this is no game")
    return path


def _object(path: Path) -> dict[str, Any]:
    try:
        value = read_json(_checked(path), DOWNLOAD)
    except OSError as error:
        raise DataError(path, f"cannot be read ({error.strerror}); change its permissions") from None
    if not isinstance(value, dict):
        raise DataError(path, f"expected a JSON object, found {type(value).__name__}")
    return value


def _check_trajectory(value: dict[str, Any], path: Path) -> None:
    if value.get("task_type") not in TYPES:
        raise DataError(path, f"{value.get('task_type')!r} is none of {', '.join(TYPES)}", field="task_type")
    parameters, scene = value.get("pddl_params"), value.get("scene")
    if not isinstance(parameters, dict) or not all(isinstance(parameters.get(name), str) for name in PARAMETERS):
        raise DataError(path, f"expected text for each of {', '.join(PARAMETERS)}", field="pddl_params")
    if parameters.get("object_sliced") is not False:
        raise DataError(
            path, "slices are left out, as the benchmark leaves them out", field="pddl_params.object_sliced"
        )
    room = scene.get("floor_plan") if isinstance(scene, dict) else None
    if not isinstance(room, str) or not re.fullmatch(r"FloorPlan\d{1,3}", room, re.ASCII):
        raise DataError(path, f"expected a name like FloorPlan7, found {room!r}", field="scene.floor_plan")


def _check_playable(value: dict[str, Any], path: Path) -> None:
    for name in ("pddl_domain", "grammar", "pddl_problem"):
        if not isinstance(value.get(name), str):
            raise DataError(path, f"expected text, found {type(value.get(name)).__name__}", field=name)
    for name in ("pddl_domain", "pddl_problem"):
        code = re.sub(r";[^\n]*", "", value[name]).strip()
        if not re.match(r"\(\s*define\b", code) or code.count("(") != code.count(")"):
            raise DataError(path, "no PDDL, or cut off", field=name)
    if not value["grammar"].strip() or BLANK in value["grammar"]:
        raise DataError(path, "the grammar does not say the task; run `alfworld-generate`", field="grammar")
    if WORDING not in value["grammar"]:
        raise DataError(path, f"does not say `{WORDING}`, as downloads before 0.4; {DOWNLOAD}", field="grammar")
    if value.get("solvable") is not True:
        raise DataError(
            path, "the game cannot be won, or nobody knows; `alfworld-generate` finds out", field="solvable"
        )
    steps = value.get("walkthrough")
    if steps is not None and not (isinstance(steps, list) and all(isinstance(step, str) for step in steps)):
        raise DataError(path, "expected a list of commands", field="walkthrough")
