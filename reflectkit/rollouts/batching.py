"""Dynamic batching: requests wait until every running episode has one pending, and are then served in one batch.

A `BatchBarrier` counts the episodes that run concurrently. Once each of them waits in a `Batcher`, the batcher with the
lowest rank serves its requests, in the order of the episodes. So batches do not depend on timing, as long as no env
takes longer than the barrier's patience.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from reflectkit.env import BatchAgent, Context
from reflectkit.types import Decision, Observation

Item = TypeVar("Item")
Answer = TypeVar("Answer")


@dataclass(slots=True, eq=False)
class Slot:
    """One of the concurrent episodes of a barrier."""

    barrier: BatchBarrier
    episode: int = 0
    """Number of the current episode, which orders the items of a batch."""
    pending: int = 0
    """Number of its requests that wait in a batcher."""
    late: bool = False
    """Whether the others have stopped waiting for it."""


class BatchBarrier:
    """The episodes that run concurrently.

    patience: seconds without progress after which waiting requests are served without the other episodes.
    """

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self._awaited = 0  # slots that neither wait in a batcher nor are late
        self._slots: set[Slot] = set()
        self._waiting: set[Batcher[Any, Any]] = set()
        self._last_progress = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def join(self) -> Slot:
        """Take a slot for the current task and the tasks that it starts."""
        slot = Slot(self)
        self._slots.add(slot)
        self._awaited += 1
        _slot.set(slot)
        return slot

    def leave(self, slot: Slot) -> None:
        """Give the slot up: the others no longer wait for it."""
        self._slots.discard(slot)
        self._awaited -= not slot.pending and not slot.late
        self._serve_if_ready()

    def close(self) -> None:
        """Stop the clock."""
        if self._timer is not None:
            self._timer.cancel()

    def _add(self, slot: Slot, batcher: Batcher[Any, Any]) -> None:
        slot.pending += 1
        if slot.pending == 1:
            self._awaited -= not slot.late
            slot.late = False
        self._waiting.add(batcher)
        self._serve_if_ready()

    def _remove(self, slot: Slot, batcher: Batcher[Any, Any]) -> None:
        slot.pending -= 1
        self._awaited += not slot.pending
        self._waiting.discard(batcher)  # another barrier may have served it

    def _serve_if_ready(self) -> None:
        """Serve a batch if no other slot is awaited; otherwise start the timer."""
        if self._waiting:
            loop = asyncio.get_running_loop()
            self._last_progress = loop.time()
            if self._awaited == 0:
                loop.call_soon(self._serve)
            elif self._timer is None:
                self._timer = loop.call_later(self.patience, self._on_timeout)

    def _serve(self) -> None:
        if self._awaited:  # a slot has joined meanwhile
            self._serve_if_ready()
        elif self._waiting:
            min(self._waiting, key=lambda batcher: batcher.rank).serve()

    def _on_timeout(self) -> None:
        self._timer = None
        if not self._waiting or self._awaited == 0:
            return
        loop = asyncio.get_running_loop()
        left_s = self._last_progress + self.patience - loop.time()
        if left_s > 0:
            self._timer = loop.call_later(left_s, self._on_timeout)
            return
        for slot in self._slots:
            slot.late = slot.late or not slot.pending
        self._awaited = 0
        self._serve()


_slot: ContextVar[Slot | None] = ContextVar("slot", default=None)


class Batcher(Generic[Item, Answer]):
    """Answers requests in batches.

    work: maps the items of a batch to their answers, in order; an exception goes to every request of the batch. rank:
    of several batchers with waiting requests, the one with the lowest rank serves first.
    """

    def __init__(self, work: Callable[[list[Item]], Sequence[Answer]], rank: int = 0) -> None:
        self.work, self.rank = work, rank
        self._queue: list[tuple[Slot | None, Item, asyncio.Future[Answer]]] = []

    async def ask(self, item: Item) -> Answer:
        """The answer to `item`. Outside a barrier, a batch holds the requests of one iteration of the event loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        slot = _slot.get()
        self._queue.append((slot, item, future))
        if slot is not None:
            slot.barrier._add(slot, self)
        elif len(self._queue) == 1:
            loop.call_soon(self.serve)
        return await future

    def serve(self) -> None:
        """Answer all waiting requests."""
        queue, self._queue = self._queue, []
        queue.sort(key=lambda entry: entry[0].episode if entry[0] else 0)
        for slot, _, _ in queue:
            if slot is not None:
                slot.barrier._remove(slot, self)
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
    """Adapts an agent that acts on batches to one that decides for a single observation."""

    def __init__(self, agent: BatchAgent) -> None:
        self.agent = agent
        self._batcher: Batcher[tuple[Observation, Context], Decision] = Batcher(self._act)

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """The agent's decision."""
        return await self._batcher.ask((observation, context))

    def _act(self, items: list[tuple[Observation, Context]]) -> list[Decision]:
        return self.agent.act([observation for observation, _ in items], [context for _, context in items])
