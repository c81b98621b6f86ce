"""Reward functions in TRL's form: what they are called with, and what they return."""

from __future__ import annotations

import contextlib
import inspect
import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from statistics import fmean
from typing import Any

from reflectkit.errors import ConfigError, EnvironmentFailure, brief, code_place
from reflectkit.eventloop import outside_loop
from reflectkit.registry import resolve
from reflectkit.rollouts.episode import UNSCORED
from reflectkit.tools import words_before_any_call
from reflectkit.types import Decision, Message

OPTIONAL = ("completion_ids", "log_extra", "log_metric")
"""Arguments that a function gets if it names them, or takes any."""
TRAINER_STATE = "trainer_state"
RESERVED = frozenset({"prompts", "completions", "environments", *OPTIONAL, TRAINER_STATE})
"""Arguments of reward functions, besides the columns."""


class CompletionIds:
    """The tokens after the first prompt of an episode: those that the policy sampled, and those
    between them where a prompt begins with the first one.
    """

    def __init__(self) -> None:
        self.ids: list[int] = []
        self._first: tuple[int, ...] | None = None

    def add(self, decision: Decision) -> None:
        """Add those of the next decision."""
        prompt = decision.prompt_ids
        if self._first is None:
            self._first = prompt
        if prompt[: len(self._first)] == self._first:
            self.ids = list(prompt[len(self._first) :])
        self.ids += decision.token_ids


def chat_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """`messages` in TRL's form: an assistant's calls are `tool_calls`, and a tool's result has its
    name.
    """
    rows = []
    for message in messages:
        row: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.calls:
            names = [call.name for call in message.calls]
            row["content"] = words_before_any_call(message.content, names)
            row["tool_calls"] = []
            for call in message.calls:
                function = {"name": call.name, "arguments": call.arguments}
                row["tool_calls"].append({"type": "function", "function": function})
        if message.role == "tool":
            row = {"role": "tool", "name": message.name or "unknown", "content": message.content}
        rows.append(row)
    return rows


def target_of(spec: str) -> tuple[str, str]:
    """(FILE.py:FUNCTION, weight or "") of a `--reward`; the name of a folder may hold "="."""
    place, colon, function = spec.rpartition(":")
    name, _, weight = function.partition("=")
    return place + colon + name, weight


@cache
def reward_function(spec: str) -> tuple[str, Any, float]:
    """The name, the function and the weight of a `--reward`. Raises ConfigError."""
    target, weight = target_of(spec)
    function = resolve("reward function", target, {})
    name = getattr(function, "__name__", target.rpartition(":")[2])
    try:
        number = float(weight or 1)
    except ValueError:
        number = math.nan
    if not callable(function) or not math.isfinite(number):
        raise ConfigError(
            f"--reward {spec}: write FILE.py:FUNCTION or FILE.py:FUNCTION=WEIGHT, e.g."
            " my.py:exact=0.5"
        )
    # Functions written for TRL's trainer may ask for its state
    state = inspect.signature(function).parameters.get(TRAINER_STATE)
    if state is not None and state.default is state.empty:
        raise ConfigError(
            f"{code_place(function)}: reward function {name} asks for {TRAINER_STATE}, which only"
            f" TRL's trainer has; make it optional, {TRAINER_STATE}=None"
        )
    return name, function, number


def waits(specs: Sequence[str]) -> bool:
    """Whether one of the reward functions `specs` is a coroutine."""
    for _, function, _ in map(reward_function, specs):
        # An object may be called, too
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(function.__call__):
            return True
    return False


def is_reward(value: object) -> bool:
    """Whether `value` is a finite number, of Python or a library."""
    # The errors are those of an array, and of a number beyond a float's range
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        return hasattr(value, "__float__") and math.isfinite(float(value))
    return False


GOAL = 0.9
"""Least reward for a goal, usually 1, from which the cost of the last step may be taken."""


def guessed_success(gained: bool, reward: float, over: bool) -> bool | None:
    """Whether an episode succeeded whose env does not say; None where its rewards do not tell.

    They tell in a game with a goal: nothing is above 0 but a reward of 0.9 to 1 at the end. gained:
    whether a reward before the latest, `reward`, was above 0.
    """
    if gained or (reward > 0 and not over):
        return None
    if reward <= 0:
        return False
    return True if GOAL <= reward <= 1 else None


