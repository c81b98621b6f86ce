"""DangerousTaxi on maps of 7 x 7 cells, whose walls and stands are drawn from the map's number: 310 maps, so that a
policy can be tested on maps that it has never seen.

Departs from `env.py`: the map shows all four stands, and a wall as a mark of the cell to its west. Each cell is then
one sign, so that it stands at the same place of the text on every map.

Observation
    One line of rules, the map, the last move. `T` taxi, `P` passenger, `D` destination, `S` another stand, `O` taxi on
    the waiting passenger, `X` taxi with the passenger aboard, `.` nothing. A small letter, and `|` in place of `.`: the
    same with a wall to the east of it. A `D` that is not seen is under the taxi.
Choices, Reward, Episode end
    As in `env.py`.
Source
    Taxi: Dietterich 2000, JAIR 13. The maps are our own: six walls of two to four cells, and any cell can be reached.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import ClassVar

from reflectkit.env import Taskset
from reflectkit.envs.base import task_int
from reflectkit.envs.taxi.world import (
    ABOARD,
    STANDS,
    Cell,
    DangerousTaxi,
    World,
    after_pickup,
    build,
    decode,
    is_start,
    states,
    write_rules,
)
from reflectkit.seeding import generator
from reflectkit.types import Task

SIDE = 7
STATES = states(SIDE)
MAPS = 310
"""Number of maps; `split --ratio 20:1:10` trains on 200 and tests on 100."""
STARTS = 4  # problems on a map
SEGMENTS, SHORTEST, LONGEST = 6, 2, 4  # walls of a map, and their lengths in cells
RULES = (
    "T taxi, P passenger, D destination, S stand, O taxi at P, X taxi carrying P; | and small letters: wall to the"
    " east."
)


@dataclass(frozen=True)
class Layout:
    """What a map looks like. stands: the four stands. walls: cells with a wall to the east."""

    stands: tuple[Cell, ...]
    walls: frozenset[Cell]


@lru_cache(maxsize=1024)
def layout(number: int) -> Layout:
    """The layout of map `number`. No wall closes a whole column, and north and south are never closed, so any cell can
    be reached.
    """
    chance = generator(0, "taxi-maps", number)
    walls: set[Cell] = set()
    for _ in range(SEGMENTS):
        column, length = chance.randrange(SIDE - 1), chance.randint(SHORTEST, LONGEST)
        first = chance.randrange(SIDE - length + 1)
        longer = walls | {(row, column) for row in range(first, first + length)}
        if any((row, column) not in longer for row in range(SIDE)):
            walls = longer
    cells = [(row, column) for row in range(SIDE) for column in range(SIDE)]
    return Layout(tuple(chance.sample(cells, STANDS)), frozenset(walls))


@lru_cache(maxsize=1024)
def world(number: int) -> World:
    """The table of map `number`."""
    plan = layout(number)
    return build(SIDE, plan.stands, plan.walls)


class TaxiMapsTasks(Taskset):
    """The problems of `TaxiMaps`."""

    def tasks(self, level: str) -> list[Task]:
        """Four starts on each of the 310 maps; "dropoff" starts where an oracle's pickup leads, each state once."""
        return [_task(level, number, state) for number in range(MAPS) for state in _starts(level, number)]

    def at_level(self, task: Task, level: str) -> Task | None:
        """The same start at another level; "dropoff" begins just after the oracle's pickup."""
        number, state = task_int(task, "map", 0, MAPS - 1), task_int(task, "state", 0, STATES - 1)
        if level == task.level:
            return task
        if task.level == "dropoff" or level not in self.env.levels:
            return None
        return _task(level, number, after_pickup(state, layout(number).stands, SIDE) if level == "dropoff" else state)

    def cluster(self, task: Task) -> str:
        """The map."""
        return f"map-{task.data.get('map', task.id)}"


class TaxiMaps(DangerousTaxi):
    """See the module's text for the rules."""

    name: ClassVar[str] = "taxi-maps"
    taskset: ClassVar[Taskset] = TaxiMapsTasks()
    horizons: ClassVar[dict[str, int]] = {"pickup": 25, "dropoff": 25, "full": 45}
    """The longest shortest paths of all starts take 20, 19 and 37 actions."""

    @property
    def rules(self) -> str:
        """Rules for people and chat models; of the current level, or of the full task."""
        lines = f"seven rows and seven columns; row 0 is the northmost, column 0 the westmost. {RULES}"
        passenger = "The passenger waits at one of four stands, and the destination is another."
        return write_rules(self._level, lines, passenger)

    def _begin(self, task: Task, seed: int) -> None:
        number = task_int(task, "map", 0, MAPS - 1)
        self._start(task, world(number), task_int(task, "state", 0, STATES - 1))

    def _text(self) -> str:
        return f"{RULES}\n{draw(self.world, self.state)}\n{self._last_move()}"


def _starts(level: str, number: int) -> list[int]:
    starts = generator(0, "taxi-maps", number, "starts").sample(_possible_starts(), STARTS)
    if level == "dropoff":
        return sorted({after_pickup(state, layout(number).stands, SIDE) for state in starts})
    return starts


@cache
def _possible_starts() -> list[int]:
    return [state for state in range(STATES) if is_start(decode(state, SIDE))]


def _task(level: str, number: int, state: int) -> Task:
    place = {"map": number, "state": state}
    return Task(f"taxi-maps-{level}-{number}-{state}", TaxiMaps.name, level, f"map-{number}", place)


def draw(table: World, state: int) -> str:
    """The map of `table` in `state`: seven lines of cells, apart by single spaces."""
    view = decode(state, SIDE)
    taxi = (view.row, view.column)
    marks = dict.fromkeys(table.stands, "S") | {table.stands[view.destination]: "D"}
    if view.passenger != ABOARD:
        marks[table.stands[view.passenger]] = "P"
    marks[taxi] = "X" if view.passenger == ABOARD else "O" if marks.get(taxi) == "P" else "T"
    lines = []
    for row in range(SIDE):
        cells = [marks.get((row, column), ".") for column in range(SIDE)]
        walled = [(row, column) in table.walls for column in range(SIDE)]
        lines.append(" ".join(_with_wall(cell) if wall else cell for cell, wall in zip(cells, walled, strict=True)))
    return "\n".join(lines)


def _with_wall(mark: str) -> str:
    return "|" if mark == "." else mark.lower()
