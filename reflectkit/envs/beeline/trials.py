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
        heights, numbers = _canonical_goal(problem)
        return Trial(problem, partial(_blocks_distance, heights, numbers))
    # The other domains have few states
    table = distances_to_goal(start=problem.start, moves=problem.moves, solved=problem.solved)
    return Trial(problem, partial(_look_up, table))


def _look_up(distances: Mapping[Hashable, int], state: Hashable) -> float:
    """The distance of `state`; infinite if it is not among them."""
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
    # 1. What is on each block, and the blocks on the table
    above = {}
    bottoms = []
    for fact in sorted(goal):
        predicate, *blocks = _words(fact)
        if predicate == "on":
            block, below = blocks
            above[below] = block
        elif predicate == "ontable":
            bottoms += blocks

    # 2. Upwards from each block on the table
    towers = []
    for bottom in bottoms:
        tower = [bottom]
        while tower[-1] in above:
            block = above[tower[-1]]
            tower.append(block)
        towers.append(tower)
    towers.sort(key=len, reverse=True)
    return towers


def _words(fact: str) -> list[str]:
    """The predicate of a fact, and its blocks.

    >>> _words("(on b1 b2)")
    ['on', 'b1', 'b2']
    """
    return fact[1:-1].split()


def _canonical_goal(problem: Problem) -> tuple[tuple[int, ...], dict[str, int]]:
    """(the heights of the goal's towers; a number for each block, by its place in them)."""
    solved: Any = problem.solved
    (goal,) = solved.args
    towers = _towers(goal)
    heights = tuple(map(len, towers))
    blocks = [block for tower in towers for block in tower]
    numbers = {block: number for number, block in enumerate(blocks)}
    return heights, numbers


def _encode(state: frozenset[str], numbers: Mapping[str, int]) -> bytes:
    """What is under each block: a block's number plus 2, 1 for the table, 0 for the hand."""
    under = bytearray(len(numbers))
    for fact in state:
        predicate, *blocks = _words(fact)
        if predicate == "on":
            block, below = blocks
            under[numbers[block]] = numbers[below] + 2
        elif predicate == "ontable":
            (block,) = blocks
            under[numbers[block]] = 1
    return bytes(under)


@cache
def _blocks_table(heights: tuple[int, ...]) -> dict[bytes, int]:
    """The fewest moves to the goal with towers of these heights, of every encoded state. Moves can
    be undone.
    """
    # 1. A goal with these towers
    block_count = sum(heights)
    names = [f"b{number}" for number in range(1, block_count + 1)]
    towers = []
    first = 0
    for height in heights:
        towers.append(names[first : first + height])
        first += height
    goal = frozenset(blocksworld.tower_facts(towers))

    # 2. The distances to all states from the one that meets it
    clear = {f"(clear {tower[-1]})" for tower in towers}
    distances: Any = distances_to_goal(
        start=goal | clear | {"(handempty)"},
        moves=partial(blocksworld.moves, block_count),
        solved=partial(blocksworld.reached, goal),
    )

    # 3. The same by encoded states
    numbers = {name: number for number, name in enumerate(names)}
    table = {}
    for state, distance in distances.items():
        table[_encode(state, numbers)] = distance
    return table


def _blocks_distance(
    heights: tuple[int, ...],
    numbers: Mapping[str, int],
    state: frozenset[str],
) -> float:
    """The fewest moves from `state` to a goal. heights, numbers: of the goal, by `_canonical_goal`."""
    table = _blocks_table(heights)
    return table[_encode(state, numbers)]


# Rush Hour: a state is a number with three bits for the place of each vehicle along its way


