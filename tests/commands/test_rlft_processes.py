"""rlft on two processes, with the policy whole on each or sharded."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from reflectkit.cli.main import main
from reflectkit.errors import ConfigError
from reflectkit.jsonl import read_json, read_jsonl
from reflectkit.train.processes import refuse_shared_gpus
from tests.processes import forked_ranks
from tests.rlft_runs import command, same, weights
from tests.train import sharded

TWO = ["--algo", "ppo", "--distill-comments", "1", "--replay-size", "5", "--max-steps", "2", "--episodes", "8",
       "--learning-rate", "1e-3", "--minibatch", "40", "--target-kl", "0", "--table-coef", "1"]  # fmt: skip


def test_two_processes_play_and_learn_what_one_does(corridor_folder: Path, tmp_path: Path) -> None:
    """The two are forks of this process, which has imported torch, started as torchrun starts them."""
    here, there = ([*command(corridor_folder, *TWO), "--results-dir", str(tmp_path / name)] for name in ("1", "2"))
    for steps in ("1", "2"):  # the second time, the run is continued
        assert main([*here, "--max-steps", steps]) == 0
        forked_ranks(main, [*there, "--max-steps", steps])
    found = [next((tmp_path / name).glob("*_rlft")) for name in ("1", "2")]
    one, two = ([row for _, row in read_jsonl(run / "metrics.jsonl")] for run in found)
    for first, second in zip(one, two, strict=True):
        exact = ("success_rate", "return", "episode_steps", "rows", "replayed_episodes", "level", "episodes", "tokens",
                 "reflector_cache_hits")  # fmt: skip
        assert [first[name] for name in exact] == [second[name] for name in exact]
        assert first["loss"] == pytest.approx(second["loss"], abs=1e-4)
        assert first["divergence"] == pytest.approx(second["divergence"], abs=1e-5)
        assert first["commented_decisions"] == second["commented_decisions"] > 0
    states = [read_json(run / "checkpoint-2/training_state.json") | {"files": None} for run in found]
    assert states[0] == states[1]
    memos = [read_json(run / "checkpoint-2/reflector_memo.json") for run in found]
    assert memos[0] == memos[1]
    assert len(memos[0]) > 2
    assert episodes_in(found[0]) == episodes_in(found[1])
    outcomes = [outcomes_in(run) for run in found]
    assert outcomes[0] == outcomes[1]
    assert len(outcomes[0]) > 2
    assert [row["table_divergence"] for row in one] == pytest.approx([row["table_divergence"] for row in two], abs=1e-5)
    assert all(row["table_divergence"] > 0 for row in one)
    first, second, begun = (
        weights(folder) for folder in (found[0] / "checkpoint-2", found[1] / "checkpoint-2", corridor_folder / "policy")
    )
    moved = max(float((first[name] - begun[name]).abs().max()) for name in first)
    apart = max(float((first[name] - second[name]).abs().max()) for name in first)
    assert moved > 5e-4
    assert apart < 1e-4


@pytest.mark.slow
def test_accelerate_launch_with_a_config_does_what_processes_do(
    corridor_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command(corridor_folder, *TWO), "--results-dir", str(tmp_path / "own"), "--processes", "2"]) == 0
    (own,) = (tmp_path / "own").glob("*_rlft")
    capsys.readouterr()
    assert main(["list", "--configs", "multi_gpu"]) == 0
    config = capsys.readouterr().out.split()[-1]
    results = tmp_path / "results"
    launcher = [
        "accelerate.commands.launch",
        "--config_file",
        config,
        "--main_process_port",
        "0",
        "--num_processes",
        "2",
    ]
    arguments = [*command(corridor_folder, *TWO), "--results-dir", str(results)]
    done = subprocess.run(
        [sys.executable, "-m", *launcher, "-m", "reflectkit", *arguments],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("checkpoint-2\n→") <= 1  # one process speaks
    (run,) = results.glob("*_rlft")
    assert same(run / "checkpoint-2", own / "checkpoint-2")


def episodes_in(run: Path) -> list[Any]:
    """The replayed episodes' problems, seeds and actions."""
    rows = [row for _, row in read_jsonl(run / "checkpoint-2/replay.jsonl")]
    return [(row["task"]["id"], row["seed"], [turn["decision"]["action"] for turn in row["turns"]]) for row in rows]


