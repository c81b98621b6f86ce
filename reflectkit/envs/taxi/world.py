"""DangerousTaxi on any map: states, transitions, shortest paths, what the oracle teacher says, and the env itself.

`env.py` has it on Taxi-v4's map, `maps.py` on maps that are drawn from a seed.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

from reflectkit.env import Teacher
from reflectkit.envs.base import ChoiceEnv
from reflectkit.types import Task

STEP, FATAL, BONUS = -1 / 20, -10 / 20, 20 / 20
STANDS = 4
ABOARD = STANDS  # the passenger index that means "in the taxi"
PICKUP, DROPOFF = 4, 5
ACTIONS = ("south", "north", "east", "west", "pickup", "dropoff")
MOVES = ((1, 0), (-1, 0), (0, 1), (0, -1))  # rows and columns that the first four actions add
LEVELS = ("pickup", "dropoff", "full")
Cell = tuple[int, int]
"""Row and column, from 0 in the north and the west."""
WHERE = ("Taxi at {taxi}.", "The taxi is at {taxi}.")
WRONG = ("The last move was a mistake, it led away.", "Moving {last} was wrong.", "That {last} was a mistake.")
WAITING = ("Passenger waiting at {target}.", "The passenger waits at {target}.")
ABOARD_FOR = ("Passenger aboard for {target}.", "The passenger wants to {target}.")
FETCH, BRING = ("Drive there.", "Get there first."), ("Drive there.", "Bring the passenger there.")
PICK_UP = ("Take the passenger in here.", "Let the passenger get in now.", "Now the passenger can board.")
SET_DOWN = ("Set the passenger down here.", "Let the passenger out now.", "Now the passenger can leave.")


@dataclass(frozen=True)
class View:
    """A state in words: row and column from 0; passenger 0 … 3 a stand, 4 aboard; destination 0 … 3 a stand."""

    row: int
    column: int
    passenger: int
    destination: int


@dataclass(frozen=True)
class World:
    """A map's table and what follows from it, indexed by state (S) and action (6)."""

    side: int
    """Number of rows, and of columns."""
    stands: tuple[Cell, ...]
    """The four stands."""
    walls: frozenset[Cell]
    """Cells with a wall to the east."""
    next_state: tuple[tuple[int, ...], ...]
    """Where an action leads (S, 6)."""
    delivers: tuple[tuple[bool, ...], ...]
    """Whether it ends the ride at the destination (S, 6)."""
    distance: tuple[int, ...]
    """Least number of actions to the delivery (S)."""

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


def states(side: int) -> int:
    """Number of states of a map."""
    return side * side * (STANDS + 1) * STANDS


def decode(state: int, side: int = 5) -> View:
    """A state's number as a view, in Taxi-v4's order.

    >>> decode(328)
    View(row=3, column=1, passenger=2, destination=0)
    """
    rest, destination = divmod(state, STANDS)
    rest, passenger = divmod(rest, STANDS + 1)
    row, column = divmod(rest, side)
    return View(row, column, passenger, destination)


def encode(view: View, side: int = 5) -> int:
    """The number of a state.

    >>> encode(View(row=3, column=1, passenger=2, destination=0))
    328
    """
    return ((view.row * side + view.column) * (STANDS + 1) + view.passenger) * STANDS + view.destination


def is_start(view: View) -> bool:
    """Whether a passenger waits who wants to go elsewhere."""
    return view.passenger not in (ABOARD, view.destination)


def after_pickup(state: int, stands: tuple[Cell, ...], side: int) -> int:
    """The state in which the passenger of `state` has just got in."""
    view = decode(state, side)
    if view.passenger == ABOARD:
        return state
    return encode(View(*stands[view.passenger], ABOARD, view.destination), side)


def build(side: int, stands: tuple[Cell, ...], walls: frozenset[Cell]) -> World:
    """The table of a map, from Taxi-v4's rules."""

    def beside(cell: Cell, down: int, right: int) -> Cell:
        """Where a move leads; `cell` itself against a wall or the edge."""
        row, column = cell[0] + down, cell[1] + right
        walled = right != 0 and (row, min(cell[1], column)) in walls
        return (row, column) if 0 <= row < side and 0 <= column < side and not walled else cell

    def number(cell: Cell, passenger: int, destination: int) -> int:
        return encode(View(*cell, passenger, destination), side)

    next_state, delivers = [], []
    for cell in [(row, column) for row in range(side) for column in range(side)]:
        neighbours = [beside(cell, *move) for move in MOVES]
        for passenger in range(STANDS + 1):
            boards = passenger != ABOARD and stands[passenger] == cell
            leaves = passenger == ABOARD and cell in stands
            for destination in range(STANDS):
                moved = [number(neighbour, passenger, destination) for neighbour in neighbours]
                moved.append(number(cell, ABOARD if boards else passenger, destination))
                moved.append(number(cell, stands.index(cell) if leaves else passenger, destination))
                next_state.append(tuple(moved))
                delivers.append((*(False for _ in ACTIONS[1:]), leaves and stands[destination] == cell))
    return World(side, stands, walls, tuple(next_state), tuple(delivers), distances(tuple(next_state), tuple(delivers)))


