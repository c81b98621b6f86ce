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
from reflectkit.envs.alfworld.expert import LOOK, TWO, TYPES
from reflectkit.envs.alfworld.generate import TOOLS, Game, draw, goals, levels
from reflectkit.envs.alfworld.layouts import rooms
from reflectkit.envs.alfworld.package import table
from reflectkit.envs.alfworld.pool import Engine, Pool
from reflectkit.envs.alfworld.problems import Maker
from reflectkit.envs.alfworld.solution import Solution, find_solution
from reflectkit.errors import ConfigError, DataError
from reflectkit.jsonl import read_json, write_json
from reflectkit.runs.locks import locked
from reflectkit.types import Task
from tests.household import write_games

pytest.importorskip("alfworld", reason="the engine is not installed: pip install 'reflectkit[alfworld]'")
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


def facts(game: Game, name: str) -> list[list[str]]:
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
        assert not {receptacle.place for receptacle in room.receptacles} & set(room.places)
    assert Counter(item.kind for item in rooms()[0].receptacles)["StoveBurner"] == 4


@pytest.mark.parametrize("level", TYPES)
def test_a_draw_keeps_the_rules(level: str) -> None:
    holds, able = table("constants").VAL_RECEPTACLE_OBJECTS, table("constants").VAL_ACTION_OBJECTS
    for number in range(25):
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
        assert isinstance(games.usable(folder), Task)
        trajectory, playable = games.read(folder)
        assert playable["pddl_problem"] == (folder / "initial_state.pddl").read_text()
        assert trajectory["scene"]["floor_plan"] == record["data"]["room"]
        assert playable["walkthrough"]
        assert find_solution(folder).walkthrough == tuple(playable["walkthrough"])


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


@pytest.mark.parametrize(
    ("name", "damage", "reason"),
    [
        ("game.tw-pddl", b"{", "game.tw-pddl:1: not JSON"),
        ("traj_data.json", b"\xff", "traj_data.json: not UTF-8"),
        ("traj_data.json", None, "does not say how it was generated"),
    ],
)
def test_a_game_that_was_damaged_since_is_named(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, damage: bytes | None, reason: str
) -> None:
    shutil.copytree(made / "data", tmp_path / "data")
    folder = next((tmp_path / "data" / "alfworld" / "games").glob("*/*/*/trial_G0_1"))
    (folder / "initial_state.pddl").unlink()  # which nobody reads
    (folder / name).write_bytes((folder / name).read_bytes().replace(b"won_by", b"by") if damage is None else damage)
    assert gen(tmp_path, "--instances", "6") == 2
    error = capsys.readouterr().err
    assert reason in error
    assert error.endswith("delete this folder and run the same command again to recreate the game\n")
    shutil.rmtree(folder)
    assert gen(tmp_path, "--instances", "6") == 0
    assert contents(tmp_path / "data") == contents(made / "data")


def test_what_cannot_be_won_is_drawn_again_and_counted(tmp_path: Path) -> None:
    answers = iter(
        [Solution(reason="there is no plan"), Solution(("look",), "planner"), *[Solution(reason="too long")] * 20]
    )
    made = Maker(tmp_path, 0, ("look_at*",), lambda folder: next(answers))
    assert [folder.name.rpartition("_")[2] for folder in made.make(1, Quiet())] == ["0"]
    trajectory, _ = games.read(made.make(1, Quiet())[0])
    assert trajectory["generation"] == {"seed": 0, "number": 0, "thrown": ["there is no plan"], "won_by": "planner"}
    assert len(made.make(2, Quiet())) == 1  # the second was given up after 20 draws
    assert not list(tmp_path.glob(".reflectkit*"))


def test_games_are_made_by_one_process_at_a_time(tmp_path: Path) -> None:
    (tmp_path / ".reflectkit-tmp-trial_G0_9").mkdir()  # a killed one's

    def judge(folder: Path) -> Solution:
        with pytest.raises(ConfigError, match="another process is working on"), locked(tmp_path, patience_s=0):
            pass
        return Solution(("look",), "planner")

    assert len(Maker(tmp_path, 0, ("look_at*",), judge).make(1, Quiet())) == 1
    assert [path.name for path in tmp_path.glob(".*")] == [".lock"]


