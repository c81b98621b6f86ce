"""Wrappers of envs: checks of what an env and its teacher return, with the horizon, and shuffled choices."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import random
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from reflectkit.env import DEFAULT_HORIZON, Action, Env, StepResult, Wrapper
from reflectkit.errors import ConfigError, IllegalActionError, brief, is_user_code
from reflectkit.eventloop import followed, outside_loop
from reflectkit.seeding import generator
from reflectkit.text import pluralize
from reflectkit.tools import NAME, check_tool
from reflectkit.types import LARGEST, Message, Observation, Task, ToolSpec, ToolUse

ROLES = ("system", "user", "assistant", "tool")
MARKS = ("", "good", "mistake")
TAKEN = frozenset({"success", "agreement", "choice_nll", "choice_brier", "comment_tokens"})
"""Figures of an episode that reflectkit measures itself."""
MESSAGE = f"Message(ROLE, TEXT), its role from {', '.join(ROLES)}"
NUMBER = f"a number of at most {LARGEST:g} in size"


def checked(env: Env) -> Checked:
    """`env`, whose returns are checked; once, however it is wrapped."""
    already: Any = env
    return already if getattr(env, "is_checked", False) else Checked(env)


class Checked(Wrapper):
    """Raises ConfigError for a return that cannot be played with, learned from or counted, and IllegalActionError for a
    step before `reset` or after the end. horizon: steps after which it truncates an episode; None: never.
    """

    is_checked = True
    seen: Observation | None = None
    """The last observation."""
    over = True
    """Whether no episode is under way."""
    by_level = False
    """Whether the horizon is that of the problem's level."""

    def __init__(self, env: Env, horizon: int | None = None) -> None:
        if horizon is not None and horizon < 1:
            raise ConfigError(f"a horizon is at least 1 step, got {horizon}")
        super().__init__(env)
        self._horizon, self._taken = horizon, 0

    @property
    def rules(self) -> str:
        """The env's, and the number of steps."""
        limit = (
            ""
            if self._horizon is None
            else f"An episode has at most {pluralize(self._horizon, 'step')}."
        )
        return f"{super().rules}\n{limit}".strip("\n")

    def reset(self, task: Task, seed: int) -> Observation | Awaitable[Observation]:
        """Begin `task`, one that is a seed alone with that seed. Raises ConfigError for an observation that cannot be
        read or answered.
        """
        self.seen, self.over, self._taken = None, True, 0
        if self.by_level:
            self._horizon = self.env.horizon = self.env.horizons.get(task.level, DEFAULT_HORIZON)
        own = task.data.get("seed") if len(task.data) == 1 else None
        return followed(
            outside_loop(self.env.reset, task, own if isinstance(own, int) else seed), self._begun
        )

    def step(self, action: Action) -> StepResult | Awaitable[StepResult]:
        """One step; the last step of the horizon is marked as truncated unless the env ended the episode there. Raises
        ConfigError for a result that is not finite or not valid JSON, or whose observation cannot be read or answered.
        """
        if self.over:
            raise IllegalActionError(f"{self.name}: the episode is over; call reset first")
        return followed(outside_loop(self.env.step, action), self._stepped)

    def close(self) -> None:
        """The env's."""
        self.over = True
        outside_loop(super().close)

    def release(self) -> None:
        """The env's."""
        self.over = True
        outside_loop(super().release)

    def teacher(self) -> Any:
        """The env's teacher, whose returns are checked."""
        return CheckedTeacher(outside_loop(super().teacher), self)

    def truncation_penalty(self, steps_left: int) -> float:
        """The env's, for the remaining steps of the horizon. Raises ConfigError if it is not a finite number."""
        left = steps_left if self._horizon is None else self._horizon - self._taken
        reward = outside_loop(super().truncation_penalty, left)
        self.need(_is_number(reward), "truncation_penalty() returned", reward, NUMBER)
        return float(reward)

    def __getattr__(self, name: str) -> Any:
        return _called_outside_loop(super().__getattr__(name))

    def need(self, fits: bool, returned: str, value: object, wanted: str) -> None:
        """Raises ConfigError unless `fits`."""
        if not fits:
            if inspect.iscoroutine(value):
                value.close()  # otherwise Python warns that it was never awaited
            raise ConfigError(
                f"{self._place}env '{self.name}': {returned} {brief(value)}; return {wanted}"
            )

    @property
    def _place(self) -> str:
        """The user's own code that made what is checked, as the beginning of a message; "" if it is not the user's."""
        methods = ("_begin", "reset") if self.seen is None else ("_move", "step")
        codes = [
            getattr(getattr(type(self.env), method, None), "__code__", None) for method in methods
        ]
        own = [code for code in codes if code is not None and is_user_code(code.co_filename)]
        return f"{own[0].co_filename}, line {own[0].co_firstlineno}: " if own else ""

    def _begun(self, seen: Any) -> Any:
        seen = self._observed(seen)
        self.over = False
        return seen

    def _observed(self, seen: Any) -> Any:
        """`seen`, its lists as tuples."""
        self.need(
            isinstance(seen, Observation),
            "the observation is",
            seen,
            "an Observation (reflectkit.types)",
        )
        if seen is self.seen:
            return self.seen
        for name in ("messages", "choices", "tools"):
            value = getattr(seen, name)
            self.need(
                isinstance(value, tuple | list), f"{name} of the observation are", value, "a tuple"
            )
            if isinstance(value, list):
                seen = dataclasses.replace(seen, **{name: tuple(value)})
        for message in seen.messages:
            fits = (
                isinstance(message, Message)
                and isinstance(message.content, str)
                and message.role in ROLES
            )
            self.need(fits, "the observation shows", message, MESSAGE)
        if (
            self.seen is None
            or seen.choices is not self.seen.choices
            or seen.tools is not self.seen.tools
        ):
            self._check_actions(seen)
        self.seen = seen
        return seen

    def _check_actions(self, seen: Observation) -> None:
        """Raises ConfigError for choices or tools that cannot be shown, or not be distinguished."""
        for choice in seen.choices:
            fits = isinstance(choice, str) and bool(choice.strip()) and "\n" not in choice
            self.need(fits, "the observation offers the choice", choice, "a text of one line")
        self.need(
            len(set(seen.choices)) == len(seen.choices),
            "choices are",
            seen.choices,
            "choices that all differ",
        )
        for tool in seen.tools:
            fits = (
                isinstance(tool, ToolSpec)
                and isinstance(tool.name, str)
                and isinstance(tool.description, str)
            )
            self.need(
                fits,
                "the observation offers the tool",
                tool,
                "a ToolSpec with a name and a description",
            )
            fits = re.fullmatch(NAME, tool.name) is not None
            self.need(fits, "a tool is named", tool.name, "a name of letters, digits, _ - . :")
            try:
                check_tool(tool)
            except ConfigError as error:
                raise ConfigError(f"{self._place}env '{self.name}': {error}") from None
        names = [tool.name for tool in seen.tools]
        self.need(
            len(set(names)) == len(names), "tools are named", names, "tools whose names differ"
        )

    def _stepped(self, result: Any) -> Any:
        self.need(
            isinstance(result, StepResult),
            "step() returned",
            result,
            "a StepResult (reflectkit.env)",
        )
        info = result.info
        self.need(isinstance(info, dict), "info is", info, "a dict, {} for nothing")
        for name in ("terminated", "truncated"):
            self.need(is_flag(flag := getattr(result, name)), f"'{name}' is", flag, "True or False")
        try:
            json.dumps([result.reward, info], allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"{self._place}env '{self.name}': reward {brief(result.reward)} or info {brief(info)} is not valid JSON"
                f" ({error}); return Python's own finite numbers, texts, True or False, e.g. float(reward),"
                " bool(success)"
            ) from None
        numbers = [("reward", result.reward)]
        for key in ("figures", "last_figures"):
            figures = info.get(key, {})
            self.need(
                isinstance(figures, dict),
                f"'{key}' are",
                figures,
                'a dict of numbers by name, e.g. {"points": 0.5}',
            )
            numbers += figures.items()
        for name, value in numbers:
            fits = (
                isinstance(name, str)
                and name.isprintable()
                and bool(name.strip())
                and name not in TAKEN
            )
            self.need(fits, "a figure is named", name, "another name")
            self.need(_is_number(value), f"'{name}' is", value, NUMBER)
        if result.terminated:
            success = info.get("success")
            self.need(
                isinstance(success, bool | None),
                "info['success'] of the last step is",
                success,
                "True or False",
            )
        seen = self._observed(result.observation)
        self._taken += 1
        if self._taken == self._horizon and not result.terminated:
            result = dataclasses.replace(result, truncated=True)
        self.over = bool(result.terminated or result.truncated)
        return (
            result if seen is result.observation else dataclasses.replace(result, observation=seen)
        )


