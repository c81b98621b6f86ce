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
    settings = (
        "--clip-high",
        "0.4",
        "--epochs",
        "2",
        "--learning-rate",
        "1e-3",
        "--entropy-coef",
        "0.003",
        "--max-grad-norm",
        "1",
    )
    assert train(ground, f"{module}:ALGORITHM", *settings, "--max-steps", "30") == 0
    rows = [row for _, row in read_jsonl(Path("results/own/metrics.jsonl"))]
    # the optimum over the six starts: 1 - 0.1 * mean(6 … 1) + 0 = 0.65
    assert rows[-1]["return"] > max(0.55, rows[0]["return"] + 0.2)
    assert rows[-1]["success_rate"] == 1
    assert rows[-1]["groups_without_spread"] is None
    assert read_json(Path("results/own/config.json"))["settings"]["clip_high"] == 0.4


def test_its_settings_are_flags_and_keys_of_files_and_recipes(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    algorithm = f"{module}:ALGORITHM"
    assert main(["rlft", f"--algo={algorithm}", "--help"]) == 0
    assert "--clip-high" in capsys.readouterr().out
    assert main(["rlft", "--help"]) == 0
    assert "--clip-high" not in capsys.readouterr().out
    Path("settings.yaml").write_text(f"algo: {algorithm}\nclip_high: high\n", encoding="utf-8")
    assert main(["rlft", "--env", "corridor", "--policy", "none", "--config", "settings.yaml"]) == 2
    assert "rlft: --clip-high must be a valid number, got 'high'" in capsys.readouterr().err
    settings: dict[str, Any] = {"env": "corridor", "policy": "none", "algo": algorithm}
    assert build(rlft.RLConfig, settings | {"clip_high": 0.5}, "rlft").algo.settings.clip_high == 0.5
    assert build(rlft.RLConfig, settings, "rlft").algo.settings.clip_high == 0.28
    write_json(
        Path("mine.yaml"),
        {"description": "", "steps": [{"name": "train", "stage": "rlft", **settings, "clip_hihg": 1}]},
    )
    assert main(["run", "mine.yaml"]) == 2
    assert "did you mean 'clip_high'" in capsys.readouterr().err


CODE = """
from dataclasses import replace
from reflectkit import Config
from reflectkit.train.algorithms import ALGORITHMS, Algorithm, CriticSettings
REINFORCE = ALGORITHMS["reinforce"]
PPO = ALGORITHMS["ppo"].settings()
NUMBER = 3

class Taken(Config):
    seed: int = 1

class Required(Config):
    strength: float

class WithCritic(CriticSettings):
    critic_rate: float = 1e-2

class Unsupported(Config):
    table: dict = None

class Unresolved(Config):
    device: "Device" = None

class WithoutBaseline(Config):
    strength: float = 1.0

def changed(**columns):
    # an estimate whose columns are made from the rollouts
    def estimate(rollouts, settings):
        estimates = REINFORCE.estimate(rollouts, settings)
        return replace(estimates, **{name: value(rollouts) for name, value in columns.items()})
    return replace(REINFORCE, estimate=estimate)

def everywhere(value):
    return lambda rollouts: [[value] * len(trajectory.turns) for trajectory in rollouts.fresh]

def raises(rollouts, settings):
    raise ValueError("no luck")

TAKEN = replace(REINFORCE, settings=Taken)
REQUIRED = replace(REINFORCE, settings=Required)
PLAIN = replace(REINFORCE, settings=dict)
INSTANCE = replace(REINFORCE, settings=WithoutBaseline())
UNSUPPORTED = replace(REINFORCE, settings=Unsupported)
UNRESOLVED = replace(REINFORCE, settings=Unresolved)
FOREIGN = replace(REINFORCE, settings=WithoutBaseline)
NO_ESTIMATE = replace(REINFORCE, estimate=None)
NO_GROUP = replace(REINFORCE, group_size=0)
FEWER = changed(advantages=lambda rollouts: [[1.0]])
SHORTER = changed(advantages=lambda rollouts: [[1.0]] * len(rollouts.fresh))
WORDS = changed(returns=lambda rollouts: ["a"])
NAN = changed(advantages=everywhere(float("nan")))
INFINITE = changed(returns=everywhere(float("-inf")))
DROPPED = changed(dropped=lambda rollouts: 3)
NOTHING = replace(REINFORCE, estimate=lambda rollouts, settings: None)
TUPLE = replace(REINFORCE, estimate=lambda rollouts, settings: ([], []))
ONE_ARGUMENT = replace(REINFORCE, estimate=lambda rollouts: rollouts)
RAISING = replace(REINFORCE, estimate=raises)
NUMBER_LOSS = replace(REINFORCE, loss=lambda tokens, settings: 3.0)
CONSTANT = replace(REINFORCE, loss=lambda *both: REINFORCE.loss(*both).detach())
SCALAR = replace(REINFORCE, loss=lambda *both: REINFORCE.loss(*both).sum())
RAISES = replace(REINFORCE, loss=lambda tokens, settings: tokens.missing)
GROUPS = replace(REINFORCE, compares_groups=lambda settings: True)
CRITIC = Algorithm(WithCritic, lambda rollouts, settings: ALGORITHMS["ppo"].estimate(rollouts, PPO), REINFORCE.loss)
"""


@pytest.mark.parametrize(
    ("name", "more", "message"),
    [
        ("NONE", "", "cannot import algorithm"),
        ("NUMBER", "", "is not an Algorithm; see reflectkit.train.algorithms.Algorithm"),
        ("PLAIN", "", "settings must be a subclass of reflectkit.Config, not <class 'dict'>"),
        ("INSTANCE", "", "settings must be a subclass of reflectkit.Config, not WithoutBaseline(strength=1.0)"),
        ("REQUIRED", "", "setting 'strength' needs a default"),
        ("UNSUPPORTED", "", "setting 'table' has the type <class 'dict'>; use str, int, float, bool, Path,"),
        ("UNRESOLVED", "", "a type of its settings cannot be read (name 'Device' is not defined); import"),
        ("FOREIGN", "", "compares_groups(settings) failed: AttributeError: 'WithoutBaseline' object has no attribute"),
        ("NO_ESTIMATE", "", "estimate must be a function, not None"),
        ("NO_GROUP", "", "group_size must be a whole number from 1, not 0"),
        ("TAKEN", "", "its setting 'seed' is one of the command's already"),
        ("REINFORCE", "--gae-lambda 0.9", "--gae-lambda is a setting of algo 'ppo'; leave it out"),
        ("CRITIC", "--critic none", "no --critic named 'none'"),
        (
            "GROUPS",
            "--baseline none",
            ":GROUPS --baseline none compares episodes of one problem: --group-size must be at least 2",
        ),
        ("FEWER", "", "the algorithm's advantages must be one number per decision: "),
        ("SHORTER", "", "the algorithm's advantages must be one number per decision: "),
        ("WORDS", "", "the algorithm's returns must be a list of numbers per episode"),
        ("NAN", "", "the algorithm's advantages must be finite numbers, not nan"),
        ("INFINITE", "", "the algorithm's returns must be finite numbers, not -inf"),
        ("DROPPED", "", "the algorithm's dropped must be a set of groups or None, not 3"),
        ("NOTHING", "", "the algorithm's estimate must return Estimates, not NoneType"),
        ("TUPLE", "", "the algorithm's estimate must return Estimates, not tuple"),
        ("ONE_ARGUMENT", "", "the algorithm's estimate(rollouts, settings) failed: TypeError: <lambda>() takes 1"),
        ("RAISING", "", "line 38: ValueError: no luck"),
        ("NUMBER_LOSS", "", "the algorithm's loss must be a tensor, not float"),
        ("CONSTANT", "", "the algorithm's loss has no gradient; compute it from tokens.logprob_N"),
        ("SCALAR", "", "the algorithm's loss must be one number per trained token, of shape ("),
        ("RAISES", "", "line 62: AttributeError: 'TrainedTokens' object has no attribute 'missing'"),
    ],
)
def test_mistakes_are_one_line(
    ground: Path, module: str, capsys: pytest.CaptureFixture[str], name: str, more: str, message: str
) -> None:
    Path(f"{module}.py").write_text(CODE, encoding="utf-8")
    assert train(ground, f"{module}:{name}", "--max-steps", "1", *more.split()) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_mistake_in_a_recipes_step_names_its_line(
    ground: Path, module: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path.cwd()))
    Path(f"{module}.py").write_text(CODE, encoding="utf-8")
    step = {"name": "rl", "stage": "rlft", "env": "corridor", "task_file": str(ground / "train.json"), "max_steps": 1,
            "policy": str(ground / "policy"), "episodes": 4, "algo": f"{module}:RAISING"}  # fmt: skip
    write_json(Path("mine.yaml"), {"description": "", "steps": [step]})
    assert main(["run", "mine.yaml"]) == 2
    error = capsys.readouterr().err
    assert f"{Path.cwd() / module}.py, line 38: ValueError: no luck" in error
    assert error.count("\n") == 1


def test_an_algorithm_with_critic_settings_trains_a_critic(ground: Path, module: str) -> None:
    Path(f"{module}.py").write_text(CODE, encoding="utf-8")
    assert train(ground, f"{module}:CRITIC", "--critic", "mlp", "--max-steps", "2") == 0
    settings = read_json(Path("results/own/config.json"))["settings"]
    assert (settings["critic"], settings["critic_rate"]) == ("mlp", 0.01)
    rows = [row for _, row in read_jsonl(Path("results/own/metrics.jsonl"))]
    assert all(row["value_loss"] > 0 for row in rows)
