"""Checks what an env returns where it returns it, so that a mistake in an env of one's own is named in one line."""

from __future__ import annotations

import dataclasses
import inspect
import json
import random
import re
from collections.abc import Awaitable, Sequence
from typing import Any

from reflectkit import tools
from reflectkit.env import Env, StepResult, Wrapper
from reflectkit.errors import ConfigError
from reflectkit.eventloop import followed
from reflectkit.types import LARGEST, Message, Observation, Task, ToolSpec, ToolUse

ROLES = ("system", "user", "assistant", "tool")
MARKS = ("", "good", "mistake")
TAKEN = frozenset({"success", "agreement", "choice_nll", "comment_tokens"})
"""Figures of an episode that reflectkit measures itself."""

Action = int | str | ToolUse


def checked(env: Env) -> Checked:
    """`env`, whose returns are checked; once, however it is wrapped."""
    already: Any = env
    return already if getattr(env, "is_checked", False) else Checked(env)


class Checked(Wrapper):
    """Raises ConfigError for a return that nobody can play with, learn from or count."""

    is_checked = True

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self._seen: Observation | None = None

    def reset(self, task: Task, seed: int) -> Observation | Awaitable[Observation]:
        """Begin `task`. Raises ConfigError for an observation that cannot be read or answered."""
        self._seen = None
        return followed(self.env.reset(task, seed), self._observed)

    def step(self, action: Action) -> StepResult | Awaitable[StepResult]:
        """One step. Raises ConfigError for a result that is not finite or not valid JSON, that does not say at the end
        whether the problem is solved, or whose observation cannot be read or answered.
        """
        return followed(self.env.step(action), self._stepped)

    def close(self) -> None:
        """Close the env, if it has anything to close."""
        if (close := getattr(self.env, "close", None)) is not None:
            close()

    def oracle(self) -> Action:
        """The env's best action. Raises ConfigError if it was not offered."""
        return self._offered("oracle", self._own.oracle())

    def mistakes(self) -> Sequence[Action]:
        """Likewise, each of them."""
        return self._all_offered("mistakes", self._own.mistakes())

    def slips(self) -> Sequence[Action]:
        """Likewise, each of them."""
        return self._all_offered("slips", self._own.slips())

    def note(self) -> str:
        """The env's mark of the last action. Raises ConfigError if it is no mark."""
        mark = self._own.note()
        if mark not in MARKS:
            raise self._wrong("note", mark, '"good" or "mistake", or "" at the start')
        return str(mark)

    def reflection(self, generator: random.Random) -> str:
        """The env's comment on the state. Raises ConfigError if it is no text."""
        comment = self._own.reflection(generator)
        if not isinstance(comment, str):
            raise self._wrong("reflection", comment, "a text")
        return comment

    def truncation_penalty(self, steps_left: int) -> float:
        """The env's reward for ending now, 0 if it defines none. Raises ConfigError if it is no finite number."""
        truncation_penalty = getattr(self.env, "truncation_penalty", None)
        reward = 0.0 if truncation_penalty is None else truncation_penalty(steps_left)
        if not _is_number(reward):
            raise self._wrong("truncation_penalty", reward, f"a number of at most {LARGEST:g} in size")
        return float(reward)

    @property
    def _own(self) -> Any:
        return self.env

    def _observed(self, observation: Observation) -> Observation:
        self._seen = check_observation(observation, self.env.name, self._seen)
        return self._seen

    def _stepped(self, result: StepResult) -> StepResult:
        check_result(result, self.env.name)
        self._seen = seen = check_observation(result.observation, self.env.name, self._seen)
        return result if seen is result.observation else dataclasses.replace(result, observation=seen)

    def _all_offered(self, method: str, actions: object) -> Sequence[Action]:
        if not isinstance(actions, Sequence) or isinstance(actions, str):
            raise self._wrong(method, actions, "a list of actions")
        return [self._offered(method, action) for action in actions]

    def _offered(self, method: str, action: object) -> Action:
        """`action`, if the last observation offers it."""
        choices = self._seen.choices if self._seen is not None else ()
        if choices:
            if not isinstance(action, int) or isinstance(action, bool) or not 0 <= action < len(choices):
                raise self._wrong(method, action, f"the index of a choice, an int from 0 to {len(choices) - 1}")
            return action
        if isinstance(action, str | ToolUse) or (isinstance(action, int) and self._seen is None):
            return action
        wanted = "a ToolUse, or a text" if self._seen is not None and self._seen.tools else "a text"
        raise self._wrong(method, action, f"{wanted}, as it offers no choices here")

    def _wrong(self, method: str, value: object, wanted: str) -> ConfigError:
        if inspect.iscoroutine(value):
            value.close()  # otherwise Python warns that nobody awaited it
        return ConfigError(f"{method}() of env '{self.env.name}' returned {value!r:.60}; return {wanted}")


