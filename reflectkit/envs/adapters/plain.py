"""Plain classes as environments: with choices and a `step`, or with tools as in TRL's
`environment_factory`.
"""

from __future__ import annotations

import contextlib
import inspect
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from numbers import Real
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar, Literal, get_origin

from pydantic import create_model

from reflectkit.config import REQUIRED, Config, NoSettings, alternatives, option
from reflectkit.env import Action, Env, StepResult, Taskset, Teacher, check_choice, check_task
from reflectkit.envs.adapters.prompts import DatasetSettings, DatasetTasks, prompt_messages
from reflectkit.envs.adapters.rewards import (
    CompletionIds,
    chat_messages,
    guessed_success,
    is_reward,
    score,
    waits,
)
from reflectkit.envs.conversation import LONGEST_RESULT, cut
from reflectkit.errors import ConfigError, DataError, brief, code_place
from reflectkit.eventloop import followed, outside_loop
from reflectkit.rollouts.tool_errors import CODE_ERROR_KEY, code_error
from reflectkit.rollouts.wrappers import OUR_FIGURES, is_flag
from reflectkit.tools import read_use
from reflectkit.types import Decision, Message, Observation, StateQuestion, Task, ToolSpec

SIMPLE = (str, int, float, bool, Path, tuple[str, ...])
"""Types of arguments that can be flags."""
FORM = "return (observation, reward, done): a text, a number, and True or False"
NOT_TOOLS = ("reset", "get_reward", "questions")
NOT_FIGURES = frozenset({"success", "refused", "return", *OUR_FIGURES})
"""Names of numbers in the info of a step that are not figures of the game: reflectkit reports these
itself.
"""


def env_of_class(kind: type) -> type[Env]:
    """The env of a class with choices, or with tools. Raises ConfigError for another."""
    if hasattr(kind, "choices"):
        if not callable(getattr(kind, "step", None)):
            raise ConfigError(
                f"{kind.__name__} has choices but no step(); write step(self, action), and {FORM}"
            )
        return wrapped(Choices, kind, settings_of(kind))
    if hasattr(kind, "step") and not hasattr(kind, "get_reward"):
        raise ConfigError(
            f"{kind.__name__} has no choices; add choices, a list of texts, or a method that"
            " returns one"
        )
    if not _tool_names(kind):
        raise ConfigError(
            f"{kind.__name__} offers no actions; add choices and step(), or methods that are tools"
        )
    settings = create_model("Settings", __base__=(settings_of(kind), DatasetSettings))
    return wrapped(Tools, kind, settings)


def wrapped(
    base: type[Plain],
    kind: type,
    settings: type[Config],
) -> type[Env]:
    """`kind` as an env of form `base`."""
    kept = ("name", "rules", "teacher_type", "__doc__", "__module__")
    own = {key: getattr(kind, key) for key in kept if getattr(kind, key, None)}
    horizon = getattr(kind, "horizon", None)
    limits = {} if horizon is None else {"horizons": {"all": horizon}}
    return type(kind.__name__, (base,), own | limits | {"plain_type": kind, "Settings": settings})


def settings_of(
    kind: Callable[..., Any],
    *without: str,
    **defaults: Any,
) -> type[Config]:
    """The arguments of a constructor that are of simple types, as settings; `defaults` replace its
    own. Raises ConfigError for one of another type without a default.
    """
    fields: dict[str, Any] = {}
    for name, parameter in signature_of(kind).parameters.items():
        if name in (*without, "horizon") or parameter.kind in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            continue
        default, hint = defaults.get(name, parameter.default), parameter.annotation
        needed = default is parameter.empty
        if hint is parameter.empty and not needed:
            hint = type(default)
        kinds = alternatives(hint)
        if (
            len(kinds) == 1
            and kinds[0] is not NoneType
            and (kinds[0] in SIMPLE or get_origin(kinds[0]) is Literal)
        ):
            fields[name] = (
                hint,
                option(REQUIRED if needed else default, help=f"Argument of {kind.__name__}."),
            )
        elif needed:
            why = "has no type" if hint is parameter.empty else "cannot be a flag"
            raise ConfigError(
                f"{kind.__name__}: its constructor's argument '{name}' {why}; make it e.g. {name}:"
                " int, or give it a default"
            )
    return create_model("Settings", __base__=Config, **fields) if fields else NoSettings


