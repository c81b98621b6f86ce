"""Play while the learner works: a stream of groups of episodes, played by weights that are at most K updates old.

The stream is fixed by the seed: update n's groups are those of the synchronous loop. At version v the groups of updates
up to v + K may begin. Update s takes as many groups as one update has: first those that would be older than K at the
next update, and it waits for these; then the oldest complete ones. So no group is left out because it is long. What is
too old all the same is dropped and counted.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from reflectkit.env import Agent, Env
from reflectkit.eventloop import LoopThread
from reflectkit.rollout.batching import BatchBarrier
from reflectkit.rollout.checked import Checked, checked
from reflectkit.rollout.episode import Episode, play, usable_after
from reflectkit.types import Trajectory

PATIENCE_S = 2.0  # see `rollout.episode.rollout`
Value = TypeVar("Value")


@dataclass(frozen=True)
class StalenessLimits:
    """How far play may run ahead of learning."""

    groups: int
    """Groups of an update."""
    staleness: int
    """K: most updates between the weights that began a group and those that learn from it."""
    oversample: float = 1.0
    """The groups of an update are the first to be complete among so many times as many, oldest first."""
    last: int = 2**62
    """How many groups all updates together learn from; later ones are not begun."""

    @property
    def open(self) -> int:
        """Among how many of the oldest groups an update chooses."""
        return math.ceil(self.groups * self.oversample)


@dataclass
class Group:
    """One group of the stream. make: a fresh env. begun: version of the weights when it began; None if it has not.
    played: its trajectories, None for those that are not over.
    """

    episodes: Sequence[Episode]
    make: Callable[[], Env]
    begun: int | None = None
    played: list[Trajectory | None] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether all its episodes are over."""
        return len(self.played) == len(self.episodes) and None not in self.played


@dataclass(frozen=True)
class RolloutBatch:
    """What an update learns from. dropped: groups that were too old. waiting: groups begun or played, for later."""

    played: list[Trajectory]
    dropped: int
    waiting: int


