"""Wrappers of envs: checks of what an env and its teacher return, with the horizon, and shuffled
choices.
"""

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

from reflectkit.env import Action, Env, StepResult, Wrapper
from reflectkit.errors import ConfigError, IllegalActionError, brief, is_user_code
from reflectkit.eventloop import followed, outside_loop
from reflectkit.seeding import generator
from reflectkit.text import pluralize
from reflectkit.tools import NAME, check_tool
from reflectkit.types import (
    LARGEST,
    Message,
    Observation,
    StateQuestion,
    Task,
    ToolSpec,
    ToolUse,
)

ROLES = ("system", "user", "assistant", "tool")
MARKS = ("", "good", "mistake")
OUR_FIGURES = frozenset({"success", "agreement", "choice_nll", "choice_brier", "comment_tokens"})
"""Figures of an episode that reflectkit measures itself."""
MESSAGE = f"Message(ROLE, TEXT), its role from {', '.join(ROLES)}"
NUMBER = f"a number of at most {LARGEST:g} in size"


def checked(env: Env) -> Checked:
    """`env`, whose returns are checked; once, however it is wrapped."""
    wrapped: Any = env
    return wrapped if getattr(env, "is_checked", False) else Checked(env)


class Checked(Wrapper):
    """Raises ConfigError for a return that cannot be played with, learned from or counted, and
    IllegalActionError for a step before `reset` or after the end. horizon: steps after which it
    truncates an episode; None: never.
    """

    is_checked = True
    last_observation: Observation | None = None
    """What the agent sees; None before the first."""
    over = True
    """Whether no episode is under way."""
    by_level = False
    """Whether the horizon is that of the problem's level."""

    def __init__(self, env: Env, horizon: int | None = None) -> None:
        if horizon is not None and horizon < 1:
            raise ConfigError(f"a horizon is at least 1 step, got {horizon}")
        super().__init__(env)
        self._horizon = horizon
        self._step_count = 0
        self._task_id = ""

    @property
    def rules(self) -> str:
        """The env's, and the number of steps."""
        limit = ""
        if self._horizon is not None:
            limit = f"An episode has at most {pluralize(self._horizon, 'step')}."
        return f"{super().rules}\n{limit}".strip("\n")

    def reset(self, task: Task, seed: int) -> Observation | Awaitable[Observation]:
        """Begin `task`, one that is a seed alone with that seed. Raises ConfigError for an
        observation that cannot be read or answered.
        """
        self.last_observation = None
        self.over = True  # until the env has begun
        self._step_count = 0
        self._task_id = task.id
        if self.by_level:
            self._horizon = self.env.horizon = self.env.horizon_of(task.level)
        task_seed = task.data.get("seed") if len(task.data) == 1 else None
        if isinstance(task_seed, int):
            seed = task_seed
        # A copy, since an env may change lists in it, and others play the same problem
        task = dataclasses.replace(task, data=copy_of(task.data))
        return followed(outside_loop(self.env.reset, task, seed), self._after_reset)

    def step(self, action: Action) -> StepResult | Awaitable[StepResult]:
        """One step; the last step of the horizon is marked as truncated unless the env ended the
        episode there. Raises ConfigError for a result that is not finite or not valid JSON, or
        whose observation cannot be read or answered.
        """
        if self.over:
            raise IllegalActionError(f"{self.name}: the episode is over; call reset first")
        return followed(outside_loop(self.env.step, action), self._after_step)

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
        """The env's, for the remaining steps of the horizon. Raises ConfigError if it is not a
        finite number.
        """
        if self._horizon is not None:
            steps_left = self._horizon - self._step_count
        reward = outside_loop(super().truncation_penalty, steps_left)
        self.need(_is_number(reward), "truncation_penalty() returned", reward, NUMBER)
        return float(reward)

    def __getattr__(self, name: str) -> Any:
        return _called_outside_loop(super().__getattr__(name))

    def need(
        self,
        fits: bool,
        subject: str,
        value: object,
        expected: str,
    ) -> None:
        """Raises ConfigError unless `fits`. subject: what is checked, with its verb. expected: what
        to return.
        """
        if not fits:
            if inspect.iscoroutine(value):
                value.close()  # otherwise Python warns that it was never awaited
            raise ConfigError(
                f"{self._place}env '{self.name}': {subject} {brief(value)}; return {expected}"
                f" (in problem '{self._task_id}')"
            )

    @property
    def _place(self) -> str:
        """The user's own code that made what is checked, as the beginning of a message; "" if it is
        not the user's.
        """
        methods = ("_begin", "reset") if self.last_observation is None else ("_move", "step")
        for name in methods:
            code = getattr(getattr(type(self.env), name, None), "__code__", None)
            if code is not None and is_user_code(code.co_filename):
                return f"{code.co_filename}, line {code.co_firstlineno}: "
        return ""

    def _after_reset(self, observation: Any) -> Any:
        observation = self._check_observation(observation)
        self.over = False
        return observation

    def _after_step(self, result: Any) -> Any:
        # 1. Its form
        expected = "a StepResult (reflectkit.env)"
        self.need(isinstance(result, StepResult), "step() returned", result, expected)
        for name in ("terminated", "truncated"):
            flag = getattr(result, name)
            self.need(is_flag(flag), f"'{name}' is", flag, "True or False")
        self._check_info(result)

        # 2. What the agent sees next
        observation = self._check_observation(result.observation)

        # 3. The horizon
        self._step_count += 1
        is_last = self._step_count == self._horizon and not result.terminated
        truncated = is_last or result.truncated
        self.over = bool(result.terminated or truncated)
        # A copy of the info, since some envs keep one dict and change it with each step
        info = copy_of(result.info)
        return StepResult(observation, result.reward, result.terminated, truncated, info)

    def _check_info(self, result: StepResult) -> None:
        """Raises ConfigError for a reward and an info that are no JSON, or figures that are not
        finite or not ours to name.
        """
        info = result.info
        self.need(isinstance(info, dict), "info is", info, "a dict, {} for nothing")

        # 1. All of it is written to files
        try:
            json.dumps([result.reward, info], allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"{self._place}env '{self.name}': reward {brief(result.reward)} or info {brief(info)} is not valid JSON"
                f" ({error}); return Python's own finite numbers, texts, True or False, e.g. float(reward),"
                " bool(success)"
            ) from None

        # 2. What is learned from and counted
        numbers = [("reward", result.reward)]
        for key in ("figures", "last_figures"):
            figures = info.get(key, {})
            expected = 'a dict of numbers by name, e.g. {"points": 0.5}'
            self.need(isinstance(figures, dict), f"'{key}' are", figures, expected)
            numbers += figures.items()
        for name, value in numbers:
            is_text = isinstance(name, str) and name.isprintable() and bool(name.strip())
            is_free = is_text and name not in OUR_FIGURES
            self.need(is_free, "a figure is named", name, "another name")
            self.need(_is_number(value), f"'{name}' is", value, NUMBER)
        if result.terminated:
            success = info.get("success")
            subject = "info['success'] of the last step is"
            self.need(isinstance(success, bool | None), subject, success, "True or False")

    def _check_observation(self, observation: Any) -> Any:
        """`observation`, its lists as tuples. Raises ConfigError if it cannot be read or answered."""
        # 1. Its form
        expected = "an Observation (reflectkit.types)"
        self.need(isinstance(observation, Observation), "the observation is", observation, expected)
        last = self.last_observation
        if observation is last:
            return observation
        for name in ("messages", "choices", "tools"):
            value = getattr(observation, name)
            is_sequence = isinstance(value, tuple | list)
            self.need(is_sequence, f"{name} of the observation are", value, "a tuple")
            if isinstance(value, list):
                observation = dataclasses.replace(observation, **{name: tuple(value)})

        # 2. What it shows
        for message in observation.messages:
            is_message = isinstance(message, Message) and isinstance(message.content, str)
            fits = is_message and message.role in ROLES
            self.need(fits, "the observation shows", message, MESSAGE)

        # 3. What it offers, which most envs do not change
        if (
            last is None
            or observation.choices is not last.choices
            or observation.tools is not last.tools
        ):
            self._check_choices(observation.choices)
            self._check_tools(observation.tools)
        self.last_observation = observation
        return observation

    def _check_choices(self, choices: Sequence[str]) -> None:
        """Raises ConfigError for choices that cannot be shown, or not be distinguished."""
        for choice in choices:
            is_line = isinstance(choice, str) and bool(choice.strip()) and "\n" not in choice
            self.need(is_line, "the observation offers the choice", choice, "a text of one line")
        differ = len(set(choices)) == len(choices)
        self.need(differ, "choices are", choices, "choices that all differ")

    def _check_tools(self, tools: Sequence[ToolSpec]) -> None:
        """Raises ConfigError for tools that cannot be shown, or not be distinguished."""
        for tool in tools:
            expected = "a ToolSpec with a name and a description"
            is_tool = isinstance(tool, ToolSpec) and isinstance(tool.name, str)
            fits = is_tool and isinstance(tool.description, str)
            self.need(fits, "the observation offers the tool", tool, expected)
            is_name = re.fullmatch(NAME, tool.name) is not None
            self.need(is_name, "a tool is named", tool.name, "a name of letters, digits, _ - . :")
            try:
                check_tool(tool)
            except ConfigError as error:
                raise ConfigError(f"{self._place}env '{self.name}': {error}") from None
        names = [tool.name for tool in tools]
        differ = len(set(names)) == len(names)
        self.need(differ, "tools are named", names, "tools whose names differ")


