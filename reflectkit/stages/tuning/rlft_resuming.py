"""Where rlft goes on: its own latest checkpoint, that of --resume-from, or the start."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reflectkit.core.console import Progress
from reflectkit.core.errors import CheckpointError, ConfigError, DataError
from reflectkit.core.folders import checkpoints
from reflectkit.core.identity import recorded_defaults
from reflectkit.core.jsonl import read_json
from reflectkit.core.text import counted
from reflectkit.stages.tuning.rlft_trainer import trainer_of

if TYPE_CHECKING:
    from reflectkit.agents.commentators import Commentator
    from reflectkit.rl.loop import Level, Trainer
    from reflectkit.rl.processes import Processes
    from reflectkit.stages.tuning.rl_config import RLConfig

MAY_DIFFER = (
    "resume_from", "learning_rate", "reflector_rate", "save_steps", "keep_episodes", "device", "report_to",
    "gradient_checkpointing", "data_dir", "sampler", "reflector_sampler",
)  # fmt: skip
"""Settings that may differ from those of the checkpoint that a run resumes from."""


def resumed_trainer(
    config: RLConfig,
    levels: list[Level],
    folder: Path,
    settings: Mapping[str, Any],
    processes: Processes,
    progress: Progress,
    chat: Commentator | None = None,
) -> Trainer:
    """The trainer: resumed from the latest undamaged checkpoint in `folder`, from --resume-from, or at its start. chat:
    a chat model that comments.
    """
    from reflectkit.rl import checkpoint

    defaults = recorded_defaults(config)
    for place in reversed(checkpoints(folder)):
        try:
            checkpoint.check_files(place)
            trainer = trainer_of(config, levels, place, processes, progress, chat)
            checkpoint.restore(place, trainer, settings, defaults)
            return trainer
        except checkpoint.OtherSettingsError:
            raise
        except CheckpointError as error:
            progress.news(f"{error}; resuming from an earlier state")
    if config.resume_from is not None:
        state = _state_of(config.resume_from)
        free = (
            *MAY_DIFFER,
            *(
                ("max_steps",)
                if config.optim.schedule == "constant" and (len(levels) < 2 or config.curriculum.advance_at)
                else ()
            ),
        )
        checkpoint.check_settings(
            config.resume_from,
            {name: value for name, value in state.items() if name not in free},
            {name: value for name, value in settings.items() if name not in free},
            defaults,
        )
        checkpoint.check_files(config.resume_from)
        trainer = trainer_of(config, levels, config.resume_from, processes, progress, chat)
        checkpoint.restore(config.resume_from, trainer, state, defaults)
        if trainer.step >= config.max_steps:
            raise ConfigError(
                f"{config.resume_from} is after {counted(trainer.step, 'update')}; raise --max-steps above that"
            )
        return trainer
    return trainer_of(config, levels, None, processes, progress, chat)


def _state_of(place: Path) -> dict[str, Any]:
    """The settings that the checkpoint `place` was made with."""
    from reflectkit.rl import checkpoint

    if not (place / checkpoint.STATE).is_file():
        raise CheckpointError(
            f"{place} is not a checkpoint of rlft; name one, e.g. results/taxi-tiny/reflect-rl/checkpoint-36"
        )
    try:
        return dict(read_json(place / checkpoint.STATE)["settings"])
    except (DataError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{place}: the training state is damaged ({error})") from None
