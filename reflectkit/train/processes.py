"""The processes of a distributed run, each with a full copy of the policy or a shard of it.

They are started by torchrun or `accelerate launch`; otherwise there is one. Every process holds the whole batch and
does its share of the work, so the result does not depend on how many there are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch


class Processes:
    """This process, number `rank` of `count`. accelerator: accelerate's Accelerator; None: a single process."""

    def __init__(self, accelerator: Any = None) -> None:
        self.accelerator = accelerator
        self.rank: int = accelerator.process_index if accelerator else 0
        self.count: int = accelerator.num_processes if accelerator else 1

    @property
    def kind(self) -> str:
        """accelerate's name for the distributed type, e.g. "MULTI_GPU"."""
        return str(self.accelerator.distributed_type).rpartition(".")[2] if self.accelerator else "NO"

    @property
    def sharded(self) -> bool:
        """Whether each process holds a shard of the policy (FSDP, ZeRO), so that a forward pass needs all processes."""
        return self.kind in ("FSDP", "DEEPSPEED")

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and prints."""
        return self.rank == 0

    def gather(self, value: Any) -> list[Any]:
        """`value` of every process, by rank; any picklable value will do."""
        if self.count == 1:
            return [value]
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
        every = list(weights)
        for weight in every:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
        for dtype in dict.fromkeys(weight.dtype for weight in every):  # in the same order in all processes
            gradients = [weight.grad for weight in every if weight.dtype is dtype and weight.grad is not None]
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            torch.distributed.all_reduce(flat)
            for gradient, part in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
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

    def wait(self) -> None:
        """Wait for all processes."""
        if self.count > 1:
            torch.distributed.barrier()
