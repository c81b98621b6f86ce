"""Files of ALFWorld games, the benchmark's own or generated: which there are, which can be played,
and their tasks.

A game is `ROOT/json_2.1.1/SPLIT/TYPE-Object-Mrecep-Receptacle-FLOOR/trial_NAME/` with
`traj_data.json` and `game.tw-pddl`. Benchmark folders without the second file are no games: they
could not be won.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal, TypeVar, get_args

from pydantic import Field

from reflectkit.envs.alfworld.engine import GAME, RECORD
from reflectkit.errors import DataError
from reflectkit.jsonl import read_json
from reflectkit.types import Task, from_json

ENV = "alfworld"
FOLDER = "games"
"""Default folder of the games, in the env's data folder."""
VERSION = "json_2.1.1"
DOWNLOAD = "run `alfworld-download -f`"
SPLITS = ("train", "valid_train", "valid_seen", "valid_unseen")
Type = Literal[
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
]
TYPES: tuple[str, ...] = get_args(Type)
PLACE, LOOK, CLEAN, HEAT, COOL, TWO = TYPES
NAME = re.compile(r"[\w.-]{1,255}(/[\w.-]{1,255}){0,7}", re.ASCII)  # of a game, in its task
WORDING = "move {o} to {r}"  # "put {o} in/on {r}" in downloads before 0.4
Contents = TypeVar("Contents")


@dataclass(frozen=True)
class Parameters:
    """The objects of a goal: kinds, or "" where the goal has none."""

    object_target: str
    parent_target: str
    toggle_target: str
    mrecep_target: str
    object_sliced: Literal[False]
    """The benchmark leaves slices out."""


@dataclass(frozen=True)
class Scene:
    """The room."""

    floor_plan: Annotated[str, Field(pattern=r"^FloorPlan\d{1,3}$")]


@dataclass(frozen=True)
class Generation:
    """How a generated game came about. thrown: why earlier draws were discarded. won_by:
    "handcoded" or "planner".
    """

    seed: int
    number: int
    thrown: list[str]
    won_by: str


@dataclass(frozen=True)
class GameRecord:
    """The contents of traj_data.json."""

    task_type: Type
    pddl_params: Parameters
    scene: Scene
    generation: Generation | None = None


@dataclass(frozen=True)
class Playable:
    """The contents of game.tw-pddl. walkthrough: the commands that win."""

    pddl_domain: str
    pddl_problem: str
    grammar: str
    solvable: Literal[True]
    walkthrough: list[str] | None = None


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether a TYPE-… folder's name matches a glob, which may leave out the floor; without globs,
    every name does.

    >>> matches("pick_and_place_simple-Tomato-None-Microwave-13", ["pick_and_place_simple-Tomato-*-Microwave"])
    True
    """
    if not patterns:
        return True
    return any(fnmatchcase(name, glob) or fnmatchcase(name, f"{glob}-*") for glob in patterns)


def find(
    root: Path,
    patterns: Sequence[str] = (),
    splits: Sequence[str] = SPLITS,
) -> list[Path]:
    """The folders of the games in `root` whose TYPE-… name matches, by split and name. Raises
    DataError if there are none.
    """
    # 1. The games in the folders of goals
    types = []
    for split in splits:
        types += _subfolders(root / VERSION / split)
    games = []
    for folder in types:
        if matches(folder.name, patterns):
            games += _subfolders(folder)
    # 2. None: say what there is
    if not games:
        fix = (
            f"run `alfworld-download --data-dir {root} -f`, or name another folder or other --games"
        )
        names = ", ".join(folder.name for folder in types[:3]) or "none"
        raise DataError(root / VERSION, f"holds no such game; there are {names}, …; {fix}")
    return games


def inside(root: Path, name: object) -> Path | None:
    """The folder of the game called `name` in `root`; None for an invalid name, or a way out of
    `root`.
    """
    # A task file may come from anywhere
    if not isinstance(name, str) or not NAME.fullmatch(name) or ".." in name.split("/"):
        return None
    return (root / name).resolve()


def task(folder: Path) -> Task:
    """The game in `folder` as a task. Raises DataError if a file is missing or broken, or the game
    cannot be won.
    """
    record, _ = read(folder)
    split, name = folder.parent.parent.name, f"{folder.parent.name}/{folder.name}"
    data = {"game": f"{VERSION}/{split}/{name}", "room": record.scene.floor_plan, "split": split}
    return Task(name, ENV, record.task_type, name, data)


def read(folder: Path) -> tuple[GameRecord, Playable]:
    """The contents of traj_data.json and game.tw-pddl in `folder`. Raises DataError."""
    name = f"{folder.parent.name}/{folder.name}"
    if "movable" in name or "Sliced" in name:
        raise DataError(
            folder, "movable receptacles and slices are left out, as the benchmark leaves them out"
        )
    # Both files, in the form of the current package
    record, playable = _read(GameRecord, folder / RECORD), _read(Playable, folder / GAME)
    if WORDING not in playable.grammar:
        raise DataError(
            folder / GAME,
            f"does not say `{WORDING}`, as downloads before 0.4; {DOWNLOAD}",
            field="grammar",
        )
    return record, playable


def room_kind(room: str) -> str:
    """The kind of a room: "FloorPlan203" without its last two digits. Kitchens have no digit left,
    living rooms 2, bedrooms 3, bathrooms 4.
    """
    return room[:-2] if room[-3:].isdigit() else room.rstrip("0123456789")


def _subfolders(folder: Path) -> list[Path]:
    """The folders in `folder` by name, without hidden ones."""
    entries = folder.iterdir() if folder.is_dir() else ()
    return sorted(path for path in entries if path.is_dir() and not path.name.startswith("."))


def _read(kind: type[Contents], path: Path) -> Contents:
    if not path.is_file():
        raise DataError(
            path, f"is missing, as for games that the benchmark leaves out, or no file; {DOWNLOAD}"
        )
    return from_json(kind, read_json(path, DOWNLOAD), path=path)
