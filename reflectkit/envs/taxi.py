"""DangerousTaxi: gymnasium's Taxi-v4 as a text map of 5 x 5 cells, in which an action that changes
nothing is fatal.

Departs from the Reflect-RL code: the oracle is one reverse breadth-first search over all states
(not copies of the env), every episode is seeded, and nothing is kept across a reset.

Observation
    One line of rules, the map, the last move. `T` taxi, `P` passenger, `D` destination, `O` taxi on
    the waiting passenger, `X` taxi with the passenger aboard, `|` wall. A `D` that is not seen is
    under the taxi, so the map alone determines the state.
Choices
    Taxi-v4's six, in its order: south, north, east, west, pickup, dropoff.
Reward
    Divided by 20: -1 a step, or in its place -10 for an action that changes nothing, +20 for the
    delivery, and +20 for the first pickup in the levels "pickup" and "full". An episode that is cut
    short pays for the steps it had left.
Episode end
    The delivery ("dropoff", "full"), the pickup ("pickup"), or an action that leaves the state
    unchanged: a wall, an illegal pickup or drop-off. Putting the passenger down at a wrong stand is
    allowed, as in Taxi-v4.
Source
    Taxi: Dietterich 2000, JAIR 13, as in gymnasium 1.4; the rules above: Reflect-RL, arXiv
    2402.12621.
"""

from __future__ import annotations

import random
from collections import deque
from functools import cached_property
from itertools import product
from typing import Any, ClassVar, NamedTuple

from reflectkit.config import Config, option
from reflectkit.env import LIKELY, SUCCEEDS, ChoiceEnv, Taskset, Teacher, task_int
from reflectkit.types import StateQuestion, Task

STEP, FATAL, BONUS = -1 / 20, -10 / 20, 20 / 20
STANDS = 4
ABOARD = STANDS  # the passenger index that means "in the taxi"
PICKUP, DROPOFF = 4, 5
ACTIONS = ("south", "north", "east", "west", "pickup", "dropoff")
MOVES = ((1, 0), (-1, 0), (0, 1), (0, -1))  # rows and columns that the first four actions add
LEVELS = ("pickup", "dropoff", "full")

WHERE = ("Taxi at {taxi}.", "The taxi is at {taxi}.")
WRONG = (
    "The last move was a mistake.",
    "The last move, {last}, was wrong.",
    "Choosing {last} was a mistake.",
)
WAITING = ("Passenger waiting at {target}.", "The passenger is waiting at {target}.")
ABOARD_FOR = ("Passenger aboard, going to {target}.", "The passenger is going to {target}.")
FETCH, BRING = ("Drive there.", "Go there first."), ("Drive there.", "Take the passenger there.")
PICK_UP = (
    "Let the passenger in here.",
    "Let the passenger in now.",
    "The passenger can get in now.",
)
SET_DOWN = (
    "Let the passenger out here.",
    "Let the passenger out now.",
    "The passenger can get out now.",
)

MOST_STEPS = (3, 7, 15)
STEPS_LEFT = StateQuestion(
    "steps left",
    "How many steps are left?",
    ("1 to 3", "4 to 7", "8 to 15", "16 or more"),
)
Cell = tuple[int, int]
"""Row and column, from 0 in the north and the west."""


class View(NamedTuple):
    """A state in words: row and column from 0; passenger 0 … 3 a stand, 4 aboard; destination 0 … 3
    a stand.
    """

    row: int
    column: int
    passenger: int
    destination: int


def decode(state: int, side: int = 5) -> View:
    """A state's number as a view, in Taxi-v4's order.

    >>> decode(328)
    View(row=3, column=1, passenger=2, destination=0)
    """
    rest, destination = divmod(state, STANDS)
    rest, passenger = divmod(rest, STANDS + 1)
    return View(*divmod(rest, side), passenger, destination)


def encode(view: View, side: int = 5) -> int:
    """The number of a state.

    >>> encode(View(row=3, column=1, passenger=2, destination=0))
    328
    """
    return (
        (view.row * side + view.column) * (STANDS + 1) + view.passenger
    ) * STANDS + view.destination


