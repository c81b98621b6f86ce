"""The interface of training services: weights that another machine holds, samples and
differentiates.

A service reads rows of tokens. For each it returns the log-probability of every token after the
first, and it adds the gradient of any weighted sum of these to what the next step takes. That is
all that our losses of choices and of sampled texts need, so a loss is computed here, and its slopes
are sent there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from reflectkit.errors import ReflectkitError
from reflectkit.sampling.base import SampleRequest
from reflectkit.sampling.protocols import Drawn


@dataclass(frozen=True)
class OptimizerStep:
    """An optimizer step: AdamW with the betas 0.9 and 0.999 and an epsilon of 1e-8, as in this
    process.
    """

    learning_rate: float
    weight_decay: float = 0.0
    max_grad_norm: float = 0.0
    """Gradients are clipped to this norm, if the service does that."""


class LostWeightsError(ReflectkitError):
    """A service does not give out weights that were saved there, or gives others.

    It is no CheckpointError: for those, training falls back on an earlier state, and what was paid
    for would be thrown away because of one bad answer.
    """


class ServiceAdapter(Protocol):
    """A LoRA adapter on a service, which learns; or, of a base that only writes, `write` alone."""

    # Reading and learning
    async def forward(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        """Of each row of T tokens, the T - 1 log-probabilities of the tokens after its first."""
        ...

    async def backward(
        self,
        rows: Sequence[Sequence[int]],
        logprobs: Sequence[Sequence[float]],
        slopes: Sequence[Sequence[float]],
    ) -> list[list[float]]:
        """Add the gradient of the sum of `slopes` times log-probabilities to what the next step
        takes. Returns what `forward` returns.

        logprobs: those that `forward` returned for `rows` and the present weights. One call for
        each step.
        """
        ...

    async def clipped_backward(
        self,
        rows: Sequence[Sequence[int]],
        old_logprobs: Sequence[Sequence[float]],
        advantages: Sequence[Sequence[float]],
        clip: tuple[float, float],
    ) -> list[list[float]]:
        """`backward` of PPO's clipped loss, summed over all tokens, without a `forward` before it.
        Returns what `forward` returns.

        advantages: 0 for tokens that are not trained. clip: the ends of the range of the ratio.
        """
        ...

    async def step(self, step: OptimizerStep) -> float | None:
        """Make an optimizer step. Returns the norm of the gradient, if the service tells."""
        ...

    # Playing
    async def write(self, request: SampleRequest, limit: int) -> Drawn:
        """A text of at most `limit` tokens, sampled with the present weights."""
        ...

    # What stays on the service, and what leaves it
    async def save(self, name: str) -> str:
        """Save weights and optimizer there. Returns the path on the service."""
        ...

    async def load(self, path: str) -> None:
        """Restore what was saved at `path`. Raises LostWeightsError if it is not there."""
        ...

    async def archive(self, target: Path) -> None:
        """Write the present weights to the file `target`, as a .tar.gz of peft's two files. Raises
        ConfigError if the service keeps them.
        """
        ...

    async def close(self) -> None:
        """Give the adapter's place on the service back; what was saved stays."""
        ...


class TrainingService(Protocol):
    """A service. url: its address, to be told."""

    url: str

    async def models(self) -> list[str]:
        """The names of its bases."""
        ...

    async def adapter(
        self,
        base: str,
        rank: int,
        seed: int,
    ) -> ServiceAdapter:
        """A new LoRA adapter, with which the base says the same as without."""
        ...

    async def writer(self, base: str) -> ServiceAdapter:
        """The base itself, which only writes."""
        ...