def test_a_game_like_another_is_not_kept(tmp_path: Path) -> None:
    def made(number: int) -> list[Path]:
        return Maker(tmp_path, 0, ("look_at*",), lambda folder: Solution(("look",), "planner")).make(number, Quiet())

    (first,) = made(1)
    first.rename(first.with_name(first.name.removesuffix("0") + "1"))  # game 1 is now what game 0 would be
    trajectory, _ = games.read(made(2)[0])
    assert trajectory["generation"]["thrown"] == ["like another game"]


def test_a_game_without_solution_has_a_reason(root: Path) -> None:
    folder = next(root.glob("*/*/pick_and_place_simple*-1/*"))
    assert find_solution(folder).by == "handcoded"
    playable = read_json(folder / "game.tw-pddl")
    playable["pddl_problem"] = re.sub(r"\(canContain MicrowaveType \w+\)", "", playable["pddl_problem"])
    (folder / "game.tw-pddl").write_text(json.dumps(playable))
    assert "cannot be won" in find_solution(folder).reason
    (folder / "game.tw-pddl").write_text(json.dumps(playable | {"pddl_problem": "(define (problem x) (:domain"}))
    assert "its PDDL is broken" in find_solution(folder).reason


def strike(monkeypatch: pytest.MonkeyPatch, blow: signal.Signals, engines: int) -> list[Engine]:
    """Whoever takes one of the first `engines` gets it with `blow` already struck. Returns those taken, as they are
    taken.
    """
    taken: list[Engine] = []
    real = Pool.take

    def take(pool: Pool, folder: Path) -> Engine:
        taken.append(engine := real(pool, folder))
        if len(taken) <= engines:
            os.kill(engine.pid, blow)
        return engine

    monkeypatch.setattr(Pool, "take", take)
    return taken


