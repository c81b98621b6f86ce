"""An RL algorithm in a file of its own: the example in CONTRIBUTING learns, and mistakes in such a file are
one line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from reflectkit.cli.main import main
from reflectkit.commands import rlft
from reflectkit.config import build
from reflectkit.data.trajectories import Record, record_to_json
from reflectkit.envs import make
from reflectkit.envs.corridor import Corridor
from reflectkit.jsonl import read_json, read_jsonl, write_json
from reflectkit.models.load import LoadedModel, save_player
from reflectkit.models.tiny import build_model, build_tokenizer
from reflectkit.prompts import label, policy_prompt
from tests.examples import own_module, save_example


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained policy of the corridor, and its problems."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("own")
    seen = [make("corridor").reset(task, 0) for task in Corridor.taskset.tasks("long")]
    tokenizer = build_tokenizer(
        [policy_prompt(observation) for observation in seen], [label(index) for index in range(2)]
    )
    save_player(folder / "policy", LoadedModel(build_model(tokenizer, 64, 0), tokenizer, "plain"))
    write_json(folder / "train.json", [record_to_json(Record(task, ())) for task in Corridor.taskset.tasks("long")])
    return folder


@pytest.fixture
def module(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The example in CONTRIBUTING under a module name of this test's, in the working directory and on the
    Python path.
    """
    name = own_module(request.node)
    save_example("my_algorithm", name, tmp_path, monkeypatch)
    return name


def train(ground: Path, algorithm: str, *more: str) -> int:
    return main(["rlft", "--env", "corridor", "--task-file", str(ground / "train.json"), "--device", "cpu",
                 "--policy", str(ground / "policy"), "--horizon", "16", "--episodes", "12", "--name", "own",
                 "--algo", algorithm, *more])  # fmt: skip


def test_the_example_learns_the_corridor(ground: Path, module: str) -> None:
    settings = ["--upper-clip", "0.4", "--epochs", "2", "--learning-rate", "1e-3", "--entropy-coef", "0.003"]
    assert train(ground, f"{module}:ALGORITHM", *settings, "--max-grad-norm", "1", "--max-steps", "15") == 0
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


CODE = """
from dataclasses import replace
from reflectkit import Config
from reflectkit.train.algorithms import ALGORITHMS, Algorithm, CriticSettings
REINFORCE = ALGORITHMS["reinforce"]
PPO = ALGORITHMS["ppo"].settings()

class Taken(Config):
    seed: int = 1

class WithCritic(CriticSettings):
    critic_rate: float = 1e-2

def advantages(change):
    def estimate(rollouts, settings):
        estimates = REINFORCE.estimate(rollouts, settings)
        return replace(estimates, advantages=[change(row) for row in estimates.advantages])
    return replace(REINFORCE, estimate=estimate)

def raises(rollouts, settings):
    raise ValueError("no luck")

TAKEN = replace(REINFORCE, settings=Taken)
PLAIN = replace(REINFORCE, settings=dict)
SHORTER = advantages(lambda row: row[1:])
RAISING = replace(REINFORCE, estimate=raises)
CONSTANT = replace(REINFORCE, loss=lambda *both: REINFORCE.loss(*both).detach())
GROUPS = replace(REINFORCE, compares_groups=lambda settings: True)
CRITIC = Algorithm(WithCritic, lambda rollouts, settings: ALGORITHMS["ppo"].estimate(rollouts, PPO), REINFORCE.loss)
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("PLAIN", "settings must be a subclass of reflectkit.Config, not <class 'dict'>"),
        ("TAKEN", "its setting 'seed' is one of the command's already"),
        ("GROUPS", ":GROUPS compares episodes of one problem: --group-size must be at least 2"),
        ("SHORTER", "the algorithm's advantages must be one finite number per decision"),
        ("CONSTANT", "the algorithm's loss must be one number per trained token"),
        ("RAISING", "ValueError: no luck"),
    ],
)
def test_mistakes_are_one_line(
    ground: Path, module: str, capsys: pytest.CaptureFixture[str], name: str, message: str
) -> None:
    Path(f"{module}.py").write_text(CODE, encoding="utf-8")
    assert train(ground, f"{module}:{name}", "--max-steps", "1") == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
