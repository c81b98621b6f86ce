"""Which problems an RL step trains on: levels in order, and every problem equally often."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from reflectkit.core.seeding import generator
from reflectkit.core.types import Task

WINDOW = 3  # updates over which the success rate is averaged to decide whether to advance


def level_at(step: int, steps: int, levels: int) -> int:
    """The index of the level of `step` (0 … steps-1) if each of `levels` gets an equal share of the steps, in order.

    >>> [level_at(step, 6, 3) for step in range(6)]
    [0, 0, 1, 1, 2, 2]
    """
    return min(step * levels // steps, levels - 1)


@dataclass
class Curriculum:
    """Progress through `levels` levels."""

    levels: int
    steps: int
    """Updates in total."""
    threshold: float | None = None
    """A level ends once the mean success rate of its last WINDOW updates reaches this; None: equal steps per level."""
    level: int = 0
    """The current level, from 0."""
    rates: list[float] = field(default_factory=list)
    """Success rates of this level's latest updates."""

    def begin(self, step: int) -> bool:
        """To be called before each update; True if it starts a new level (other than the first)."""
        due = self.level
        if self.threshold is None:
            due = level_at(step, self.steps, self.levels)
        elif len(self.rates) >= WINDOW and sum(self.rates[-WINDOW:]) / WINDOW >= self.threshold:
            due = min(self.level + 1, self.levels - 1)
        if due == self.level:
            return False
        self.level, self.rates = due, []
        return True

    def end(self, success_rate: float) -> None:
        """To be called after each update with the success rate of its episodes, 0 … 1."""
        self.rates = [*self.rates, success_rate][-WINDOW:]


def draw(tasks: Sequence[Task], step: int, count: int, seed: int) -> list[Task]:
    """The `count` problems of `step`, dealt from a deck that is reshuffled whenever it is used up."""
    chosen: list[Task] = []
    position = step * count
    while len(chosen) < count:
        turn, place = divmod(position + len(chosen), len(tasks))
        deck = list(tasks)
        generator(seed, "deck", turn).shuffle(deck)
        chosen += deck[place : place + count - len(chosen)]
    return chosen
