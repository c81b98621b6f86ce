"""ALFWorld's games: the rooms, what is drawn in them, that it can be won, and reading folders that anyone may have
damaged.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from reflectkit.cli.main import main
from reflectkit.console import Quiet
from reflectkit.data.problems import Record, record_to_json
from reflectkit.envs.alfworld import games
from reflectkit.envs.alfworld.games import LOOK, TWO, TYPES
from reflectkit.envs.alfworld.generate import TOOLS, DrawnGame, draw, table
from reflectkit.envs.alfworld.problems import Maker, Solution, find_solution
from reflectkit.errors import ConfigError, DataError
from reflectkit.eventloop import run_sync
from reflectkit.jsonl import locked, read_json, write_json
from reflectkit.types import Task
from tests.household import write_games

pytest.importorskip("alfworld", reason="the engine is not installed: pip install 'reflectkit[alfworld]'")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six games of our own, one a type, by the command."""
    folder = tmp_path_factory.mktemp("alfworld")
    assert gen(folder, "--instances", "6") == 0
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Twelve small games in the benchmark's layout."""
    write_games(tmp_path / "bench")
    return tmp_path / "bench"


def gen(folder: Path, *flags: str, stage: str = "gen-task") -> int:
    common = ["--env", "alfworld", "--data-dir", str(folder / "data"), "--results-dir", str(folder / "results")]
    return main([stage, *common, *flags])


def facts(game: DrawnGame, name: str) -> list[list[str]]:
    """The arguments of each fact `name` that holds at the start."""
    return [found.split() for found in re.findall(rf"^\({name} ([^()]*)\)$", game.problem, re.MULTILINE)]


# ------------------------------------------------------------------------------------------------------ rooms and draws


@pytest.mark.parametrize("level", TYPES)
def test_a_draw_keeps_the_rules(level: str) -> None:
    holds, able = table("constants").VAL_RECEPTACLE_OBJECTS, table("constants").VAL_ACTION_OBJECTS
    for number in range(10):
        game = draw(3, number, 0, level)
        goal, kind_of = game.goal, {name: kind.removesuffix("Type") for name, kind in facts(game, "objectType")}
        place_of = {name: kind.removesuffix("Type") for name, kind in facts(game, "receptacleType")}
        lies = {item: place_of[place] for item, place in facts(game, "inReceptacle")}
        assert lies.keys() == kind_of.keys()
        wanted = [item for item, kind in kind_of.items() if kind == goal.item]
        assert len(wanted) >= (2 if level == TWO else 1)
        assert goal.receptacle not in {lies[item] for item in wanted} or level == LOOK
        assert goal.room.kind in table("constants").GOALS_VALID[level]
        for item, place in lies.items():
            assert kind_of[item] == "DeskLamp" or kind_of[item] in holds[place]
        opening = {place for (place,) in facts(game, "openable")}
        assert {place for (place,) in facts(game, "opened")} <= opening
        if level == LOOK:
            lamps = [item for item, kind in kind_of.items() if kind == "DeskLamp"]
            assert len(lamps) == 1
            assert [lamps] == facts(game, "toggleable")
            assert lamps not in facts(game, "pickupable")
        if level in TOOLS:
            assert goal.item in able[TOOLS[level][0]]
            assert TOOLS[level][1] in place_of.values()
        assert game.problem.count("(") == game.problem.count(")")
        assert goal.item.lower() in game.trajectory["turk_annotations"]["anns"][0]["task_desc"]
        assert game.trajectory["turk_annotations"]["anns"][0]["task_desc"] in game.grammar


# ------------------------------------------------------------------------------------------------------------- winnable


def test_games_of_every_type_are_made_and_won(made: Path) -> None:
    records = read_json(made / "data" / "alfworld" / "data.json")
    assert [record["level"] for record in records] == list(TYPES)
    for record in records:
        folder = made / "data" / "alfworld" / "games" / record["data"]["game"]
        assert games.task(folder).data == record["data"]
        _, playable = games.read(folder)
        assert playable.pddl_problem == (folder / "initial_state.pddl").read_text()
        assert playable.walkthrough
        assert run_sync(find_solution(folder)).walkthrough == tuple(playable.walkthrough)


