"""Dynamic batching: whoever asks waits until nobody else is about to ask, and all are answered in one batch.

A `Table` counts the episodes that are played side by side. As soon as each of them waits in a `Batcher`, the batcher
of the lowest rank serves those that wait in it, in the order of the episodes. So batches do not depend on timing, as
long as no env is awaited for longer than the table's patience.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from reflectkit.core.protocols import BatchAgent, Context
from reflectkit.core.types import Decision, Observation

Item = TypeVar("Item")
Answer = TypeVar("Answer")


@dataclass(slots=True, eq=False)
class Seat:
    """A place at the table."""

    table: Table
    episode: int = 0
    """Number of the episode in play, which orders the items of a batch."""
    asking: int = 0
    """How many of its questions wait in a batcher."""
    late: bool = False
    """Whether the others have stopped waiting for it."""


class Table:
    """The episodes that are played side by side.

    patience: seconds without progress after which those who wait are served without the others.
    """

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self._awaited = 0  # seats that neither wait in a batcher nor are late
        self._seats: set[Seat] = set()
        self._waiting: set[Batcher[Any, Any]] = set()
        self._moved = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def join(self) -> Seat:
        """Take a seat, and make the current task its player's; so are the tasks that it starts."""
        seat = Seat(self)
        self._seats.add(seat)
        self._awaited += 1
        _seat.set(seat)
        return seat

    def leave(self, seat: Seat) -> None:
        """Give the seat up: the others no longer wait for it."""
        self._seats.discard(seat)
        self._awaited -= not seat.asking and not seat.late
        self._look()

    def close(self) -> None:
        """Stop the clock."""
        if self._timer is not None:
            self._timer.cancel()

    def _asked(self, seat: Seat, batcher: Batcher[Any, Any]) -> None:
        seat.asking += 1
        if seat.asking == 1:
            self._awaited -= not seat.late
            seat.late = False
        self._waiting.add(batcher)
        self._look()

    def _answered(self, seat: Seat) -> None:
        seat.asking -= 1
        self._awaited += not seat.asking

    def _look(self) -> None:
        """Serve where nobody else is awaited; else see to it that patience ends."""
        if self._waiting:
            loop = asyncio.get_running_loop()
            self._moved = loop.time()
            if self._awaited == 0:
                loop.call_soon(self._serve)
            elif self._timer is None:
                self._timer = loop.call_later(self.patience, self._ring)

    def _serve(self) -> None:
        if self._awaited:  # somebody has sat down meanwhile
            self._look()
        elif self._waiting:
            batcher = min(self._waiting, key=lambda one: one.rank)
            self._waiting.discard(batcher)
            batcher.serve()

    def _ring(self) -> None:
        self._timer = None
        if not self._waiting or self._awaited == 0:
            return
        loop = asyncio.get_running_loop()
        left = self._moved + self.patience - loop.time()
        if left > 0:
            self._timer = loop.call_later(left, self._ring)
            return
        for seat in self._seats:
            seat.late = seat.late or not seat.asking
        self._awaited = 0
        self._serve()


_seat: ContextVar[Seat | None] = ContextVar("seat", default=None)


class Batcher(Generic[Item, Answer]):
    """Answers questions in batches.

    work: from the items of a batch to their answers, in order; what it raises, everybody in the batch gets. rank: of
    several batchers in which somebody waits, the one of the lowest rank serves first.
    """

    def __init__(self, work: Callable[[list[Item]], Sequence[Answer]], rank: int = 0) -> None:
        self.work, self.rank = work, rank
        self._queue: list[tuple[Seat | None, Item, asyncio.Future[Answer]]] = []

    async def ask(self, item: Item) -> Answer:
        """The answer to `item`. Outside a table, a batch holds what is asked in one turn of the loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        seat = _seat.get()
        self._queue.append((seat, item, future))
        if seat is not None:
            seat.table._asked(seat, self)
        elif len(self._queue) == 1:
            loop.call_soon(self.serve)
        return await future

    def serve(self) -> None:
        """Answer all who wait."""
        queue, self._queue = self._queue, []
        queue.sort(key=lambda entry: entry[0].episode if entry[0] else 0)
        for seat, _, _ in queue:
            if seat is not None:
                seat.table._answered(seat)
        queue = [entry for entry in queue if not entry[2].done()]  # the others were cancelled
        if not queue:
            return
        try:
            answers = self.work([item for _, item, _ in queue])
        except Exception as error:
            for _, _, future in queue:
                future.set_exception(error)
            return
        for (_, _, future), answer in zip(queue, answers, strict=True):
            future.set_result(answer)


class Batched:
    """An agent that acts on batches, as one that decides for each episode by itself."""

    def __init__(self, agent: BatchAgent) -> None:
        self.agent = agent
        self._batcher: Batcher[tuple[Observation, Context], Decision] = Batcher(self._act)

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """The agent's decision."""
        return await self._batcher.ask((observation, context))

    def _act(self, items: list[tuple[Observation, Context]]) -> list[Decision]:
        return self.agent.act([observation for observation, _ in items], [context for _, context in items])
