"""Prices and budget of paid calls: each call reserves its maximum cost before it is made."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from reflectkit.errors import ConfigError, ReflectkitError

TOKENS = 1000
"""Size of the request whose price is looked up. Some models cost more per token beyond about 200,000, which no prompt
of ours reaches.
"""


class BudgetSpentError(ReflectkitError):
    """Calls stopped at the budget; answers so far are kept."""


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars per million tokens read and written. known: False if the prices are unknown, and therefore 0."""

    read: float
    written: float
    known: bool = True

    def cost(self, prompt_tokens: float, completion_tokens: float) -> float:
        """Cost in US dollars."""
        return (prompt_tokens * self.read + completion_tokens * self.written) / 1e6


def prices_of(kind: str, model: str, read: float | None, written: float | None) -> Prices:
    """Today's prices of a model from the genai-prices package, unless `read` and `written` are given. Local models are
    free. Raises ConfigError.
    """
    if (read is None) != (written is None):
        raise ConfigError("--price-in and --price-out go together, in US dollars for a million tokens")
    if read is not None and written is not None:
        return Prices(read, written)
    if kind == "local":
        return Prices(0.0, 0.0)
    from genai_prices import Usage, calc_price

    try:
        price = calc_price(Usage(input_tokens=TOKENS, output_tokens=TOKENS), model, provider_id=kind)
    except LookupError:
        return Prices(0.0, 0.0, known=False)
    read, written = (float(part * 1_000_000 / TOKENS) for part in (price.input_price, price.output_price))
    return Prices(read, written) if read and written else Prices(0.0, 0.0, known=False)  # not a chat model


@dataclass(slots=True)
class Budget:
    """A budget in US dollars that several clients may share."""

    limit: float | None = None
    """None: unlimited."""
    paid: float = 0.0
    """Total cost of the answers in their journals."""
    reserved: list[float] = field(default_factory=list)
    """Maximum cost of each call in flight."""
    margin: float = 1.0
    """The largest ratio so far of an actual cost to its expected maximum."""
    released: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    """Set, and replaced, when a reservation ends."""

    @contextlib.asynccontextmanager
    async def reserve(self, max_cost: float) -> AsyncIterator[bool]:
        """Reserve `max_cost` dollars, times the margin, for a call; yields False if the remaining budget is too small.

        Waits if only the reservations of calls in flight prevent it, since most calls cost less than they reserve.
        """
        while self._fits(max_cost) and not self._fits(max_cost + sum(self.reserved)):
            await self.released.wait()
        if not self._fits(max_cost):
            yield False
            return
        self.reserved.append(max_cost)
        try:
            yield True
        finally:
            self.reserved.remove(max_cost)
            self.released.set()
            self.released = asyncio.Event()

    def pay(self, cost: float, max_cost: float) -> None:
        """Add the cost of a call whose maximum, by our count of its tokens, was `max_cost`."""
        self.paid += cost
        if cost > max_cost > 0:
            self.margin = max(self.margin, cost / max_cost)

    def _fits(self, cost: float) -> bool:
        return self.limit is None or self.paid + cost * self.margin <= self.limit