def check_observation(observation: object, name: str, before: Observation | None = None) -> Observation:
    """`observation` of env `name`, its lists as tuples. before: the one before it, which need not be checked again.

    Raises ConfigError if it is none, or has texts, choices or tools that cannot be shown or chosen.
    """
    if not isinstance(observation, Observation):
        raise ConfigError(
            f"env '{name}' returned {observation!r:.40} as an observation; return an Observation (reflectkit.types)"
        )
    parts: list[Any] = [observation.messages, observation.choices, observation.tools]
    for part in parts:
        if not isinstance(part, tuple | list):
            raise ConfigError(f"env '{name}' returned an observation with {part!r:.40} for a tuple; return a tuple")
    if any(isinstance(part, list) for part in parts):
        messages, choices, offered = map(tuple, parts)
        observation = dataclasses.replace(observation, messages=messages, choices=choices, tools=offered)
    for message in observation.messages:
        _check_message(message, name)
    if before is None or observation.choices is not before.choices:
        _check_choices(observation.choices, name)
    if before is None or observation.tools is not before.tools:
        _check_tools(observation.tools, name)
    return observation


def _check_message(message: object, name: str) -> None:
    if not isinstance(message, Message):
        raise ConfigError(
            f"env '{name}' shows {message!r:.40}, which is no message; write Message(\"user\", TEXT) (reflectkit.types)"
        )
    if not isinstance(message.content, str):
        raise ConfigError(
            f"env '{name}' shows {message.content!r:.40}, which is no text; return a str for each message and choice"
        )
    if message.role not in ROLES:
        raise ConfigError(f"env '{name}' shows a message of role {message.role!r:.40}; choose from {', '.join(ROLES)}")


def _check_choices(choices: Sequence[object], name: str) -> None:
    earlier: set[str] = set()
    for choice in choices:
        if not isinstance(choice, str):
            raise ConfigError(
                f"env '{name}' shows {choice!r:.40}, which is no text; return a str for each message and choice"
            )
        if not choice.strip() or "\n" in choice:
            raise ConfigError(f"env '{name}' offers the choice {choice!r:.60}; a choice is one line, and not empty")
        if choice in earlier:
            raise ConfigError(f"env '{name}' offers the choice {choice!r:.60} twice; make each differ from the others")
        earlier.add(choice)


def _check_tools(offered: Sequence[object], name: str) -> None:
    names = [getattr(tool, "name", None) for tool in offered]
    for tool, called in zip(offered, names, strict=True):
        if not isinstance(tool, ToolSpec):
            raise ConfigError(f"env '{name}' offers {tool!r:.40} as a tool; make it a ToolSpec (reflectkit.types)")
        if not isinstance(called, str) or re.fullmatch(tools.NAME, called) is None:
            raise ConfigError(
                f"env '{name}' offers a tool named {called!r:.40}; name it with letters, digits, '_', '-' and '.'"
            )
        if names.count(called) > 1:
            raise ConfigError(f"env '{name}' offers two tools named '{called}'; give each its own name")


def check_result(result: object, name: str) -> None:
    """Raises ConfigError for a reward or info of env `name` that is not finite or not valid JSON, figures that are no
    numbers, and a last step that does not say whether the problem is solved.
    """
    if not isinstance(result, StepResult):
        raise ConfigError(f"step() of env '{name}' returned {result!r:.80}; return a StepResult (reflectkit.env)")
    if not isinstance(result.info, dict):
        raise ConfigError(f"env '{name}' returned {result.info!r:.40} as info; return a dict, {{}} for nothing")
    for part in ("terminated", "truncated"):
        if not is_flag(flag := getattr(result, part)):
            raise ConfigError(f"env '{name}' returned {flag!r:.40} as '{part}'; return True or False")
    try:
        json.dumps([result.reward, result.info], allow_nan=False)
    except (TypeError, ValueError) as error:
        raise _no_json(result, error, name) from None
    figures = result.info.get("figures", {})
    if not isinstance(figures, dict):
        raise ConfigError(
            f"env '{name}' returned {figures!r:.40} as 'figures'; return a dict of numbers by name,"
            ' e.g. {"accuracy": 0.5}'
        )
    for figure in figures:
        if not isinstance(figure, str) or not figure.strip() or figure in TAKEN:
            taken = "a name that reflectkit uses itself" if figure in TAKEN else "which is no name"
            raise ConfigError(f"env '{name}' reports the figure {figure!r:.40}, {taken}; call it otherwise")
    for figure, value in [("reward", result.reward), *figures.items()]:
        if not _is_number(value):
            raise ConfigError(
                f"env '{name}' returned {value!r:.40} as '{figure}'; return a number of at most {LARGEST:g} in size"
            )
    if result.terminated and not isinstance(result.info.get("success"), bool):
        success = f"{result.info['success']!r:.20} as" if "success" in result.info else "no"
        raise ConfigError(
            f"env '{name}' ended an episode with {success} info['success']; say whether the problem is solved, True or"
            " False"
        )


def _no_json(result: StepResult, error: Exception, name: str) -> ConfigError:
    """The error for what is not valid JSON in a result."""
    wrong = "something"
    for key, value in [("reward", result.reward), *result.info.items()]:
        try:
            json.dumps({key: value}, allow_nan=False)
        except (TypeError, ValueError):
            wrong = f"{value!r:.40} as {key!r:.40}, of type {type(value).__module__}.{type(value).__qualname__}"
            break
    return ConfigError(
        f"env '{name}' returned a reward or info that is not valid JSON: {wrong} ({error}); return Python's own finite"
        " numbers, texts, True or False, e.g. float(reward), bool(success)"
    )


def is_flag(value: object) -> bool:
    """Whether `value` is True or False, of Python or numpy."""
    return isinstance(value, bool) or type(value).__name__ in ("bool", "bool_")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and -LARGEST <= value <= LARGEST
