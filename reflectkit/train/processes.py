"""The processes of a distributed run, each with a full copy of the policy or a shard of it, and how
they are started.

`--processes`, torchrun or `accelerate launch` starts them; otherwise there is one. Every process
holds the whole batch and does its share of the work, so the result does not depend on how many
there are.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reflectkit.config import as_plain, flat, with_values
from reflectkit.console import Progress, Quiet, Report
from reflectkit.errors import ConfigError, ReflectkitError, refuse
from reflectkit.files import launch_config
from reflectkit.runs.run import Run, open_run
from reflectkit.seeding import use_threads
from reflectkit.text import pluralize

if TYPE_CHECKING:
    import torch


class Processes:
    """This process, number `rank` of `count`. accelerator: accelerate's Accelerator; None: a single
    process.
    """

    def __init__(self, accelerator: Any = None) -> None:
        self.accelerator = accelerator
        self.rank: int = accelerator.process_index if accelerator else 0
        self.count: int = accelerator.num_processes if accelerator else 1

    @property
    def kind(self) -> str:
        """accelerate's name for the distributed type, e.g. "MULTI_GPU"."""
        return (
            str(self.accelerator.distributed_type).rpartition(".")[2] if self.accelerator else "NO"
        )

    @property
    def sharded(self) -> bool:
        """Whether each process holds a shard of the policy (FSDP2), so that a forward pass needs
        all processes.
        """
        return self.kind == "FSDP"

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and prints."""
        return self.rank == 0

    def gather(self, value: Any) -> list[Any]:
        """`value` of every process, by rank; any picklable value will do."""
        if self.count == 1:
            return [value]
        import torch

        gathered: list[Any] = [None] * self.count
        torch.distributed.all_gather_object(gathered, value)
        return gathered

    def share(self, items: Sequence[Any]) -> list[Any]:
        """This process's share of `items`: every `count`-th."""
        return list(items[self.rank :: self.count])

    def gather_shares(self, mine: Sequence[Any]) -> list[Any]:
        """The items that `share` distributed, from all processes and in their order."""
        parts = self.gather(list(mine))
        whole: list[Any] = [None] * sum(map(len, parts))
        for rank, part in enumerate(parts):
            whole[rank :: self.count] = part
        return whole

    def add_gradients(self, weights: Iterable[torch.nn.Parameter]) -> None:
        """Sum every gradient over all processes, in one message per dtype."""
        if self.count == 1:
            return
        import torch

        # 1. All processes must send as many gradients, also of weights that a share did not use
        every = list(weights)
        for weight in every:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
        # In the same order in all processes
        for dtype in dict.fromkeys(weight.dtype for weight in every):
            gradients = [
                weight.grad for weight in every if weight.dtype is dtype and weight.grad is not None
            ]
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            torch.distributed.all_reduce(flat)
            for gradient, part in zip(
                gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True
            ):
                gradient.copy_(part.view_as(gradient))

    @contextlib.contextmanager
    def first_then_rest(self) -> Iterator[None]:
        """The first process runs the block alone, then the others, which find what it made."""
        if not self.first:
            self.wait()
        try:
            yield
        finally:
            if self.first:
                self.wait()

    def whole_weights(self, model: Any) -> dict[str, torch.Tensor] | None:
        """The full weights of `model` if they are sharded; None if it holds them. All processes
        must call this.
        """
        if not self.sharded:
            return None
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        whole: Any = get_model_state_dict(model, options=options)
        # Tied weights have two names in a state dict
        distinct = {name for name, _ in model.named_parameters()}
        return {name: value for name, value in whole.items() if name in distinct}

    def wait(self) -> None:
        """Wait for all processes."""
        if self.count > 1:
            import torch

            torch.distributed.barrier()


PATIENCE_S = 10.0
"""How long the others may go on once a process has failed: the first one writes down why an update
diverged.
"""
LAUNCHED = "REFLECTKIT_LAUNCHED"
"""Set in the processes that `launch` starts; their standard input ends when the process that
started them does.
"""
ERROR = re.compile(r"^reflectkit(?: \(process \d+\))?: (.*)$", re.MULTILINE)


