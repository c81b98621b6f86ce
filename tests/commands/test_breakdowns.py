"""Success by what the env says of problems, and by the number of tries, against figures derived by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reflectkit.cli.main import main
from reflectkit.evals.breakdowns import aspect_tables, passes_table
from reflectkit.evals.tables import completed, pooled, row, table
from reflectkit.jsonl import read_json, read_jsonl, write_jsonl
from tests.command_lines import error_of


def episode(task: str, success: bool, **more: Any) -> dict[str, Any]:
    return {
        "name": "a",
        "level": "one",
        "task": task,
        "cluster": task,
        "status": "completed",
        "success": success,
        "return": float(success),
        "turns": [],
        **more,
    }


def test_tries_by_hand() -> None:
    """Task x: 2 of 4, task y: 4 of 4. pass@2 of x is 1 - (2 over 2) / (4 over 2) = 5/6, pass^2 is 1/6."""
    played = [episode("x", number < 2) for number in range(4)] + [episode("y", True) for _ in range(4)]
    figures = row("a", "", "one", played)
    assert figures["pass_at"] == pytest.approx({"1": 3 / 4, "2": (5 / 6 + 1) / 2, "4": 1.0})
    assert figures["pass_all"] == pytest.approx({"1": 3 / 4, "2": (1 / 6 + 1) / 2, "4": 1 / 2})
    (table,) = passes_table([figures])
    assert table.columns == ("policy", "level", "pass@1", "pass@2", "pass^2", "pass@4", "pass^4")
    assert [cell.split(" ")[0] for cell in table.rows[0][2:]] == ["75", "92", "58", "100", "50"]


def test_an_aborted_try_costs_its_problem_only_the_k_that_it_lacks() -> None:
    """Task x: 1 of 3 and an abort, task y: 4 of 4. pass@2 of x is 1 - (2 over 2) / (3 over 2) = 2/3, pass^2 is 0."""
    played = [episode("x", number < 1) for number in range(3)] + [episode("y", True) for _ in range(4)]
    figures = row("a", "", "one", [*played, episode("x", False, status="aborted")])
    assert figures["pass_at"] == pytest.approx({"1": (1 / 3 + 1) / 2, "2": (2 / 3 + 1) / 2, "4": 1.0})
    assert figures["pass_all"] == pytest.approx({"1": (1 / 3 + 1) / 2, "2": (0 + 1) / 2, "4": 1.0})


def test_tries_of_two_seeds_are_not_one_models() -> None:
    """A task that one seed's model always solves and the other's never: pass@2 is 1/2, as is pass^2."""
    parts = [[episode("x", success) for _ in range(2)] + [episode("y", True)] * 2 for success in (True, False)]
    (figures,) = pooled(parts)
    assert figures["pass_at"]["2"] == figures["pass_all"]["2"] == pytest.approx((1 / 2 + 1) / 2)
    assert figures["by_seed"] == [1.0, 0.5]


def test_one_try_and_one_value_make_no_table() -> None:
    played = [episode(str(number), True, aspects={"mood": "terse"}) for number in range(3)]
    assert passes_table([row("a", "", "one", played)]) == []
    assert aspect_tables(played) == []
    assert aspect_tables([episode("x", True)]) == []


def test_success_by_aspect() -> None:
    played = [episode(str(number), number % 2 == 0, aspects={"mood": "terse"}) for number in range(4)]
    played += [episode(f"c{number}", True, aspects={"mood": "chatty"}) for number in range(2)]
    played += [episode("z", False, aspects={"mood": "chatty"}, status="aborted")]
    (table,) = aspect_tables(played)
    assert table.columns == ("policy", "level", "mood", "success", "95 % interval", "tasks")
    assert [(line[2], line[3], line[5]) for line in table.rows] == [
        ("chatty", "100.0 %", "2"),
        ("terse", "50.0 %", "4"),
    ]


def test_evaluate_prints_them_and_computes_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["gen-task", "--env", "support", "--instances", "8"]) == 0
    playing = ["evaluate", "--env", "support", "--task-file", "data/support/data.json", "--level", "one"]
    capsys.readouterr()
    assert main([*playing, "--policy", "oracle", "--eval-reps", "2"]) == 0
    printed = capsys.readouterr().out
    assert "Success by mood" in printed
    assert "pass^2" in printed
    (made,) = tmp_path.glob("results/*_evaluate")
    assert main(["evaluate", "--env", "support", "--from", str(made)]) == 0
    again = max(tmp_path.glob("results/*_evaluate"), key=lambda folder: folder.stat().st_mtime)
    assert read_json(again / "eval.json")["rows"] == read_json(made / "eval.json")["rows"]
    rows = [one for _, one in read_jsonl(made / "episodes.jsonl")]
    write_jsonl(tmp_path / "odd.jsonl", [rows[0] | {"aspects": "sad"}])
    assert "aspects" in error_of(["evaluate", "--env", "support", "--from", "odd.jsonl"], capsys)


def test_right_of_those_named_by_hand() -> None:
    """Three tasks are answered, two of them rightly; the fourth ends without an answer, and a fifth is aborted."""
    played = [episode(str(number), number < 2, figures={"named": 1.0}) for number in range(3)]
    played += [episode("3", False), episode("4", False, status="aborted")]
    found = row("a", "", "one", completed(played))
    assert (found["named_episodes"], found["right_of_named"]) == (3, pytest.approx(2 / 3))
    assert found["right_of_named_low"] < 2 / 3 < found["right_of_named_high"]
    assert found["success"] == 1 / 2
    shown = table("", [found])
    assert shown.rows[0][shown.columns.index("right, of those named")].startswith("66.7 % (")


def test_an_env_that_reports_no_answers_has_no_share_of_them() -> None:
    found = row("a", "", "one", [episode("0", True)])
    assert "right_of_named" not in found
    assert "right, of those named" not in table("", [found]).columns