async def score(
    specs: Sequence[str],
    row: Mapping[str, Any],
    completion: Any,
    ids: Sequence[int],
    *,
    env_rewards: Sequence[float | None] = (),
    **more: Any,
) -> tuple[float, dict[str, Any]]:
    """(sum of the rewards, info) of an answer to `row`.

    ids: its tokens, in place of which the bytes of its words are passed if there are none.
    env_rewards: those of an env itself, which come first. more: further arguments of reward
    functions.

    A reward that is None does not apply. The answer is right if the first reward is at least 1.
    Raises EnvironmentFailure if none applies, and the episode does not count, as in TRL.
    """
    # 1. What the functions are called with
    log = _Log()
    columns = {name: [value] for name, value in row.items() if name != "prompt"}
    arguments = {"prompts": [row["prompt"]], "completions": [completion], **columns, **more}
    optional = (list(ids) or _bytes(completion)), log.extra, log.metric

    # 2. Their rewards
    total = sum(value for value in env_rewards if value is not None)
    values, figures = [*env_rewards], dict[str, float]()
    inapplicable = []
    for figure, spec in zip(_figure_names(specs), specs, strict=True):
        name, function, weight = reward_function(spec)
        returned = outside_loop(function, **_accepted(name, function, arguments, optional))
        if inspect.isawaitable(returned):
            returned = await returned
        # An array, or a tensor
        if hasattr(returned, "tolist"):
            returned = returned.tolist()
        is_list = isinstance(returned, list | tuple) and len(returned) == 1
        value = returned[0] if is_list else returned
        if value is not None and not is_reward(value):
            raise ConfigError(
                f"{code_place(function)}: reward function {name} returned {brief(returned)} for one"
                " completion; return a list with one number, or None where it does not apply"
            )
        values.append(None if value is None else float(value))
        if value is None:
            inapplicable.append(figure)
        else:
            figures[figure] = float(value)
            total += weight * float(value)

    # 3. What is reported
    if not any(value is not None for value in values):
        raise EnvironmentFailure(f"{UNSCORED}: all are None for {row['prompt']!r:.80}")
    info: dict[str, Any] = {"success": values[0] is not None and values[0] >= 1}
    figures |= {name: fmean(numbers) for name, numbers in log.metrics.items()}
    if figures:
        info["figures"] = figures
    if inapplicable:
        info["inapplicable"] = inapplicable
    if log.columns:
        info["extra"] = log.columns
    return total, info


def _figure_names(specs: Sequence[str]) -> list[str]:
    """The name of the figure of each reward function: its own, and a number if others have it, too."""
    names = [name for name, _, _ in map(reward_function, specs)]
    numbered = []
    for place, name in enumerate(names):
        number = names[: place + 1].count(name)
        numbered.append(f"{name}_{number}" if names.count(name) > 1 else name)
    return numbered


class _Log:
    """What reward functions log: metrics, which become figures, and columns, which an episode's
    record keeps.
    """

    def __init__(self) -> None:
        self.metrics: dict[str, list[float]] = {}
        self.columns: dict[str, Any] = {}

    def metric(self, name: str, value: Any) -> None:
        """TRL's `log_metric`. Raises ConfigError if `value` is not a number."""
        if not is_reward(value):
            raise ConfigError(f"log_metric({name!r}, {brief(value)}): a metric is a finite number")
        self.metrics.setdefault(str(name), []).append(float(value))

    def extra(self, column: str, values: Sequence[Any]) -> None:
        """TRL's `log_extra`. Raises ConfigError unless there is a value for the one completion."""
        if isinstance(values, str) or len(values) != 1:
            raise ConfigError(
                f"log_extra({column!r}, {brief(values)}): give a list with a value for each"
                " completion"
            )
        (value,) = values
        try:
            # Episodes' records are JSON
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            value = str(value)
        self.columns[str(column)] = value


def _bytes(completion: Any) -> list[int]:
    """The bytes of the words of an answer."""
    text = completion
    if not isinstance(completion, str):
        text = "".join(message["content"] for message in completion)
    return list(text.encode(errors="replace"))


def _accepted(
    name: str,
    function: Any,
    arguments: Mapping[str, Any],
    optional: tuple[list[int], Any, Any],
) -> dict[str, Any]:
    """`arguments`, and the optional ones that `function` takes. Raises ConfigError for others than
    these.
    """
    parameters = inspect.signature(function).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    ids, extra, metric = optional
    values = dict(zip(OPTIONAL, ([ids], extra, metric), strict=True))
    accepted = dict(arguments)
    for key, value in values.items():
        if takes_any or key in parameters:
            accepted[key] = value
    # It must fit before it is called, so that an error within it is told apart
    try:
        inspect.signature(function).bind(**accepted)
    except TypeError as error:
        fix = "end its arguments with **kwargs"
        if "missing" in str(error):
            fix = "name a column so, or give it a default"
        raise ConfigError(
            f"{code_place(function)}: reward function {name}: {error}; it is called with"
            f" {', '.join(accepted)}: {fix}"
        ) from None
    if "self" in accepted and not inspect.isfunction(function):
        raise ConfigError(
            f"{code_place(function)}: reward function {name} cannot get the column 'self'; rename"
            " it"
        )
    return accepted
