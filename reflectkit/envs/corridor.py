"""Corridor: a toy env with a known optimum, for tests and as an example of a custom env.

Observation
    One line: the cells of a corridor, `T` where you are, `G` at the goal.
Choices
    0 left, 1 right.
Reward
    -0.1 a step, +1 on reaching the goal; an episode that is cut short pays for the steps it had
    left. From cell s in a corridor of n cells the best return is 1 - 0.1 (n - 1 - s).
Episode end
    On the goal, the last cell. Walking left out of the first cell changes nothing.
Source
    Written for this project; the chain of Sutton and Barto, Reinforcement Learning, example 6.2,
    with one end.
"""

from __future__ import annotations

import random
from typing import ClassVar

from reflectkit.env import ChoiceEnv, Taskset, Teacher, task_int
from reflectkit.text import pluralize
from reflectkit.types import Task

STEP_REWARD = -0.1
GOAL_REWARD = 1.0
CELLS = {"short": 4, "long": 7}
WRONG = "The last move was wrong. "


class CorridorTasks(Taskset):
    """The problems of `Corridor`."""

    def tasks(self, level: str) -> list[Task]:
        """One task for each cell but the goal."""
        starts = range(CELLS[level] - 1)
        return [
            Task(
                f"corridor-{level}-{start}",
                self.env.name,
                level,
                f"start-{start}",
                {"start": start},
            )
            for start in starts
        ]


class CorridorTeacher(Teacher):
    """What would be right in `Corridor`."""

    env: Corridor

    def action(self) -> int:
        """Right, always."""
        return 1

    def mistakes(self) -> list[int]:
        """Left, except in the first cell, where it would change nothing."""
        # A move that changes nothing would show no mistake
        return [0] if self.env.place > 0 else []

    def note(self) -> str:
        """The mark of the last action."""
        return self.env.note

    def comment(self, generator: random.Random) -> str:
        """Where you are, whether the last move was wrong, and the way on."""
        wrong = WRONG if self.env.note == "mistake" else ""
        return wrong + generator.choice(self._ways())

    def confirms(self, comment: str) -> bool:
        """Whether it names the way; only a mistake may be called one."""
        if comment.startswith(WRONG) and self.env.note != "mistake":
            return False
        return comment.removeprefix(WRONG) in self._ways()

    def _ways(self) -> tuple[str, str]:
        """Where the goal is, in two wordings."""
        cells = pluralize(self.env.size - 1 - self.env.place, "cell")
        return f"The goal is {cells} to the right.", f"Go right: {cells} to go."


class Corridor(ChoiceEnv):
    """A walk along a corridor with a known optimum, for first tries and tests.

    See the module's text for the rules.
    """

    name: ClassVar[str] = "corridor"
    taskset: ClassVar[Taskset] = CorridorTasks()
    teacher_type: ClassVar[type[Teacher]] = CorridorTeacher
    levels: ClassVar[tuple[str, ...]] = ("short", "long")
    choices: ClassVar[tuple[str, ...]] = ("left", "right")
    horizons: ClassVar[dict[str, int]] = {"short": 8, "long": 16}
    rules: ClassVar[str] = (
        "Goal: walk along the corridor to the cell G, at its right end. T is where you are.\n"
        "Actions: left and right move you by one cell. Going left in the first cell changes"
        " nothing.\n"
        "End: the episode ends in success when you reach G.\n"
        f"Reward: {STEP_REWARD:g} per step, {GOAL_REWARD:+g} for reaching G."
    )

    def _begin(self, task: Task, seed: int) -> None:
        self.size = CELLS[task.level]
        self.place = task_int(task, "start", 0, self.size - 2)
        self.note = ""

    def _move(self, action: int) -> tuple[float, bool, dict[str, object]]:
        self.note = "good" if action == 1 else "mistake"
        # The first cell has a wall to its left
        self.place = max(0, self.place + (1 if action == 1 else -1))
        at_goal = self.place == self.size - 1
        reward = STEP_REWARD + (GOAL_REWARD if at_goal else 0.0)
        return reward, at_goal, {"state": self.place, "success": at_goal}

    def truncation_penalty(self, steps_left: int) -> float:
        """The cost of the remaining steps."""
        return STEP_REWARD * steps_left

    def _text(self) -> str:
        # The goal is the last cell, and T covers what it stands on
        cells = ["."] * (self.size - 1) + ["G"]
        cells[self.place] = "T"
        return "Reach G. You are T.\n" + " ".join(cells)