def make(folder: Path, number: int, *answers: Solution) -> list[Path]:
    """Games with a lamp, whose solutions are `answers`, the last of them for ever."""
    left = list(answers)

    async def find(_: Path) -> Solution:
        with pytest.raises(ConfigError, match="another process is working on"), locked(folder, patience_s=0):
            pass
        return left.pop(0) if len(left) > 1 else left[0]

    return Maker(folder, 0, ("look_at*",), find).make(number, Quiet())


WON = Solution(("look",), "planner")


def test_what_cannot_be_won_is_drawn_again_and_counted(tmp_path: Path) -> None:
    (tmp_path / ".reflectkit-tmp-trial_G0_9").mkdir()  # a killed run's
    (game,) = make(tmp_path, 1, Solution(reason="there is no plan"), WON)
    assert game.name.rpartition("_")[2] == "0"
    making = read_json(game / "traj_data.json")["generation"]
    assert making == {"seed": 0, "number": 0, "thrown": ["there is no plan"], "won_by": "planner"}
    assert make(tmp_path, 2, Solution(reason="too long")) == [game]  # the second was given up after 20 draws
    assert [path.name for path in tmp_path.glob(".*")] == [".lock"]


# ------------------------------------------------------------------------------------------------- a benchmark's folder


def test_games_are_found_by_split_and_pattern(root: Path) -> None:
    assert len(games.find(root)) == 12
    shutil.copytree(root / "json_2.1.1" / "train", root / "json_2.1.1" / "valid_seen")
    assert [path.parent.parent.name for path in games.find(root)] == ["train"] * 12 + ["valid_seen"] * 12
    found = games.find(root, ("*-Tomato-*-Microwave", "look_at*"), ("valid_seen",))
    assert [path.parent.name for path in found] == [
        f"{name}-{floor}" for name in ("look_at_obj_in_light-Book-None-DeskLamp",
        "pick_and_place_simple-Tomato-None-Microwave") for floor in (1, 2)
    ]  # fmt: skip
    task = games.task(found[0])
    assert task.id == task.group == "look_at_obj_in_light-Book-None-DeskLamp-1/trial_T0"
    assert task.data == {"game": f"json_2.1.1/valid_seen/{task.id}", "room": "FloorPlan1", "split": "valid_seen"}
    with pytest.raises(DataError, match="holds no such game; there are look_at_obj_in_light"):
        games.find(root, ("nothing",))


# ---------------------------------------------------------------------------------------------------------------- split


def split_of(tmp_path: Path, *flags: str) -> dict[str, list[dict[str, Any]]]:
    """Games of six types in ten rooms of two kinds, split."""
    tasks = [
        Task(
            f"g{number}",
            "alfworld",
            TYPES[number % 6],
            f"g{number}",
            {"room": f"FloorPlan{number % 10 + 200 * (number % 2)}"},
        )
        for number in range(120)
    ]
    source = tmp_path / "data" / "alfworld" / "data_reflection_negative.json"
    write_json(source, [record_to_json(Record(task, ())) for task in tasks])
    assert gen(tmp_path, *flags, stage="split") == 0
    return {path.stem: read_json(path) for path in source.parent.glob("*.json") if path != source}


def test_unseen_rooms_are_seen_nowhere_else(tmp_path: Path) -> None:
    parts = split_of(tmp_path, "--unseen-rooms", "0.2")
    rooms_of = {name: {record["data"]["room"] for record in part} for name, part in parts.items()}
    assert sorted(games.room_kind(room) for room in rooms_of["unseen"]) == [
        "FloorPlan",
        "FloorPlan2",
    ]  # 0.2 of five each
    assert not rooms_of["unseen"] & (rooms_of["train"] | rooms_of["validate"] | rooms_of["test"])
    assert sum(map(len, parts.values())) == 120
    assert "unseen" not in split_of(tmp_path)  # rooms that were held out are in train now
