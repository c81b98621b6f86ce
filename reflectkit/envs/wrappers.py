"""The wrappers of envs: the horizon, and shuffled choices."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Sequence
from typing import Any

from reflectkit.env import Action, Env, StepResult, WrappedTeacher, Wrapper
from reflectkit.errors import ConfigError, IllegalActionError
from reflectkit.eventloop import followed
from reflectkit.rollouts.checked import checked
from reflectkit.seeding import generator
from reflectkit.types import Observation, Task


class Horizon(Wrapper):
    """Truncates an episode after `steps` steps."""

    def __init__(self, env: Env, steps: int) -> None:
        if steps < 1:
            raise ConfigError(f"a horizon is at least 1 step, got {steps}")
        super().__init__(checked(env))
        self.steps, self.taken = steps, 0

    @property
    def rules(self) -> str:
        """The wrapped env's, and the number of steps."""
        limit = f"An episode is cut off after {self.steps} step{'s' * (self.steps != 1)}."
        return f"{super().rules}\n{limit}".lstrip()

    def reset(self, task: Task, seed: int) -> Observation | Awaitable[Observation]:
        """Begin `task` with the full number of steps."""
        self.taken = 0
        return self.env.reset(task, seed)

    def step(self, action: Action) -> StepResult | Awaitable[StepResult]:
        """One step; the last step of the horizon is marked as truncated unless the env ended the episode there."""
        if self.taken >= self.steps:
            raise IllegalActionError(f"{self.name}: the episode is over; call reset first")
        return followed(self.env.step(action), self._counted)

    def _counted(self, result: StepResult) -> StepResult:
        self.taken += 1
        if result.terminated or self.taken < self.steps:
            return result
        info = {"success": False} | result.info
        return dataclasses.replace(result, truncated=True, info=info)

    def truncation_penalty(self, steps_left: int = 0) -> float:
        """The wrapped env's, for the remaining steps of the horizon."""
        return self.env.truncation_penalty(self.steps - self.taken)


class Shuffled(Wrapper):
    """Shuffles the choices, and therefore their labels, at each step, so that a label carries no meaning.

    Observations without choices are forwarded unchanged.
    """

    def __init__(self, env: Env) -> None:
        super().__init__(checked(env))
        self.order: list[int] = []
        """The wrapped env's choice at each position."""

    @property
    def rules(self) -> str:
        """The wrapped env's, and a note that the numbers change."""
        return f"{super().rules}\nThe numbers of the actions are drawn anew at each step.".lstrip()

    def reset(self, task: Task, seed: int) -> Observation | Awaitable[Observation]:
        """Begin `task`; `seed` determines the orders."""
        self._seed, self._steps = seed, 0
        return followed(self.env.reset(task, seed), self._shuffled)

    def step(self, action: Action) -> StepResult | Awaitable[StepResult]:
        """Take the choice at position `action` of the shuffled order."""
        if isinstance(action, int) and not isinstance(action, bool) and 0 <= action < len(self.order):
            action = self.order[action]
        return followed(self.env.step(action), self._stepped)

    def teacher(self) -> Any:
        """The wrapped env's, with actions as positions in the shuffled order."""
        return ShuffledTeacher(self.env.teacher(), self.order)

    def _stepped(self, result: StepResult) -> StepResult:
        self._steps += 1
        return dataclasses.replace(result, observation=self._shuffled(result.observation))

    def _shuffled(self, observation: Observation) -> Observation:
        self.order = list(range(len(observation.choices)))
        generator(self._seed, "order", self._steps).shuffle(self.order)
        return dataclasses.replace(observation, choices=tuple(observation.choices[index] for index in self.order))


class ShuffledTeacher(WrappedTeacher):
    """Translates choices into positions of the shuffled `order`."""

    def __init__(self, inner: Any, order: Sequence[int]) -> None:
        super().__init__(inner)
        self.order = order

    def action(self) -> Action:
        """The teacher's."""
        return self._places([self.inner.action()])[0]

    def mistakes(self) -> list[Action]:
        """The teacher's."""
        return self._places(self.inner.mistakes())

    def slips(self) -> list[Action]:
        """The teacher's."""
        return self._places(self.inner.slips())

    def _places(self, actions: Sequence[Any]) -> list[Action]:
        return [*sorted(map(self.order.index, actions))] if self.order else [*actions]
