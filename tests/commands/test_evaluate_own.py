"""evaluate without a split, and with a checkpoint beside the wrong partner."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from reflectkit.agents.players import mismatch
from reflectkit.cli.main import main
from reflectkit.data.trajectories import Record, record_to_json
from reflectkit.env import Taskset, Teacher
from reflectkit.envs.corridor import Corridor
from reflectkit.envs.taxi import Taxi
from reflectkit.jsonl import read_json, write_json
from reflectkit.types import Task
from tests.command_lines import error_of


class ActsOnly(Teacher):
    def action(self) -> int:
        return 1


class OracleAlone(Corridor):
    """An env that knows the best action, and nothing else that a teacher needs."""

    name = "oracle-alone"
    teacher_type = ActsOnly


class NoTasks(Taskset):
    def tasks(self, level: str) -> list[Task]:
        return []


class Empty(Corridor):
    name = "empty"
    taskset = NoTasks()


def test_scores_by_the_oracle_need_no_teacher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    env = "tests.commands.test_evaluate_own:OracleAlone"
    assert main(["evaluate", "--env", env, "--policy", "random", "--score-oracle"]) == 0
    (row,) = read_json(Path("results/1_evaluate/eval.json"))["rows"]
    assert 0 < row["figures"]["agreement"]["mean"] < 1


@pytest.mark.parametrize(
    "command", [["evaluate", "--policy", "random"], ["benchmarks.bench", "env"], ["benchmarks.bench", "rl"]]
)
def test_an_env_that_lists_no_problems_is_one_line(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    said = error_of([*command, "--env", "tests.commands.test_evaluate_own:Empty"], capsys)
    assert "lists no problems at level 'long'" in said


def test_an_env_that_lists_its_problems_needs_no_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["evaluate", "--env", "corridor", "--policy", "oracle", "--level", "short", "--level", "long"]
    assert main(command) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "data/corridor/test.json does not exist" in shown
    assert "All problems that corridor lists, none held out" in shown
    rows = read_json(Path("results/1_evaluate/eval.json"))["rows"]
    assert [(row["level"], row["tasks"]) for row in rows] == [("short", 3), ("long", 6)]
    assert main(["evaluate", "--env", "corridor", "--policy", "oracle", "--task-file", "nosuch.json"]) == 2
    assert "nosuch.json" in capsys.readouterr().err
    assert main(["evaluate", "--env", "memory", "--policy", "oracle"]) == 2
    assert "data/memory/test.json" in capsys.readouterr().err


def test_a_checkpoint_with_the_wrong_partner_is_warned_of(
    checkpoints: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_json(tmp_path / "some.json", [record_to_json(Record(task, ())) for task in Taxi.taskset.tasks("pickup")[:1]])
    players = {
        "alone": f"{checkpoints['policy']}",
        "both": f"{checkpoints['policy']}+{checkpoints['reflection']}",
        "plain": f"{checkpoints['plain']}",
        "odd": f"{checkpoints['plain']}+{checkpoints['reflection']}",
    }
    command = ["evaluate", "--env", "taxi", "--level", "pickup", "--task-file", "some.json", "--horizon", "1"]
    assert main([*command, *(f"--policy={name}={paths}" for name, paths in players.items())]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count("warning: ") == 2
    assert "warning: alone: " in shown
    assert "warning: odd: " in shown
    warnings = read_json(Path("results/1_evaluate/report.json"))["figures"]["warnings"]
    assert [text.partition(":")[0] for text in warnings] == ["alone", "odd"]
    assert "trained with comments but plays without" in warnings[0]
    assert "trained without comments but plays with a reflector" in warnings[1]
    assert main(["play", "--env", "taxi", "--auto", "--horizon", "1", "--policy", f"odd={players['odd']}"]) == 0
    assert "warning: odd: " in " ".join(capsys.readouterr().out.split())


def test_a_checkpoint_of_another_env_is_warned_of(
    checkpoints: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = shutil.copytree(checkpoints["plain"], tmp_path / "model")
    for env, other in (("taxi", True), ("corridor", False), ("reflectkit.envs.corridor:Corridor", False)):
        write_json(model / "reflectkit.json", read_json(model / "reflectkit.json") | {"env": env})
        for command in (["evaluate", "--horizon", "1"], ["play", "--auto", "--horizon", "1"]):
            assert main([*command, "--env", "corridor", "--policy", f"it={model}"]) == 0
            shown = " ".join(capsys.readouterr().out.split())
            assert ("was trained in env 'taxi', but plays in 'corridor'" in shown) is other
            assert ("warning: " in shown) is other


@pytest.mark.parametrize(
    ("facts", "alone", "beside"),
    [
        ({"role": "policy"}, True, False),
        ({"role": "plain"}, False, True),
        ({"role": "plain", "reflector": "some/reflector"}, True, False),
        ({"role": "policy", "reflector": None}, False, True),
        ({"role": None}, False, False),
        ([], False, False),
    ],
)
def test_what_a_checkpoint_says_of_its_training(tmp_path: Path, facts: object, alone: bool, beside: bool) -> None:
    """RL goes before the role that SFT gave: a plain policy that learnt with a reflector knows comments."""
    write_json(tmp_path / "reflectkit.json", facts)
    assert bool(mismatch("it", tmp_path, None)) is alone
    assert bool(mismatch("it", tmp_path, tmp_path / "reflector")) is beside
