"""An environment of one's own that counts figures, fails, or is not the same twice: what stages make of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reflectkit.cli.main import main
from reflectkit.envs.corridor import Corridor
from reflectkit.errors import DataError
from reflectkit.evals.plot import read_curves
from reflectkit.jsonl import read_json, read_jsonl, write_json, write_jsonl
from reflectkit.types import to_json
from tests.examples import own_module

CODE = '''
import random
from pathlib import Path

from reflectkit.errors import EnvironmentFailure
from reflectkit.types import Task
from reflectkit.env import ChoiceEnv
from reflectkit.envs.corridor import Corridor


class Steps(Corridor):
    """Whoever goes right reports how far it is, and 5 points: a share, and a figure that is none."""

    def _move(self, action):
        reward, over, info = super()._move(action)
        return reward, over, info | ({"figures": {"points": 5.0, "got": 0.5, "return": 9.0}} if action == 1 else {})


class LeftTeacher(Corridor.teacher_type):
    """Never goes right."""

    def action(self):
        return 0


class Left(Steps):
    teacher_type = LeftTeacher


class Drifting(Corridor):
    def _text(self):
        return f"{super()._text()} {random.random()}"


class Drawn(Corridor):
    """Begins alike, and goes on differently."""

    def _text(self):
        return super()._text() + ("" if self.note == "" else f" {random.random()}")


class Failing(Corridor):
    def _begin(self, task, seed):
        if int(task.id.rpartition("-")[2]) % 2:
            raise EnvironmentFailure("the engine is down")
        super()._begin(task, seed)


class GeneratedTasks(type(Corridor.taskset)):
    """Lists problems, and has a generator of others."""

    problem_generator = "MODULE:Problems"


class Generated(Corridor):
    taskset = GeneratedTasks()
'''


@pytest.fixture
def module(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = own_module(request.node)
    (tmp_path / f"{name}.py").write_text(CODE.replace("MODULE", name), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def prepare(env: str, *more: str) -> list[int]:
    made = [["gen-trajectory", "--demonstrations", "6", "--noise", "0.3"], ["split"], ["gen-sft"]]
    return [main([*command, "--env", env, *more]) for command in made]


def test_a_player_that_never_reports_a_figure_has_0(module: str) -> None:
    """Steps' figures are reported by who goes right; `left` plays the env's oracle of another class."""
    env = f"{module}:Left"
    assert main(["evaluate", "--env", env, "--policy", "oracle", "--policy", "random", "--name", "e"]) == 0
    result = read_json(Path("results/e/eval.json"))
    rows = {row["name"]: row["figures"] for row in result["rows"]}
    assert rows["oracle"].keys() == rows["random"].keys() == {"points", "got", "return"}
    assert rows["oracle"]["got"]["mean"] == rows["oracle"]["points"]["mean"] == 0
    assert rows["random"]["got"]["mean"] > 0.4
    assert rows["oracle"]["got"]["high"] > 0, "a share of 0 has the interval of a rate"
    assert rows["oracle"]["points"] == {"mean": 0.0, "low": 0.0, "high": 0.0}, "5 points are no share, so 0 is none"
    gaps = {one["figure"]: one["difference"] for one in result["differences"]}
    assert gaps["points"] == pytest.approx(-rows["random"]["points"]["mean"])


def test_a_figure_takes_no_column_of_ours_and_is_0_where_nobody_reported_it(
    module: str, corridor_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = f"{module}:Steps"
    assert prepare(env) == [0, 0, 0]
    rl = ["rlft", "--env", env, "--policy", str(corridor_folder / "policy"), "--max-steps", "3", "--episodes", "8"]
    assert main([*rl, "--validate-steps", "1", "--name", "rl"]) == 0
    rows = [dict(row) for _, row in read_jsonl(Path("results/rl/metrics.jsonl"))]
    for row in rows:
        assert row["env_return"] == 9.0
        assert row["return"] < 2
        assert row["env_figures"] == ["points", "got", "env_return"]
    del rows[1]["got"], rows[1]["validation_got"]  # as where no episode of the update came so far
    rows[1]["env_figures"] = ["points"]
    write_jsonl(Path("results/rl/metrics.jsonl"), rows)
    for figure in ("got", "validation_got"):
        ((_, values),) = read_curves([Path("results/rl/metrics.jsonl")], figure)
        assert values == [rows[0][figure], 0, rows[2][figure]]


@pytest.mark.parametrize("name", ["Drifting", "Drawn"])
def test_an_env_that_differs_each_time_makes_no_rows(
    module: str, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert prepare(f"{module}:{name}") == [0, 0, 2]
    error = capsys.readouterr().err
    assert "differs when it is played again with the same seed; draw from random.Random(seed)" in error
    assert not list(Path("data").rglob("sft.jsonl"))


def test_an_env_that_begins_otherwise_each_time_is_not_trained_on(
    module: str, corridor_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepare(f"{module}:Drifting") == [0, 0, 2]
    rl = ["--policy", str(corridor_folder / "policy"), "--max-steps", "1", "--episodes", "8"]
    assert main(["rlft", "--env", f"{module}:Drifting", *rl]) == 2
    assert "step 0 of task" in capsys.readouterr().err.splitlines()[-1]


def test_a_problem_whose_engine_fails_is_counted_as_aborted(module: str, corridor_folder: Path) -> None:
    env = f"{module}:Failing"
    tasks = Corridor.taskset.tasks("long")
    assert {task.id.rpartition("-")[2] for task in tasks} >= {"0", "1"}
    path = Path("data/failing/train.json")
    path.parent.mkdir(parents=True)
    write_json(path, [to_json(task) | {"trajectories": []} for task in tasks])
    rl = ["rlft", "--env", env, "--policy", str(corridor_folder / "policy"), "--episodes", "24"]
    assert main([*rl, "--max-steps", "1", "--curriculum", "long", "--name", "rl"]) == 0
    ((_, row),) = read_jsonl(Path("results/rl/metrics.jsonl"))
    assert 0 < row["aborted"] < 1


def test_problems_of_a_generator_come_before_those_that_are_listed(module: str) -> None:
    env = f"{module}:Generated"
    assert main(["gen-trajectory", "--env", env]) == 0
    path = Path("data/generated/data.json")
    only: Any = to_json(Corridor.taskset.tasks("long")[0]) | {"id": "mine"}
    write_json(path, [only | {"trajectories": []}])
    assert main(["gen-trajectory", "--env", env]) == 0
    records = read_json(Path("data/generated/data_reflection_negative.json"))
    assert [record["id"] for record in records] == ["mine"]


@pytest.mark.parametrize(("other", "told"), [("mine", True), ("another", False)])
def test_a_figure_is_0_only_in_runs_of_an_env_that_has_it_at_that_level(tmp_path: Path, other: str, told: bool) -> None:
    """A run of another env lacks the figure; so does another level."""
    facts = {"step": 1, "episodes": 8, "success_rate": 0.5, "level": "high"}
    rows = [
        facts | {"level": "low", "lows": 2.0, "env_figures": ["lows"]},
        facts | {"step": 2, "episodes": 16, "level": "low"},
        facts | {"step": 3, "episodes": 24},
    ]
    for name, some, env in (("a", rows, "mine"), ("b", [facts | {"level": "low"}], other)):
        (tmp_path / name).mkdir()
        write_jsonl(tmp_path / name / "metrics.jsonl", some)
        write_json(tmp_path / name / "config.json", {"settings": {"env": env}})
    paths = [tmp_path / name / "metrics.jsonl" for name in "ab"]
    assert read_curves(paths[:1], "lows") == [([8, 16], [2.0, 0.0])]
    if told:
        assert read_curves(paths, "lows")[1] == ([8], [0.0])
    else:
        with pytest.raises(DataError, match="field 'lows'"):
            read_curves(paths, "lows")


def test_a_problem_that_no_level_can_play_is_named(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = [to_json(task) | {"trajectories": []} for task in Corridor.taskset.tasks("long")[:2]]
    write_json(Path("t.json"), [tasks[0], tasks[1] | {"level": "hard"}])
    assert main(["evaluate", "--env", f"{module}:Steps", "--task-file", "t.json", "--policy", "random"]) == 2
    assert f"task '{tasks[1]['id']}' has level 'hard', and no level can play it: short, long" in capsys.readouterr().err
