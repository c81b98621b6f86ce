"""A training checkpoint: the policy as a model folder, plus the state that training needs to resume exactly. Where the
reflector learns too, it is a model folder in that folder.

Random states need no saving: every stream is derived from the seed and the step, and dropout is off. A checkpoint is
written to a temporary folder and renamed, with a checksum of every file. It has only JSON and safetensors files, so
opening one runs no code.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from reflectkit.errors import CheckpointError, DataError
from reflectkit.jsonl import read_json, read_jsonl, write_json, write_text
from reflectkit.models.checkpoint_metadata import REFLECTOR_FOLDER, best_checkpoint
from reflectkit.models.load import save_player
from reflectkit.runs.run import checkpoints, seal
from reflectkit.train.trainer import Trainer
from reflectkit.types import Trajectory, from_json, to_json

STATE, TENSORS, REPLAY, NOVELTY, MEMO = (
    "training_state.json",
    "training_state.safetensors",
    "replay.jsonl",
    "novelty.json",
    "reflector_memo.json",
)


class OtherSettingsError(CheckpointError):
    """The checkpoint belongs to a run with other settings."""


def save(folder: Path, trainer: Trainer, settings: Mapping[str, Any], facts: Mapping[str, Any], keep: int = 2) -> Path:
    """Write `folder/checkpoint-<step>` atomically, then remove all but the last `keep` and the best. Returns its path.
    All processes must call this; the first one writes.

    settings: the run's settings; only a run with the same ones resumes from it. facts: JSON values saved with the role.
    """
    learner, curriculum = trainer.learner, trainer.curriculum
    state = {
        "step": trainer.step,
        "settings": dict(settings),
        "curriculum": {"level": curriculum.level, "rates": curriculum.rates},
        "counters": trainer.counters,
        "max_tokens": learner.max_tokens,
    }
    second = trainer.reflector_trainer.learner if trainer.reflector_trainer is not None else None
    if second is not None:
        state["reflector_max_tokens"] = second.max_tokens

    averages = learner.teacher.pairs() if learner.teacher is not None and learner.settings.ema else {}
    weights, optimizer = learner.optimizer.model_state(), learner.optimizer_state()
    target = folder / f"checkpoint-{trainer.step}"
    if not trainer.processes.first:
        return target

    def write_state(staging: Path) -> None:
        tensors: dict[str, torch.Tensor] = {}
        if learner.critic is not None:
            tensors |= {f"critic.{name}": value for name, value in learner.critic.state_dict().items()}
        tensors |= {f"optimizer.{name}": value for name, value in optimizer.items()}
        tensors |= {f"teacher.{name}": average for name, (average, _) in averages.items()}
        if second is not None:
            tensors |= {f"reflector.{name}": value for name, value in second.optimizer_state().items()}
            save_player(
                staging / REFLECTOR_FOLDER,
                second.player,
                {name: facts.get(name) for name in ("env", "prompts")} | {"step": trainer.step},
            )
        save_file({name: value.contiguous().clone() for name, value in tensors.items()}, staging / TENSORS)
        write_text(staging / REPLAY, "".join(_json(to_json(trajectory)) + "\n" for trajectory in trainer.replay))
        write_json(staging / NOVELTY, trainer.novelty.state())
        write_text(staging / MEMO, _json(trainer.agent.reflector.memo if trainer.agent.reflector else {}))
        write_json(staging / STATE, state)
        seal(staging)

    save_player(target, learner.player, {**facts, "step": trainer.step}, write_state, weights)
    intact = [path for path in checkpoints(folder) if int(path.name.rpartition("-")[2]) <= trainer.step]
    best = best_checkpoint(intact)
    for old in intact[:-keep]:
        if old != best:
            shutil.rmtree(old, ignore_errors=True)
    return target


def settings_of(checkpoint: Path) -> dict[str, Any]:
    """The settings of the run that wrote `checkpoint`. Raises CheckpointError."""
    if not (checkpoint / STATE).is_file():
        inside = checkpoints(checkpoint) if checkpoint.is_dir() else []
        near = inside[-1] if inside else "results/taxi-tiny/reflect-rl/checkpoint-36"
        raise CheckpointError(f"{checkpoint} is not a checkpoint of rlft; name one, e.g. {near}")
    try:
        return dict(read_json(checkpoint / STATE)["settings"])
    except (DataError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{checkpoint}: the training state is damaged ({error})") from None


def restore(checkpoint: Path, trainer: Trainer) -> None:
    """Restore the state of `trainer`, whose policy was loaded from `checkpoint`, after `check_settings` and `verify`.
    Raises CheckpointError if the state does not fit.
    """
    try:
        state = read_json(checkpoint / STATE)
        learner, tensors = trainer.learner, load_file(checkpoint / TENSORS)
        if learner.critic is not None:
            learner.critic.load_state_dict(_part(tensors, "critic."))
        learner.load_optimizer_state(_part(tensors, "optimizer."))
        if learner.teacher is not None and learner.settings.ema:
            learner.teacher.load(_part(tensors, "teacher."))
        learner.max_tokens = min(learner.max_tokens, int(state["max_tokens"]))
        if trainer.reflector_trainer is not None:
            second = trainer.reflector_trainer.learner
            second.load_optimizer_state(_part(tensors, "reflector."))
            second.max_tokens = min(second.max_tokens, int(state["reflector_max_tokens"]))
        trainer.step = int(state["step"])
        trainer.counters = {name: int(value) for name, value in state["counters"].items()}
        trainer.curriculum.level = int(state["curriculum"]["level"])
        trainer.curriculum.rates = [float(rate) for rate in state["curriculum"]["rates"]]
        path = checkpoint / REPLAY
        if path.stat().st_size:
            trainer.replay.add(from_json(Trajectory, row, path=path, line=line) for line, row in read_jsonl(path))
        trainer.novelty.load(read_json(checkpoint / NOVELTY))
        memo = read_json(checkpoint / MEMO)
        if trainer.agent.reflector is not None:
            trainer.agent.reflector.memo = {str(key): str(value) for key, value in memo.items()}
    except (DataError, SafetensorError, OSError, LookupError, ValueError, RuntimeError, TypeError) as error:
        raise CheckpointError(f"{checkpoint}: the training state is damaged ({error}); delete this folder") from None


def check_settings(
    checkpoint: Path, settings: Mapping[str, Any], defaults: Mapping[str, Any], free: Collection[str] = ()
) -> None:
    """Raises OtherSettingsError, naming the differences, if `checkpoint` was made with other settings than these.

    free: names of those that may differ. defaults: stand in for the settings that the version which made the checkpoint
    did not know. Those that it knew and this one does not may be at them.
    """
    there = {name: value for name, value in defaults.items() if name in settings} | {
        name: value
        for name, value in settings_of(checkpoint).items()
        if name in settings or defaults.get(name, ...) != value
    }
    differing = [
        f"{name} is {there.get(name, 'not set')} there and {settings.get(name, 'not set')} here"
        for name in sorted({*there, *settings}.difference(free))
        if there.get(name) != settings.get(name)
    ]
    if differing:
        raise OtherSettingsError(
            f"{checkpoint} was made with other settings: {'; '.join(differing)}; give the same, or start anew with"
            " --policy"
        )


def _json(value: object) -> str:
    """ASCII JSON, so that a lone surrogate that an env showed survives the round trip."""
    return json.dumps(value, allow_nan=False)


def _part(tensors: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """The tensors whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
