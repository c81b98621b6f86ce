"""What paid calls may cost together: each reserves the most that it can cost, and waits for the reservations
before it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class Budget:
    """What clients may spend together, in US dollars. limit: None for any amount. paid: all that their journals paid
    for.
    reservations: the most that each call in flight can cost. margin: by how much a bill was higher than that so far.
    """

    limit: float | None = None
    paid: float = 0.0
    reservations: list[float] = field(default_factory=list)
    margin: float = 1.0
    released: asyncio.Condition = field(default_factory=asyncio.Condition, repr=False)

    @contextlib.asynccontextmanager
    async def reserve(self, most: float) -> AsyncIterator[bool]:
        """Hold `most` dollars, and the margin, for a call; yields False where what is paid already leaves too little
        for it.

        Where only the calls in flight stand in the way it waits: they mostly cost less than they reserve.
        """

        def too_little() -> bool:
            return self.limit is not None and self.paid + most * self.margin > self.limit

        def free() -> bool:
            return self.limit is None or self.paid + (sum(self.reservations) + most) * self.margin <= self.limit

        async with self.released:
            await self.released.wait_for(lambda: too_little() or free())
        if too_little():
            yield False
            return
        self.reservations.append(most)
        try:
            yield True
        finally:
            self.reservations.remove(most)
            async with self.released:
                self.released.notify_all()

    def pay(self, cost: float, most: float) -> None:
        """Count what a call cost that could cost `most`, by our count of its tokens."""
        self.paid += cost
        if cost > most > 0:
            self.margin = max(self.margin, cost / most)
