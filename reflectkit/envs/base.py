"""The base class of envs: every trait by name, with its default; and a base for envs with a fixed list of actions."""

from __future__ import annotations

import inspect
import random
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from reflectkit.config import Config, NoSettings, build, option
from reflectkit.env import StepResult
from reflectkit.envs.taskset import Taskset
from reflectkit.errors import ConfigError, DataError, IllegalActionError
from reflectkit.rollout.checked import is_flag
from reflectkit.types import Message, Observation, Task, ToolUse, Trajectory


class PromptSettings(Config):
    """Limits on the length of outputs and prompts."""

    result_tokens: int = option(400, help="Approximate number of tokens shown of a command's output.", ge=1)
    prompt_tokens: int = option(
        800, help="Approximate token limit of a prompt; the oldest commands are dropped first.", ge=50
    )


class BaseEnv:
    """Every trait of an env, with its default. An env defines `name`, `levels`, `reset` and `step`; the rest may stay.

    A class that does not inherit from this one gets these defaults when it is used by name (`envs.env_class`), so
    nothing else asks whether an env has a trait.
    """

    # ------------------------------------------------------------------------------------------------ what it is

    name: ClassVar[str]
    """Name of the env in tasks and records."""
    levels: ClassVar[tuple[str, ...]]
    """Curriculum stages, easiest first; the last is the full task."""
    horizons: ClassVar[Mapping[str, int]] = {}
    """Steps after which an episode is truncated, by level; default: 15."""
    rules: ClassVar[str | None] = None
    """Rules that people and chat models read before they play; None: the docstring of the class."""
    choices: ClassVar[tuple[str, ...]] = ()
    """The actions, if they are the same in every state."""
    offers_tools: ClassVar[bool] = False
    """Whether actions are tool calls."""
    Settings: ClassVar[type[Config]] = NoSettings
    """A `Config`: its fields are flags of every command that makes envs, and keyword arguments of the constructor."""
    needs_horizon: ClassVar[bool] = False
    """Whether the constructor takes the horizon, as `horizon`."""
    chat_settings: ClassVar[Mapping[str, str]] = {}
    """Settings that name a chat model which the env asks, each with the class that asks it, as "module:Class"; the
    constructor gets an instance (made of the endpoint, a journal's path, the timeout in seconds, the number of calls at
    once and the budget in US dollars or None), or None where the setting is at its default. The server's address is the
    setting of the same name with `_url` behind it, and its budget, if the env has such a setting, that with `_max_usd`.
    """
    awaited: ClassVar[bool] = False
    """Whether `reset` and `step` return awaitables, because an engine, a server or a user answers."""
    remote: ClassVar[bool] = False
    """Whether `reset` and `step` block while they wait; they are then called in threads."""
    widest: ClassVar[int] = 2**31
    """Maximum number of concurrent episodes."""
    state: Any = None
    """A short name of the current state as a JSON value, if the env has one."""

    taskset_type: ClassVar[type[Taskset]] = Taskset
    """Which problems it has. A short env defines what it has of these itself."""
    taskset: ClassVar[Taskset]
    """Its problems, made of `taskset_type` and what the class defines of it itself."""

    # --------------------------------------------------------------------------------------------- demonstrations

    noise: ClassVar[float] = 0.2
    """Probability that a step of the oracle's demonstrations is a mistake."""
    negatives: ClassVar[int] = 0
    """Number of demonstrations with one mistake per problem."""
    baselines: ClassVar[tuple[str, ...]] = ()
    """Names of the rule-based players that `baseline` implements."""

    methods: ClassVar[Mapping[str, int]] = {}
    """Published methods that play with any model, `--policy NAME:MODEL`, each with the most tokens of an answer;
    `method_messages` and `method_action` implement them.
    """

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        bases = tuple(base for base in cls.__mro__ if not issubclass(base, BaseEnv))
        cls.taskset_type = cls.taskset_type.with_own(cls, bases)
        cls.taskset = cls.taskset_type(cls)

    def __init__(self, **settings: Any) -> None:
        self.settings: Any = build(self.Settings, settings, f"env '{self.name}'")

    @classmethod
    def has(cls, *methods: str) -> bool:
        """Whether the env itself defines these methods, e.g. `oracle`, instead of inheriting them from this class."""
        return all(inspect.getattr_static(cls, name) is not inspect.getattr_static(BaseEnv, name) for name in methods)

    @classmethod
    def constructor_arguments(cls, settings: Any, folder: Path) -> dict[str, Any]:
        """The constructor's keyword arguments; those in `chat_settings` are put into their place by the caller.

        folder: the env's data folder, where files lie unless a setting says otherwise.
        """
        return {name: getattr(settings, name) for name in type(settings).model_fields}

    def reset(self, task: Task, seed: int) -> Observation | Awaitable[Observation]:
        """Begin `task`. Raises DataError if `task.data` is not valid for this env."""
        raise NotImplementedError

    def step(self, action: int | str | ToolUse) -> StepResult | Awaitable[StepResult]:
        """Raises IllegalActionError for an action that was not offered, and after the end."""
        raise NotImplementedError

    def close(self) -> None:
        """Give back what the env holds, e.g. a process or a connection; whoever made it calls this once."""

    def truncation_penalty(self, steps_left: int) -> float:
        """The reward for ending the episode now, without an answer."""
        return 0.0

    def legal(self) -> Sequence[str]:
        """The legal actions now, in an env whose actions are text."""
        raise _lacking(self, "legal")

    def baseline(self, name: str) -> int | str | ToolUse:
        """The action of the rule-based player `name`."""
        raise _lacking(self, "baseline")

    def method_messages(self, name: str) -> tuple[Message, ...]:
        """What the model of method `name` is asked now."""
        raise _lacking(self, "method_messages")

    def method_action(self, name: str, answer: str) -> int | str | ToolUse:
        """The action that its answer stands for. Raises ValueError with the reason if it stands for none."""
        raise _lacking(self, "method_action")

    # ------------------------------------------------------------------------------------------- the oracle teacher

    def oracle(self) -> int | str | ToolUse:
        """A best action in the current state: its index, the calls, or the text."""
        raise _lacking(self, "oracle")

    def mistakes(self) -> Sequence[int | str | ToolUse]:
        """Suboptimal actions that do not end the episode, for noisy demonstrations."""
        raise _lacking(self, "mistakes")

    def slips(self) -> Sequence[int | str | ToolUse]:
        """The mistakes that a negative example can make now; none after it has made one."""
        raise _lacking(self, "slips")

    def note(self) -> str:
        """A perfect teacher's mark of the last action: "" at the start, "good" or "mistake"."""
        return ""

    def reflection(self, generator: random.Random) -> str:
        """A perfect teacher's comment on the current state, in one line; the generator picks the wording."""
        raise _lacking(self, "reflection")

    def confirms(self, comment: str) -> bool:
        """Whether `comment` is one that a perfect teacher could give on the current state: readable, and true."""
        raise _lacking(self, "confirms")

    # ------------------------------------------------------------------------------- what becomes of demonstrations

    @classmethod
    def offers_choices(cls, settings: Any) -> bool:
        """Whether actions are chosen from a list."""
        return not cls.offers_tools

    @classmethod
    def check_oracle(cls, settings: Any) -> None:
        """Raises ConfigError if the oracle cannot act and comment with these settings."""

    @classmethod
    def taught_by_chat(cls, settings: Any) -> bool:
        """Whether a chat teacher can act: by a choice, or by calls that need no conversation."""
        return cls.offers_choices(settings)

    @classmethod
    def reward_of(cls, trajectory: Trajectory) -> float:
        """What `gen-trajectory --min-reward` looks at."""
        return trajectory.total_return

    @classmethod
    def drops_choices(cls, settings: Any) -> bool:
        """Whether choices depend on the seed, so that a demonstration cannot be replayed with every seed."""
        return False

    @classmethod
    def is_demonstration(cls, trajectory: Trajectory) -> bool:
        """Whether a teacher's episode is kept as a demonstration."""
        return True

    @classmethod
    def fault(cls, trajectory: Trajectory) -> str:
        """Why a demonstration gives no SFT rows, as text after "3 demonstrations: "; "" if it gives some."""
        return ""


def _lacking(env: Any, method: str) -> ConfigError:
    return ConfigError(f"env '{env.name}' has no {method}()")


class ChoiceEnv(BaseEnv):
    """An env whose observation is one text and whose actions are the same few choices in every state.

    A subclass sets `name`, `levels`, `choices`, and writes `_begin`, `_move` and `_text`.
    """

    _over = True

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
        moved: Any = self._move(check_choice(action, self.choices, self.name))
        if not isinstance(moved, tuple) or len(moved) != 3 or not isinstance(moved[2], dict) or not is_flag(moved[1]):
            raise ConfigError(
                f"_move() of env '{self.name}' returned {moved!r:.80}; return (reward, whether the episode is over,"
                " info to keep)"
            )
        reward, terminated, info = moved
        self._over = bool(terminated)
        return StepResult(self._observe(), reward, self._over, info=info)

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
