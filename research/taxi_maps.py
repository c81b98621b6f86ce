"""DangerousTaxi on 310 maps of 7 x 7 cells, for tests on maps that a policy has never seen: `--env
research/taxi_maps.py:TaxiMaps`.

The rules are those of `taxi`. The map also shows the other stands, `S`, and writes a wall as a small letter, or `|` for
`.`, in the cell to its west: each cell is then one sign, at the same place of the text on every map. The maps are our
own: six walls of two to four cells, and any cell can be reached.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar

from typing_extensions import override

from reflectkit.config import Config, NoSettings
from reflectkit.env import Taskset, task_int
from reflectkit.envs.taxi import STANDS, Cell, Map, Taxi, TaxiTasks, marks_of
from reflectkit.seeding import generator
from reflectkit.types import Task

MAPS, SIDE = 310, 7
"""`split --ratio 20:1:10` trains on 200 maps and tests on 100."""
STARTS = 4
"""Problems on a map."""
SEGMENTS, SHORTEST, LONGEST = 6, 2, 4
"""Walls of a map, and their lengths in cells."""


@lru_cache(maxsize=1024)
def map_number(number: int) -> Map:
    """Map `number` of `taxi-maps`. No wall closes a whole column, and north and south are never
    closed, so any cell can be reached.
    """
    chance = generator(0, "taxi-maps", number)
    walls: set[Cell] = set()
    for _ in range(SEGMENTS):
        column, length = chance.randrange(SIDE - 1), chance.randint(SHORTEST, LONGEST)
        first = chance.randrange(SIDE - length + 1)
        longer = walls | {(row, column) for row in range(first, first + length)}
        # Some row of the column stays open, or else the map would be in two parts
        if any((row, column) not in longer for row in range(SIDE)):
            walls = longer
    cells = [(row, column) for row in range(SIDE) for column in range(SIDE)]
    return Map(SIDE, tuple(chance.sample(cells, STANDS)), frozenset(walls))


class TaxiMapsTasks(TaxiTasks):
    """The problems of `TaxiMaps`."""

    def tasks(self, level: str) -> list[Task]:
        """Four starts on each of the 310 maps; "dropoff" starts where an oracle's pickup leads,
        each state once.
        """
        tasks, possible = [], map_number(0).starts()
        for number in range(MAPS):
            starts = generator(0, "taxi-maps", number, "starts").sample(possible, STARTS)
            if level == "dropoff":
                starts = sorted(set(map(map_number(number).after_pickup, starts)))
            tasks += [self.task_from(level, {"map": number, "state": state}) for state in starts]
        return tasks

    def map_of(self, task: Task) -> Map:
        """The map of a task. Raises DataError."""
        return map_number(task_int(task, "map", 0, MAPS - 1))

    def task_from(self, level: str, data: dict[str, Any]) -> Task:
        """The task that begins in a state of a map."""
        name = f"taxi-maps-{level}-{data['map']}-{data['state']}"
        return Task(name, "taxi-maps", level, f"map-{data['map']}", data)

    def cluster(self, task: Task) -> str:
        """The map."""
        return f"map-{task.data.get('map', task.id)}"


class TaxiMaps(Taxi):
    """DangerousTaxi on 310 maps of 7 x 7 cells, for tests on maps that a policy has never seen.

    See the module's text.
    """

    name: ClassVar[str] = "taxi-maps"
    taskset: ClassVar[Taskset] = TaxiMapsTasks()
    Settings: ClassVar[type[Config]] = NoSettings
    horizons: ClassVar[dict[str, int]] = {"pickup": 25, "dropoff": 25, "full": 45}
    """The longest shortest paths of all starts take 20, 19 and 37 actions."""
    legend: ClassVar[str] = (
        "T taxi, P passenger, D destination, S stand, O taxi at P, X taxi carrying P; | or a small"
        " letter: wall to the east."
    )
    sizes: ClassVar[str] = "seven rows and seven columns"
    where_stands: ClassVar[str] = ""

    @override
    def picture(self) -> str:
        return draw(self.map, self.state)


def draw(plan: Map, state: int) -> str:
    """The map: lines of cells, apart by single spaces."""
    # A wall changes the sign of the cell to its west
    marks = dict.fromkeys(plan.stands, "S") | marks_of(plan, state)
    lines = []
    for row in range(plan.side):
        cells = []
        for column in range(plan.side):
            mark = marks.get((row, column), ".")
            if (row, column) in plan.walls:
                mark = "|" if mark == "." else mark.lower()
            cells.append(mark)
        lines.append(" ".join(cells))
    return "\n".join(lines)
