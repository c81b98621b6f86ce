"""rlft killed at any point, or with damaged checkpoints, ends with the same bytes; an update that diverges, or a budget
that is spent, ends it.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from reflectkit.cli.main import main
from reflectkit.jsonl import read_jsonl
from tests.command_lines import error_of
from tests.kill import fork_killed_at, forked, hashes
from tests.rlft_runs import HARD, command, cut_in_half, final
from tests.server import serve


@pytest.fixture(scope="module")
def straight(corridor_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run of HARD."""
    folder = tmp_path_factory.mktemp("straight")
    assert forked(command(corridor_folder, *HARD), folder) == 0, (folder / "output.txt").read_text()
    return folder


def test_killed_at_any_point_it_ends_with_the_same_bytes(corridor_folder: Path, straight: Path, tmp_path: Path) -> None:
    """Weights, optimizer, critic, replay buffer, curriculum, memo, all bit for bit; and the same metrics but for the
    clock.
    """
    points = ("checkpoint-1$:1", "metrics.jsonl:1", "report.json:1")
    fork_killed_at(points, command(corridor_folder, *HARD), tmp_path)
    assert final(tmp_path) == final(straight)
    (there,), (here,) = ((folder / "results").glob("*_rlft/metrics.jsonl") for folder in (straight, tmp_path))
    timed = ("tokens_per_second", "episodes_per_second", "rollout_seconds", "update_seconds")
    rows = [
        [{key: row[key] for key in row if key not in timed} for _, row in read_jsonl(path)] for path in (there, here)
    ]
    assert rows[0] == rows[1]
    assert [row["step"] for row in rows[0]] == list(range(1, 5))
    assert {row["level"] for row in rows[0]} == {"short", "long"}
    assert any(row["replayed_episodes"] for row in rows[0])


def test_killed_at_any_point_of_its_continuation_it_ends_with_the_same_bytes(
    corridor_folder: Path, tmp_path: Path
) -> None:
    first, more = (command(corridor_folder, *HARD, "--max-steps", steps) for steps in ("2", "4"))
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        assert forked(first, tmp_path / name) == 0
    assert forked(more, tmp_path / "whole") == 0
    fork_killed_at(("config.json:1", "checkpoint-3$:1", "report.json:1"), more, tmp_path / "killed")
    assert final(tmp_path / "whole") == final(tmp_path / "killed")
    assert len(list((tmp_path / "killed" / "results").iterdir())) == 1


def without(file: Path) -> None:
    """Remove a file."""
    file.unlink()


