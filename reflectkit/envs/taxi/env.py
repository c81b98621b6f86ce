"""DangerousTaxi: gymnasium's Taxi-v4 as a text map, in which an action that changes nothing is fatal.

Departs from the Reflect-RL code: the transitions are gymnasium's own table, the oracle is one reverse breadth-first
search over the 500 states (not copies of the env), every episode is seeded, and nothing is kept across a reset.

Observation
    One line of rules, the 5x5 map, the last move. `T` taxi, `P` passenger, `D` destination, `O` taxi on the waiting
    passenger, `X` taxi with the passenger aboard, `|` wall. The map alone determines the state: a `D` that is not seen
    is under the taxi.
Choices
    Taxi-v4's six, in its order: south, north, east, west, pickup, dropoff.
Reward
    Divided by 20: -1 a step, or in its place -10 for an action that changes nothing, +20 for the delivery, and +20 for
    the first pickup in the levels "pickup" and "full". An episode that is cut short pays for the steps it had left.
Episode end
    The delivery ("dropoff", "full"), the pickup ("pickup"), or an action that leaves the state unchanged: a wall, an
    illegal pickup or drop-off. Putting the passenger down at a wrong stand is allowed, as in Taxi-v4.
Source
    Taxi: Dietterich 2000, JAIR 13, as in gymnasium 1.4; the rules above: Reflect-RL, arXiv 2402.12621.
"""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar

from reflectkit.config import Config, option
from reflectkit.env import Taskset
from reflectkit.envs.base import task_int
from reflectkit.envs.taxi.world import (
    ABOARD,
    ACTIONS,
    DangerousTaxi,
    World,
    after_pickup,
    decode,
    distances,
    is_start,
    states,
    write_rules,
)
from reflectkit.types import Task

SIDE = 5
STATES = states(SIDE)
RULES = "T taxi, P passenger, D destination, O taxi at P, X taxi carrying P, | wall."


@cache
def world() -> World:
    """The table, read from gymnasium once per process."""
    import gymnasium

    env = gymnasium.make("Taxi-v4").unwrapped
    table = [[env.P[state][action][0] for action in range(len(ACTIONS))] for state in range(STATES)]  # type: ignore[attr-defined]
    rows = [bytes(row).decode() for row in (b"".join(line) for line in env.desc)]  # type: ignore[attr-defined]
    walls = frozenset((row, column) for row in range(5) for column in range(4) if rows[row + 1][2 * column + 2] == "|")
    next_state = tuple(tuple(int(entry[1]) for entry in entries) for entries in table)
    delivers = tuple(tuple(bool(entry[3]) for entry in entries) for entries in table)
    stands = tuple((int(row), int(column)) for row, column in env.locs)  # type: ignore[attr-defined]
    return World(SIDE, stands, walls, next_state, delivers, distances(next_state, delivers))


class TaxiSettings(Config):
    """What the text of a state has besides the map."""

    with_prompt: bool = option(False, help="Begin with the rules, the goal and the rewards.")
    with_history: bool = option(False, help="Show the earlier maps and moves before the map.")


class TaxiTasks(Taskset):
    """The problems of `Taxi`."""

    def tasks(self, level: str) -> list[Task]:
        """One task for each of the 300 starts of Taxi-v4 (a waiting passenger who wants to go elsewhere).

        "dropoff" starts where an oracle's pickup leads: 12 distinct states, a stand and a destination.
        """
        starts = [state for state in range(STATES) if is_start(decode(state))]
        if level == "dropoff":
            starts = sorted({_after_pickup(state) for state in starts})
        return [_task(level, state) for state in starts]

    def at_level(self, task: Task, level: str) -> Task | None:
        """The same start at another level; "dropoff" begins just after the oracle's pickup."""
        state = task_int(task, "state", 0, STATES - 1)
        if level == task.level:
            return task
        if task.level == "dropoff" or level not in self.env.levels:
            return None
        return _task(level, _after_pickup(state) if level == "dropoff" else state)

    def cluster(self, task: Task) -> str:
        """The start."""
        return f"start-{task.data.get('state', task.id)}"


class Taxi(DangerousTaxi):
    """See the module's text for the rules, and `TaxiSettings`."""

    name: ClassVar[str] = "taxi"
    taskset: ClassVar[Taskset] = TaxiTasks()
    Settings: ClassVar[type[Any]] = TaxiSettings
    settings: TaxiSettings
    horizons: ClassVar[dict[str, int]] = {"pickup": 15, "dropoff": 15, "full": 30}
    """The paper's 15 steps; the whole task takes up to 18 with no mistake, so it gets twice the paper's."""

    @property
    def rules(self) -> str:
        """Rules for people and chat models; of the current level, or of the full task."""
        stands = "; ".join(f"row {row} column {column}" for row, column in world().stands)
        lines = f"five rows and five columns; row 0 is the northmost, column 0 the westmost. {RULES}"
        passenger = f"The passenger waits at one of four stands, and the destination is another: {stands}."
        return write_rules(self._level, lines, passenger)

    def _begin(self, task: Task, seed: int) -> None:
        self._history: list[str] = []
        self._start(task, world(), task_int(task, "state", 0, STATES - 1))

    def _move(self, action: int) -> tuple[float, bool, dict[str, object]]:
        if self.settings.with_history:
            self._history.append(f"{draw(self.state)}\nMove {len(self._history) + 1}: {ACTIONS[action]}\n")
        return super()._move(action)

    def _text(self) -> str:
        rules = self.rules if self.settings.with_prompt else RULES
        earlier = "".join(self._history) if self.settings.with_history else ""
        return f"{rules}\n{earlier}{draw(self.state)}\n{self._last_move()}"


def _task(level: str, state: int) -> Task:
    return Task(f"taxi-{level}-{state}", Taxi.name, level, f"start-{state}", {"state": state})


def _after_pickup(state: int) -> int:
    return after_pickup(state, world().stands, SIDE)


def draw(state: int) -> str:
    """The map: five lines of cells and walls, apart by single spaces, so that every tokenizer keeps the cells apart."""
    view, table = decode(state), world()
    taxi = (view.row, view.column)
    marks = {table.stands[view.destination]: "D"}
    if view.passenger != ABOARD:
        marks[table.stands[view.passenger]] = "P"
        marks[taxi] = "O" if marks.get(taxi) == "P" else "T"
    else:
        marks[taxi] = "X"
    lines = []
    for row in range(5):
        cells = []
        for column in range(5):
            cells.append(marks.get((row, column), "."))
            if (row, column) in table.walls:
                cells.append("|")
        lines.append(" ".join(cells))
    return "\n".join(lines)