def check_launch(count: int) -> None:
    """Raises ConfigError if `count` processes are to be started by one that a launcher has started."""
    itself = (
        "--processes starts the processes itself; leave out torchrun or accelerate, which have"
        " started this one"
    )
    refuse(count > 1 and "RANK" in os.environ, itself)


def launch(
    stage: str,
    config: Any,
    run: Callable[[Any, Progress], Report],
) -> Report:
    """The report of `stage` with the settings of `config`, in `config.processes` processes. The
    first shows progress.

    run: of the stage; it finds what they have finished. Raises ReflectkitError: the error of a
    process, or that it was killed.
    """
    start_time = time.time()
    with tempfile.TemporaryDirectory() as folder:
        # 1. The settings as a file
        values = {name: as_plain(value) for name, value in flat(config).items()}
        values["processes"] = 1
        settings = Path(folder, "settings.yaml")
        settings.write_text(
            json.dumps({name: value for name, value in values.items() if value is not None})
        )

        # 2. The processes, until all have ended
        command = [sys.executable, "-m", "reflectkit", stage, "--config", str(settings)]
        logs = [Path(folder, str(rank)) for rank in range(config.processes)]
        codes = _run_all(command, logs)

        # 3. The errors of those that failed
        failures = []
        for rank, code in codes.items():
            if code:
                failures.append(_failure(f"{stage}: process {rank}", code, logs[rank]))
    for failure in failures:
        if isinstance(failure, ReflectkitError):
            raise failure
    if failures:
        raise failures[0]

    # 4. The report that the first one wrote
    report = run(with_values(config, processes=1, force=False), Quiet())
    is_older = (report.folder / "report.json").stat().st_mtime < start_time
    return replace(report, skipped=is_older)