class AsyncRollouts:
    """Plays groups in a thread of its own.

    group: the number n of the stream to its group. width: episodes at once. first: number of the first group; skip:
    later ones that were learned from before a restart. timeout_s: see `rollout.episode.play`.
    """

    def __init__(
        self,
        group: Callable[[int], Group],
        agent: Agent,
        bounds: StalenessLimits,
        *,
        width: int,
        timeout_s: float = 0.0,
        first: int = 0,
        skip: Iterable[int] = (),
    ) -> None:
        self._group, self.agent, self.bounds, self.width, self.timeout_s = group, agent, bounds, width, timeout_s
        self._thread = LoopThread("reflectkit-ahead")
        self._done = {number for number in skip if number >= first}
        self._first = first
        self._begun: dict[int, Group] = {}
        self._next, self._limit, self._version, self._dropped = first, first, 0, 0
        self._slots: list[asyncio.Task[None]] = []
        self._changed: asyncio.Condition | None = None
        self._queue: list[tuple[Group, int]] = []  # episodes of groups that have begun
        self._telling: asyncio.Future[None] | None = None

    @property
    def progress(self) -> dict[str, object]:
        """What a checkpoint has to hold: number of the first group not learned from, and of later ones that were."""
        return {"first": self._first, "skip": sorted(self._done)}

    def take(self, step: int) -> RolloutBatch:
        """The groups for update `step`, whose weights the agent's sampler has; play goes on behind them. Raises what
        playing raises.
        """
        return self._thread.result(self._take(step))

    def result(self, coroutine: Coroutine[Any, Any, Value]) -> Value:
        """Run `coroutine`, which asks the agent, in the loop that plays: a `Batcher` belongs to one loop."""
        return self._thread.result(coroutine)

    def close(self) -> None:
        """Stop playing, and close the envs."""
        if self._slots:
            self._thread.result(self._stopped())
        self._thread.close()

    async def _stopped(self) -> None:
        slots, self._slots = self._slots, []
        for slot in slots:
            slot.cancel()
        await asyncio.gather(*slots, return_exceptions=True)

    async def _take(self, step: int) -> RolloutBatch:
        if self._changed is None:
            self._changed = asyncio.Condition()
            self._table = BatchBarrier(PATIENCE_S)
            self._slots = [asyncio.create_task(self._slot()) for _ in range(self.width)]
            for slot in self._slots:
                slot.add_done_callback(self._on_end)
        async with self._changed:
            self._version = step
            ahead = self._first + len(self._done) + (self.bounds.staleness + 1) * self.bounds.groups
            self._limit = min(ahead, self.bounds.last + self._dropped)
            self._changed.notify_all()
            while True:
                for slot in self._slots:
                    if slot.done():
                        slot.result()
                chosen = self._choice(step)
                if chosen is not None:
                    break
                await self._changed.wait()
        numbers, dropped = chosen
        self._dropped += len(dropped)
        played = [one for number in numbers for one in self._begun[number].played if one is not None]
        for number in (*numbers, *dropped):
            gone = self._begun.pop(number)
            self._queue = [one for one in self._queue if one[0] is not gone]
            self._done.add(number)
        while self._first in self._done:
            self._done.discard(self._first)
            self._first += 1
        return RolloutBatch(played, len(dropped), len(self._begun))

    def _choice(self, step: int) -> tuple[list[int], list[int]] | None:
        """(groups to learn from, groups to drop) at update `step`; None if it has to wait."""
        bounds, begun = self.bounds, self._begun
        old = sorted(
            number for number, one in begun.items() if one.begun is not None and step - one.begun >= bounds.staleness
        )
        too_old = [number for number in old if step - (begun[number].begun or 0) > bounds.staleness]
        must = [number for number in old if number not in too_old][: bounds.groups]
        dropped = too_old + [number for number in old if number not in too_old][bounds.groups :]
        if any(not begun[number].complete for number in must):
            return None
        free = [number for number in sorted(begun) if number not in old]
        oldest = [*must, *free][: bounds.open]
        ready = [number for number in oldest if begun[number].complete][: bounds.groups]
        return (sorted(ready), dropped) if len(ready) == bounds.groups else None

    async def _slot(self) -> None:
        """Play one episode after the other."""
        spare: dict[Callable[[], Env], Checked] = {}
        try:
            await self._play_all(spare)
        finally:
            for env in spare.values():
                env.close()

    async def _play_all(self, spare: dict[Callable[[], Env], Checked]) -> None:
        """spare: the envs of this slot, by what makes them."""
        assert self._changed is not None
        while True:
            async with self._changed:
                while (work := self._following()) is None:
                    await self._changed.wait()
            group, index = work
            if group.make not in spare:
                spare[group.make] = checked(group.make())
            env = spare[group.make]
            seat = self._table.join()
            try:
                trajectory = await play(group.episodes[index], env, self.agent, timeout_s=self.timeout_s)
            finally:
                self._table.leave(seat)
            if not usable_after(trajectory):
                spare.pop(group.make).close()
            async with self._changed:
                group.played[index] = trajectory
                self._changed.notify_all()

    def _on_end(self, slot: asyncio.Task[None]) -> None:
        """Wake up whoever waits, who raises the slot's error."""
        if not slot.cancelled():
            self._telling = asyncio.ensure_future(self._told())

    async def _told(self) -> None:
        assert self._changed is not None
        async with self._changed:
            self._changed.notify_all()

    def _following(self) -> tuple[Group, int] | None:
        """The next episode: its group, and its place there; None if none may begin."""
        if not self._queue and self._next < self._limit:
            number = self._next
            self._next += 1
            if number in self._done:
                return self._following()
            group = self._begun[number] = self._group(number)
            group.begun, group.played = self._version, [None] * len(group.episodes)
            self._queue = [(group, index) for index in range(len(group.episodes))]
        return self._queue.pop(0) if self._queue else None
