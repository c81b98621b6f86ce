"""An RL algorithm in a file of its own: the example in CONTRIBUTING learns, and mistakes in such a file are
one line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reflectkit.cli.main import main
from reflectkit.commands import rlft
from reflectkit.config import build
from reflectkit.jsonl import read_json, read_jsonl, write_json
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


def test_its_settings_are_flags_and_keys_of_files_and_recipes(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    algorithm = f"{module}:ALGORITHM"
    assert main(["rlft", f"--algo={algorithm}", "--help"]) == 0
    assert "--upper-clip" in capsys.readouterr().out
    assert main(["rlft", "--help"]) == 0
    assert "--upper-clip" not in capsys.readouterr().out
    Path("settings.yaml").write_text(f"algo: {algorithm}\nupper_clip: high\n", encoding="utf-8")
    assert main(["rlft", "--env", "corridor", "--policy", "none", "--config", "settings.yaml"]) == 2
    assert "rlft: --upper-clip must be a valid number, got 'high'" in capsys.readouterr().err
    settings: dict[str, Any] = {"env": "corridor", "policy": "none", "algo": algorithm}
    assert build(rlft.RLConfig, settings | {"upper_clip": 0.5}, "rlft").algo.settings.upper_clip == 0.5
    assert build(rlft.RLConfig, settings, "rlft").algo.settings.upper_clip == 0.28
    write_json(
        Path("mine.yaml"),
        {"description": "", "steps": [{"name": "train", "stage": "rlft", **settings, "uper_clip": 1}]},
    )
    assert main(["run", "mine.yaml"]) == 2
    assert "did you mean 'upper_clip'" in capsys.readouterr().err
