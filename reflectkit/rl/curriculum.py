"""Which problems an RL step trains on: levels with equal steps, and every problem as often as the others."""

from __future__ import annotations

from collections.abc import Sequence

from reflectkit.core.seeding import generator
from reflectkit.core.types import Task


def level_at(step: int, steps: int, levels: Sequence[str]) -> str:
    """The level of `step` (0 … steps-1) where each level gets an equal share of the steps, in order.

    >>> [level_at(step, 6, ["a", "b", "c"]) for step in range(6)]
    ['a', 'a', 'b', 'b', 'c', 'c']
    """
    return levels[min(step * len(levels) // steps, len(levels) - 1)]


def draw(tasks: Sequence[Task], step: int, episodes: int, seed: int) -> list[Task]:
    """The problems of `step`: `episodes` of them, going round a freshly shuffled deck each time all have been used."""
    chosen: list[Task] = []
    position = step * episodes
    while len(chosen) < episodes:
        turn, place = divmod(position + len(chosen), len(tasks))
        deck = list(tasks)
        generator(seed, "deck", turn).shuffle(deck)
        chosen += deck[place : place + episodes - len(chosen)]
    return chosen
