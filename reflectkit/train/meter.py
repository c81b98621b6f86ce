"""What a training service is asked: tokens by kind, what they cost, and the budget that they must
not exceed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typing_extensions import override

from reflectkit.chat.client import Budget
from reflectkit.chat.config import BudgetSpentError
from reflectkit.console import Report, Table
from reflectkit.sampling.base import SampleRequest
from reflectkit.sampling.engine import EngineConfig
from reflectkit.sampling.protocols import Drawn
from reflectkit.sampling.service import WrappedAdapter
from reflectkit.sampling.service_interface import ServiceAdapter, TrainingService

READ = "read"
"""The kind of tokens of a forward pass, and of a prompt."""
SAMPLED = "sampled"
"""The kind of tokens of texts that were written."""
TRAINED = "trained"
"""The kind of tokens of a forward and backward pass."""


@dataclass
class Meter:
    """Counts tokens by kind, and pays for them."""

    prices: dict[str, float] = field(default_factory=dict)
    """US dollars for a million tokens of each kind."""
    budget: Budget = field(default_factory=Budget)
    """What they are paid from."""
    tokens: dict[str, int] = field(default_factory=lambda: {READ: 0, SAMPLED: 0, TRAINED: 0})
    """The number of tokens of each kind so far."""
    total_usd: float = 0.0
    """Their cost in US dollars."""

    def cost(self, **tokens: int) -> float:
        """US dollars for these tokens by kind."""
        prices = [self.prices.get(kind, 0.0) * count for kind, count in tokens.items()]
        return sum(prices) / 1e6

    def reserve(self, **tokens: int) -> AbstractAsyncContextManager[bool]:
        """Hold what at most these tokens cost. Yields False if the budget does not have it."""
        return self.budget.reserve(self.cost(**tokens))

    @asynccontextmanager
    async def charge(self, **tokens: int) -> AsyncIterator[None]:
        """Pay for these tokens, unless the context raises. Raises BudgetSpentError if the budget
        does not have it.
        """
        async with self.reserve(**tokens) as allowed:
            if not allowed:
                raise self.refuse()
            yield
            # Only if the request did not fail
            self.count(self.cost(**tokens), **tokens)

    def count(self, reserved_usd: float, **tokens: int) -> None:
        """Count and pay tokens. reserved_usd: what was reserved for them."""
        for kind, number in tokens.items():
            self.tokens[kind] += number
        cost = self.cost(**tokens)
        self.total_usd += cost
        self.budget.pay(cost, reserved_usd)

    def state(self) -> dict[str, Any]:
        """What `restore` takes; JSON values."""
        return {"spent_usd": self.total_usd, "tokens": dict(self.tokens)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`, of an earlier part of the run."""
        # The budget may be shared, so only the difference is added
        total_usd = float(state["spent_usd"])
        self.budget.paid += total_usd - self.total_usd
        self.total_usd = total_usd
        for kind, count in state["tokens"].items():
            self.tokens[kind] = int(count)

    def refuse(self) -> BudgetSpentError:
        """The error for a request that the budget does not allow."""
        return BudgetSpentError(
            f"--max-cost-usd {self.budget.limit:g}: the next request would exceed it,"
            f" ${self.budget.paid:.4g} are spent; raise it and run the same again, which goes on"
            " from the last checkpoint"
        )


class MeteredAdapter(WrappedAdapter):
    """An adapter whose requests are counted by `meter`. Raises BudgetSpentError before one exceeds
    the budget.
    """

    def __init__(self, adapter: ServiceAdapter, meter: Meter) -> None:
        super().__init__(adapter)
        self.meter = meter

    @override
    async def forward(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        async with self.meter.charge(read=sum(map(len, rows))):
            return await self.adapter.forward(rows)

    @override
    async def backward(
        self,
        rows: Sequence[Sequence[int]],
        logprobs: Sequence[Sequence[float]],
        slopes: Sequence[Sequence[float]],
    ) -> list[list[float]]:
        async with self.meter.charge(trained=sum(map(len, rows))):
            return await self.adapter.backward(rows, logprobs, slopes)

    @override
    async def clipped_backward(
        self,
        rows: Sequence[Sequence[int]],
        old_logprobs: Sequence[Sequence[float]],
        advantages: Sequence[Sequence[float]],
        clip: tuple[float, float],
    ) -> list[list[float]]:
        async with self.meter.charge(trained=sum(map(len, rows))):
            return await self.adapter.clipped_backward(rows, old_logprobs, advantages, clip)

    @override
    async def write(self, request: SampleRequest, limit: int) -> Drawn:
        prompt = len(request.prompt_ids)
        async with self.meter.reserve(read=prompt, sampled=limit) as allowed:
            if not allowed:
                raise self.meter.refuse()
            text = await self.adapter.write(request, limit)
            # A text may be shorter than its limit; the rest of what was reserved is free again
            reserved_usd = self.meter.cost(read=prompt, sampled=limit)
            self.meter.count(reserved_usd, read=prompt, sampled=len(text.token_ids))
        return text


class MeteredService:
    """`service`, whose adapters are metered."""

    def __init__(self, service: TrainingService, meter: Meter) -> None:
        self.service = service
        self.meter = meter
        self.url = service.url

    async def models(self) -> list[str]:
        """See `TrainingService`."""
        return await self.service.models()

    async def adapter(
        self,
        base: str,
        rank: int,
        seed: int,
    ) -> ServiceAdapter:
        """See `TrainingService`."""
        adapter = await self.service.adapter(base, rank, seed)
        return MeteredAdapter(adapter, self.meter)

    async def writer(self, base: str) -> ServiceAdapter:
        """See `TrainingService`."""
        writer = await self.service.writer(base)
        return MeteredAdapter(writer, self.meter)


def token_plan(
    stage: str,
    engine: EngineConfig,
    results: Path,
    what: str,
    number: float,
    counts: Mapping[str, int],
) -> Report:
    """The report of --plan on a training service: tokens, and dollars where prices are given.

    what, number: e.g. "steps" and how many. counts: their tokens, by kind.
    """
    figures: dict[str, Any] = {what: round(number)}
    rows = [(what, f"{number:,.0f}")]
    for kind, count in counts.items():
        figures[f"tokens_{kind}"] = count
        rows.append((f"tokens {kind}", f"{count:,}"))
    cost = Meter(engine.settings.prices).cost(**counts)
    if cost:
        figures["usd"] = cost
        rows.append(("US dollars", f"{cost:,.2f}"))
    title = f"Plan of {stage} on {engine.name}, estimated"
    table = Table(title, ("what", "value"), tuple(rows))
    return Report(stage, results, figures, tables=(table,))
