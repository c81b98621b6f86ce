"""A chat model as the reflector of a trained policy: in evaluate, play and rlft, against a real server."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from reflectkit.cli.main import main
from tests.command_lines import error_of
from tests.kill import hashes
from tests.server import Server, serve

PRICES = ["--price-in", "1", "--price-out", "2"]


@pytest.fixture
def server() -> Iterator[Server]:
    """Never says the same twice."""
    numbers = itertools.count()
    with serve(lambda body: f"Comment: Go on to the right, step {next(numbers)}.") as server:
        yield server


def files(folder: Path) -> list[str]:
    return ["--env", "corridor", "--device", "cpu", "--task-file", str(folder / "train.json")]


def rlft(folder: Path, server: Server, *more: str) -> list[str]:
    return ["rlft", *files(folder), "--policy", str(folder / "policy"), "--reflector", "local:m",
        "--base-url", server.url, "--max-steps", "3", "--episodes", "8", "--save-steps", "1", *more]  # fmt: skip


def test_rlft_that_stops_in_the_middle_resumes_and_asks_nothing_twice(
    corridor_folder: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """And from its journal alone it comes to the same bytes."""
    command = rlft(corridor_folder, server, "--name", "run", *PRICES)
    assert "with a larger --max-cost-usd" in error_of([*command, "--max-cost-usd", "0.0015"], capsys)
    assert Path("results/run/reflector.jsonl").read_text()
    assert main(command) == 0
    run = Path("results/run")
    answered = len((run / "reflector.jsonl").read_text().splitlines())
    assert answered == server.answered
    before = hashes(run / "checkpoint-3")
    for path in [run / "report.json", run / "metrics.jsonl"]:
        path.unlink()
    for path in run.glob("checkpoint-*"):
        shutil.rmtree(path)
    assert main(command) == 0
    assert server.answered == answered
    assert hashes(run / "checkpoint-3") == before
