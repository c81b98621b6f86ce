"""A training checkpoint: the policy as a model folder, plus the state that training needs to resume
exactly. Where the reflector learns too, it is a model folder in that folder.

A damaged checkpoint is never trained from. `save` seals each with a checksum of every file;
`build.resumed_trainer` tries the newest first, says which file is damaged, and resumes from an
earlier one, or at the start if there is none. A damaged --resume-from is refused.

Random states need no saving: every stream is derived from the seed and the step, and dropout is
off. A checkpoint is written to a temporary folder and renamed. It has only JSON and safetensors
files, so opening one runs no code.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from reflectkit.errors import CheckpointError, ConfigError, DataError, out_of_memory
from reflectkit.jsonl import read_json, read_jsonl, write_json, write_text
from reflectkit.models.checkpoint_metadata import REFLECTOR_FOLDER, best_checkpoint
from reflectkit.models.load import LoadedModel
from reflectkit.runs.run import checkpoints, seal
from reflectkit.train.algorithms import CriticSettings
from reflectkit.train.critic import PREFIX, Critic
from reflectkit.train.learner import LearnerState, part_of
from reflectkit.train.trainer import Trainer
from reflectkit.types import Trajectory, from_json, to_json

STATE = "training_state.json"  # numbers, and the run's settings
TENSORS = "training_state.safetensors"  # of the optimizers and the critic
REPLAY = "replay.jsonl"
NOVELTY = "novelty.json"
TABLE = "state_table.json"
MEMO = "reflector_memo.json"

REFLECTOR_NUMBERS, REFLECTOR_TENSORS = "reflector_", "reflector."
"""What the names of the state of a reflector that learns begin with."""


class OtherSettingsError(CheckpointError):
    """The checkpoint belongs to a run with other settings."""


def save(
    folder: Path,
    trainer: Trainer,
    settings: Mapping[str, Any],
    facts: Mapping[str, Any],
    keep: int = 2,
) -> Path:
    """Write `folder/checkpoint-<step>` atomically, then remove all but the last `keep` and the
    best. Returns its path. All processes must call this; the first one writes.

    settings: the run's settings; only a run with the same ones resumes from it. facts: JSON values
    saved with the role.
    """
    # 1. The state; all processes take part, as each may hold a shard of it
    curriculum, policy = trainer.curriculum, trainer.learner.state()
    reflector = trainer.reflector_trainer.learner if trainer.reflector_trainer is not None else None
    reflector_state = None if reflector is None else reflector.state()
    state = {
        "step": trainer.step,
        "settings": dict(settings),
        "curriculum": {"level": curriculum.level, "rates": curriculum.rates},
        "counters": trainer.counters,
        **policy.numbers,
    }
    if reflector_state is not None:
        state |= {
            f"{REFLECTOR_NUMBERS}{name}": value for name, value in reflector_state.numbers.items()
        }

    # 2. The policy's folder, with the state in it
    target = folder / f"checkpoint-{trainer.step}"

    def write_state(staging: Path) -> None:
        tensors = dict(policy.tensors)
        if reflector is not None and reflector_state is not None:
            tensors |= {
                f"{REFLECTOR_TENSORS}{name}": value
                for name, value in reflector_state.tensors.items()
            }
            reflector_facts = {name: facts.get(name) for name in ("env", "prompts")} | {
                "step": trainer.step
            }
            reflector.save(staging / REFLECTOR_FOLDER, reflector_facts)
        save_file(
            {name: value.contiguous().clone() for name, value in tensors.items()}, staging / TENSORS
        )
        write_text(
            staging / REPLAY,
            "".join(_json(to_json(trajectory)) + "\n" for trajectory in trainer.replay),
        )
        write_json(staging / NOVELTY, trainer.novelty.state())
        write_text(staging / TABLE, _json(trainer.table.state()))
        write_text(
            staging / MEMO, _json(trainer.agent.reflector.memo if trainer.agent.reflector else {})
        )
        write_json(staging / STATE, state)
        seal(staging)

    trainer.learner.save(target, {**facts, "step": trainer.step}, write_state)
    if not trainer.processes.first:
        return target

    # 3. Remove old ones
    earlier = [
        path for path in checkpoints(folder) if int(path.name.rpartition("-")[2]) <= trainer.step
    ]
    best = best_checkpoint(earlier)
    for old in earlier[:-keep]:
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
    """Restore the state of `trainer`, whose policy was loaded from `checkpoint`, after
    `check_settings` and `verify`. Raises CheckpointError if the state does not fit.
    """
    try:
        # 1. What learns
        state = read_json(checkpoint / STATE)
        tensors = load_file(checkpoint / TENSORS)
        trainer.learner.load(LearnerState(state, tensors))
        if trainer.reflector_trainer is not None:
            numbers = part_of(state, REFLECTOR_NUMBERS)
            trainer.reflector_trainer.learner.load(
                LearnerState(numbers, part_of(tensors, REFLECTOR_TENSORS))
            )
        # 2. Where training is
        trainer.step = int(state["step"])
        trainer.counters = {name: int(value) for name, value in state["counters"].items()}
        trainer.curriculum.level = int(state["curriculum"]["level"])
        trainer.curriculum.rates = [float(rate) for rate in state["curriculum"]["rates"]]
        # 3. Episodes, visits and comments of earlier updates
        path = checkpoint / REPLAY
        if path.stat().st_size:
            trainer.replay.add(
                from_json(Trajectory, row, path=path, line=line) for line, row in read_jsonl(path)
            )
        trainer.novelty.load(read_json(checkpoint / NOVELTY))
        trainer.table.load(read_json(checkpoint / TABLE))
        memo = read_json(checkpoint / MEMO)
        if trainer.agent.reflector is not None:
            trainer.agent.reflector.memo = {str(key): str(value) for key, value in memo.items()}
    except (
        DataError,
        SafetensorError,
        OSError,
        LookupError,
        ValueError,
        RuntimeError,
        TypeError,
    ) as error:
        if out_of_memory(error):  # which says nothing of the files
            raise
        raise CheckpointError(
            f"{checkpoint}: the training state is damaged ({error}); delete this folder"
        ) from None


def check_settings(
    checkpoint: Path,
    there: Mapping[str, Any],
    here: Mapping[str, Any],
    free: Collection[str] = (),
) -> None:
    """Raises OtherSettingsError, naming the differences, if a run with the settings `here` cannot
    resume from `checkpoint`.

    there: the settings of the run that wrote it, see `settings_of`. free: names of settings that
    may differ.
    """
    differences = []
    for name in sorted({*there, *here}.difference(free)):
        if there.get(name) != here.get(name):
            value_there = there.get(name, "not set")
            value_here = here.get(name, "not set")
            differences.append(f"{name} is {value_there} there and {value_here} here")
    if differences:
        raise OtherSettingsError(
            f"{checkpoint} was made with other settings: {'; '.join(differences)}; give the same,"
            " or start anew with --policy"
        )


def _json(value: object) -> str:
    """ASCII JSON, so that a lone surrogate that an env showed survives the round trip."""
    return json.dumps(value, allow_nan=False)


def saved_critic(checkpoint: Path, player: LoadedModel) -> Critic | None:
    """The critic that `checkpoint` holds, for its policy `player`; None if it has none, or none
    that can be read.
    """
    if not (checkpoint / TENSORS).is_file():
        return None
    try:
        with safe_open(checkpoint / TENSORS, "pt") as file:
            names = [name for name in file.keys() if name.startswith(PREFIX)]  # noqa: SIM118
            weights = {name.removeprefix(PREFIX): file.get_tensor(name) for name in names}
        settings = read_json(checkpoint / STATE)["settings"]
        if not weights:
            return None
        head, trunk = CriticSettings(critic=settings["critic"]).head, settings["critic_trunk"]
        critic = Critic(player, head, trunk)
        critic.load_state_dict(weights)
    except (ConfigError, DataError, SafetensorError, LookupError, RuntimeError, ValueError):
        return None
    return critic.eval()
