"""rlft in several processes: how they were started, whether rlft supports it, and the run that they share."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reflectkit.config import as_plain, flat
from reflectkit.errors import ConfigError, ReflectkitError
from reflectkit.files import launch_config
from reflectkit.runs.run import Run, open_run
from reflectkit.seeding import use_threads

if TYPE_CHECKING:
    from reflectkit.train.processes import Processes


PATIENCE_S = 10.0
"""How long the others may go on once a process has failed: the first one writes down why an update diverged."""
LAUNCHED = "REFLECTKIT_LAUNCHED"
"""Set in the processes that `launch` starts; their standard input ends when the process that started them does."""
ERROR = re.compile(r"^reflectkit(?: \(process \d+\))?: (.*)$", re.MULTILINE)


def check_launch(count: int) -> None:
    """Raises ConfigError if `count` processes are to be started by one that a launcher has started."""
    if count > 1 and "RANK" in os.environ:
        raise ConfigError(
            "--processes starts the processes itself; leave out torchrun or accelerate, which have started this one"
        )


def launch(stage: str, config: Any, count: int) -> None:
    """Run `stage` with the settings of `config`, except `processes`, in `count` processes. The first shows progress.

    Raises ReflectkitError: the error of a process, or that it was killed.
    """
    values = {name: as_plain(value) for name, value in flat(config).items()} | {"processes": 1}
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder, "settings.yaml")
        settings.write_text(json.dumps({name: value for name, value in values.items() if value is not None}))
        shared = {**os.environ, LAUNCHED: "1", "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
        shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
        shared |= {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path), "PYTHONSAFEPATH": "1"}
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(count):
                with Path(folder, str(rank)).open("wb") as log:
                    process = subprocess.Popen(
                        [sys.executable, "-m", "reflectkit", stage, "--config", str(settings)],
                        env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                        stdin=subprocess.PIPE,
                        stdout=subprocess.DEVNULL if rank else None,
                        stderr=log,
                    )
                processes.append(process)
            codes = _codes(processes)
        finally:
            for process in processes:
                process.kill()
                process.communicate()
        failures = [_failure(f"{stage}: process {rank}", code, Path(folder, str(rank))) for rank, code in codes.items()]
    if any(codes.values()):
        errors = [failure for failure in failures if failure]
        raise next((error for error in errors if isinstance(error, ReflectkitError)), errors[0])


def end_with_launcher() -> None:
    """In a process that `launch` has started: exit once that one is gone, however it ended."""

    def watch() -> None:
        os.read(0, 1)  # not through sys.stdin, whose lock the end of the interpreter waits for
        os._exit(1)

    if LAUNCHED in os.environ:
        threading.Thread(target=watch, daemon=True).start()


def _codes(processes: list[subprocess.Popen[bytes]]) -> dict[int, int]:
    """The exit codes by rank, in the order of their ends; of those that have ended within PATIENCE_S of a failure."""
    codes: dict[int, int] = {}
    ends = float("inf")
    while len(codes) < len(processes) and time.monotonic() < ends:
        for rank, process in enumerate(processes):
            if rank not in codes and (code := process.poll()) is not None:
                codes[rank] = code
                ends = min(ends, time.monotonic() + PATIENCE_S) if code else ends
        time.sleep(0.05)
    return codes


def _failure(place: str, code: int, log: Path) -> Exception | None:
    """The error of a process with this exit code, from what it wrote to standard error; None if it has none.

    A ReflectkitError is what the user should see: other processes may only say that one is gone.
    """
    if code == 0:
        return None
    text = log.read_text(encoding="utf-8", errors="replace")
    if code == 2 and (lines := ERROR.findall(text)):
        return ReflectkitError(lines[-1])
    how = f"was killed (signal {-code}; out of memory?)" if code < 0 else f"ended with exit code {code}"
    if code < 0:
        return ReflectkitError(f"{place} {how}; run the same command again to resume")
    return RuntimeError(f"{place} {how}\n{text}")


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def start_processes(device: str, threads: int = 1) -> Processes:
    """The processes of this launch, or this one alone. Raises ConfigError if rlft does not support the launch."""
    end_with_launcher()
    use_threads(threads)
    import torch
    from accelerate import Accelerator
    from accelerate.utils import DistributedType

    from reflectkit.models.hub import silence_libraries
    from reflectkit.train.processes import Processes

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