def test_where_an_engine_dies_another_one_proves_the_game(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = strike(monkeypatch, signal.SIGKILL, 1)
    assert find_solution(next(root.glob("*/*/pick_and_place_simple*-1/*"))).by == "handcoded"
    assert [engine.alive for engine in taken] == [False, True]


def test_where_two_engines_hang_the_reason_says_so(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = strike(monkeypatch, signal.SIGSTOP, 2)
    solution = find_solution(next(root.glob("*/*/pick_and_place_simple*-1/*")), seconds=0.1)
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


def put(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def huge(folder: Path) -> None:
    with (folder / "traj_data.json").open("wb") as file:
        file.truncate(20_000_001)


def linked(folder: Path) -> None:
    (folder / "game.tw-pddl").rename(folder.parents[3] / "away.json")
    (folder / "game.tw-pddl").symlink_to(folder.parents[3] / "away.json")


T, G = "traj_data.json", "game.tw-pddl"


@pytest.mark.parametrize(
    ("damage", "reason"), [ (lambda folder: (folder / T).unlink(), "traj_data.json: is missing"),
    (lambda folder: (folder / G).unlink(), "game.tw-pddl: is missing"), (lambda folder: [(folder / T).unlink(),
    (folder / T).mkdir()], "traj_data.json: is missing or no file"), (put(T, b""),
    "traj_data.json: is empty; run `alfworld-download -f`"), (put(T, b'{"task_type": "look'),
    "Unterminated string starting at; run `alfworld-download -f`"), (put(T, b"\xff\xfe"), "traj_data.json: not UTF-8"),
    (put(T, b"[" * 100_000), "traj_data.json: unreadable JSON"), (put(G, b"[1, 2]"),
    "game.tw-pddl: expected a JSON object, found list"), (huge, "traj_data.json: has over 20 MB"), (linked,
    "game.tw-pddl: is a link out"), (edit(T, lambda value: value.update(task_type="pick_and_fly")),
    "field 'task_type': 'pick_and_fly' is none of"), (edit(T, lambda value: value.update(task_type=["a"])),
    "field 'task_type': ['a'] is none of"), (edit(T, lambda value: value.update(pddl_params=None)),
    "field 'pddl_params'"), (edit(T, lambda value: value["pddl_params"].update(object_target=3)),
    "field 'pddl_params'"), (edit(T, lambda value: value["pddl_params"].update(object_sliced=True)),
    "slices are left out"), (edit(T, lambda value: value.pop("scene")), "field 'scene.floor_plan'"), (edit(T,
    lambda value: value.update(scene={"floor_plan": "../FloorPlan1"})), "field 'scene.floor_plan'"), (edit(G,
    lambda value: value.pop("pddl_problem")), "field 'pddl_problem': expected text, found NoneType"), (edit(G,
    lambda value: value.update(pddl_domain=7)), "field 'pddl_domain': expected text, found int"), (edit(G,
    lambda value: value.update(pddl_problem="hello")), "field 'pddl_problem': no PDDL"), (edit(G,
    lambda value: value.update(pddl_problem=value["pddl_problem"][:-9])), "no PDDL, or cut"), (edit(G,
    lambda value: value.update(grammar=" ")), "field 'grammar'"), (edit(G, lambda value: value.update(solvable=False)),
    "field 'solvable'"), (edit(G, lambda value: value.update(solvable=None)), "field 'solvable'"), (edit(G,
    lambda value: value.pop("solvable")), "field 'solvable'"), (edit(G,
    lambda value: value.update(grammar=value["grammar"].replace("move {o} to", "put {o} in/on"))), "before 0.4"),
    (edit(G, lambda value: value.update(walkthrough="look")), "field 'walkthrough'"), (edit(G,
    lambda value: value.update(walkthrough=[1])), "field 'walkthrough'"), ],
)  # fmt: skip
def test_what_is_wrong_with_a_game_is_said(root: Path, damage: Callable[[Path], object], reason: str) -> None:
    folder = games.find(root)[0]
    assert isinstance(games.usable(folder), Task)
    damage(folder)
    told = games.usable(folder)
    assert isinstance(told, str)
    assert reason in told
    assert "\n" not in told


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_game_that_may_not_be_read_is_said(root: Path) -> None:
    folder = games.find(root)[0]
    (folder / G).chmod(0)
    assert games.usable(folder) == "game.tw-pddl: cannot be read (Permission denied); change its permissions"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("pick_and_place_with_movable_recep-Book-None-Desk-1", "movable receptacles and slices"),
        ("pick_and_place_simple-AppleSliced-None-Desk-1", "movable receptacles and slices"),
        ("pick_and_place_simple-Äpfel-None-Desk-1", "characters other than"),
        ("pick_and_place simple", "characters other than"),
    ],
)
def test_games_are_refused_by_name_as_the_benchmark_does(root: Path, name: str, reason: str) -> None:
    folder = games.find(root)[0]
    folder.parent.rename(folder.parent.with_name(name))
    assert reason in str(games.usable(folder.parent.with_name(name) / folder.name))


@pytest.mark.parametrize(
    "name", ["/", "/etc", "", " ", ".", "..", "a/../../b", "a\0b", 7, None, ["train"], "\ud800", "a" * 300, "a/" * 999]
)
def test_a_name_of_a_game_leads_nowhere_else(tmp_path: Path, name: object) -> None:
    assert games.inside(tmp_path, name) is None
    assert games.inside(tmp_path, "train/game") == (tmp_path / "train" / "game").resolve()


@given(name=st.sampled_from([T, G]), share=st.floats(0, 1, exclude_max=True), rubbish=st.binary(max_size=8))
@settings(max_examples=60, deadline=None)
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
        assert isinstance(games.usable(folder), str)
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
    assert reason.startswith("game.tw-pddl: is missing, as for what the benchmark leaves out")
    assert names == [f"train/{folder.relative_to(train)}" for folder in games.find(root)[:11]]


def test_what_the_version_is_a_link_to_is_of_the_folder(root: Path, tmp_path: Path) -> None:
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "json_2.1.1").symlink_to(root / "json_2.1.1")
    found = games.find(tmp_path / "linked")
    assert len(found) == 12
    name = str(found[0].relative_to(tmp_path / "linked"))
    assert games.inside(tmp_path / "linked", name) == root / name
    assert games.inside(tmp_path / "linked", "json_2.1.1") is None