class TranslatedTeacher:
    """Forwards to `inner`, the teacher of a wrapped env. The actions that a method returns go
    through `translate`, with the method's name, and so do answers to those of the `questions` whose
    options are the choices of the state.
    """

    def __init__(
        self,
        inner: Any,
        translate: Callable[[str, Sequence[Any]], list[Any]],
        questions: Sequence[StateQuestion],
    ) -> None:
        self.inner, self.translate = inner, translate
        self.questions = questions

    def action(self) -> Action:
        """The teacher's."""
        action: Action = self.translate("action", [self.inner.action()])[0]
        return action

    def best_actions(self) -> list[Action]:
        """The teacher's."""
        return self.translate("best_actions", self.inner.best_actions())

    def answers(self) -> dict[str, Sequence[int]]:
        """The teacher's."""
        answers = dict(self.inner.answers())
        for question in self.questions:
            if question.name in answers and not question.options:
                answers[question.name] = self.translate("answers", answers[question.name])
        return answers

    def mistakes(self) -> list[Action]:
        """The teacher's."""
        return self.translate("mistakes", self.inner.mistakes())

    def slips(self) -> list[Action]:
        """The teacher's."""
        return self.translate("slips", self.inner.slips())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class CheckedTeacher(TranslatedTeacher):
    """Raises ConfigError for an action that is not offered, and for an unknown mark or a comment
    that is not a text.
    """

    def __init__(self, inner: Any, env: Checked) -> None:
        super().__init__(inner, self._check_actions, outside_loop(env.questions))
        self.checked_env = env

    def action(self) -> Action:
        """The teacher's."""
        return outside_loop(super().action)

    def best_actions(self) -> list[Action]:
        """The teacher's; one at least."""
        actions = outside_loop(super().best_actions)
        subject = "the teacher's best_actions() returned"
        self.checked_env.need(bool(actions), subject, actions, "one action at least")
        return actions

    def answers(self) -> dict[str, Sequence[int]]:
        """The teacher's."""
        # 1. The form
        answers: Any = outside_loop(self.inner.answers)
        need, subject = self.checked_env.need, "the teacher's answers() returned"
        expected = "a dict of lists of indices, by the name of the question"
        need(isinstance(answers, Mapping), subject, answers, expected)

        # 2. The options of each question that is asked
        for question in self.questions:
            right = answers.get(question.name, ())
            count = len(question.options or self._choices)
            is_list = isinstance(right, list | tuple)
            fits = is_list and all(type(index) is int and 0 <= index < count for index in right)
            subject = f"the teacher's answers() to '{question.name}' are"
            need(fits, subject, right, f"a list of indices of its {count} options")
        return dict(answers)

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
        expected = '"good" or "mistake", "" at the start'
        self.checked_env.need(mark in MARKS, "the teacher's note() returned", mark, expected)
        return mark

    def comment(self, generator: random.Random) -> str:
        """The teacher's."""
        comment: str = outside_loop(self.inner.comment, generator)
        is_text = isinstance(comment, str)
        self.checked_env.need(is_text, "the teacher's comment() returned", comment, "a text")
        return comment

    @property
    def _choices(self) -> Sequence[str]:
        """Those of the last observation."""
        observation = self.checked_env.last_observation
        return () if observation is None else observation.choices

    def _check_actions(self, method: str, actions: Sequence[Any]) -> list[Action]:
        """`actions`, if the last observation offers them."""
        count = len(self._choices)
        actions = list(actions)  # a teacher may yield them
        for action in actions:
            if count:
                fits = type(action) is int and 0 <= action < count
                expected = f"the index of a choice, from 0 to {count - 1}"
            else:
                fits = isinstance(action, str | ToolUse)
                expected = "a text or a ToolUse, as no choices are offered"
            self.checked_env.need(fits, f"the teacher's {method}() returned", action, expected)
        return actions


