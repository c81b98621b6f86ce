"""rlft on an env with nothing but a reward: random weights, problems by seed, and success on held-out ones."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from reflectkit.cli.main import main
from reflectkit.jsonl import read_json
from tests.data import test_problems

ENV = f"{test_problems.__name__}:Guess"


def test_a_resumed_run_has_the_same_outcomes_on_held_out_problems(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["rlft", "--env", ENV, "--model", "tiny", "--max-steps", "2", "--episodes", "16", "--save-steps", "1",
               "--validate-problems", "12", "--device", "cpu", "--name", "run"]  # fmt: skip
    assert main(command) == 0
    run = tmp_path / "results" / "run"
    outcomes = read_json(run / "held_out.json")
    assert {name: len(rows) for name, rows in outcomes.items()} == {"before": 12, "random": 12, "after": 12}
    figures = read_json(run / "report.json")["figures"]["held_out"]
    wins = [row["return"] for row in outcomes["after"]]
    assert figures["after"]["return"] == pytest.approx(sum(wins) / 12)  # as the env reports no success
    before = (run / "held_out.json").read_bytes()
    shutil.rmtree(run / "checkpoint-2")
    (run / "report.json").unlink()
    assert main(command) == 0
    assert (run / "held_out.json").read_bytes() == before
    assert main(["evaluate", "--env", ENV, "--policy", "results/run", "--problems", "5", "--name", "test"]) == 0
    assert "Held-out" in (tmp_path / "results" / "test" / "eval.md").read_text()


def test_a_run_takes_the_model_that_another_one_made_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["rlft", "--env", ENV, "--model", "tiny", "--max-steps", "1", "--episodes", "8", "--device", "cpu",
               "--validate-problems", "0", "--name"]  # fmt: skip
    assert main([*command, "one"]) == 0
    (made,) = (tmp_path / "data").glob("*/models/tiny-*")
    made.rename(tmp_path / "made")

    @contextmanager
    def waited(folder: Path) -> Iterator[None]:
        (tmp_path / "made").rename(folder / made.name)
        yield

    monkeypatch.setattr("reflectkit.train.scratch.locked", waited)
    monkeypatch.delattr("reflectkit.train.scratch.save_player")
    assert main([*command, "other"]) == 0


@pytest.mark.parametrize(("flat", "told"), [("0111", "updates 2 to 4"), ("1011", "")])
def test_updates_in_a_row_that_teach_nothing_are_told(
    flat: str, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    updates = iter(flat)
    monkeypatch.setattr("reflectkit.train.rl.is_flat", lambda played: next(updates) == "1")
    command = ["rlft", "--env", ENV, "--model", "tiny", "--max-steps", "4", "--episodes", "16", "--device", "cpu"]
    assert main([*command, "--validate-problems", "0"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "nothing to learn" in line]
    assert len(lines) == bool(told)
    assert told in "".join(lines)
