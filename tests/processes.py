"""Two processes of a launch, as forks of this one, which has imported torch."""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType


def forked_ranks(work: Callable[..., int | None], *arguments: Any, codes: Sequence[int] = (0, 0)) -> None:
    """`work` in two forks of this process, with what torchrun sets. codes: with which they end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
    context = multiprocessing.get_context("fork")
    ranks = [
        context.Process(target=in_rank, args=(address | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, work, arguments))
        for rank in range(2)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(300)
        process.kill()
    assert [process.exitcode for process in ranks] == list(codes)


def in_rank(variables: dict[str, str], work: Callable[..., int | None], arguments: Sequence[Any]) -> None:
    os.environ |= variables
    AcceleratorState._reset_state(reset_partial_state=True)  # of this process's launch, which was another
    sys.exit(work(*arguments) or 0)


FSDP2 = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "false",
    "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
}
"""What `accelerate launch` sets with the config fsdp2."""


def shard_on_cpu() -> None:
    """From now on, accelerate shards in this process without a GPU, too."""
    os.environ |= FSDP2
    initialise = AcceleratorState.__init__

    def sharded(self: Any, *arguments: Any, fsdp_plugin: Any = None, **settings: Any) -> None:
        initialise(self, *arguments, fsdp_plugin=fsdp_plugin, **settings)
        if fsdp_plugin is not None:
            self.fsdp_plugin = fsdp_plugin
        if getattr(self, "fsdp_plugin", None) is not None:
            self.distributed_type = DistributedType.FSDP

    AcceleratorState.__init__ = sharded
