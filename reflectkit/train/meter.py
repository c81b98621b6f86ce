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

READ, SAMPLED, TRAINED = "read", "sampled", "trained"
"""Kinds of tokens: of a forward pass, and of a prompt; of texts that were written; of a forward and
backward pass.
"""


@dataclass
class Meter:
    """Counts tokens. prices: US dollars for a million tokens of each kind. budget: what they are
    paid from.
    """

    prices: dict[str, float] = field(default_factory=dict)
    budget: Budget = field(default_factory=Budget)
    tokens: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys((READ, SAMPLED, TRAINED), 0)
    )
    spent: float = 0.0
    """US dollars."""

    def cost(self, **tokens: int) -> float:
        """US dollars for these tokens by kind."""
        return sum(self.prices.get(kind, 0.0) * count for kind, count in tokens.items()) / 1e6

    def reserve(self, **tokens: int) -> AbstractAsyncContextManager[bool]:
        """Hold what at most these tokens cost. Yields False if the budget does not have it."""
        return self.budget.reserve(self.cost(**tokens))

    @asynccontextmanager
    async def paid(self, **tokens: int) -> AsyncIterator[None]:
        """Pay for these tokens, unless the context raises. Raises BudgetSpentError if the budget
        does not have it.
        """
        async with self.reserve(**tokens) as allowed:
            if not allowed:
                raise self.refuse()
            yield
            # Only if the request did not fail
            self.count(self.cost(**tokens), **tokens)

    def count(self, most: float, **tokens: int) -> None:
        """Count and pay tokens. most: what was reserved for them."""
        for kind, number in tokens.items():
            self.tokens[kind] += number
        cost = self.cost(**tokens)
        self.spent += cost
        self.budget.pay(cost, most)

    def state(self) -> dict[str, Any]:
        """What `restore` takes; JSON values."""
        return {"spent_usd": self.spent, "tokens": dict(self.tokens)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`, of an earlier part of the run."""
        # The budget may be shared, so only the difference is added
        self.budget.paid += float(state["spent_usd"]) - self.spent
        self.spent = float(state["spent_usd"])
        self.tokens |= {kind: int(count) for kind, count in state["tokens"].items()}

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
        async with self.meter.paid(read=sum(map(len, rows))):
            return await self.adapter.forward(rows)

    @override
    async def backward(
        self,
        rows: Sequence[Sequence[int]],
        logprobs: Sequence[Sequence[float]],
        slopes: Sequence[Sequence[float]],
    ) -> list[list[float]]:
        async with self.meter.paid(trained=sum(map(len, rows))):
            return await self.adapter.backward(rows, logprobs, slopes)

    @override
    async def clipped_backward(
        self,
        rows: Sequence[Sequence[int]],
        old_logprobs: Sequence[Sequence[float]],
        advantages: Sequence[Sequence[float]],
        clip: tuple[float, float],
    ) -> list[list[float]]:
        async with self.meter.paid(trained=sum(map(len, rows))):
            return await self.adapter.clipped_backward(rows, old_logprobs, advantages, clip)

    @override
    async def write(self, request: SampleRequest, limit: int) -> Drawn:
        prompt = len(request.prompt_ids)
        async with self.meter.reserve(read=prompt, sampled=limit) as allowed:
            if not allowed:
                raise self.meter.refuse()
            # A text may be shorter than its limit; the rest of what was reserved is free again
            text = await self.adapter.write(request, limit)
            most = self.meter.cost(read=prompt, sampled=limit)
            self.meter.count(most, read=prompt, sampled=len(text.token_ids))
        return text


class MeteredService:
    """`service`, whose adapters are metered."""

    def __init__(self, service: TrainingService, meter: Meter) -> None:
        self.service, self.meter, self.url = service, meter, service.url

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
        return MeteredAdapter(await self.service.adapter(base, rank, seed), self.meter)

    async def writer(self, base: str) -> ServiceAdapter:
        """See `TrainingService`."""
        return MeteredAdapter(await self.service.writer(base), self.meter)


def token_plan(
    stage: str,
    engine: EngineConfig,
    results: Path,
    what: str,
    number: float,
    counts: Mapping[str, int],
) -> Report:
    """The report of --plan on a training service: tokens, and dollars where prices are given.

    what, number: of what these `counts` of tokens by kind are the sum.
    """
    cost = Meter(engine.settings.prices).cost(**counts)
    figures: dict[str, Any] = {what: round(number)}
    rows = [(what, f"{number:,.0f}")]
    for kind, count in counts.items():
        figures[f"tokens_{kind}"] = count
        rows.append((f"tokens {kind}", f"{count:,}"))
    if cost:
        figures["usd"] = cost
        rows.append(("US dollars", f"{cost:,.2f}"))
    title = f"Plan of {stage} on {engine.name}, estimated"
    return Report(stage, results, figures, tables=(Table(title, ("what", "value"), tuple(rows)),))
