"""evaluate --from: tables of kept episodes, recomputed without playing."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from reflectkit.cli.main import main
from reflectkit.jsonl import read_json, read_jsonl


@pytest.fixture
def evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for command in (["gen-trajectory"], ["split"], ["evaluate", "--policy", "random", "--policy", "oracle",
        "--eval-reps", "2", "--task-file", "data/corridor/train.json", "--name", "played"]):  # fmt: skip
        assert main([*command, "--env", "corridor"]) == 0
    return tmp_path / "results" / "played"


def again(*sources: Path | str, name: str = "again") -> int:
    return main(["evaluate", "--env", "corridor", "--name", name, *(f"--from={source}" for source in sources)])


def test_the_same_tables_come_of_kept_episodes(evaluated: Path, tmp_path: Path) -> None:
    assert again(evaluated) == 0
    first, second = (read_json(tmp_path / "results" / name / "eval.json") for name in ("played", "again"))
    assert second == {name: first[name] for name in ("rows", "differences")}
    assert {row["clusters"] for row in second["rows"]} == {row["tasks"] for row in second["rows"]}
    for name in ("eval.md", "eval.csv"):
        old, new = ((tmp_path / "results" / run / name).read_text() for run in ("played", "again"))
        assert old.split("\n")[2:] == new.split("\n")[2:]
    assert "clusters" in next(csv.reader((evaluated / "eval.csv").open()))
    assert main(["plot", "--evals", "results/again", "--out", "bars.png"]) == 0


def test_several_are_pooled_as_seeds_are(evaluated: Path, tmp_path: Path) -> None:
    assert again(evaluated, evaluated / "episodes.jsonl") == 0
    one, two = (read_json(tmp_path / "results" / name / "eval.json")["rows"] for name in ("played", "again"))
    for alone, together in zip(one, two, strict=True):
        assert together["by_seed"] == [alone["success"]] * 2
        assert (together["tasks"], together["clusters"]) == (alone["tasks"], alone["clusters"])
        assert together["episodes"] == 2 * alone["episodes"]
        assert together["pass_at"] == alone["pass_at"], "the plays of two seeds are not more tries of one model"


def test_each_line_names_its_cluster_and_may_lack_it(evaluated: Path, tmp_path: Path) -> None:
    lines = [dict(line) for _, line in read_jsonl(evaluated / "episodes.jsonl")]
    assert all(line.pop("cluster") == line["task"] for line in lines)
    (tmp_path / "old.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert again("old.jsonl") == 0
    assert read_json(tmp_path / "results/again/eval.json")["rows"] == read_json(evaluated / "eval.json")["rows"]


LINE = {"name": "a", "env": "corridor", "level": "long", "task": "t", "status": "completed", "success": True,
    "return": 1, "turns": []}  # fmt: skip


def test_a_figure_that_one_evaluation_never_has_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, figures in (("old", {}), ("new", {"stops": 0.5, "agreement": 1.0}), ("newer", {"stops": 1.0})):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(LINE | {"figures": figures}) + "\n")
    assert again("old.jsonl", "new.jsonl", "newer.jsonl") == 0
    said = capsys.readouterr()
    assert (said.out + said.err).count("counted as 0") == 1
    assert "old.jsonl: no episode at level long reports stops, as others do; counted as 0 there" in said.out + said.err
    (row,) = read_json(tmp_path / "results/again/eval.json")["rows"]
    assert row["figures"]["stops"]["mean"] == 0.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"success": 1}, "field 'success'"),
        ({"success": None}, "field 'success': missing"),
        ({"return": "x"}, "field 'return'"),
        ({"task": ""}, "field 'task': missing"),
        ({"cluster": 7}, "field 'cluster'"),
        ({"data": [1]}, "field 'data'"),
        ({"figures": {"x": "y"}}, "field 'figures'"),
        ({"figures": {"x": 1e308}}, "field 'figures'"),
        ({"figures": {"x": 10**400}}, "field 'figures'"),
        ({"return": 1e308}, "field 'return'"),
        ({"price_usd": -1e308}, "field 'price_usd'"),
        ({"turns": [{"tokens": 10**400}]}, "field 'turns[0].tokens'"),
        ({"turns": [{"info": 3}]}, "field 'turns'"),
        ({"turns": 3}, "is not an episode"),
        ({"env": "taxi"}, "has episodes of env 'taxi', not of 'corridor'"),
    ],
)
def test_damaged_lines_are_one_line(
    change: dict[str, object],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.jsonl").write_text(json.dumps(LINE | change) + "\n")
    assert again("bad.jsonl") == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1
    assert main(["evaluate", "--env", "corridor", "--from", "bad.jsonl", "--policy", "oracle"]) == 2
    assert "plays nothing" in capsys.readouterr().err
