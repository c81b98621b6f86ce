"""A training checkpoint: the policy as a model folder, and beside it what the learner needs to go on as if never stopped.

Chance needs no saving: every stream is derived from the seed and the step. Written to a temporary folder and renamed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from reflectkit.core.errors import CheckpointError, DataError
from reflectkit.core.jsonl import read_json, write_json
from reflectkit.models.load import save_player
from reflectkit.rl.learner import Learner

STATE, TENSORS = "training_state.json", "training_state.safetensors"


def save(folder: Path, step: int, learner: Learner, facts: dict[str, Any]) -> Path:
    """Write `folder/checkpoint-<step>` whole, `facts` (JSON values) beside the role. Returns its path."""

    def beside(staging: Path) -> None:
        tensors = {f"critic.{name}": value for name, value in learner.critic.state_dict().items()}
        for index, state in learner.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{name}": value for name, value in state.items()}
        save_file({name: value.contiguous() for name, value in tensors.items()}, staging / TENSORS)
        write_json(staging / STATE, {"step": step})

    target = folder / f"checkpoint-{step}"
    save_player(target, learner.player, facts | {"step": step}, beside=beside)
    return target


def restore(checkpoint: Path, learner: Learner) -> int:
    """Load critic and optimizer of `checkpoint` into `learner` (whose model was loaded from it); returns the steps done.

    Raises
    ------
    CheckpointError: the state is missing, damaged, or of other shapes.
    """
    try:
        step = int(read_json(checkpoint / STATE)["step"])
        tensors = load_file(checkpoint / TENSORS)
        learner.critic.load_state_dict(
            {name.partition(".")[2]: tensors[name] for name in tensors if name.startswith("critic.")}
        )
        state: dict[int, dict[str, torch.Tensor]] = {}
        for name, value in tensors.items():
            if match := re.fullmatch(r"optimizer\.(\d+)\.(\w+)", name):
                state.setdefault(int(match[1]), {})[match[2]] = value
        learner.optimizer.load_state_dict(learner.optimizer.state_dict() | {"state": state})
    except (DataError, SafetensorError, OSError, KeyError, ValueError, RuntimeError, TypeError) as error:
        raise CheckpointError(f"{checkpoint}: the training state is damaged ({error}); delete this folder") from None
    return step


def latest(folder: Path) -> Path | None:
    """The checkpoint with the highest step in `folder`; None without one. What is there is whole: writes are renames."""
    found = [path for path in folder.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    return max(found, key=lambda path: int(path.name.rpartition("-")[2]), default=None)
