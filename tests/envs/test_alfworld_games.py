"""ALFWorld's games: the rooms, what is drawn in them, that it can be won, and reading folders that anyone may have
damaged.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reflectkit.cli.main import main
from reflectkit.console import Quiet
from reflectkit.data.trajectories import Record, record_to_json
from reflectkit.envs.alfworld import games
from reflectkit.envs.alfworld.games import LOOK, TWO, TYPES
from reflectkit.envs.alfworld.generate import TOOLS, DrawnGame, draw, goals, levels, rooms, table
from reflectkit.envs.alfworld.pool import Engine, Pool
from reflectkit.envs.alfworld.problems import Maker, Solution, find_solution
from reflectkit.errors import ConfigError, DataError
from reflectkit.eventloop import run_sync
from reflectkit.jsonl import locked, read_json, write_json
from reflectkit.types import Task
from tests.household import write_games

pytest.importorskip("alfworld", reason="the engine is not installed: pip install 'reflectkit[alfworld]'")
T, G = "traj_data.json", "game.tw-pddl"
FIXED = {"Kitchen": {"Fridge", "Microwave", "SinkBasin", "StoveBurner", "CounterTop", "Cabinet", "Toaster",
    "GarbageCan"}, "LivingRoom": {"Sofa", "GarbageCan"}, "Bedroom": {"Bed", "GarbageCan"}, "Bathroom": {"Toilet",
    "SinkBasin", "ToiletPaperHanger", "GarbageCan"}}  # fmt: skip


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


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def facts(game: DrawnGame, name: str) -> list[list[str]]:
    """The arguments of each fact `name` that holds at the start."""
    return [found.split() for found in re.findall(rf"^\({name} ([^()]*)\)$", game.problem, re.MULTILINE)]


# ------------------------------------------------------------------------------------------------------ rooms and draws


def test_every_floor_plan_is_a_room_as_the_benchmark_has_them() -> None:
    assert Counter(room.kind for room in rooms()) == dict.fromkeys(FIXED, 30)
    for room in rooms():
        there = Counter(receptacle.kind for receptacle in room.receptacles)
        assert set(there) >= FIXED[room.kind], room.name
        assert len({receptacle.name for receptacle in room.receptacles}) == len(room.receptacles)
        assert {item.kind for item in room.receptacles if item.opens} <= table("constants").OPENABLE_CLASS_SET
        assert not {receptacle.pose for receptacle in room.receptacles} & set(room.starts)
    assert Counter(item.kind for item in rooms()[0].receptacles)["StoveBurner"] == 4


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


def test_a_draw_is_a_function_of_its_arguments() -> None:
    first = draw(0, 4, 0, TWO)
    assert first.files(("look",)) == draw(0, 4, 0, TWO).files(("look",))
    others = [draw(1, 4, 0, TWO), draw(0, 5, 0, TWO), draw(0, 4, 1, TWO)]
    assert len({game.problem.partition("\n")[2] for game in [first, *others]}) == 4


def test_patterns_narrow_the_goals() -> None:
    tomato = ("pick_and_place_simple-Tomato-*-Microwave",)
    assert levels(tomato) == ("pick_and_place_simple",)
    assert {(goal.item, goal.receptacle) for goal in goals(TYPES[0], tomato)} == {("Tomato", "Microwave")}
    assert levels(("*-Egg-*-Fridge",)) == tuple(level for level in TYPES if "cool" not in level and level != LOOK)
    with pytest.raises(ConfigError, match="no game that matches --games Tomato"):
        levels(("Tomato",))


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


def test_fewer_games_are_the_same_games_and_a_lost_one_is_made_again(made: Path, tmp_path: Path) -> None:
    assert gen(tmp_path, "--instances", "2") == 0
    ours, all_six = tmp_path / "data" / "alfworld" / "games", contents(made / "data" / "alfworld" / "games")
    first_two = contents(ours)
    assert first_two.items() <= all_six.items()
    lost = next(ours.glob("*/*/*/trial_G0_1"))
    shutil.rmtree(lost)
    kept = next(ours.glob("*/*/*/trial_G0_0")) / "game.tw-pddl"
    before = kept.stat().st_mtime_ns
    assert gen(tmp_path, "--instances", "2") == 0
    assert contents(ours) == first_two
    assert kept.stat().st_mtime_ns == before


def test_a_game_that_was_damaged_since_is_named(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(made / "data", tmp_path / "data")
    folder = next((tmp_path / "data" / "alfworld" / "games").glob("*/*/*/trial_G0_1"))
    (folder / T).write_bytes((folder / T).read_bytes().replace(b"generation", b"creation"))
    assert gen(tmp_path, "--instances", "6") == 2
    assert "does not say how it was generated); delete this folder and run the same" in capsys.readouterr().err
    shutil.rmtree(folder)
    assert gen(tmp_path, "--instances", "6") == 0
    assert contents(tmp_path / "data") == contents(made / "data")


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
    making = read_json(game / T)["generation"]
    assert making == {"seed": 0, "number": 0, "thrown": ["there is no plan"], "won_by": "planner"}
    assert make(tmp_path, 2, Solution(reason="too long")) == [game]  # the second was given up after 20 draws
    assert [path.name for path in tmp_path.glob(".*")] == [".lock"]


def test_a_game_like_another_is_not_kept(tmp_path: Path) -> None:
    (first,) = make(tmp_path, 1, WON)
    first.rename(first.with_name(first.name.removesuffix("0") + "1"))  # game 1 is now what game 0 would be
    assert read_json(make(tmp_path, 2, WON)[0] / T)["generation"]["thrown"] == ["like another game"]


def test_a_game_without_solution_has_a_reason(root: Path) -> None:
    folder = next(root.glob("*/*/pick_and_place_simple*-1/*"))
    playable = read_json(folder / "game.tw-pddl")
    playable["pddl_problem"] = re.sub(r"\(canContain MicrowaveType \w+\)", "", playable["pddl_problem"])
    (folder / "game.tw-pddl").write_text(json.dumps(playable))
    assert "cannot be won" in run_sync(find_solution(folder)).reason


def strike(monkeypatch: pytest.MonkeyPatch, blow: signal.Signals, engines: int) -> list[Engine]:
    """Whoever takes one of the first `engines` gets it with `blow` already struck. Returns those taken, as they are
    taken.
    """
    taken: list[Engine] = []
    real = Pool.take

    def take(pool: Pool, folder: Path) -> Engine:
        taken.append(engine := real(pool, folder))
        if len(taken) <= engines:
            os.kill(run_sync(engine.start()), blow)
        return engine

    monkeypatch.setattr(Pool, "take", take)
    return taken


def test_where_an_engine_dies_another_one_proves_the_game(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = strike(monkeypatch, signal.SIGKILL, 1)
    assert run_sync(find_solution(next(root.glob("*/*/pick_and_place_simple*-1/*")))).by == "handcoded"
    assert [engine.alive for engine in taken] == [False, True]


def test_where_two_engines_hang_the_reason_says_so(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = strike(monkeypatch, signal.SIGSTOP, 2)
    solution = run_sync(find_solution(next(root.glob("*/*/pick_and_place_simple*-1/*")), seconds=0.1))
    assert solution.reason == "the engine has not answered 'reset' within 0.1 s, and was stopped"
    assert [engine.alive for engine in taken] == [False, False]


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
    with pytest.raises(DataError, match="no game matches --games nothing; there are look_at_obj_in_light"):
        games.find(root, ("nothing",))


def test_links_out_of_the_folder_are_no_games(root: Path, tmp_path: Path) -> None:
    train = root / "json_2.1.1" / "train"
    outside = tmp_path / "outside"
    shutil.copytree(next(train.glob("look*-1")), outside)
    (train / "look_at_obj_in_light-Book-None-DeskLamp-9").symlink_to(outside)
    inside = next(train.glob("pick_two*-1"))
    (inside / "trial_again").symlink_to(inside / "trial_T0")
    assert len(games.find(root)) == 13
    (tmp_path / "linked").symlink_to(root)
    assert len(games.find(tmp_path / "linked")) == 13


def edit(name: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        value = read_json(folder / name)
        change(value)
        (folder / name).write_text(json.dumps(value))

    return damage


def huge(folder: Path) -> None:
    with (folder / T).open("wb") as file:
        file.truncate(20_000_001)


def linked(folder: Path) -> None:
    (folder / G).rename(folder.parents[3] / "away.json")
    (folder / G).symlink_to(folder.parents[3] / "away.json")


def old_wording(value: dict[str, Any]) -> None:
    value["grammar"] = value["grammar"].replace("move {o} to", "put {o} in/on")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda folder: (folder / G).unlink(), "is missing"),
        (huge, "has over 20 MB"),
        (linked, "is a link out"),
        (edit(T, lambda value: value.update(task_type="pick_and_fly")), "field 'task_type'"),
        (edit(T, lambda value: value["pddl_params"].update(object_sliced=True)), "field 'pddl_params.object_sliced'"),
        (edit(T, lambda value: value.update(scene={"floor_plan": "../FloorPlan1"})), "field 'scene.floor_plan'"),
        (edit(G, lambda value: value.pop("pddl_problem")), "field 'pddl_problem'"),
        (edit(G, lambda value: value.update(solvable=None)), "field 'solvable'"),
        (edit(G, old_wording), "before 0.4"),
    ],
)
def test_what_is_wrong_with_a_game_is_said(root: Path, damage: Callable[[Path], object], reason: str) -> None:
    folder = games.find(root)[0]
    assert games.task(folder)
    damage(folder)
    with pytest.raises(DataError, match=reason):
        games.task(folder)


@pytest.mark.parametrize(
    "name", ["pick_and_place_with_movable_recep-Book-None-Desk-1", "pick_and_place_simple-AppleSliced-None-Desk-1"]
)
def test_games_are_refused_by_name_as_the_benchmark_does(root: Path, name: str) -> None:
    folder = games.find(root)[0]
    folder.parent.rename(folder.parent.with_name(name))
    with pytest.raises(DataError, match="movable receptacles and slices"):
        games.task(folder.parent.with_name(name) / folder.name)


@pytest.mark.parametrize("name", ["/etc", "", "..", "a/../../b", "a\0b", 7, "\ud800", "a" * 300, "a/" * 999])
def test_a_name_of_a_game_leads_nowhere_else(tmp_path: Path, name: object) -> None:
    assert games.inside(tmp_path, name) is None
    assert games.inside(tmp_path, "train/game") == (tmp_path / "train" / "game").resolve()


@given(name=st.sampled_from([T, G]), share=st.floats(0, 1, exclude_max=True), rubbish=st.binary(max_size=8))
@settings(max_examples=30, deadline=None)
def test_a_damaged_file_is_a_reason_and_never_a_crash(
    tmp_path_factory: pytest.TempPathFactory, name: str, share: float, rubbish: bytes
) -> None:
    base = tmp_path_factory.getbasetemp() / "damaged"
    if not base.exists():
        write_games(base)
    folder = games.find(base)[0]
    whole = (folder / name).read_bytes()
    try:
        (folder / name).write_bytes(whole[: int(share * len(whole))] + rubbish)
        with pytest.raises(DataError):
            games.task(folder)
    finally:
        (folder / name).write_bytes(whole)


def test_the_valid_splits_are_listed_each_and_together(root: Path, tmp_path: Path) -> None:
    for split, pattern in (
        ("valid_train", "look*"),
        ("valid_seen", "*simple*"),
        ("valid_unseen", "*two*"),
        ("tests_seen", "*heat*"),
    ):
        for folder in games.find(root, (pattern,), ("train",)):
            shutil.copytree(folder, root / "json_2.1.1" / split / folder.parent.name / f"{folder.name}_{split}")
    again = next(root.glob("json_2.1.1/train/*/*"))  # a game of train
    shutil.copytree(again, root / "json_2.1.1" / "valid_train" / again.parent.name / again.name)
    assert gen(tmp_path, "--games-dir", str(root)) == 0
    listed = {path.stem: read_json(path) for path in (tmp_path / "data" / "alfworld").glob("*.json")}
    assert {name: len(records) for name, records in listed.items()} == {
        "data": 12, "valid_train": 3, "valid_seen": 2, "valid_unseen": 2, "valid": 6,
    }  # fmt: skip
    every = listed["valid_train"] + listed["valid_seen"] + listed["valid_unseen"]
    assert listed["valid"] == [record for record in every if record["id"] not in {one["id"] for one in listed["data"]}]


def test_what_the_benchmark_has_no_game_of_is_left_out_and_left_alone(root: Path, tmp_path: Path) -> None:
    train = root / "json_2.1.1" / "train"
    for folder in games.find(root)[:11]:
        (folder / G).unlink()
    before = contents(root)
    assert gen(tmp_path, "--games-dir", str(root)) == 0
    assert contents(root) == before
    figures = read_json(tmp_path / "results" / "1_gen-task" / "report.json")["figures"]
    assert figures["games"] == 1
    ((reason, names),) = figures["left_out"].items()
    assert reason.startswith("game.tw-pddl: is missing")
    assert names == [f"train/{folder.relative_to(train)}" for folder in games.find(root)[:11]]


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--games-dir", "nowhere"], "nowhere: has no json_2.1.1; name the folder that `alfworld-download` filled"),
        (["--games-dir", "bench", "--games", "x"], "no game matches --games x"),
        (["--games", "x"], "no game that matches --games x can be made"),
        (["--games-dir", "bench", "--instances", "3"], "leave one out"),
        (["--teacher", "openai:gpt-4o"], "games are generated without a teacher"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flags: list[str], told: str
) -> None:
    monkeypatch.chdir(root.parent)
    assert main(["gen-task", "--env", "alfworld", *flags]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


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


def test_types_are_balanced_in_every_split(tmp_path: Path) -> None:
    parts = split_of(tmp_path)
    assert {name: Counter(record["level"] for record in part) for name, part in parts.items()} == {
        "train": dict.fromkeys(TYPES, 14), "validate": dict.fromkeys(TYPES, 4), "test": dict.fromkeys(TYPES, 2),
    }  # fmt: skip


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