def _called_outside_loop(attribute: Any) -> Any:
    """A method as one that is called `outside_loop`; anything else as it is."""
    return functools.partial(outside_loop, attribute) if inspect.ismethod(attribute) else attribute


def copy_of(value: Any) -> Any:
    """A copy of a JSON value, in a fraction of the time that `copy.deepcopy` takes."""
    if isinstance(value, dict):
        return {name: copy_of(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [copy_of(inner) for inner in value]
    if isinstance(value, tuple):
        return tuple(map(copy_of, value))
    return value


def is_flag(value: object) -> bool:
    """Whether `value` is True or False, of Python or numpy."""
    return isinstance(value, bool) or type(value).__name__ in ("bool", "bool_")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and -LARGEST <= value <= LARGEST


class Shuffled(Wrapper):
    """Shuffles the choices, and therefore their labels, at each step, so that a label carries no
    meaning.

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
        self._seed = seed
        self._step_count = 0
        return followed(self.env.reset(task, seed), self._shuffled)

    def step(self, action: Action) -> StepResult | Awaitable[StepResult]:
        """Take the choice at position `action` of the shuffled order."""
        if type(action) is int and 0 <= action < len(self.order):
            action = self.order[action]
        return followed(self.env.step(action), self._after_step)

    def teacher(self) -> Any:
        """The wrapped env's, with actions as positions in the shuffled order."""
        order = self.order

        def positions(method: str, actions: Sequence[Any]) -> list[Any]:
            if not order:
                return list(actions)
            places = [order.index(action) for action in actions]
            # The first of the best actions is the one that the teacher takes
            return places if method == "best_actions" else sorted(places)

        return TranslatedTeacher(self.env.teacher(), positions, self.questions())

    def _after_step(self, result: StepResult) -> StepResult:
        self._step_count += 1
        return dataclasses.replace(result, observation=self._shuffled(result.observation))

    def _shuffled(self, observation: Observation) -> Observation:
        self.order = list(range(len(observation.choices)))
        generator(self._seed, "order", self._step_count).shuffle(self.order)
        choices = tuple(observation.choices[index] for index in self.order)
        return dataclasses.replace(observation, choices=choices)


def fresh(
    kind: type[Env],
    settings: Mapping[str, Any],
    horizon: int | None,
    data_folder: Path | None,
    *,
    shuffle: bool,
) -> Env:
    """An env of class `kind`, as `envs.maker` describes it."""
    env = kind(**settings)
    if horizon is not None:
        env.horizon = horizon
    if data_folder is not None:
        env.data_folder = data_folder
    return Checked(Shuffled(env) if shuffle else env, horizon)
