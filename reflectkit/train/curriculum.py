"""Which problems an update plays: the levels in their order, and the deck from which problems are
drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from reflectkit.env import Env
from reflectkit.rollouts.episode import Episode
from reflectkit.seeding import derive, generator
from reflectkit.types import Task

WINDOW = 3  # updates over which the success rate is averaged to decide whether to advance


@dataclass(frozen=True)
class Level:
    """One stage of the curriculum. make: a fresh env, its horizon included. max_concurrency: most
    envs at once. dealt: the problems of each turn from 1, after `tasks` and as many; None: `tasks`
    again.
    """

    name: str
    tasks: Sequence[Task]
    make: Callable[[], Env]
    max_concurrency: int = 2**31
    dealt: Callable[[int], Sequence[Task]] | None = None


@dataclass
class Curriculum:
    """Progress through `levels` levels."""

    levels: int
    advance_at: float = 0.0
    """A level ends once the mean success rate of its last WINDOW updates reaches this; 0: equal
    steps per level.
    """
    level: int = 0
    """The current level, from 0."""
    rates: list[float] = field(default_factory=list)
    """Success rates of this level's latest updates."""

    def begin(self, step: int, steps: int) -> bool:
        """To be called before update `step` (0 is the first) of `steps`; True if it starts a new
        level (other than the first). It never goes back, also where training is continued with more
        steps.
        """
        # By the share of the updates, or once the level is mastered
        due = self.level
        if not self.advance_at:
            due = max(self.level, min(step * self.levels // steps, self.levels - 1))
        elif len(self.rates) >= WINDOW and sum(self.rates[-WINDOW:]) / WINDOW >= self.advance_at:
            due = min(self.level + 1, self.levels - 1)
        if due == self.level:
            return False
        self.level, self.rates = due, []
        return True

    def end(self, success_rate: float) -> None:
        """To be called after each update with the success rate of its episodes, 0 … 1."""
        self.rates = [*self.rates, success_rate][-WINDOW:]


def draw(
    level: Level,
    step: int,
    count: int,
    seed: int,
) -> list[Task]:
    """The `count` problems of `step`, from a shuffled deck; the next one follows whenever it is
    used up.
    """
    problems: list[Task] = []
    position = step * count
    while len(problems) < count:
        turn, place = divmod(position + len(problems), len(level.tasks))
        deck = list(level.dealt(turn) if turn and level.dealt else level.tasks)
        # Each turn through the problems has an order of its own
        generator(seed, "deck", turn).shuffle(deck)
        problems += deck[place : place + count - len(problems)]
    return problems


def validation_episodes(level: Level, seed: int) -> list[Episode]:
    """An episode of each problem of `level`, the same in each validation."""
    return [Episode(task, derive(seed, "validate", task.id)) for task in level.tasks]
