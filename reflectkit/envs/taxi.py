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

import random
from collections import deque
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from reflectkit.core.config import option
from reflectkit.core.types import Task
from reflectkit.envs.base import ChoiceEnv, task_int

STATES = 500
STEP, FATAL, BONUS = -1 / 20, -10 / 20, 20 / 20
ABOARD = 4  # the passenger index that means "in the taxi"
PICKUP, DROPOFF = 4, 5
ACTIONS = ("south", "north", "east", "west", "pickup", "dropoff")
RULES = "T taxi, P passenger, D destination, O taxi at P, X taxi carrying P, | wall."


@dataclass(frozen=True)
class World:
    """Taxi-v4's table and what follows from it, all indexed by state (500) and action (6).

    next_state: where an action leads. delivers: whether it ends the ride at the destination. distance: least number of
    actions to the delivery. stands: (row, column) of the four stands. walls: cells (row, column) with a wall to the
    east.
    """

    next_state: tuple[tuple[int, ...], ...]
    delivers: tuple[tuple[bool, ...], ...]
    distance: tuple[int, ...]
    stands: tuple[tuple[int, int], ...]
    walls: frozenset[tuple[int, int]]

    def fatal(self, state: int, action: int) -> bool:
        """Whether `action` leaves `state` unchanged, which ends the episode."""
        return self.next_state[state][action] == state

    def best(self, state: int) -> tuple[int, ...]:
        """All first actions of shortest paths to the delivery, lowest index first."""
        following, delivers = self.next_state[state], self.delivers[state]
        ahead = [0 if delivers[action] else self.distance[following[action]] for action in range(len(ACTIONS))]
        return tuple(
            action
            for action in range(len(ACTIONS))
            if not self.fatal(state, action) and ahead[action] == self.distance[state] - 1
        )


@dataclass(frozen=True)
class View:
    """A state in words: row and column 0 … 4; passenger 0 … 3 a stand, 4 aboard; destination 0 … 3 a stand."""

    row: int
    column: int
    passenger: int
    destination: int


def decode(state: int) -> View:
    """Taxi-v4's state number as a view.

    >>> decode(328)
    View(row=3, column=1, passenger=2, destination=0)
    """
    rest, destination = divmod(state, 4)
    rest, passenger = divmod(rest, 5)
    row, column = divmod(rest, 5)
    return View(row, column, passenger, destination)


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
    return World(next_state, delivers, _distances(next_state, delivers), stands, walls)


def _distances(next_state: tuple[tuple[int, ...], ...], delivers: tuple[tuple[bool, ...], ...]) -> tuple[int, ...]:
    """Minimum number of actions from each state to the delivery, by breadth-first search backwards."""
    before: dict[int, list[int]] = {}
    queue: deque[int] = deque()
    distance = [-1] * STATES
    for state in range(STATES):
        for action in range(len(ACTIONS)):
            if delivers[state][action]:
                distance[state] = 1
            else:
                before.setdefault(next_state[state][action], []).append(state)
    queue.extend(state for state in range(STATES) if distance[state] == 1)
    while queue:
        state = queue.popleft()
        for earlier in before.get(state, ()):
            if distance[earlier] < 0:
                distance[earlier] = distance[state] + 1
                queue.append(earlier)
    return tuple(distance)


@dataclass(frozen=True)
class TaxiSettings:
    """What the text of a state has besides the map."""

    with_prompt: bool = option(False, help="Begin with the rules, the goal and the rewards.")
    with_history: bool = option(False, help="Show the earlier maps and moves before the map.")


class Taxi(ChoiceEnv):
    """See the module's text for the rules, and `TaxiSettings`."""

    name: ClassVar[str] = "taxi"
    Settings: ClassVar[type[Any]] = TaxiSettings
    settings: TaxiSettings
    levels: ClassVar[tuple[str, ...]] = ("pickup", "dropoff", "full")
    choices: ClassVar[tuple[str, ...]] = ACTIONS
    horizons: ClassVar[dict[str, int]] = {"pickup": 15, "dropoff": 15, "full": 30}
    """The paper's 15 steps; the whole task takes up to 18 with no mistake, so it gets twice the paper's."""

    _level = "full"
    state: int
    """The current state's number in Taxi-v4, 0 … 499."""

    @property
    def rules(self) -> str:  # type: ignore[override]
        """Rules for people and chat models; of the current level, or of the full task."""
        return write_rules(self._level)

    def _begin(self, task: Task, seed: int) -> None:
        self.state = task_int(task, "state", 0, STATES - 1)
        self._level = task.level
        self._last: int | None = None
        self._mistaken = self._picked_up = False
        self._history: list[str] = []

    def _move(self, action: int) -> tuple[float, bool, dict[str, object]]:
        table, before = world(), self.state
        self._mistaken = action not in table.best(before)
        self._last = action
        if self.settings.with_history:
            self._history.append(f"{draw(before)}\nMove {len(self._history) + 1}: {ACTIONS[action]}\n")
        self.state = table.next_state[before][action]
        delivered = table.delivers[before][action]
        fatal = table.fatal(before, action)
        picked_up = not self._picked_up and action == PICKUP and not fatal
        self._picked_up = self._picked_up or picked_up
        rewarded = delivered or (picked_up and self._level != "dropoff")
        reward = FATAL if fatal else BONUS if rewarded else STEP
        success = picked_up if self._level == "pickup" else delivered
        over = fatal or delivered or success
        return reward, over, {"state": self.state, "success": success, "refused": int(fatal)}

    def _text(self) -> str:
        last = "none" if self._last is None else ACTIONS[self._last]
        rules = self.rules if self.settings.with_prompt else RULES
        earlier = "".join(self._history) if self.settings.with_history else ""
        return f"{rules}\n{earlier}{draw(self.state)}\nLast move: {last}"

    def forfeit(self, steps_left: int) -> float:
        """The cost of the remaining steps."""
        return STEP * steps_left

    @classmethod
    def tasks(cls, level: str) -> list[Task]:
        """One task for each of the 300 starts of Taxi-v4 (a waiting passenger who wants to go elsewhere).

        "dropoff" starts where an oracle's pickup leads: 12 distinct states, a stand and a destination.
        """
        starts = [state for state in range(STATES) if _is_start(decode(state))]
        if level == "dropoff":
            starts = sorted({_after_pickup(state) for state in starts})
        return [_task(level, state) for state in starts]

    @classmethod
    def at_level(cls, task: Task, level: str) -> Task | None:
        """The same start at another level; "dropoff" begins just after the oracle's pickup."""
        state = task_int(task, "state", 0, STATES - 1)
        if level == task.level:
            return task
        if task.level == "dropoff" or level not in cls.levels:
            return None
        return _task(level, _after_pickup(state) if level == "dropoff" else state)

    @classmethod
    def cluster(cls, task: Task) -> str:
        """The start."""
        return f"start-{task.data.get('state', task.id)}"

    def oracle(self) -> int:
        """The first of the best actions."""
        return world().best(self.state)[0]

    def mistakes(self) -> list[int]:
        """Suboptimal actions that do not end the episode."""
        table = world()
        best = table.best(self.state)
        return [
            action
            for action in range(len(ACTIONS))
            if action not in best and not table.fatal(self.state, action) and not table.delivers[self.state][action]
        ]

    def note(self) -> str:
        """The mark of the last action."""
        return "" if self._last is None else "mistake" if self._mistaken else "good"

    def reflection(self, generator: random.Random) -> str:
        """The state, what went wrong if the last move was a mistake, and what to do next."""
        return write_reflection(self.state, self._last if self._mistaken else None, self.oracle(), generator)


