"""The checkpoints of TRL's trainer, from which a killed sft run resumes: sealed with checksums, and opened only if they
hold nothing but tensors and plain values.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from reflectkit.core.checksums import CHECKSUMS, seal, verify
from reflectkit.core.console import Progress
from reflectkit.core.errors import CheckpointError, DataError
from reflectkit.core.folders import checkpoints
from reflectkit.core.jsonl import read_json

PICKLED = (".pt", ".pth", ".bin")
WHOLE = "whole"  # marks a complete trainer checkpoint of an earlier version, which has no checksums
NEEDED = ("optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json")
ARGUMENTS = (
    "training_args.bin"  # the one pickle of a trainer checkpoint with more than tensors; it is not needed to resume
)


def last_whole(folder: Path, progress: Progress) -> Path | None:
    """The latest undamaged trainer checkpoint; damaged ones after it are removed."""
    for checkpoint in reversed(checkpoints(folder)):
        earlier = (checkpoint / WHOLE).is_file() and not (checkpoint / CHECKSUMS).exists()
        try:
            if earlier:
                _seal_earlier(checkpoint, progress)
            verify(checkpoint)
            _open_pickles(checkpoint)
            return checkpoint
        except CheckpointError as error:
            if earlier or (checkpoint / CHECKSUMS).exists():
                progress.news(f"{error}; resuming from an earlier state")
            shutil.rmtree(checkpoint)
    return None


def _seal_earlier(checkpoint: Path, progress: Progress) -> None:
    """Add checksums to a trainer checkpoint of an earlier version. Raises CheckpointError if a file is missing or cut
    off.
    """
    from safetensors import SafetensorError, safe_open

    for name in NEEDED:
        if not (checkpoint / name).is_file():
            raise CheckpointError(f"{checkpoint / name} is missing")
    (checkpoint / ARGUMENTS).unlink(missing_ok=True)
    _open_pickles(checkpoint)
    try:
        for path in sorted(checkpoint.rglob("*.safetensors")):
            with safe_open(path, "pt"):
                pass
        for path in sorted(checkpoint.rglob("*.json")):
            read_json(path)
    except (SafetensorError, OSError, DataError) as error:
        raise CheckpointError(f"{checkpoint} is damaged ({error})") from None
    (checkpoint / WHOLE).unlink()
    seal(checkpoint)
    progress.news(f"{checkpoint} is from an earlier version and has no checksums; resuming from it as it is")


def _open_pickles(checkpoint: Path) -> None:
    """Raises CheckpointError if a pickle contains anything but tensors and plain values, since it might run code.

    The trainer reads them with weights_only too; this makes sure of it before training starts.
    """
    import torch
    from transformers.trainer_pt_utils import safe_globals

    for path in sorted(checkpoint.rglob("*")):
        if path.suffix in PICKLED:
            try:
                with safe_globals():
                    torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            except Exception as error:  # damaged pickles raise many types
                raise CheckpointError(f"{path} cannot be read safely ({str(error).splitlines()[0][:200]})") from None