class Map:
    """A map of `side` rows and columns. stands: the four stands. walls: cells with a wall to the
    east.

    Transitions are by state (S) and action (6).
    """

    def __init__(
        self,
        side: int,
        stands: tuple[Cell, ...],
        walls: frozenset[Cell],
    ) -> None:
        self.side, self.stands, self.walls = side, stands, walls
        self.states = side * side * (STANDS + 1) * STANDS

    def starts(self) -> list[int]:
        """The states in which a passenger waits who wants to go elsewhere."""
        states = []
        for state in range(self.states):
            view = decode(state, self.side)
            if view.passenger not in (ABOARD, view.destination):
                states.append(state)
        return states

    def after_pickup(self, state: int) -> int:
        """The state in which the passenger of `state` has just got in."""
        view = decode(state, self.side)
        if view.passenger == ABOARD:
            return state
        return encode(View(*self.stands[view.passenger], ABOARD, view.destination), self.side)

    @cached_property
    def next_state(self) -> list[list[int]]:
        """Where an action leads (S, 6); against a wall or the edge, to the same state."""
        table = []
        for state in range(self.states):
            row, column, passenger, destination = decode(state, self.side)
            here = row, column
            # 1. The four moves; a wall belongs to the cell to its west
            next_views = []
            for down, right in MOVES:
                cell = row + down, column + right
                is_inside = 0 <= cell[0] < self.side and 0 <= cell[1] < self.side
                has_wall = right != 0 and (row, min(column, cell[1])) in self.walls
                if not is_inside or has_wall:
                    cell = here
                next_views.append(View(*cell, passenger, destination))
            # 2. The pickup, where the passenger waits
            boards = passenger != ABOARD and self.stands[passenger] == here
            next_views.append(View(*here, ABOARD if boards else passenger, destination))
            # 3. The drop-off, at any stand
            alights = passenger == ABOARD and here in self.stands
            place = self.stands.index(here) if alights else passenger
            next_views.append(View(*here, place, destination))
            table.append([encode(view, self.side) for view in next_views])
        return table

    def delivers(self, state: int, action: int) -> bool:
        """Whether it ends the ride at the destination."""
        row, column, passenger, destination = decode(state, self.side)
        is_there = self.stands[destination] == (row, column)
        return action == DROPOFF and passenger == ABOARD and is_there

    @cached_property
    def distance(self) -> list[int]:
        """Least number of actions to the delivery (S), by breadth-first search from the deliveries
        backwards.
        """
        # 1. Which states lead to each state; a delivery leads nowhere
        previous: dict[int, list[int]] = {}
        for state, next_states in enumerate(self.next_state):
            for action, after in enumerate(next_states):
                if not self.delivers(state, action):
                    previous.setdefault(after, []).append(state)
        # 2. Outwards from the states with one step left; -1 is a state that no search has reached
        distance = [1 if self.delivers(state, DROPOFF) else -1 for state in range(self.states)]
        queue = deque(state for state, steps in enumerate(distance) if steps == 1)
        while queue:
            state = queue.popleft()
            for earlier in previous.get(state, ()):
                if distance[earlier] < 0:
                    distance[earlier] = distance[state] + 1
                    queue.append(earlier)
        return distance

    def fatal(self, state: int, action: int) -> bool:
        """Whether `action` leaves `state` unchanged, which ends the episode."""
        return self.next_state[state][action] == state

    def best(self, state: int) -> list[int]:
        """All first actions of shortest paths to the delivery, lowest index first."""
        if self.delivers(state, DROPOFF):
            return [DROPOFF]
        actions = []
        for action, after in enumerate(self.next_state[state]):
            if self.distance[after] == self.distance[state] - 1:
                actions.append(action)
        return actions


TAXI_V4 = Map(
    5,
    ((0, 0), (0, 4), (4, 0), (4, 3)),
    frozenset({(0, 1), (1, 1), (3, 0), (3, 2), (4, 0), (4, 2)}),
)


class TaxiTasks(Taskset):
    """The problems of `Taxi`."""

    def tasks(self, level: str) -> list[Task]:
        """One task for each of the 300 starts of Taxi-v4 (a waiting passenger who wants to go
        elsewhere).

        "dropoff" starts where an oracle's pickup leads: 12 distinct states, a stand and a
        destination.
        """
        starts = TAXI_V4.starts()
        if level == "dropoff":
            starts = sorted(set(map(TAXI_V4.after_pickup, starts)))
        return [self.task_from(level, {"state": state}) for state in starts]

    def map_of(self, task: Task) -> Map:
        """The map of a task. Raises DataError."""
        return TAXI_V4

    def task_from(self, level: str, data: dict[str, Any]) -> Task:
        """The task that begins in a state."""
        return Task(f"taxi-{level}-{data['state']}", "taxi", level, f"start-{data['state']}", data)

    def at_level(self, task: Task, level: str) -> Task | None:
        """The same start at another level; "dropoff" begins just after the oracle's pickup."""
        plan = self.map_of(task)
        state = task_int(task, "state", 0, plan.states - 1)
        if level == task.level:
            return task
        if task.level == "dropoff" or level not in LEVELS:
            return None
        return self.task_from(
            level, task.data | {"state": plan.after_pickup(state) if level == "dropoff" else state}
        )

    def cluster(self, task: Task) -> str:
        """The start."""
        return f"start-{task.data.get('state', task.id)}"


