"""Trials of the installed beelinebench package, with the fewest moves from each of their states to
the goal.

Trials and distances are the package's. It makes some of them slowly, and these are made in another
way here: the states of the 8-puzzle have one table of distances, Blocksworld has one for each shape
of the goal, and boards of Rush Hour are searched by whole arrays of states.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any

import numpy as np
from beelinebench import benchmark, paths
from beelinebench.domains import blocksworld, countdown, keys_doors, rush_hour, tiles
from beelinebench.rng import Draws
from beelinebench.search import Problem, distances_to_goal

VERSION = "1.0.0"
"""The benchmark whose settings the trials have."""
MODULES = {
    "tiles": tiles,
    "blocksworld": blocksworld,
    "countdown": countdown,
    "rush_hour": rush_hour,
    "keys_doors": keys_doors,
}
"""The domains that need no download."""
TRIALS_IN_MEMORY = 512
"""Trials that a process keeps, since the episodes of a group are of one trial."""
Distance = Callable[[Any], float]
"""The fewest moves from a state to the goal; infinite where there is no way."""


@dataclass(frozen=True)
class Trial:
    """A problem of the package. distance: the fewest moves from one of its states to the goal."""

    problem: Problem
    distance: Distance

    @property
    def shortest(self) -> int:
        """The fewest moves from the start to the goal."""
        return int(self.distance(self.problem.start))


@cache
def rules() -> Any:
    """The benchmark's rules, and the settings of its domains."""
    return benchmark.load(paths.PACKAGE / "benchmarks.toml")[VERSION]


@lru_cache(maxsize=TRIALS_IN_MEMORY)
def trial_of(domain: str, number: int) -> Trial:
    """Trial `number` of `domain`, as the package draws it."""
    settings = rules().domains[domain]
    if domain == "rush_hour":
        return _rush_hour_trial(
            number,
            vehicles=settings["vehicles"],
            min_moves=settings["min_moves"],
        )
    problem = MODULES[domain].problem(number, **settings)
    if domain == "tiles":
        return Trial(problem, _tile_distances().__getitem__)
    if domain == "blocksworld":
        return Trial(problem, partial(_blocks_distance, *_canonical_goal(problem)))
    # The other domains have few states
    table = distances_to_goal(start=problem.start, moves=problem.moves, solved=problem.solved)
    return Trial(problem, partial(_look_up, table))


def _look_up(distances: Mapping[Hashable, int], state: Hashable) -> float:
    return distances.get(state, math.inf)


@cache
def _tile_distances() -> dict[Hashable, int]:
    """Of every board that can be solved; all trials have the same goal, and moves can be undone."""
    table: dict[Hashable, int] = distances_to_goal(
        start=tiles.SOLVED,
        moves=tiles.slide,
        solved=tiles.is_solved,
    )
    return table


# Blocksworld: trials whose goals differ in the names of the blocks alone share a table


def _towers(goal: frozenset[str]) -> list[list[str]]:
    """The towers of a goal, which places every block, the highest first; each from the table up."""
    # 1. What is on each block: "(on b1 b2)"
    above = {}
    for fact in goal:
        if fact.startswith("(on "):
            _, block, below = fact.split()
            above[below[:-1]] = block
    # 2. Upwards from each block on the table
    towers = []
    for fact in sorted(goal):
        if fact.startswith("(ontable "):
            tower = [fact.split()[1][:-1]]
            while tower[-1] in above:
                tower.append(above[tower[-1]])
            towers.append(tower)
    return sorted(towers, key=len, reverse=True)


def _canonical_goal(problem: Problem) -> tuple[tuple[int, ...], dict[str, int]]:
    """(the heights of the goal's towers; a number for each block, by its place in them)."""
    solved: Any = problem.solved
    (goal,) = solved.args
    towers = _towers(goal)
    numbers: dict[str, int] = {}
    for tower in towers:
        for block in tower:
            numbers[block] = len(numbers)
    return tuple(map(len, towers)), numbers


