"""rlft on an env with nothing but a reward: random weights, problems by seed, and success on held-out ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from reflectkit.cli.main import main
from reflectkit.jsonl import read_json
from reflectkit.models.checkpoint_metadata import context_of, load_tokenizer
from reflectkit.train.scratch import EXPLORED
from tests.data import test_problems

ENV = f"{test_problems.__name__}:Guess"


def test_a_resumed_run_has_the_same_outcomes_on_held_out_problems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
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


class Road:
    """Follow the signs for a while. Each prompt repeats those before it, and a wrong turn ends the episode."""

    choices, horizon = ("left", "right"), 20
    resets = 0

    def reset(self, seed: int) -> str:
        Road.resets += 1
        self.signs = [self.choices[seed >> step & 1] for step in range(20)]
        self.passed = 0
        return self.text()

    def step(self, choice: str) -> tuple[str, float, bool, dict[str, bool]]:
        right = choice == self.signs[self.passed]
        self.passed += 1
        return self.text(), 0.05 * right, not right or self.passed == 20, {"success": right and self.passed == 20}

    def text(self) -> str:
        return " ".join(f"Sign {n}: {sign}." for n, sign in enumerate(self.signs[: self.passed + 1]))


def test_a_new_model_reads_what_a_better_player_will_see_and_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["rlft", "--env", f"{__name__}:Road", "--model", "tiny", "--max-steps", "1", "--episodes", "16",
               "--validate-problems", "10", "--device", "cpu", "--name", "run"]  # fmt: skip
    assert main(command) == 0
    run = tmp_path / "results" / "run"
    road = Road()
    road.reset(0)
    road.passed = 19
    assert context_of(run / "checkpoint-1") > len(load_tokenizer(run / "checkpoint-1")(road.text())["input_ids"])
    figures, outcomes = read_json(run / "report.json")["figures"]["held_out"], read_json(run / "held_out.json")
    assert figures["random"]["success"] == 0
    assert figures["random"]["return"] == pytest.approx(sum(row["return"] for row in outcomes["random"]) / 10)
    Road.resets = 0
    assert main(command) == 0
    assert Road.resets < EXPLORED  # a random player has collected the prompts already
