"""An RL algorithm and a sampler in files of their own: the examples in CONTRIBUTING, and mistakes in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from reflectkit.cli.main import main
from reflectkit.jsonl import read_json, read_jsonl
from tests.examples import own_module, save_example


@pytest.fixture
def module(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The example in CONTRIBUTING under a module name of this test's, in the working directory and on the
    Python path.
    """
    name = own_module(request.node)
    save_example("my_algorithm", name, tmp_path, monkeypatch)
    return name


def train(corridor_folder: Path, algorithm: str, *more: str) -> int:
    return main(["rlft", "--env", "corridor", "--task-file", str(corridor_folder / "train.json"), "--device", "cpu",
                 "--policy", str(corridor_folder / "policy"), "--horizon", "16", "--episodes", "12", "--name", "own",
                 "--algo", algorithm, *more])  # fmt: skip


def test_the_example_learns_the_corridor(corridor_folder: Path, module: str) -> None:
    settings = ["--upper-clip", "0.4", "--epochs", "2", "--learning-rate", "1e-3", "--entropy-coef", "0.003"]
    assert train(corridor_folder, f"{module}:ALGORITHM", *settings, "--max-grad-norm", "1", "--max-steps", "15") == 0
    rows = [row for _, row in read_jsonl(Path("results/own/metrics.jsonl"))]
    assert rows[-1]["return"] > rows[0]["return"] + 0.2
    assert rows[-1]["groups_without_spread"] is None
    assert read_json(Path("results/own/config.json"))["settings"]["upper_clip"] == 0.4


@pytest.fixture
def policy(corridor_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An untrained policy of the corridor; the working directory has the example."""
    save_example("my_sampler", "my_sampler", tmp_path, monkeypatch)
    return corridor_folder / "policy"


def test_the_example_trains_and_its_setting_is_a_flag(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["rlft", "--env", "corridor", "--task-file", str(policy.parent / "train.json"), "--device", "cpu",
               "--policy", str(policy), "--algo", "reinforce", "--episodes", "8", "--name", "own", "--horizon", "16",
               "--sampler", "my_sampler:BACKEND"]  # fmt: skip
    assert main([*command, "--epsilon", "0.2", "--max-steps", "2"]) == 0
    rows = [row for _, row in read_jsonl(Path("results/own/metrics.jsonl"))]
    assert rows[0]["ratio_deviation"] > 0.01  # the ratio starts from the mixture's log-probabilities, not the policy's
    assert read_json(Path("results/own/config.json"))["settings"]["epsilon"] == 0.2
    capsys.readouterr()
    assert main([*command, "--help"]) == 0
    assert "--epsilon" in capsys.readouterr().out
    assert main([*command[:-2], "--epsilon", "0.2"]) == 2
    assert "--epsilon" in capsys.readouterr().err
    assert main([*command, "--epsilon", "2"]) == 2
    assert "--epsilon must be less than or equal to 1" in capsys.readouterr().err
    play = ["--env", "corridor", "--sampler", "my_sampler:BACKEND", "--epsilon", "0.2"]
    play += ["--task-file", str(policy.parent / "train.json")]
    assert main(["evaluate", *play, "--policy", f"mine={policy}", "--name", "evaluated"]) == 0
