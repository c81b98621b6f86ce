"""Play while the learner works: a stream of groups of episodes, played by weights that are at most
K updates old.

The stream is fixed by the seed: update n's groups are those of the synchronous loop. At version v
the groups of updates up to v + K may begin. Update n waits for its own, so no group is left out
because it is long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from reflectkit.env import Agent, Env
from reflectkit.eventloop import LoopThread, outside_loop
from reflectkit.rollouts.episode import BatchBarrier, Episode, play, usable_after
from reflectkit.rollouts.wrappers import Checked, checked
from reflectkit.types import Trajectory

PATIENCE_S = 2.0  # see `rollouts.episode.rollout`
Value = TypeVar("Value")


@dataclass
class Group:
    """One group of the stream."""

    episodes: Sequence[Episode]
    make: Callable[[], Env]
    """Makes a fresh env."""
    trajectories: dict[int, Trajectory] = field(default_factory=dict)
    """Those that are over, by their place among the episodes."""

    @property
    def is_over(self) -> bool:
        """Whether all its episodes are."""
        return len(self.trajectories) == len(self.episodes)


class AsyncRollouts:
    """Plays groups in a thread of its own, whose event loop alone changes its state.

    group: the number n of the stream to its group. groups: of an update. staleness: K, most updates
    between the weights that began a group and those that learn from it. updates: of the run. width:
    episodes at once. step: the first update that it plays for. timeout_s: see
    `rollouts.episode.play`.
    """

    def __init__(
        self,
        group: Callable[[int], Group],
        agent: Agent,
        *,
        groups: int,
        staleness: int,
        updates: int,
        width: int,
        timeout_s: float = 0.0,
        step: int = 0,
    ) -> None:
        # 1. What is played
        self._group, self._groups = group, groups
        self._staleness, self._updates = staleness, updates

        # 2. Who plays
        self.agent, self.width, self.timeout_s = agent, width, timeout_s
        self._thread = LoopThread("reflectkit-async-rollouts")
        self._players: list[asyncio.Task[None]] = []
        self._barrier = BatchBarrier(PATIENCE_S)

        # 3. Where play is in the stream
        self._begun: dict[int, Group] = {}  # groups by number, until an update takes them
        self._next = step * groups  # the group that begins next
        self._limit = self._next  # the first group that may not begin yet
        self._queue: list[tuple[Group, int]] = []  # episodes of groups that have begun
        self._changed = asyncio.Event()  # an episode is over, or the limit is further off

    @property
    def waiting(self) -> int:
        """Groups begun or played, for later updates."""
        return len(self._begun)

    def take(self, step: int) -> list[Trajectory]:
        """The episodes for update `step`, whose weights the agent's sampler has; play goes on
        meanwhile. Raises what playing raises.
        """
        return self._thread.result(self._take(step))

    def result(self, coroutine: Coroutine[Any, Any, Value]) -> Value:
        """Run `coroutine`, which asks the agent, in the loop that plays: a `Batcher` belongs to one
        loop.
        """
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

    async def _take(self, step: int) -> list[Trajectory]:
        if not self._players:
            self._players = [asyncio.create_task(self._play_on()) for _ in range(self.width)]
        self._limit = self._groups * min(step + self._staleness + 1, self._updates)
        self._changed.set()
        numbers = range(step * self._groups, (step + 1) * self._groups)
        await self._until(lambda: self._are_over(numbers) or None)
        groups = [self._begun.pop(number) for number in numbers]
        trajectories = []
        for group in groups:
            trajectories += [group.trajectories[index] for index in range(len(group.episodes))]
        return trajectories

    async def _until(self, find: Callable[[], Value | None]) -> Value:
        """What `find` returns, tried after each change until it is not None."""
        while True:
            value = find()
            if value is not None:
                return value
            self._changed.clear()
            await self._changed.wait()

    def _are_over(self, numbers: Sequence[int]) -> bool:
        """Whether all episodes of these groups are over. Raises a player's error."""
        for player in self._players:
            if player.done():
                player.result()
        return all(number in self._begun and self._begun[number].is_over for number in numbers)

    async def _play_on(self) -> None:
        """Play one episode after the other."""
        envs: dict[Callable[[], Env], Checked] = {}
        try:
            while True:
                # 1. An episode, and an env for it
                group, index = await self._until(self._next_episode)
                if group.make not in envs:
                    envs[group.make] = checked(outside_loop(group.make))
                env = envs[group.make]

                # 2. Play
                slot = self._barrier.join()
                try:
                    episode = group.episodes[index]
                    trajectory = await play(episode, env, self.agent, timeout_s=self.timeout_s)
                finally:
                    self._barrier.leave(slot)

                # 3. What it leaves
                if not usable_after(trajectory):
                    envs.pop(group.make).close()
                group.trajectories[index] = trajectory
                self._changed.set()
        finally:
            for env in envs.values():
                env.close()
            # Whoever waits sees this task's error, once it is done
            asyncio.get_running_loop().call_soon(self._changed.set)

    def _next_episode(self) -> tuple[Group, int] | None:
        """The next episode: its group, and its place there; None if none may begin."""
        if not self._queue and self._next < self._limit:
            group = self._begun[self._next] = self._group(self._next)
            self._queue = [(group, index) for index in range(len(group.episodes))]
            self._next += 1
        return self._queue.pop(0) if self._queue else None
