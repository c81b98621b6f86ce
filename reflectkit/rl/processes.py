"""The processes that train together, each with a whole copy of the policy or with a part: who I am, and what all of us
know.

Started by torchrun or `accelerate launch`; alone otherwise. Every process holds the whole batch and takes its share of
the work, so that what is learnt does not depend on how many there are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch


class Processes:
    """This process among `count` of them; `rank` counts from 0. accelerator: accelerate's Accelerator; None: alone."""

    def __init__(self, accelerator: Any = None) -> None:
        self.accelerator = accelerator
        self.rank: int = accelerator.process_index if accelerator else 0
        self.count: int = accelerator.num_processes if accelerator else 1

    @property
    def kind(self) -> str:
        """accelerate's name of how they work together, as "MULTI_GPU"."""
        return str(self.accelerator.distributed_type).rpartition(".")[2] if self.accelerator else "NO"

    @property
    def sharded(self) -> bool:
        """Whether each process holds a part of the policy (FSDP, ZeRO), so that every forward pass needs all
        of them.
        """
        return self.kind in ("FSDP", "DEEPSPEED")

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and speaks."""
        return self.rank == 0

    def gather(self, value: Any) -> list[Any]:
        """`value` of every process, by rank; any picklable value."""
        if self.count == 1:
            return [value]
        gathered: list[Any] = [None] * self.count
        torch.distributed.all_gather_object(gathered, value)
        return gathered

    def share(self, items: Sequence[Any]) -> list[Any]:
        """This process' part of `items`, every `count`-th."""
        return list(items[self.rank :: self.count])

    def together(self, mine: Sequence[Any]) -> list[Any]:
        """The whole of what `share` cut, in its order."""
        parts = self.gather(list(mine))
        whole: list[Any] = [None] * sum(map(len, parts))
        for rank, part in enumerate(parts):
            whole[rank :: self.count] = part
        return whole

    def add_gradients(self, weights: Iterable[torch.nn.Parameter]) -> None:
        """Every gradient becomes the sum over all processes, in one message a dtype."""
        if self.count == 1:
            return
        held = list(weights)
        for weight in held:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
        for dtype in dict.fromkeys(weight.dtype for weight in held):  # in the same order everywhere
            gradients = [weight.grad for weight in held if weight.dtype is dtype and weight.grad is not None]
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            torch.distributed.all_reduce(flat)
            for gradient, part in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
                gradient.copy_(part.view_as(gradient))

    @contextlib.contextmanager
    def first_then_rest(self) -> Iterator[None]:
        """The first process goes through the block alone, then the others: what it makes, they find."""
        if not self.first:
            self.wait()
        try:
            yield
        finally:
            if self.first:
                self.wait()

    def wait(self) -> None:
        """Until all are here."""
        if self.count > 1:
            torch.distributed.barrier()
