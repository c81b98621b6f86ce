"""The budget of paid calls: each call reserves its maximum cost, and waits for earlier reservations."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field


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
    async def reserve(self, most: float) -> AsyncIterator[bool]:
        """Hold `most` dollars, times the margin, for a call; yields False where too little is left for it.

        Where only the calls in flight are in the way it waits: they mostly cost less than they reserve.
        """
        while not self._fits(most) and self._fits_alone(most):
            await self.released.wait()
        if not self._fits_alone(most):
            yield False
            return
        self.reservations.append(most)
        try:
            yield True
        finally:
            self.reservations.remove(most)
            self.released.set()
            self.released = asyncio.Event()

    def pay(self, cost: float, most: float) -> None:
        """Add the cost of a call whose maximum, by our count of its tokens, was `most`."""
        self.paid += cost
        if cost > most > 0:
            self.margin = max(self.margin, cost / most)

    def _fits_alone(self, most: float) -> bool:
        return self.limit is None or self.paid + most * self.margin <= self.limit

    def _fits(self, most: float) -> bool:
        return self.limit is None or self.paid + (sum(self.reservations) + most) * self.margin <= self.limit