def test_a_folder_of_games_is_listed(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    shutil.copytree(root / "json_2.1.1" / "train", root / "json_2.1.1" / "valid_unseen")
    broken = games.find(root, splits=("train",))[0]
    (broken / T).unlink()
    assert gen(tmp_path, "--games-dir", str(root)) == 0
    told = capsys.readouterr().out.partition("Games left out")[2]
    assert {"`alfworld-download", "-f`"} <= set(told.split())  # the end of the reason is shown, too
    data = tmp_path / "data" / "alfworld"
    assert len(read_json(data / "data.json")) == 11
    assert len(read_json(data / "valid_unseen.json")) == 12
    assert not (data / "valid_seen.json").exists()
    figures = read_json(tmp_path / "results" / "1_gen-task" / "report.json")["figures"]
    assert figures["by_split"] == {"train": 11, "valid_unseen": 12}
    assert list(figures["left_out"].values()) == [[str(broken.relative_to(root / "json_2.1.1"))]]
    assert gen(tmp_path, "--games-dir", str(root), "--games", "pick_two*") == 0
    assert {record["level"] for record in read_json(data / "data.json")} == {TWO}


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--games-dir", "nowhere"], "nowhere: no such folder"),
        (["--games-dir", "empty"], "empty: holds no json_2.1.1; run `alfworld-download --data-dir empty`"),
        (["--games-dir", "bench/json_2.1.1"], "name the folder that json_2.1.1 lies in: --games-dir"),
        (["--games-dir", "half"], "half/json_2.1.1: holds no game of train"),
        (["--games-dir", "bench", "--games", "x"], "no game matches --games x"),
        (["--games", "x"], "no game that matches --games x can be made"),
        (["--games-dir", "bench", "--instances", "3"], "leave one out"),
        (["--instances", "0"], "--instances must be greater"),
        (["--long-instances", "3"], "--long-instances is a setting of env 'memory'"),
        (["--repos-dir", "bench"], "--repos-dir is a setting of env 'auto_explore'"),
        (["--teacher", "openai:gpt-4o"], "games are generated without a teacher"),
        (["--env", "memory", "--games", "x"], "--games is a setting of env 'alfworld'"),
        (["--env", "auto_explore", "--games-dir", "bench"], "--games-dir is a setting of env 'alfworld'"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flags: list[str], told: str
) -> None:
    monkeypatch.chdir(root.parent)
    Path("empty").mkdir()
    Path("half/json_2.1.1/train/look-1").mkdir(parents=True)
    assert main(["gen-task", *([] if "--env" in flags else ["--env", "alfworld"]), *flags]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_no_usable_game_is_an_error_with_a_reason(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in games.find(root):
        (folder / T).unlink()
    assert gen(tmp_path, "--games-dir", str(root)) == 2
    assert "none of 12 games can be used, e.g. train/look_at" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------------------- split


def split_of(tmp_path: Path, *flags: str, games: int = 120) -> dict[str, list[dict[str, Any]]]:
    """Games of six types in ten rooms of two kinds, split."""
    tasks = [
        Task(
            f"g{number}",
            "alfworld",
            TYPES[number % 6],
            f"g{number}",
            {"room": f"FloorPlan{number % 10 + 200 * (number % 2)}"},
        )
        for number in range(games)
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


def test_a_split_without_a_task_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert split_of(tmp_path, games=24)["test"] == []  # of four of a type, three are for training and one to validate
    assert "test.json has no tasks: 7:2:1 needs more than 24 groups of 6 kinds" in capsys.readouterr().out


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


@pytest.mark.parametrize(
    ("flags", "told"),
    [(["--unseen-rooms", "1"], "holds out every room, 10 in all"), (["--unseen-rooms", "2"], "must be less than")],
)
def test_a_share_of_rooms_leaves_some(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], told: str
) -> None:
    split_of(tmp_path)
    assert gen(tmp_path, *flags, stage="split") == 2
    assert told in capsys.readouterr().err


def test_unseen_rooms_are_for_envs_with_rooms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "tasks.json"
    write_json(source, [record_to_json(Record(Task("a", "corridor", "1", "a", {}), ()))])
    flags = [
        "--env",
        "corridor",
        "--task-file",
        str(source),
        "--data-dir",
        str(tmp_path),
        "--results-dir",
        str(tmp_path),
    ]
    assert main(["split", *flags, "--unseen-rooms", "0.2"]) == 2
    assert "env 'corridor' has no rooms" in capsys.readouterr().err
