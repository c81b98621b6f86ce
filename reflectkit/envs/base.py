"""A base for envs with a fixed list of actions, and checks that envs share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from reflectkit.config import Config, option
from reflectkit.env import Action, Env, StepResult
from reflectkit.errors import ConfigError, DataError, IllegalActionError
from reflectkit.types import Message, Observation, Task


class PromptSettings(Config):
    """Limits on the length of outputs and prompts."""

    result_tokens: int = option(400, help="Approximate number of tokens shown of a command's output.", ge=1)
    prompt_tokens: int = option(
        800, help="Approximate token limit of a prompt; the oldest commands are dropped first.", ge=50
    )


BaseEnv = Env


class ChoiceEnv(Env):
    """An env whose observation is one text and whose actions are the same few choices in every state.

    A subclass sets `name`, `levels`, `choices`, and writes `_begin`, `_move` and `_text`.
    """

    choices: ClassVar[tuple[str, ...]]
    """The actions."""

    _over = True

    def reset(self, task: Task, seed: int) -> Observation:
        """Begin `task`. Raises DataError for another env's task, a level or data that this env does not know."""
        check_task(task, self.name, self.levels)
        self._begin(task, seed)
        self._over = False
        return self._observe()

    def step(self, action: Action) -> StepResult:
        """Take choice `action`. Raises IllegalActionError: not one of the choices, or the episode is over."""
        if self._over:
            raise IllegalActionError(f"{self.name}: the episode is over; call reset first")
        moved: Any = self._move(check_choice(action, self.choices, self.name))
        if not isinstance(moved, tuple) or len(moved) != 3:
            raise ConfigError(
                f"_move() of env '{self.name}' returned {moved!r:.80}; return (reward, whether the episode is over,"
                " info to keep)"
            )
        reward, terminated, info = moved
        self._over = bool(terminated)
        return StepResult(self._observe(), reward, terminated, info=info)

    def _observe(self) -> Observation:
        return Observation((Message("user", self._text()),), self.choices)

    def _begin(self, task: Task, seed: int) -> None:
        raise NotImplementedError

    def _move(self, action: int) -> tuple[float, bool, dict[str, object]]:
        raise NotImplementedError

    def _text(self) -> str:
        raise NotImplementedError


def check_task(task: Task, name: str, levels: Sequence[str]) -> None:
    """Raises DataError for a task of another env than `name`, or of a level not in `levels`."""
    if task.env != name:
        raise DataError(task.id, f"is a task of env '{task.env}', not of '{name}'")
    if task.level not in levels:
        raise DataError(task.id, f"level {task.level!r} is none of {', '.join(levels)}", field="level")


def check_choice(action: object, choices: Sequence[str], name: str) -> int:
    """`action`, if it is the index of one of the K `choices`; else raises IllegalActionError."""
    if not isinstance(action, int) or isinstance(action, bool) or not 0 <= action < len(choices):
        raise IllegalActionError(f"{name}: no action {action!r:.80}; choose 0 to {len(choices) - 1}")
    return action


def task_int(task: Task, field: str, low: int, high: int) -> int:
    """`task.data[field]`, an integer from `low` to `high`. Raises DataError with the field's name."""
    value = task.data.get(field)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise DataError(
            task.id, f"expected a whole number from {low} to {high}, found {value!r}", field=f"data.{field}"
        )
    return value
