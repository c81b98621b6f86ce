"""rlft as tests run it, in this process or by its command line, and its checkpoints, damaged or compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from reflectkit.commands import rlft
from reflectkit.console import Quiet
from reflectkit.runs.run import checkpoints
from tests.kill import hashes


def arguments(corridor_folder: Path, **settings: Any) -> dict[str, Any]:
    return {
        "env": "corridor",
        "task_file": corridor_folder / "train.json",
        "policy": corridor_folder / "policy",
        "algo": "reinforce",
        "max_steps": 2,
        "episodes": 8,
        "learning_rate": 1e-3,
        "device": "cpu",
        **settings,
    }


def train(corridor_folder: Path, results: Path, **settings: Any) -> Path:
    """The last checkpoint of an rlft run in `results`."""
    report = rlft.run(rlft.RLConfig.from_flat(**arguments(corridor_folder, results_dir=results, **settings)), Quiet())
    return report.outputs[0]


def weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    name = "adapter_model.safetensors" if (checkpoint / "adapter_config.json").is_file() else "model.safetensors"
    return load_file(checkpoint / name)


def same(one: Path, other: Path) -> bool:
    first, second = weights(one), weights(other)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


HARD = ["--algo", "ppo", "--epochs", "2", "--minibatch", "16", "--replay-size", "6", "--curriculum", "short",
    "--curriculum", "long", "--advance-at", "0.2", "--max-steps", "4", "--episodes", "6", "--save-steps", "1",
    "--learning-rate", "1e-3"]  # fmt: skip
"""Everything that a checkpoint has to hold: critic, replay, adaptive curriculum, memo."""


def command(corridor_folder: Path, *more: str) -> list[str]:
    return ["rlft", "--env", "corridor", "--task-file", str(corridor_folder / "train.json"), "--device", "cpu",
        "--algo", "reinforce", "--policy", str(corridor_folder / "policy"), "--reflector",
        str(corridor_folder / "reflection"), *more]  # fmt: skip


def final(folder: Path) -> dict[str, str]:
    """Digests of the last checkpoint's files."""
    found = hashes(checkpoints(next((folder / "results").glob("*_rlft")))[-1])
    return {name: digest for name, digest in found.items() if name != "README.md"}


def cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
