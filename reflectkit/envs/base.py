"""What single-prompt envs with enumerated actions share: checking an action, and never stepping past the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from reflectkit.core.errors import ConfigError, DataError, IllegalActionError
from reflectkit.core.protocols import StepResult
from reflectkit.core.types import Message, Observation, Task, ToolUse


class ChoiceEnv:
    """An env whose observation is one text and whose actions are the same few choices in every state.

    A subclass sets `name`, `levels`, `choices`, and writes `_begin`, `_move` and `_text`.
    """

    name: ClassVar[str]
    levels: ClassVar[tuple[str, ...]]
    choices: ClassVar[tuple[str, ...]]

    def __init__(self) -> None:
        self._over = True

    def reset(self, task: Task, seed: int) -> Observation:
        """Begin `task`. Raises DataError for another env's task, a level or data that this env does not know."""
        check_task(task, self.name, self.levels)
        self._begin(task, seed)
        self._over = False
        return self._observe()

    def step(self, action: int | str | ToolUse) -> StepResult:
        """Take choice `action`. Raises IllegalActionError: not one of the choices, or the episode is over."""
        if self._over:
            raise IllegalActionError(f"{self.name}: the episode is over; call reset first")
        reward, terminated, info = self._move(check_choice(action, self.choices, self.name))
        self._over = terminated
        return StepResult(self._observe(), reward, terminated, info=info)

    @classmethod
    def at_level(cls, task: Task, level: str) -> Task | None:
        """The same problem at another curriculum level, or None where it has no such version."""
        return task if task.level == level else None

    def _observe(self) -> Observation:
        return Observation((Message("user", self._text()),), self.choices)

    def _begin(self, task: Task, seed: int) -> None:
        raise NotImplementedError

    def _move(self, action: int) -> tuple[float, bool, dict[str, object]]:
        raise NotImplementedError

    def _text(self) -> str:
        raise NotImplementedError


def check_budgets(result_tokens: int, prompt_tokens: int) -> None:
    """Raises ConfigError for too few tokens to show a command's output, or a prompt, in."""
    if result_tokens < 1 or prompt_tokens < 50:
        raise ConfigError("--result-tokens must be at least 1, --prompt-tokens at least 50")


def check_task(task: Task, name: str, levels: Sequence[str]) -> None:
    """Raises DataError for a task of another env than `name`, or of a level that is none of `levels`."""
    if task.env != name:
        raise DataError(task.id, f"is a task of env '{task.env}', not of '{name}'")
    if task.level not in levels:
        raise DataError(task.id, f"level {task.level!r} is none of {', '.join(levels)}", field="level")


def check_choice(action: object, choices: Sequence[str], name: str) -> int:
    """`action`, the index of one of the K `choices`. Raises IllegalActionError where it is none."""
    if not isinstance(action, int) or isinstance(action, bool) or not 0 <= action < len(choices):
        raise IllegalActionError(f"{name}: no action {action!r:.80}; choose 0 to {len(choices) - 1}")
    return action


def task_int(task: Task, field: str, low: int, high: int) -> int:
    """`task.data[field]` as a whole number of `low` … `high`. Raises DataError naming the field."""
    value = task.data.get(field)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise DataError(
            task.id, f"expected a whole number from {low} to {high}, found {value!r}", field=f"data.{field}"
        )
    return value