class TranslatedTeacher:
    """Forwards to `inner`, the teacher of a wrapped env. The actions that a method returns go through `translate`, with
    the method's name.
    """

    def __init__(self, inner: Any, translate: Callable[[str, Sequence[Any]], list[Any]]) -> None:
        self.inner, self.translate = inner, translate

    def action(self) -> Action:
        """The teacher's."""
        action: Action = self.translate("action", [self.inner.action()])[0]
        return action

    def mistakes(self) -> list[Action]:
        """The teacher's."""
        return self.translate("mistakes", self.inner.mistakes())

    def slips(self) -> list[Action]:
        """The teacher's."""
        return self.translate("slips", self.inner.slips())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class CheckedTeacher(TranslatedTeacher):
    """Raises ConfigError for an action that is not offered, and for an unknown mark or a comment that is not a text."""

    def __init__(self, inner: Any, env: Checked) -> None:
        super().__init__(inner, self._offered)
        self.checked = env

    def action(self) -> Action:
        """The teacher's."""
        return outside_loop(super().action)

    def mistakes(self) -> list[Action]:
        """The teacher's."""
        return outside_loop(super().mistakes)

    def slips(self) -> list[Action]:
        """The teacher's."""
        return outside_loop(super().slips)

    def __getattr__(self, name: str) -> Any:
        return _called_outside_loop(super().__getattr__(name))

    def note(self) -> str:
        """The teacher's."""
        mark: str = outside_loop(self.inner.note)
        self.checked.need(
            mark in MARKS,
            "the teacher's note() returned",
            mark,
            '"good" or "mistake", "" at the start',
        )
        return mark

    def comment(self, generator: random.Random) -> str:
        """The teacher's."""
        comment: str = outside_loop(self.inner.comment, generator)
        self.checked.need(
            isinstance(comment, str), "the teacher's comment() returned", comment, "a text"
        )
        return comment

    def _offered(self, method: str, actions: Sequence[Any]) -> list[Action]:
        """`actions`, if the last observation offers them."""
        seen, actions = self.checked.seen, list(actions)  # a teacher may yield them
        for action in actions:
            if seen is not None and seen.choices:
                fits = type(action) is int and 0 <= action < len(seen.choices)
                wanted = f"the index of a choice, from 0 to {len(seen.choices) - 1}"
            else:
                fits, wanted = (
                    isinstance(action, str | ToolUse),
                    "a text or a ToolUse, as no choices are offered",
                )
            self.checked.need(fits, f"the teacher's {method}() returned", action, wanted)
        return actions