def with_another_gamma(file: Path) -> None:
    """Change a setting, as a flipped bit may."""
    text = file.read_text()
    assert text.count('"gamma": 1.0') == 1
    file.write_text(text.replace('"gamma": 1.0', '"gamma": 0.0'))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (cut_in_half, "its checksum differs"),
        (without, "is missing, although"),
        (with_another_gamma, "its checksum differs"),
    ],
)
def test_a_damaged_last_checkpoint_gives_way_to_the_one_before(
    damage: Callable[[Path], None],
    words: str,
    corridor_folder: Path,
    straight: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(straight, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    (run,) = (tmp_path / "copy" / "results").glob("*_rlft")
    (run / "report.json").unlink()
    damage(run / "checkpoint-4" / "training_state.json")
    assert main(command(corridor_folder, *HARD)) == 0
    output = capsys.readouterr().out.replace("\n", " ")
    assert words in output
    assert "resuming from an earlier state" in output
    assert final(tmp_path / "copy") == final(straight)


FLAKY = """
import random
from pathlib import Path

class Flaky:
    choices = ["a", "b"]
    horizon = 2

    def reset(self, seed):
        self.seed, self.right = seed, random.Random(seed).choice(self.choices)
        return f"It is {self.right}."

    def step(self, choice):
        metrics = Path("results/run/metrics.jsonl")
        begun = metrics.exists() and metrics.read_text().count("\\n") == 2
        if begun and Path("broken").exists() and self.seed >= int(Path("broken").read_text()):
            raise OSError("the judge is away")
        return "Over.", float(choice == self.right), True
"""


@pytest.mark.parametrize(("validate", "seeds_from"), [("0", "0"), ("3", "1000000")])
def test_an_error_of_the_env_keeps_the_updates_before_it(
    validate: str, seeds_from: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the third update, or in the validation after it."""
    training = ["rlft", "--env", "flaky.py:Flaky", "--model", "tiny", "--max-steps", "4", "--episodes", "16",
        "--validate-problems", "0", "--validate-steps", validate, "--save-steps", "9", "--device", "cpu",
        "--name", "run"]  # fmt: skip
    monkeypatch.chdir(tmp_path)
    for folder in ("whole", "stopped"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "flaky.py").write_text(FLAKY)
        monkeypatch.chdir(tmp_path / folder)
        if folder == "stopped":
            Path("broken").write_text(seeds_from)
            assert "the judge is away" in error_of(training, capsys)
            kept = {"0": "checkpoint-2", "3": "checkpoint-3"}[validate]
            assert (tmp_path / "stopped/results/run" / kept).is_dir()
            Path("broken").unlink()
        assert main(training) == 0
    assert "Already" not in capsys.readouterr().out
    (one, other) = (hashes(tmp_path / folder / "results/run/checkpoint-4") for folder in ("whole", "stopped"))
    assert one == other


DIVERGING = """
from dataclasses import replace
from pathlib import Path
from reflectkit.train.algorithms import ALGORITHMS

third_update = False

def estimate(rollouts, settings):
    global third_update
    third_update = rollouts.groups[0].startswith("2/")
    return ALGORITHMS["reinforce"].estimate(rollouts, settings)

def loss(tokens, settings):
    factor = float("nan") if third_update and Path("diverge").exists() else 1.0
    return ALGORITHMS["reinforce"].loss(tokens, settings) * factor

ALGORITHM = replace(ALGORITHMS["reinforce"], estimate=estimate, loss=loss)
"""


def test_a_diverged_update_leaves_its_rows_and_a_good_checkpoint(
    corridor_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "diverging.py").write_text(DIVERGING, encoding="utf-8")
    (tmp_path / "diverge").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = ("--algo", "diverging:ALGORITHM", "--max-steps", "4", "--episodes", "8", "--save-steps", "1")
    assert main(command(corridor_folder, *settings)) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "diverged-3.jsonl" in said
    (run,) = (tmp_path / "results").glob("*_rlft")
    rows = [row for _, row in read_jsonl(run / "diverged-3.jsonl")]
    assert "Actions:" in rows[0]["text"]
    (tmp_path / "diverge").unlink()
    assert main(command(corridor_folder, *settings)) == 0  # goes on from update 2
    assert [row["step"] for _, row in read_jsonl(run / "metrics.jsonl")] == [1, 2, 3, 4]


def test_a_chat_reflectors_run_that_stops_in_the_middle_resumes_and_asks_nothing_twice(
    corridor_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And from its journal alone it comes to the same bytes. The server never says the same twice."""
    numbers = itertools.count()
    settings = ("--max-steps", "3", "--episodes", "8", "--save-steps", "1", "--name", "run")
    prices = ("--price-in", "1", "--price-out", "2")
    arguments = command(corridor_folder, "--reflector", "local:m", "--max-answer-tokens", "300", *prices, *settings)
    with serve(lambda body: f"Comment: Go on to the right, step {next(numbers)}.") as server:
        arguments += ["--base-url", server.url]
        assert "with a larger --max-cost-usd" in error_of([*arguments, "--max-cost-usd", "0.0015"], capsys)
        run = Path("results/run")
        assert (run / "reflector.jsonl").read_text()
        assert main(arguments) == 0
        answered = len((run / "reflector.jsonl").read_text().splitlines())
        assert answered == server.answered
        before = hashes(run / "checkpoint-3")
        for path in [run / "report.json", run / "metrics.jsonl"]:
            path.unlink()
        for path in run.glob("checkpoint-*"):
            shutil.rmtree(path)
        assert main(arguments) == 0
    assert server.answered == answered
    assert hashes(run / "checkpoint-3") == before