def _run_all(command: Sequence[str], logs: Sequence[Path]) -> dict[int, int]:
    """Run `command` in a process for each of `logs`, to which it writes its standard error. Returns
    the exit codes by rank, in the order in which they ended.

    Once one has failed, the others have PATIENCE_S, and have no code if they go on.
    """
    environment = _environment(len(logs))
    processes: list[subprocess.Popen[bytes]] = []
    try:
        # 1. Start them
        for rank, log in enumerate(logs):
            with log.open("wb") as errors:
                process = subprocess.Popen(
                    command,
                    env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                    stdin=subprocess.PIPE,
                    # Ctrl-C in a terminal is for this process, which passes it on
                    start_new_session=True,
                    stdout=subprocess.DEVNULL if rank else None,
                    stderr=errors,
                )
            processes.append(process)

        # 2. Wait for them. After Ctrl-C, until the present update is saved; Ctrl-C again stops at
        #    once
        try:
            return _wait(processes)
        except KeyboardInterrupt:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait()
            raise
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _environment(count: int) -> dict[str, str]:
    """The environment of `count` processes that find each other at a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    return {
        **os.environ,
        LAUNCHED: "1",
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        "PYTHONSAFEPATH": "1",
    }


def _wait(processes: Sequence[subprocess.Popen[bytes]]) -> dict[int, int]:
    """The exit codes by rank, in the order in which the processes ended; see `_run_all`."""
    codes: dict[int, int] = {}
    deadline = math.inf
    while len(codes) < len(processes) and time.monotonic() < deadline:
        for rank, process in enumerate(processes):
            code = process.poll()
            if code is None or rank in codes:
                continue
            codes[rank] = code
            if code:
                deadline = min(deadline, time.monotonic() + PATIENCE_S)
        time.sleep(0.05)
    return codes


def _failure(
    place: str,
    code: int,
    log: Path,
) -> Exception:
    """The error of a process with this exit code, from what it wrote to standard error.

    A ReflectkitError is what the user should see: other processes may only say that one is gone.
    """
    text = log.read_text(encoding="utf-8", errors="replace")
    if code == 2 and (lines := ERROR.findall(text)):
        return ReflectkitError(lines[-1])
    if code < 0:
        how = f"was killed (signal {-code}; out of memory?); run the same command again to resume"
        return ReflectkitError(f"{place} {how}")
    return RuntimeError(f"{place} ended with exit code {code}\n{text}")


def start_processes(
    stage: str,
    device: str,
    threads: int = 1,
) -> Processes:
    """The processes of this launch, or this one alone. Raises ConfigError if `stage` does not
    support the launch.
    """
    if LAUNCHED in os.environ:

        def watch() -> None:
            os.read(0, 1)  # not through sys.stdin, whose lock the end of the interpreter waits for
            os._exit(1)

        threading.Thread(target=watch, daemon=True).start()  # `launch` is gone, however it ended
    use_threads(threads)
    import torch
    from accelerate import Accelerator
    from accelerate.utils import DistributedType

    from reflectkit.models.hub import silence_libraries

    silence_libraries()
    gpus = 0 if device == "cpu" else torch.cuda.device_count()
    refuse_shared_gpus(os.environ, gpus, over_nccl=not torch.distributed.is_initialized())
    accelerator = Accelerator(cpu=device == "cpu" or not torch.cuda.is_available())
    supported = ("NO", "MULTI_CPU", "MULTI_GPU", "FSDP")
    kind = accelerator.distributed_type
    name = str(kind).rpartition(".")[2]
    unknown = (
        f"{stage} does not support {name}; use a config of `reflectkit list --configs`, such as"
        " fsdp2"
    )
    refuse(kind not in map(DistributedType, supported), unknown)
    old = kind == DistributedType.FSDP and not accelerator.is_fsdp2
    refuse(old, f"{stage} supports FSDP2 only: set fsdp_version: 2, as in {launch_config('fsdp2')}")
    return Processes(accelerator)


def refuse_shared_gpus(
    environment: Mapping[str, str],
    gpus: int,
    *,
    over_nccl: bool,
) -> None:
    """Raises ConfigError if processes would share a GPU and cannot: NCCL wants a GPU for each, and
    FSDP2 crashes when it writes a checkpoint, over gloo too.

    environment: of this process, as a launcher has set it. gpus: on this machine; 0: it trains on
    the CPU.
    """
    processes = int(environment.get("LOCAL_WORLD_SIZE", "1"))
    sharded = environment.get("ACCELERATE_USE_FSDP", "").lower() in ("1", "true")
    if not 0 < gpus < processes or not (sharded or over_nccl):
        return
    raise ConfigError(
        f"{processes} processes need as many GPUs, and {pluralize(gpus, 'GPU')} can be used; start"
        f" {gpus}, or train on the CPU with --device cpu"
    )


@contextlib.contextmanager
def stopped_between(
    what: str,
    progress: Progress,
    at_once: Callable[[], bool] = lambda: False,
) -> Iterator[list[int]]:
    """The first Ctrl-C, SIGTERM or SIGHUP is kept in the list, so that the present step or update
    (`what`) ends and is saved, and takes effect behind the block; a second one does at once. Only
    in the main thread.

    at_once: whether the first one takes effect at once, too, asked when it comes.
    """
    stop: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    numbers = [
        getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
    ]
    usual: dict[int, Any] = {number: signal.getsignal(number) for number in numbers}

    def take(number: int, frame: Any) -> None:
        stop.append(number)
        if len(stop) > 1 or at_once():
            raise KeyboardInterrupt
        progress.news(f"stopping after this {what}; again to stop at once")

    for number, handler in usual.items():
        if handler is not signal.SIG_IGN:  # as by nohup
            signal.signal(number, take)
    try:
        yield stop
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)
        if stop and callable(usual[stop[0]]):
            usual[stop[0]](stop[0], None)
    if stop:  # in a process of a launcher
        raise KeyboardInterrupt


@contextlib.contextmanager
def shared_run(
    stage: str,
    config: Any,
    inputs: list[Path],
    processes: Processes,
    limits: Collection[str] = (),
) -> Iterator[Run]:
    """The run, which the first process opens and locks; the others get its folder. limits: see
    `open_run`.
    """
    with contextlib.ExitStack() as stack:
        own_run = (
            stack.enter_context(open_run(stage, config, inputs, limits=limits))
            if processes.first
            else None
        )
        facts = (own_run.folder, own_run.done, own_run.earlier_steps) if own_run else None
        facts_of_first = processes.gather(facts)[0]
        yield own_run or Run(stage, *facts_of_first)
        processes.wait()