def _encode(state: frozenset[str], numbers: Mapping[str, int]) -> bytes:
    """What is under each block: a block's number plus 2, 1 for the table, 0 for the hand."""
    under = bytearray(len(numbers))
    for fact in state:
        words = fact[1:-1].split()
        if words[0] == "on":
            under[numbers[words[1]]] = numbers[words[2]] + 2
        elif words[0] == "ontable":
            under[numbers[words[1]]] = 1
    return bytes(under)


@cache
def _blocks_table(heights: tuple[int, ...]) -> dict[bytes, int]:
    """The fewest moves to the goal with towers of these heights, of every encoded state. Moves can
    be undone.
    """
    # 1. A goal with these towers, and the state that meets it
    blocks = sum(heights)
    names = iter(f"b{number}" for number in range(1, blocks + 1))
    towers = [[next(names) for _ in range(height)] for height in heights]
    goal = frozenset(blocksworld.tower_facts(towers))
    state = goal | {f"(clear {tower[-1]})" for tower in towers} | {"(handempty)"}
    # 2. Its distances to all others
    distances: Any = distances_to_goal(
        start=state,
        moves=partial(blocksworld.moves, blocks),
        solved=partial(blocksworld.reached, goal),
    )
    numbers = {f"b{number + 1}": number for number in range(blocks)}
    return {_encode(each, numbers): distance for each, distance in distances.items()}


def _blocks_distance(
    heights: tuple[int, ...],
    numbers: Mapping[str, int],
    state: frozenset[str],
) -> float:
    return _blocks_table(heights)[_encode(state, numbers)]


# Rush Hour: a state is a number with three bits for the place of each vehicle along its way


