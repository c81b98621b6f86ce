"""Play while the learner works: a stream of groups of episodes, played by weights that are at most K updates old.

The stream is fixed by the seed: update n's groups are those of the synchronous loop. At version v the groups of updates
up to v + K may begin. Update s takes as many groups as one update has, the oldest, and waits for them. So no group is
left out because it is long. Groups that are too old all the same are dropped and counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from reflectkit.env import Agent, Env
from reflectkit.eventloop import LoopThread
from reflectkit.rollouts.episode import BatchBarrier, Episode, play, usable_after
from reflectkit.rollouts.wrappers import Checked, checked
from reflectkit.types import Trajectory

PATIENCE_S = 2.0  # see `rollouts.episode.rollout`
Value = TypeVar("Value")


@dataclass(frozen=True)
class StalenessLimits:
    """How far play may run ahead of learning."""

    groups: int
    """Groups of an update."""
    staleness: int
    """K: most updates between the weights that began a group and those that learn from it."""
    last: int = 2**62
    """How many groups all updates together learn from; later ones are not begun."""


@dataclass
class Group:
    """One group of the stream. make: a fresh env. begun: version of the weights when it began. played: its
    trajectories, None for those that are not over.
    """

    episodes: Sequence[Episode]
    make: Callable[[], Env]
    begun: int = 0
    played: list[Trajectory | None] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether all its episodes are over."""
        return None not in self.played


@dataclass(frozen=True)
class RolloutBatch:
    """What an update learns from. dropped: groups that were too old. waiting: groups begun or played, for later."""

    played: list[Trajectory]
    dropped: int
    waiting: int


class AsyncRollouts:
    """Plays groups in a thread of its own, whose event loop alone changes its state.

    group: the number n of the stream to its group. width: episodes at once. first: number of the first group to play;
    later, of the first one that was not learned from. timeout_s: see `rollouts.episode.play`.
    """

    def __init__(
        self,
        group: Callable[[int], Group],
        agent: Agent,
        limits: StalenessLimits,
        *,
        width: int,
        timeout_s: float = 0.0,
        first: int = 0,
    ) -> None:
        self._group, self.agent, self.limits, self.width, self.timeout_s = group, agent, limits, width, timeout_s
        self._thread = LoopThread("reflectkit-async-rollouts")
        self._begun: dict[int, Group] = {}
        self.first = self._next = self._limit = first
        self._version = self._dropped = 0
        self._players: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        self._queue: list[tuple[Group, int]] = []  # episodes of groups that have begun
        self._barrier = BatchBarrier(PATIENCE_S)

    def take(self, step: int) -> RolloutBatch:
        """The groups for update `step`, whose weights the agent's sampler has; play goes on meanwhile. Raises what
        playing raises.
        """
        return self._thread.result(self._take(step))

    def result(self, coroutine: Coroutine[Any, Any, Value]) -> Value:
        """Run `coroutine`, which asks the agent, in the loop that plays: a `Batcher` belongs to one loop."""
        return self._thread.result(coroutine)

    def close(self) -> None:
        """Stop playing, and close the envs."""

        async def stop() -> None:
            for player in self._players:
                player.cancel()
            await asyncio.gather(*self._players, return_exceptions=True)

        if self._players:
            self._thread.result(stop())
        self._thread.close()

    async def _take(self, step: int) -> RolloutBatch:
        if not self._players:
            self._players = [asyncio.create_task(self._play_on()) for _ in range(self.width)]
        ahead = self.first + (self.limits.staleness + 1) * self.limits.groups
        self._version, self._limit = step, min(ahead, self.limits.last + self._dropped)
        self._changed.set()
        numbers, dropped = await self._until(lambda: self._choice(step))
        self._dropped += len(dropped)
        played = [
            trajectory for number in numbers for trajectory in self._begun[number].played if trajectory is not None
        ]
        for number in (*numbers, *dropped):
            gone = self._begun.pop(number)
            self._queue = [entry for entry in self._queue if entry[0] is not gone]
            self.first = max(self.first, number + 1)
        return RolloutBatch(played, len(dropped), len(self._begun))

    async def _until(self, find: Callable[[], Value | None]) -> Value:
        """What `find` returns, tried after each change until it is not None."""
        while (value := find()) is None:
            self._changed.clear()
            await self._changed.wait()
        return value

    def _choice(self, step: int) -> tuple[list[int], list[int]] | None:
        """(groups to learn from, groups to drop) at update `step`; None if it has to wait. Raises a player's error."""
        for player in self._players:
            if player.done():
                player.result()
        limits, begun = self.limits, self._begun
        ages = {number: step - begun[number].begun for number in sorted(begun)}
        too_old = [number for number, age in ages.items() if age > limits.staleness]
        due = [number for number, age in ages.items() if age == limits.staleness]
        young = [number for number, age in ages.items() if age < limits.staleness]
        taken = [*due, *young][: limits.groups]
        if len(taken) < limits.groups or not all(begun[number].complete for number in taken):
            return None
        return sorted(taken), too_old + due[limits.groups :]

    async def _play_on(self) -> None:
        """Play one episode after the other."""
        envs: dict[Callable[[], Env], Checked] = {}
        try:
            while True:
                group, index = await self._until(self._following)
                if group.make not in envs:
                    envs[group.make] = checked(group.make())
                slot = self._barrier.join()
                try:
                    trajectory = await play(
                        group.episodes[index], envs[group.make], self.agent, timeout_s=self.timeout_s
                    )
                finally:
                    self._barrier.leave(slot)
                if not usable_after(trajectory):
                    envs.pop(group.make).close()
                group.played[index] = trajectory
                self._changed.set()
        finally:
            for env in envs.values():
                env.close()
            asyncio.get_running_loop().call_soon(self._changed.set)  # once this task is done, for its error

    def _following(self) -> tuple[Group, int] | None:
        """The next episode: its group, and its place there; None if none may begin."""
        while not self._queue and self._next < self._limit:
            group = self._begun[self._next] = self._group(self._next)
            group.begun, group.played = self._version, [None] * len(group.episodes)
            self._queue = [(group, index) for index in range(len(group.episodes))]
            self._next += 1
        return self._queue.pop(0) if self._queue else None