def signature_of(function: Any) -> inspect.Signature:
    """Its signature, with types in the place of their names. A name that only type checkers import
    stays a text.
    """
    try:
        return inspect.signature(function, eval_str=True)
    except NameError:
        signature = inspect.signature(function)
    code = function.__init__ if inspect.isclass(function) else function
    known = getattr(inspect.unwrap(code), "__globals__", {})
    parameters = []
    for parameter in signature.parameters.values():
        hint = parameter.annotation
        with contextlib.suppress(NameError):
            hint = eval(hint, known) if isinstance(hint, str) else hint
        parameters.append(parameter.replace(annotation=hint))
    return signature.replace(parameters=parameters)


class Plain(Env):
    """The base of adapters: an instance of `plain_type`, and the global generators of random numbers as it sees them.

    Python's and numpy's generators are seeded at each reset and kept between calls, so that a class that uses them is
    played the same way each time, whatever runs beside it.
    """

    plain_type: ClassVar[type]

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        taken = {
            name: value
            for name, value in settings.items()
            if name not in DatasetSettings.model_fields
        }
        self._random = _states(0)
        with self._own_random():
            self.plain: Any = self.plain_type(**taken)

    @classmethod
    def questions(cls) -> Sequence[StateQuestion]:
        """The class's own `questions`, a list or a function that returns one, if it has any."""
        listed = getattr(cls.plain_type, "questions", None)
        if listed is None:
            return super().questions()
        listed = listed() if callable(listed) else listed
        if not isinstance(listed, list | tuple) or not all(
            isinstance(each, StateQuestion) for each in listed
        ):
            place = code_place(cls.plain_type)
            raise ConfigError(
                f"{place}: its questions are {brief(listed)}; give a list of"
                " reflectkit.StateQuestion"
            )
        return tuple(listed)

    def teacher(self) -> Teacher:
        """The class's own `teacher_type`, whose `env` is the instance itself."""
        return self.teacher_type(self.written)

    @property
    def written(self) -> Any:
        """The instance of the user's own class."""
        return self.plain

    @contextlib.contextmanager
    def _own_random(self) -> Any:
        import numpy

        outside = random.getstate(), numpy.random.get_state()
        random.setstate(self._random[0])
        numpy.random.set_state(self._random[1])
        try:
            yield
        finally:
            self._random = random.getstate(), numpy.random.get_state()
            random.setstate(outside[0])
            numpy.random.set_state(outside[1])

    def _begin(self, task: Task, seed: int) -> int:
        """The problem's own seed, or the episode's; a column called so may hold something else."""
        check_task(task, self.name, self.levels)
        own = task.data.get("seed")
        seed = own if isinstance(own, int) else seed
        self._random = _states(seed)
        return seed

    def _call(self, method: str, /, *given: Any, **named: Any) -> Any:
        """What a method of the instance returns. Raises ConfigError if it takes other arguments."""
        own = getattr(self.plain, method)
        try:
            return own(*given, **named)
        except TypeError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
                raise  # from within the method
            called = ", ".join([*map(repr, given), *named]) or "no arguments"
            raise ConfigError(f"{code_place(own)}: {error}; it is called with {called}") from None

    def _wrong(
        self,
        method: str,
        returned: object,
        wanted: str,
    ) -> ConfigError:
        place = code_place(getattr(type(self.written), method))
        return ConfigError(
            f"{place}: {method}() of {self.plain_type.__name__} returned {brief(returned)};"
            f" {wanted}"
        )


def _states(seed: int) -> tuple[Any, Any]:
    import numpy

    return random.Random(seed).getstate(), numpy.random.RandomState(seed % 2**32).get_state()


