"""rlft in several processes: how they were started, whether rlft supports it, and the run that they share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reflectkit.core.errors import ConfigError
from reflectkit.core.included import launch_config
from reflectkit.core.runs import Run, open_run
from reflectkit.core.threads import use_threads
from reflectkit.stages.tuning.launching import end_with_launcher

if TYPE_CHECKING:
    from reflectkit.rl.processes import Processes


def start_processes(device: str, threads: int = 1) -> Processes:
    """The processes of this launch, or this one alone. Raises ConfigError if rlft does not support the launch."""
    end_with_launcher()
    use_threads(threads)
    import torch
    from accelerate import Accelerator
    from accelerate.utils import DistributedType

    from reflectkit.models.silence import silence_libraries
    from reflectkit.rl.processes import Processes

    silence_libraries()
    accelerator = Accelerator(cpu=device == "cpu" or not torch.cuda.is_available())
    supported = ("NO", "MULTI_CPU", "MULTI_GPU", "FSDP", "DEEPSPEED")
    if accelerator.distributed_type not in map(DistributedType, supported):
        raise ConfigError(
            f"rlft does not support {accelerator.distributed_type}; `reflectkit list --configs` lists what it supports"
        )
    if accelerator.distributed_type == DistributedType.FSDP and not accelerator.is_fsdp2:
        raise ConfigError(f"rlft supports FSDP2 only: set fsdp_version: 2, as in {launch_config('fsdp2')}")
    return Processes(accelerator)


@contextlib.contextmanager
def shared_run(stage: str, config: Any, inputs: list[Path], processes: Processes) -> Iterator[Run]:
    """The run, which the first process opens and locks; the others get its folder."""
    with contextlib.ExitStack() as stack:
        own_run = stack.enter_context(open_run(stage, config, inputs)) if processes.first else None
        folder, done = processes.gather((own_run.folder, own_run.done) if own_run else None)[0]
        yield own_run or Run(stage, folder, done)
        processes.wait()