def distances(next_state: tuple[tuple[int, ...], ...], delivers: tuple[tuple[bool, ...], ...]) -> tuple[int, ...]:
    """Minimum number of actions from each state to the delivery, by breadth-first search backwards."""
    before: dict[int, list[int]] = {}
    queue: deque[int] = deque()
    distance = [-1] * len(next_state)
    for state in range(len(next_state)):
        for action in range(len(ACTIONS)):
            if delivers[state][action]:
                distance[state] = 1
            else:
                before.setdefault(next_state[state][action], []).append(state)
    queue.extend(state for state in range(len(next_state)) if distance[state] == 1)
    while queue:
        state = queue.popleft()
        for earlier in before.get(state, ()):
            if distance[earlier] < 0:
                distance[earlier] = distance[state] + 1
                queue.append(earlier)
    return tuple(distance)


class TaxiTeacher(Teacher):
    """What would be right in `DangerousTaxi`."""

    env: DangerousTaxi

    def action(self) -> int:
        """The first of the best actions."""
        return self.env.world.best(self.env.state)[0]

    def mistakes(self) -> list[int]:
        """Suboptimal actions that do not end the episode."""
        world, state = self.env.world, self.env.state
        best = world.best(state)
        return [
            action
            for action in range(len(ACTIONS))
            if action not in best and not world.fatal(state, action) and not world.delivers[state][action]
        ]

    def note(self) -> str:
        """The mark of the last action."""
        return "" if self.env.last is None else "mistake" if self.env.mistaken else "good"

    def comment(self, generator: random.Random) -> str:
        """The state, what went wrong if the last move was a mistake, and what to do next."""
        return " ".join(generator.choice(wordings) for wordings in self._parts(self._mistake()))

    def confirms(self, comment: str) -> bool:
        """Whether it names the taxi's cell, the target and what to do; only a mistake may be called one."""
        return any(comment in map(" ".join, product(*self._parts(blamed))) for blamed in {None, self._mistake()})

    def _mistake(self) -> int | None:
        """The last action, if it was a mistake."""
        return self.env.last if self.env.mistaken else None

    def _parts(self, mistake: int | None) -> list[list[str]]:
        """The sentences of a comment, each in all its wordings: where the taxi is, what was wrong, where the goal is,
        what to do. A direction is left to the policy, as in the paper.
        """
        world, view = self.env.world, decode(self.env.state, self.env.world.side)
        aboard = view.passenger == ABOARD
        row, column = world.stands[view.destination if aboard else view.passenger]
        parts = [[wording.format(taxi=f"row {view.row} column {view.column}") for wording in WHERE]]
        if mistake is not None:
            parts.append([wording.format(last=ACTIONS[mistake]) for wording in WRONG])
        parts.append(
            [wording.format(target=f"row {row} column {column}") for wording in (ABOARD_FOR if aboard else WAITING)]
        )
        parts.append([*{PICKUP: PICK_UP, DROPOFF: SET_DOWN}.get(self.action(), BRING if aboard else FETCH)])
        return parts


class DangerousTaxi(ChoiceEnv):
    """The rules of `env.py`. A subclass sets `name`, and writes `_begin` and `_text`; `_begin` calls `_start`."""

    levels: ClassVar[tuple[str, ...]] = LEVELS
    choices: ClassVar[tuple[str, ...]] = ACTIONS
    teacher_type: ClassVar[type[Teacher]] = TaxiTeacher

    world: World
    state: int
    """The current state's number."""
    last: int | None
    """The last action."""
    mistaken: bool
    """Whether it was a mistake."""
    _level = "full"

    def _start(self, task: Task, world: World, state: int) -> None:
        self.world, self.state, self._level = world, state, task.level
        self.last = None
        self.mistaken = self._picked_up = False

    def _move(self, action: int) -> tuple[float, bool, dict[str, object]]:
        table, before = self.world, self.state
        self.mistaken = action not in table.best(before)
        self.last = action
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

    def _last_move(self) -> str:
        return f"Last move: {'none' if self.last is None else ACTIONS[self.last]}"

    def truncation_penalty(self, steps_left: int) -> float:
        """The cost of the remaining steps."""
        return STEP * steps_left


def write_rules(level: str, lines: str, passenger: str) -> str:
    """The goal at `level`, the actions, what ends the episode, and the reward.

    lines: about the map. passenger: where the passenger waits, as a sentence.
    """
    goal = {
        "pickup": "drive the taxi to the waiting passenger and pick the passenger up",
        "dropoff": "the passenger is in the taxi: drive to the destination and drop the passenger off there",
        "full": (
            "drive the taxi to the waiting passenger, pick the passenger up, and drop the passenger off at the"
            " destination"
        ),
    }[level]
    rewards = [f"{FATAL:g} for an action that changes nothing"]
    rewards += [f"{BONUS:g} for the first pickup"] if level != "dropoff" else []
    rewards += [f"{BONUS:g} for the delivery"] if level != "pickup" else []
    return (
        f"Goal: {goal}.\n"
        f"Map: {lines} A destination that is not on the map is under the taxi. {passenger}\n"
        "Actions: south, north, east and west move the taxi by one cell; pickup takes in a passenger who waits in the"
        " taxi's cell; dropoff lets the passenger out, at a stand only.\n"
        "Danger: an action that changes nothing ends the episode at once as a failure: driving against a wall or off"
        " the map, pickup where nobody waits, dropoff away from a stand or with nobody aboard.\n"
        f"End: {'the pickup' if level == 'pickup' else 'the delivery'} is success; an action that changes nothing is"
        " failure.\n"
        f"Reward: {STEP:g} for a step; instead of it {', '.join(rewards)}."
    )
