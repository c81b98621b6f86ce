"""The budget of paid calls: each call reserves its maximum cost, and waits for earlier reservations."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from reflectkit.core.errors import ReflectkitError


class BudgetSpentError(ReflectkitError):
    """Calls stopped at the budget; answers so far are kept."""


@dataclass(slots=True)
class Budget:
    """A budget in US dollars that several clients may share."""

    limit: float | None = None
    """None: unlimited."""
    paid: float = 0.0
    """Total cost of the answers in their journals."""
    reservations: list[float] = field(default_factory=list)
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
        while not self._fits(max_cost) and self._fits_alone(max_cost):
            await self.released.wait()
        if not self._fits_alone(max_cost):
            yield False
            return
        self.reservations.append(max_cost)
        try:
            yield True
        finally:
            self.reservations.remove(max_cost)
            self.released.set()
            self.released = asyncio.Event()

    def pay(self, cost: float, max_cost: float) -> None:
        """Add the cost of a call whose maximum, by our count of its tokens, was `max_cost`."""
        self.paid += cost
        if cost > max_cost > 0:
            self.margin = max(self.margin, cost / max_cost)

    def _fits_alone(self, max_cost: float) -> bool:
        return self.limit is None or self.paid + max_cost * self.margin <= self.limit

    def _fits(self, max_cost: float) -> bool:
        return self.limit is None or self.paid + (sum(self.reservations) + max_cost) * self.margin <= self.limit
