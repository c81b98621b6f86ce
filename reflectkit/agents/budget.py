"""What paid calls may cost together: each reserves the most that it can cost, and waits for earlier reservations."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class Budget:
    """What clients may spend together, in US dollars."""

    limit: float | None = None
    """None for any amount."""
    paid: float = 0.0
    """All that their journals paid for."""
    reservations: list[float] = field(default_factory=list)
    """The most that each call in flight can cost."""
    margin: float = 1.0
    """The largest ratio so far of a bill to the most that it should have been."""
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
        """Count what a call cost that should have cost at most `most`, by our count of its tokens."""
        self.paid += cost
        if cost > most > 0:
            self.margin = max(self.margin, cost / most)

    def _fits_alone(self, most: float) -> bool:
        return self.limit is None or self.paid + most * self.margin <= self.limit

    def _fits(self, most: float) -> bool:
        return self.limit is None or self.paid + (sum(self.reservations) + most) * self.margin <= self.limit
