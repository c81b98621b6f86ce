"""A buffer of the last successful episodes, to learn from again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from reflectkit.core.types import Status, Trajectory


class ReplayBuffer:
    """Holds the last `size` successful episodes, oldest first; 0 holds none."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._episodes: deque[Trajectory] = deque(maxlen=size)

    def add(self, played: Iterable[Trajectory]) -> None:
        """Keep those of `played` that succeeded; ABORTED ones never did."""
        self._episodes.extend(
            trajectory for trajectory in played if trajectory.success and trajectory.status is not Status.ABORTED
        )

    def clear(self) -> None:
        """Remove all episodes, as at the start of a level."""
        self._episodes.clear()

    def __iter__(self) -> Iterator[Trajectory]:
        return iter(self._episodes)

    def __len__(self) -> int:
        return len(self._episodes)