def outcomes_in(run: Path) -> dict[str, Any]:
    """How often each choice was taken in a state of the table, its rewards, and the states that followed."""
    states = read_json(run / "checkpoint-2/state_table.json")["states"]
    return {
        name: {place: outcome[:3] for place, outcome in outcomes.items()}
        for name, (_, _, outcomes, _) in states.items()
    }


FAULTY = """
import os, signal
from reflectkit.envs.corridor import Corridor

class Killed(Corridor):
    def reset(self, task, seed):
        if os.environ.get("RANK") == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().reset(task, seed)

class Stopped(Corridor):
    told = False

    def step(self, action):
        if os.environ.get("RANK") == "1" and not Stopped.told:
            Stopped.told = True
            os.kill(int(os.environ["STOPPED"]), signal.SIGINT)
        return super().step(action)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "code", "line"),
    [
        ("Killed", 2, "rlft: process 1 was killed (signal 9; out of memory?); run the same command again to resume"),
        ("Stopped", 130, "stopped; run the same command again to resume"),
    ],
)
def test_a_killed_process_and_ctrl_c_end_all_with_one_line(
    corridor_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    env: str,
    code: int,
    line: str,
) -> None:
    (tmp_path / "faulty.py").write_text(FAULTY)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("STOPPED", str(os.getpid()))
    arguments = command(corridor_folder, "--processes", "2", "--results-dir", str(tmp_path), "--env", f"faulty:{env}")
    arguments += ["--validate-problems", "0"]
    try:
        assert main(arguments) == code
    finally:
        signal.signal(signal.SIGINT, before)
    assert capfd.readouterr().err == f"reflectkit: {line}\n"
    assert active_children() == []
    saved = [path.name for path in tmp_path.glob("*_rlft/checkpoint-*")]
    assert saved == (["checkpoint-1"] if env == "Stopped" else [])  # the update was ended


@pytest.fixture(scope="module")
def whole(corridor_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `tests/train/sharded.py` makes with the whole policy in one process."""
    folder = tmp_path_factory.mktemp("whole")
    shutil.copytree(corridor_folder / "policy", folder / "policy")
    sharded.main("whole", folder)
    return folder / "whole"


def apart(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> float:
    """The distance of all tensors together; those that `second` lacks are 0 there."""
    gaps = (tensor.float() - second[key].float() if key in second else tensor.float() for key, tensor in first.items())
    return math.sqrt(sum(float(gap.square().sum()) for gap in gaps))


def test_a_sharded_policy_learns_what_a_whole_one_does(corridor_folder: Path, whole: Path, tmp_path: Path) -> None:
    """FSDP2 over two gloo processes, saved and taken up again half way (`tests/train/sharded.py`)."""
    shutil.copytree(corridor_folder / "policy", tmp_path / "policy")
    forked_ranks(sharded.main, "sharded", tmp_path)
    begun, ended = weights(corridor_folder / "policy"), weights(whole / "checkpoint-2")
    for name in ("model.safetensors", "training_state.safetensors"):
        first, second = (load_file(folder / "checkpoint-2" / name) for folder in (whole, tmp_path / "sharded"))
        assert first.keys() == second.keys()
        way = apart(first, begun) if name.startswith("model") else apart(first, {})
        assert apart(first, second) < 0.005 * way  # single weights whose gradient is about 0 may step the other way
    assert max(float((begun[key] - ended[key]).abs().max()) for key in begun) > 1e-3


@pytest.mark.parametrize(
    ("environment", "gpus", "over_nccl", "refused"),
    [
        ({"LOCAL_WORLD_SIZE": "2"}, 1, True, True),
        ({"LOCAL_WORLD_SIZE": "2"}, 1, False, False),
        ({"LOCAL_WORLD_SIZE": "2", "ACCELERATE_USE_FSDP": "true"}, 1, False, True),
        ({"LOCAL_WORLD_SIZE": "2", "ACCELERATE_USE_FSDP": "true"}, 2, True, False),
        ({"LOCAL_WORLD_SIZE": "2"}, 0, True, False),
        ({}, 1, True, False),
    ],
)
def test_processes_that_cannot_share_a_gpu_are_refused(
    environment: dict[str, str], gpus: int, over_nccl: bool, refused: bool
) -> None:
    if not refused:
        refuse_shared_gpus(environment, gpus, over_nccl=over_nccl)
        return
    with pytest.raises(ConfigError, match="2 processes need as many GPUs, and 1 GPU can be used; start 1"):
        refuse_shared_gpus(environment, gpus, over_nccl=over_nccl)