def _called_outside_loop(attribute: Any) -> Any:
    """A method as one that is called `outside_loop`; anything else as it is."""
    return functools.partial(outside_loop, attribute) if inspect.ismethod(attribute) else attribute


def is_flag(value: object) -> bool:
    """Whether `value` is True or False, of Python or numpy."""
    return isinstance(value, bool) or type(value).__name__ in ("bool", "bool_")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and -LARGEST <= value <= LARGEST


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
        return f"{super().rules}\nThe actions are numbered differently at each step.".lstrip()

    def reset(self, task: Task, seed: int) -> Observation | Awaitable[Observation]:
        """Begin `task`; `seed` determines the orders."""
        self._seed, self._steps = seed, 0
        return followed(self.env.reset(task, seed), self._shuffled)

    def step(self, action: Action) -> StepResult | Awaitable[StepResult]:
        """Take the choice at position `action` of the shuffled order."""
        if (
            isinstance(action, int)
            and not isinstance(action, bool)
            and 0 <= action < len(self.order)
        ):
            action = self.order[action]
        return followed(self.env.step(action), self._stepped)

    def teacher(self) -> Any:
        """The wrapped env's, with actions as positions in the shuffled order."""
        order = self.order
        return TranslatedTeacher(
            self.env.teacher(),
            lambda _, actions: sorted(map(order.index, actions)) if order else list(actions),
        )

    def _stepped(self, result: StepResult) -> StepResult:
        self._steps += 1
        return dataclasses.replace(result, observation=self._shuffled(result.observation))

    def _shuffled(self, observation: Observation) -> Observation:
        self.order = list(range(len(observation.choices)))
        generator(self._seed, "order", self._steps).shuffle(self.order)
        return dataclasses.replace(
            observation, choices=tuple(observation.choices[index] for index in self.order)
        )


def fresh(
    kind: type[Env],
    settings: Mapping[str, Any],
    horizon: int | None,
    data_folder: Path | None,
    *,
    shuffle: bool,
) -> Env:
    """An env of class `kind`, as `envs.maker` describes it."""
    bare = kind(**settings)
    if horizon is not None:
        bare.horizon = horizon
    if data_folder is not None:
        bare.data_folder = data_folder
    return Checked(Shuffled(bare) if shuffle else bare, horizon)