class TaxiTeacher(Teacher):
    """What would be right."""

    env: Taxi

    def action(self) -> int:
        """The first of the best actions."""
        return self.env.map.best(self.env.state)[0]

    def answers(self) -> dict[str, list[int]]:
        """The best actions, and how many are left to the delivery."""
        answers = {LIKELY.name: self.best_actions()}
        if self.env.delivers_passenger:
            steps = self.env.map.distance[self.env.state]
            # The number of limits that it exceeds is the index of its option
            answers[STEPS_LEFT.name] = [sum(steps > most for most in MOST_STEPS)]
        return answers

    def best_actions(self) -> list[int]:
        """All first actions of shortest paths."""
        return self.env.map.best(self.env.state)

    def mistakes(self) -> list[int]:
        """Suboptimal actions that do not end the episode."""
        plan, state = self.env.map, self.env.state
        others = set(range(len(ACTIONS))) - set(plan.best(state))
        return [action for action in sorted(others) if not plan.fatal(state, action)]

    def note(self) -> str:
        """The mark of the last action."""
        if self.env.last is None:
            return ""
        return "mistake" if self.env.mistaken else "good"

    def comment(self, generator: random.Random) -> str:
        """The state, what went wrong if the last move was a mistake, and what to do next."""
        mistake = self.env.last if self.env.mistaken else None
        return " ".join(generator.choice(wordings) for wordings in self._parts(mistake))

    def confirms(self, comment: str) -> bool:
        """Whether it names the taxi's cell, the target and what to do; only a mistake may be called
        one.
        """
        # A comment need not name the mistake, but it may name no other
        for mistake in {None, self.env.last if self.env.mistaken else None}:
            if comment in map(" ".join, product(*self._parts(mistake))):
                return True
        return False

    def _parts(self, mistake: int | None) -> list[list[str]]:
        """The sentences of a comment, each in all its wordings: where the taxi is, what was wrong,
        where the goal is, what to do. A direction is left to the policy, as in the paper.
        """
        plan = self.env.map
        view = decode(self.env.state, plan.side)
        aboard = view.passenger == ABOARD
        row, column = plan.stands[view.destination if aboard else view.passenger]
        # 1. Where the taxi is
        taxi = f"row {view.row}, column {view.column}"
        parts = [[wording.format(taxi=taxi) for wording in WHERE]]
        # 2. What was wrong
        if mistake is not None:
            parts.append([wording.format(last=ACTIONS[mistake]) for wording in WRONG])
        # 3. Where to go
        target = f"row {row}, column {column}"
        wordings = ABOARD_FOR if aboard else WAITING
        parts.append([wording.format(target=target) for wording in wordings])
        # 4. What to do
        drive = BRING if aboard else FETCH
        parts.append([*{PICKUP: PICK_UP, DROPOFF: SET_DOWN}.get(self.action(), drive)])
        return parts


class TaxiSettings(Config):
    """What the text of a state has besides the map."""

    with_prompt: bool = option(False, help="Begin with the rules, the goal and the rewards.")
    with_history: bool = option(False, help="Show the earlier maps and moves before the map.")


