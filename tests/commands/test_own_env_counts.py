"""An environment of one's own that counts figures, fails, or is not the same twice: what stages make of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from reflectkit.cli.main import main
from reflectkit.jsonl import read_json
from tests.examples import own_module

CODE = '''
import random
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
'''


@pytest.fixture
def module(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = own_module(request.node)
    (tmp_path / f"{name}.py").write_text(CODE, encoding="utf-8")
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


def test_an_env_that_differs_each_time_makes_no_rows(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare(f"{module}:Drifting") == [0, 0, 2]
    error = capsys.readouterr().err
    assert "differs when it is played again with the same seed; draw from random.Random(seed)" in error
    assert not list(Path("data").rglob("sft.jsonl"))