class SlidingBoard:
    """All states that are reached from the start of a board, and their distances to the exit."""

    def __init__(
        self,
        vehicles: Sequence[Any],
        start: Sequence[tuple[int, int]],
    ) -> None:
        self.vehicles = tuple(vehicles)
        count = len(self.vehicles)
        self.shifts_V = 3 * np.arange(count)
        """The place of each vehicle's bits in a state."""

        # 1. The bits of the cells in each vehicle's line
        self.lines_VP = np.zeros((count, rush_hour.SIZE), dtype=np.int64)
        for number, (row, column) in enumerate(start):
            for place in range(rush_hour.SIZE):
                if self.vehicles[number].horizontal:
                    bit = row * rush_hour.SIZE + place
                else:
                    bit = place * rush_hour.SIZE + column
                self.lines_VP[number, place] = 1 << bit

        # 2. The cells of each vehicle at each of its places; a place may have the numbers 0 to 7
        self.cells_VP = np.zeros((count, rush_hour.SIZE + 2), dtype=np.int64)
        for number, vehicle in enumerate(self.vehicles):
            for place in range(rush_hour.SIZE - vehicle.length + 1):
                cells = self.lines_VP[number, place : place + vehicle.length]
                self.cells_VP[number, place] = cells.sum()

        # 3. The start, and what `solve` computes
        self.start = self.pack(start)
        self.states_N = np.zeros(0, dtype=np.int64)
        self.distances_N = np.zeros(0, dtype=np.int64)

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
            places_N = places_NV[:, number]
            cells_N |= self.cells_VP[number, places_N]

        # 2. Each vehicle in each direction
        parts = [np.zeros(0, dtype=np.int64)]
        for number in range(len(self.vehicles)):
            places_N = places_NV[:, number]
            for direction in (-1, 1):
                parts += self._slides(states_N, cells_N, places_N, number, direction)
        return np.unique(np.concatenate(parts))

    def _slides(
        self,
        states_N: Any,
        cells_N: Any,
        places_N: Any,
        number: int,
        direction: int,
    ) -> list[Any]:
        """The states after a vehicle has moved by 1, 2, … cells, as far as its way is free.

        cells_N: the cells that are full. places_N: the vehicle's. number: the vehicle's.
        """
        parts = []
        line_P = self.lines_VP[number]
        offset = self.vehicles[number].length - 1 if direction > 0 else 0
        fronts_N = places_N + offset
        rows = np.arange(len(states_N))  # of the states in which it gets so far
        for count in range(1, rush_hour.SIZE):
            # 1. The next cell is on the board, and free
            shift = direction * count
            fronts = fronts_N[rows] + shift
            is_inside = (fronts >= 0) & (fronts < rush_hour.SIZE)
            rows = rows[is_inside]
            fronts = fronts[is_inside]
            is_free = (cells_N[rows] & line_P[fronts]) == 0
            rows = rows[is_free]
            if not len(rows):
                break

            # 2. The states there
            parts.append(states_N[rows] + (shift << (3 * number)))
        return parts

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
        states_N = self.reachable()
        return bool(self.is_solved(states_N).any())

    def _next_level(self, level_N: Any, before_N: Any) -> Any:
        """The states one move farther away. A move can be undone, so others are in the two last
        levels.
        """
        states_N = np.setdiff1d(self.neighbours(level_N), level_N, assume_unique=True)
        return np.setdiff1d(states_N, before_N, assume_unique=True)

    def reachable(self) -> Any:
        """All states that can be reached from the start, sorted."""
        levels = self._levels(np.array([self.start]))
        return np.sort(np.concatenate(levels))

    def _levels(self, first_N: Any) -> list[Any]:
        """The states at each number of moves from any of `first_N`, until there are no more."""
        levels = [first_N]
        before = np.zeros(0, dtype=np.int64)
        while True:
            level = self._next_level(levels[-1], before)
            if not len(level):
                return levels
            before = levels[-1]
            levels.append(level)

    def solve(self) -> None:
        """Compute the distances of all states."""
        # 1. Backwards from all solved states, as moves can be undone
        reachable_N = self.reachable()
        levels = self._levels(reachable_N[self.is_solved(reachable_N)])
        sizes = list(map(len, levels))
        states_N = np.concatenate(levels)
        distances_N = np.repeat(np.arange(len(levels)), sizes)

        # 2. Sorted, to look them up by bisection
        order_N = np.argsort(states_N)
        self.states_N = states_N[order_N]
        self.distances_N = distances_N[order_N]

    def distance(self, state: Sequence[tuple[int, int]]) -> float:
        """The fewest moves from a state of the package to the exit."""
        number = self.pack(state)
        place = np.searchsorted(self.states_N, number)
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