class Taxi(ChoiceEnv):
    """A taxi fetches a passenger on a map of 5 x 5 cells; an action that changes nothing is fatal.

    See the module's text for the rules, and `TaxiSettings`.
    """

    name: ClassVar[str] = "taxi"
    answers_with = "label"
    levels: ClassVar[tuple[str, ...]] = LEVELS
    choices: ClassVar[tuple[str, ...]] = ACTIONS
    taskset: ClassVar[Taskset] = TaxiTasks()
    teacher_type: ClassVar[type[Teacher]] = TaxiTeacher
    Settings: ClassVar[type[Config]] = TaxiSettings
    horizons: ClassVar[dict[str, int]] = {"pickup": 15, "dropoff": 15, "full": 30}
    """The paper's 15 steps; the whole task takes up to 18 with no mistake, so it gets twice the
    paper's.
    """
    legend: ClassVar[str] = (
        "T taxi, P passenger, D destination, O taxi at P, X taxi carrying P, | wall."
    )
    sizes: ClassVar[str] = "five rows and five columns"
    where_stands: ClassVar[str] = ": " + "; ".join(
        f"row {row}, column {column}" for row, column in TAXI_V4.stands
    )

    map: Map
    state: int
    """The current state's number."""
    last: int | None
    """The last action."""
    mistaken: bool
    """Whether it was a mistake."""
    _level = "full"

    @property
    def rules(self) -> str:
        """Rules for people and chat models; of the current level, or of the full task."""
        level = self._level
        goal = {
            "pickup": "drive the taxi to the waiting passenger and pick the passenger up",
            "dropoff": (
                "the passenger is in the taxi: drive to the destination and drop the passenger off"
                " there"
            ),
            "full": (
                "drive the taxi to the waiting passenger, pick the passenger up, and drop the"
                " passenger off at the destination"
            ),
        }[level]
        rewards = [f"{FATAL:g} for an action that changes nothing"]
        if level != "dropoff":
            rewards.append(f"{BONUS:g} for the first pickup")
        if level != "pickup":
            rewards.append(f"{BONUS:g} for the delivery")
        return (
            f"Goal: {goal}.\n"
            f"Map: {self.sizes}; row 0 is the northernmost, column 0 the westernmost. {self.legend}"
            " If there is no D, the taxi is on the destination. The passenger waits at one of four"
            f" stands, and the destination is another{self.where_stands}.\n"
            "Actions: south, north, east and west move the taxi by one cell; pickup lets in a"
            " passenger who is waiting in the taxi's cell; dropoff lets the passenger out, but only"
            " at a stand.\n"
            "Danger: an action that changes nothing ends the episode at once in failure: driving"
            " into a wall or off the map, pickup where nobody is waiting, dropoff away from a stand"
            " or with nobody aboard.\n"
            "End: the episode ends in success with the"
            f" {'pickup' if level == 'pickup' else 'delivery'}, and in failure with an action that"
            " changes nothing.\n"
            f"Reward: {STEP:g} per step, or instead {', '.join(rewards)}."
        )

    @classmethod
    def questions(cls) -> tuple[StateQuestion, ...]:
        """What leads to success, whether it will come, and how soon."""
        return LIKELY, SUCCEEDS, STEPS_LEFT

    @property
    def delivers_passenger(self) -> bool:
        """Whether the episode ends with the delivery."""
        return self._level != "pickup"

    def _begin(self, task: Task, seed: int) -> None:
        tasks: Any = self.taskset
        self.map = tasks.map_of(task)
        self.state = task_int(task, "state", 0, self.map.states - 1)
        self._level = task.level
        self.last = None
        self.mistaken = self._picked_up = False
        self._history: list[str] = []

    def _move(self, action: int) -> tuple[float, bool, dict[str, object]]:
        if getattr(self.settings, "with_history", False):
            self._history.append(
                f"{self.picture()}\nMove {len(self._history) + 1}: {ACTIONS[action]}\n"
            )
        # 1. The state after the action
        before = self.state
        self.mistaken = action not in self.map.best(before)
        self.last = action
        self.state = self.map.next_state[before][action]
        # 2. What it was: a delivery, the first pickup, or an action that changes nothing
        is_delivery = self.map.delivers(before, action)
        is_fatal = self.map.fatal(before, action)
        is_pickup = not self._picked_up and action == PICKUP and not is_fatal
        self._picked_up = self._picked_up or is_pickup
        # 3. Its reward; at level "dropoff" the passenger is aboard from the start
        reward = STEP
        if is_fatal:
            reward = FATAL
        elif is_delivery or (is_pickup and self._level != "dropoff"):
            reward = BONUS
        success = is_pickup if self._level == "pickup" else is_delivery
        over = is_fatal or is_delivery or success
        return reward, over, {"state": self.state, "success": success, "refused": int(is_fatal)}

    def picture(self) -> str:
        """The map with the taxi, the passenger and the destination."""
        return draw(self.map, self.state)

    def _text(self) -> str:
        last = "none" if self.last is None else ACTIONS[self.last]
        head = self.rules if getattr(self.settings, "with_prompt", False) else self.legend
        return f"{head}\n{''.join(self._history)}{self.picture()}\nLast move: {last}"

    def truncation_penalty(self, steps_left: int) -> float:
        """The cost of the remaining steps."""
        return STEP * steps_left


def marks_of(plan: Map, state: int) -> dict[Cell, str]:
    """The marks on the map, each of which covers the ones before it."""
    view = decode(state, plan.side)
    taxi = view.row, view.column
    marks = {plan.stands[view.destination]: "D"}
    if view.passenger == ABOARD:
        marks[taxi] = "X"
    else:
        waiting = plan.stands[view.passenger]
        marks[waiting] = "P"
        marks[taxi] = "O" if taxi == waiting else "T"
    return marks


def draw(plan: Map, state: int) -> str:
    """The map: lines of cells and walls, apart by single spaces, so that every tokenizer keeps the
    cells apart.
    """
    marks = marks_of(plan, state)
    lines = []
    for row in range(plan.side):
        cells = []
        for column in range(plan.side):
            cells.append(marks.get((row, column), "."))
            if (row, column) in plan.walls:
                cells.append("|")
        lines.append(" ".join(cells))
    return "\n".join(lines)