def _is_start(view: View) -> bool:
    return view.passenger not in (ABOARD, view.destination)


def _task(level: str, state: int) -> Task:
    return Task(f"taxi-{level}-{state}", Taxi.name, level, f"start-{state}", {"state": state})


def _after_pickup(state: int) -> int:
    table = world()
    while decode(state).passenger != ABOARD:
        state = table.next_state[state][table.best(state)[0]]
    return state


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


def write_rules(level: str) -> str:
    """The goal at `level`, the actions, what ends the episode, and the reward."""
    goal = {
        "pickup": "drive the taxi to the waiting passenger and pick the passenger up",
        "dropoff": "the passenger is in the taxi: drive to the destination and drop the passenger off there",
        "full": (
            "drive the taxi to the waiting passenger, pick the passenger up, and drop the passenger off at the"
            " destination"
        ),
    }[level]
    stands = "; ".join(f"row {row} column {column}" for row, column in world().stands)
    rewards = [f"{FATAL:g} for an action that changes nothing"]
    rewards += [f"{BONUS:g} for the first pickup"] if level != "dropoff" else []
    rewards += [f"{BONUS:g} for the delivery"] if level != "pickup" else []
    return (
        f"Goal: {goal}.\n"
        f"Map: five rows and five columns; row 0 is the northmost, column 0 the westmost. {RULES} A destination that"
        " is not on the map is under the taxi. The passenger waits at one of four stands, and the destination is"
        f" another: {stands}.\n"
        "Actions: south, north, east and west move the taxi by one cell; pickup takes in a passenger who waits in the"
        " taxi's cell; dropoff lets the passenger out, at a stand only.\n"
        "Danger: an action that changes nothing ends the episode at once as a failure: driving against a wall or off"
        " the map, pickup where nobody waits, dropoff away from a stand or with nobody aboard.\n"
        f"End: {'the pickup' if level == 'pickup' else 'the delivery'} is success; an action that changes nothing is"
        " failure.\n"
        f"Reward: {STEP:g} for a step; instead of it {', '.join(rewards)}."
    )


WHERE = ("Taxi at {taxi}.", "The taxi is at {taxi}.")
WRONG = ("The last move was a mistake, it led away.", "Moving {last} was wrong.", "That {last} was a mistake.")
WAITING = ("Passenger waiting at {target}.", "The passenger waits at {target}.")
ABOARD_FOR = ("Passenger aboard for {target}.", "The passenger wants to {target}.")
FETCH, BRING = ("Drive there.", "Get there first."), ("Drive there.", "Bring the passenger there.")
PICK_UP = ("Take the passenger in here.", "Let the passenger get in now.", "Now the passenger can board.")
SET_DOWN = ("Set the passenger down here.", "Let the passenger out now.", "Now the passenger can leave.")


def write_reflection(state: int, mistake: int | None, best: int, generator: random.Random) -> str:
    """A comment on `state` from templates: where the taxi is, what was wrong, where the goal is, what to do.

    Written knowing the best next action, but a direction is left to the policy, as in the paper.

    mistake: the last action where it was one. best: the best next action.
    """
    view, table = decode(state), world()
    aboard = view.passenger == ABOARD
    row, column = table.stands[view.destination if aboard else view.passenger]
    parts = [generator.choice(WHERE).format(taxi=f"row {view.row} column {view.column}")]
    if mistake is not None:
        parts.append(generator.choice(WRONG).format(last=ACTIONS[mistake]))
    parts.append(generator.choice(ABOARD_FOR if aboard else WAITING).format(target=f"row {row} column {column}"))
    parts.append(generator.choice({PICKUP: PICK_UP, DROPOFF: SET_DOWN}.get(best, BRING if aboard else FETCH)))
    return " ".join(parts)
