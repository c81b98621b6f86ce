"""Which problems an RL step trains on: levels in order, and every problem as often as the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from reflectkit.core.seeding import generator
from reflectkit.core.types import Task

WINDOW = 3  # updates whose mean success rate decides whether to move on


def level_at(step: int, steps: int, levels: int) -> int:
    """The number of the level of `step` (0 … steps-1) where each of `levels` gets an equal share of the steps, in
    order.

    >>> [level_at(step, 6, 3) for step in range(6)]
    [0, 0, 1, 1, 2, 2]
    """
    return min(step * levels // steps, levels - 1)


@dataclass
class Curriculum:
    """Where training stands in `levels` levels.

    steps: updates in all. threshold: None gives each level equal steps; otherwise a level ends when the mean success
    rate of its last WINDOW updates is at least that, and the last one takes what is left. level: the present one, from
    0. rates: success rates of this level's updates so far.
    """

    levels: int
    steps: int
    threshold: float | None = None
    level: int = 0
    rates: list[float] = field(default_factory=list)

    def begin(self, step: int) -> bool:
        """Called before each update; True where a new level begins with it (not for the very first)."""
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
        """Called after each update, with the success rate of its episodes, 0 … 1."""
        self.rates = [*self.rates, success_rate][-WINDOW:]


def draw(tasks: Sequence[Task], step: int, count: int, seed: int) -> list[Task]:
    """The problems of `step`: `count` of them, going round a freshly shuffled deck each time all have been used."""
    chosen: list[Task] = []
    position = step * count
    while len(chosen) < count:
        turn, place = divmod(position + len(chosen), len(tasks))
        deck = list(tasks)
        generator(seed, "deck", turn).shuffle(deck)
        chosen += deck[place : place + count - len(chosen)]
    return chosen