class Choices(Plain):
    """A class with `choices` (a list, a property or a method), `reset(seed)` → text, and `step(choice)` → (text,
    reward, done). Gymnasium's forms of `reset` and `step` are understood, too.

    Whether the episode is a success, `success` in a fourth value says, a dict; otherwise see `guessed_success`. Other
    numbers in it are figures.
    """

    def reset(
        self,
        task: Task,
        seed: int,
    ) -> Observation | Awaitable[Observation]:
        """Begin the problem."""
        seed, self._gained = self._begin(task, seed), False
        parameters = inspect.signature(self.plain.reset).parameters
        with self._own_random():
            if "seed" in parameters:
                returned = self._call("reset", seed=seed)
            else:
                returned = self._call("reset", *([seed] if parameters else []))
            return followed(returned, self._begun)

    def step(self, action: Action) -> StepResult | Awaitable[StepResult]:
        """Take choice `action`."""
        with self._own_random():
            returned = self._call(
                "step", self._offered[check_choice(action, self._offered, self.name)]
            )
            return followed(returned, self._result)

    def _begun(self, returned: Any) -> Observation:
        return self._observe(
            "reset", returned[0] if isinstance(returned, tuple) and returned else returned
        )

    def _result(self, returned: Any) -> StepResult:
        if not isinstance(returned, tuple) or not 3 <= len(returned) <= 5:
            raise self._wrong("step", returned, FORM)
        text, reward, terminated, *more = returned
        info = more.pop() if more else {}
        truncated = more[0] if more else False
        if not is_reward(reward):
            raise self._wrong(
                "step",
                returned,
                f"its reward is {brief(reward)}; return a finite number",
            )
        for flag in (terminated, truncated):
            if not is_flag(flag):
                raise self._wrong(
                    "step",
                    returned,
                    f"whether it is done is {brief(flag)}; return True or False",
                )
        if not isinstance(info, dict):
            raise self._wrong(
                "step",
                returned,
                f"its last value is {brief(info)}; return a dict there, or leave it out",
            )
        over = bool(terminated or truncated)
        if not isinstance(info.get("success"), bool | int | float | None) and not is_flag(
            info["success"]
        ):
            raise self._wrong("step", returned, "its 'success' must be True or False")
        told = {key: info[key] for key in ("figures", "refused") if key in info}
        if figures := self._figures(returned, info):
            told["last_figures"] = figures
        success = info.get("success")
        if success is None:
            told["success"] = guessed_success(self._gained, float(reward), over)
        else:
            told["success"] = bool(success) if over else False
        self._gained = self._gained or float(reward) > 0
        return StepResult(
            self._observe("step", text, over),
            float(reward),
            bool(terminated),
            bool(truncated),
            told,
        )

    def _figures(
        self,
        returned: Any,
        info: dict[Any, Any],
    ) -> dict[str, float]:
        """The numbers in what `step` returned last, except what has another meaning."""
        figures = {}
        for name, value in info.items():
            if (
                not isinstance(name, str)
                or name in NOT_FIGURES
                or not (isinstance(value, Real) or is_flag(value))
            ):
                continue
            if not is_reward(value):
                raise self._wrong(
                    "step",
                    returned,
                    f"its '{name}' is {brief(value)}; return a finite number",
                )
            figures[name] = float(value)
        return figures

    def _observe(
        self,
        method: str,
        text: object,
        over: bool = False,
    ) -> Observation:
        if not isinstance(text, str):
            raise self._wrong(method, text, "its observation must be a text")
        choices = self.plain.choices
        choices = choices() if callable(choices) else choices
        if not isinstance(choices, list | tuple) or not (choices or over):
            place = code_place(self.plain_type)
            raise ConfigError(
                f"{place}: the choices are {brief(choices)}; give a list of texts, or end the"
                " episode"
            )
        self._offered: Sequence[Any] = choices
        return Observation((Message("user", text),), tuple(map(str, choices)))


class ToolTasks(DatasetTasks):
    """The rows of `--dataset`; without one, a problem for each seed."""

    def has(self, name: str) -> bool:
        """Whether it lists its problems."""
        return (
            bool(self.settings and self.settings.dataset) if name == "tasks" else super().has(name)
        )


