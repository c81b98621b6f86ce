"""rlft in several processes: what was started, whether it can be worked with, and one run that all of them share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from reflectkit.core.config import StageConfig
from reflectkit.core.errors import ConfigError
from reflectkit.core.runs import Run, open_run
from reflectkit.core.threads import use_threads

if TYPE_CHECKING:
    from reflectkit.rl.processes import Processes


def start_processes(device: str, trackers: Sequence[str], results_dir: Path, threads: int = 1) -> Processes:
    """The processes that were started together, or this one alone. Raises ConfigError where rlft cannot run so."""
    use_threads(threads)
    import torch
    from accelerate import Accelerator
    from accelerate.utils import DistributedType

    from reflectkit.models.silence import silence_libraries
    from reflectkit.rl.processes import Processes

    silence_libraries()
    for name in trackers:
        _need_tracker(name)
    accelerator = Accelerator(
        cpu=device == "cpu" or not torch.cuda.is_available(),
        log_with=list(trackers) or None,
        project_dir=str(results_dir),
    )
    known = ("NO", "MULTI_CPU", "MULTI_GPU", "FSDP", "DEEPSPEED")
    if accelerator.distributed_type not in map(DistributedType, known):
        raise ConfigError(f"rlft cannot run under {accelerator.distributed_type}; see configs/ for what it can")
    if accelerator.distributed_type == DistributedType.FSDP and not accelerator.is_fsdp2:
        raise ConfigError("rlft shards with FSDP2 only: set fsdp_version: 2, as in configs/fsdp2.yaml")
    return Processes(accelerator)


def _need_tracker(name: str) -> None:
    import importlib.util

    if importlib.util.find_spec("torch.utils.tensorboard" if name == "tensorboard" else name) is None or (
        name == "tensorboard" and importlib.util.find_spec("tensorboard") is None
    ):
        raise ConfigError(f"--report-to {name}: the package is not installed; pip install {name}")


@contextlib.contextmanager
def shared_run(stage: str, config: StageConfig, inputs: list[Path], processes: Processes) -> Iterator[Run]:
    """The run, opened and held by the first process; the others get to know it."""
    with contextlib.ExitStack() as stack:
        mine = stack.enter_context(open_run(stage, config, inputs)) if processes.first else None
        folder, done = processes.gather((mine.folder, mine.done) if mine else None)[0]
        yield mine or Run(stage, folder, done)
        processes.wait()