class SlidingBoard:
    """All states that are reached from the start of a board, and their distances to the exit."""

    def __init__(
        self,
        vehicles: Sequence[Any],
        start: Sequence[tuple[int, int]],
    ) -> None:
        self.vehicles = tuple(vehicles)
        self.shifts_V = 3 * np.arange(len(self.vehicles))
        self.cells_VP = np.zeros((len(self.vehicles), rush_hour.SIZE + 2), dtype=np.int64)
        """The cells of each vehicle at each of its places, as bits."""
        self.lines = []
        """The row or the column in which each vehicle moves."""
        for vehicle, (row, column) in zip(vehicles, start, strict=True):
            self.lines.append(row if vehicle.horizontal else column)
        for number, vehicle in enumerate(self.vehicles):
            for place in range(rush_hour.SIZE - vehicle.length + 1):
                bits = [self._bit(number, place + offset) for offset in range(vehicle.length)]
                self.cells_VP[number, place] = sum(bits)
        self.start = self.pack(start)
        self.states_N = np.zeros(0, dtype=np.int64)
        self.distances_N = np.zeros(0, dtype=np.int64)

    def _bit(self, vehicle: int, along: int) -> int:
        """The bit of the cell at `along` in the vehicle's line."""
        line = self.lines[vehicle]
        row, column = (line, along) if self.vehicles[vehicle].horizontal else (along, line)
        return int(1 << (row * rush_hour.SIZE + column))

    def pack(self, state: Sequence[tuple[int, int]]) -> int:
        """The number of a state of the package."""
        number = 0
        for index, (row, column) in enumerate(state):
            place = column if self.vehicles[index].horizontal else row
            number += place << (3 * index)
        return number

    def is_solved(self, states_N: Any) -> Any:
        """Whether each state has the red car, the first vehicle, at the exit."""
        return (states_N & 7) == rush_hour.SIZE - 2

    def neighbours(self, states_N: Any) -> Any:
        """All different states one move after any of `states_N`, sorted."""
        # 1. The places of the vehicles, and the cells that are full
        places_NV = (states_N[:, None] >> self.shifts_V) & 7
        cells_N = np.zeros_like(states_N)
        for number in range(len(self.vehicles)):
            cells_N |= self.cells_VP[number, places_NV[:, number]]
        # 2. Each vehicle in each direction, one cell farther each time while its way is free
        parts = [np.zeros(0, dtype=np.int64)]
        for number, vehicle in enumerate(self.vehicles):
            bits = np.array([self._bit(number, along) for along in range(rush_hour.SIZE)])
            for step in (-1, 1):
                rows = np.arange(len(states_N))
                length = vehicle.length - 1 if step > 0 else 0
                for count in range(1, rush_hour.SIZE):
                    front = places_NV[rows, number] + step * count + length
                    is_inside = (front >= 0) & (front < rush_hour.SIZE)
                    rows, front = rows[is_inside], front[is_inside]
                    rows = rows[(cells_N[rows] & bits[front]) == 0]
                    if not len(rows):
                        break
                    parts.append(states_N[rows] + (step * count << (3 * number)))
        return np.unique(np.concatenate(parts))

    def fewest_moves(self, at_least: int) -> bool:
        """Whether the exit can be reached from the start, in `at_least` moves or more."""
        # 1. No state with fewer moves is solved
        before = np.zeros(0, dtype=np.int64)
        level = np.array([self.start])
        for _ in range(at_least):
            if self.is_solved(level).any():
                return False
            level, before = self._next_level(level, before), level
            if not len(level):
                return False
        # 2. But some state is
        return bool(self.is_solved(self.reachable()).any())

    def _next_level(self, level_N: Any, before_N: Any) -> Any:
        """The states one move farther away. A move can be undone, so others are in the two last
        levels.
        """
        states_N = np.setdiff1d(self.neighbours(level_N), level_N, assume_unique=True)
        return np.setdiff1d(states_N, before_N, assume_unique=True)

    def reachable(self) -> Any:
        """All states that can be reached from the start, sorted."""
        return np.sort(np.concatenate(self._levels(np.array([self.start]))))

    def _levels(self, first_N: Any) -> list[Any]:
        """The states at each number of moves from any of `first_N`, until there are no more."""
        levels, before = [first_N], np.zeros(0, dtype=np.int64)
        while True:
            level = self._next_level(levels[-1], before)
            if not len(level):
                return levels
            before = levels[-1]
            levels.append(level)

    def solve(self) -> None:
        """Compute the distances of all states."""
        # 1. Backwards from all solved states, as moves can be undone
        states_N = self.reachable()
        levels = self._levels(states_N[self.is_solved(states_N)])
        every_N = np.concatenate(levels)
        distances_N = np.repeat(np.arange(len(levels)), [len(level) for level in levels])
        # 2. Sorted, to look them up by bisection
        order_N = np.argsort(every_N)
        self.states_N, self.distances_N = every_N[order_N], distances_N[order_N]

    def distance(self, state: Sequence[tuple[int, int]]) -> float:
        """The fewest moves from a state of the package to the exit."""
        place = int(np.searchsorted(self.states_N, self.pack(state)))
        return float(self.distances_N[place])


def _rush_hour_trial(number: int, *, vehicles: int, min_moves: int) -> Trial:
    """The first board of the package's draws whose shortest solution has at least `min_moves`
    moves.
    """
    draws = Draws("rush_hour", number)
    while True:
        cars, start = rush_hour.random_board(draws, vehicles)
        board = SlidingBoard(cars, start)
        if board.fewest_moves(min_moves):
            break
    board.solve()
    problem = Problem(
        domain="rush_hour",
        trial=number,
        start=start,
        moves=partial(rush_hour.moves, cars),
        solved=rush_hour.reached,
        heuristic=partial(rush_hour.blocking_cars, cars),
        heuristic_name="blocking_cars",
        render=partial(rush_hour.board, cars),
        objective=rush_hour.OBJECTIVE,
        context=rush_hour.CONTEXT,
    )
    return Trial(problem, board.distance)