class Tools(Plain):
    """A class in the form of TRL's `environment_factory`: its public methods are tools, `reset(**row)` returns the
    prompt or what is added to the row's, and `get_reward()` the score, unless `--reward` does.

    The episode ends when the agent calls no tool. It is a success if the first reward is at least 1.
    """

    acts = "tools"
    taskset: ClassVar[Taskset] = ToolTasks()

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._tools = _tools(self.plain)
        self._waits = waits(self.settings.reward) or any(
            inspect.iscoroutinefunction(getattr(self.plain_type, name, None))
            for name in ("get_reward", *_tool_names(self.plain_type))
        )
        if not hasattr(self.plain, "get_reward") and not self.settings.reward:
            raise ConfigError(
                f"{self.plain_type.__name__} has no get_reward(); add it, or give --reward"
                " FILE.py:NAME"
            )

    def reset(self, task: Task, seed: int) -> Observation:
        """Begin the problem."""
        seed = self._begin(task, seed)
        parameters = inspect.signature(self.plain.reset).parameters
        open_ended = any(
            parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()
        )
        row = {} if task.data.keys() <= {"seed"} else dict(task.data)
        if "self" in row:
            raise DataError(
                f"row {task.id}", "the column 'self' cannot be an argument of reset(); rename it"
            )
        arguments = ({"seed": seed} if "seed" in parameters or open_ended else {}) | row
        with self._own_random():
            shown = self._call("reset", **arguments)
        messages = list(prompt_messages(row["prompt"], task.id)) if "prompt" in row else []
        if not isinstance(shown, str | None) or not (shown or messages):
            raise self._wrong(
                "reset",
                shown,
                "return the prompt, a text" if not messages else "return a text or None",
            )
        last = messages.pop() if messages else Message("user", "")
        self._messages = [*messages, replace(last, content=last.content + (shown or ""))]
        self._row, self._first, self._steps = row, len(self._messages), 0
        self._ids = CompletionIds()
        return self._observe()

    def decided(self, decision: Decision) -> None:
        """Keep the tokens of the answer, for reward functions."""
        self._ids.add(decision)

    async def step(self, action: Action) -> StepResult:
        """Carry out the calls; without one, the episode ends."""
        use = read_use(action, self._tools, self.name)
        self._messages.append(Message("assistant", use.text, use.calls))
        self._steps += 1
        refused, raised = len(use.errors), dict[str, list[str]]()
        with contextlib.nullcontext() if self._waits else self._own_random():
            for call in use.calls:
                try:
                    result = outside_loop(getattr(self.plain, call.name), **call.arguments)
                    said = str(await result if inspect.isawaitable(result) else result)
                except Exception as error:  # the agent reads it, as in TRL
                    said, refused = str({"error": str(error)}), refused + 1
                    if fault := code_error(error):
                        raised.setdefault(call.name, []).append(fault)
                self._messages.append(Message("tool", cut(said, LONGEST_RESULT), name=call.name))
            self._messages += [Message("tool", error) for error in use.errors]
            over = not use.calls and not use.errors
            info: dict[str, Any] = {"refused": refused} if refused else {}
            info |= {CODE_ERROR_KEY: raised} if raised else {}
            reward = 0.0
            if over or self._steps == self.horizon:
                own: list[float | None] = []
                if hasattr(self.plain, "get_reward"):
                    value = outside_loop(self.plain.get_reward)
                    value = await value if inspect.isawaitable(value) else value
                    if value is not None and not is_reward(value):
                        raise self._wrong(
                            "get_reward",
                            value,
                            "return a number, or None where it does not apply",
                        )
                    own = [None if value is None else float(value)]
                messages = chat_messages(self._messages)
                row, completion = (
                    self._row | {"prompt": messages[: self._first]},
                    messages[self._first :],
                )
                reward, told = await score(
                    self.settings.reward,
                    row,
                    completion,
                    self._ids.ids,
                    own=own,
                    environments=[self.plain],
                )
                info |= told
        return StepResult(self._observe(), reward, over, info=info)

    def _observe(self) -> Observation:
        return Observation(tuple(self._messages), tools=self._tools, replies=True)


def _tool_names(kind: type) -> list[str]:
    methods = inspect.getmembers(kind, predicate=inspect.isfunction)
    return [name for name, _ in methods if name not in NOT_TOOLS and not name.startswith("_")]


def _tools(plain: Any) -> tuple[ToolSpec, ...]:
    """The tools of an instance, described by type hints and docstrings. Raises ConfigError without
    them.
    """
    from reflectkit.models.call_forms import tool_of

    tools = []
    for name in _tool_names(type(plain)):
        try:
            tools.append(tool_of(getattr(plain, name)))
        except ValueError as error:
            place = code_place(getattr(type(plain), name))
            raise ConfigError(
                f"{place}: {name}() cannot be a tool: {error}; give its arguments type hints, and"
                " its docstring a section Args, or begin its name with _"
            ) from None
    return tuple(tools)
