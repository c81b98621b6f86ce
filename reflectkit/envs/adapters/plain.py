"""Plain classes as environments: with choices and a `step`, or with tools as in TRL's
`environment_factory`.
"""

from __future__ import annotations

import contextlib
import inspect
import random
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import lru_cache
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError, create_model

from reflectkit.config import REQUIRED, Config, NoSettings, alternatives, option
from reflectkit.env import (
    Action,
    Env,
    StepResult,
    Taskset,
    Teacher,
    check_choice,
    check_task,
    task_int,
)
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
from reflectkit.errors import ConfigError, DataError, IllegalActionError, brief, code_place
from reflectkit.eventloop import followed, outside_loop
from reflectkit.files import OwnFolder
from reflectkit.flag_names import FLAG_NAMES
from reflectkit.registry import IMPORT_FOLDERS
from reflectkit.rollouts.tool_errors import CODE_ERROR_KEY, code_error
from reflectkit.rollouts.wrappers import OUR_FIGURES, copy_of, is_flag
from reflectkit.tools import read_use
from reflectkit.types import (
    Decision,
    Message,
    Observation,
    StateQuestion,
    Task,
    ToolSpec,
    ToolUse,
)

SIMPLE = (str, int, float, bool, Path, tuple[str, ...])
"""Types of arguments that can be flags."""
FORM = "return (observation, reward, done): a text, a number, and True or False"
NOT_TOOLS = ("reset", "get_reward", "questions")
SUCCESS_KEYS = ("success", "is_success")
"""Under which the info of a step says whether it succeeded; the second is the name of Gymnasium's
robots and of Stable-Baselines3.
"""
NOT_FIGURES = frozenset({*SUCCESS_KEYS, "refused", "return", *OUR_FIGURES})
"""Names of numbers in the info of a step that are not figures of the game: reflectkit reports these
itself.
"""


def env_of_class(kind: type) -> type[Env]:
    """The env of a class with choices, or with tools. Raises ConfigError for another."""
    if hasattr(kind, "choices") and not callable(getattr(kind, "step", None)):
        raise ConfigError(
            f"{kind.__name__} has choices but no step(); write step(self, action), and {FORM}"
        )
    # Choices may also be those of the object, which its methods set
    is_stepped = hasattr(kind, "step") and not hasattr(kind, "get_reward")
    if hasattr(kind, "choices") or is_stepped:
        return wrap_class(Choices, kind, settings_of(kind))
    if hasattr(kind, "get_reward") and not callable(kind.get_reward):
        raise ConfigError(
            f"{kind.__name__}: get_reward is no method; write def get_reward(self), and return a"
            " number"
        )
    if not _tool_names(kind):
        raise ConfigError(
            f"{kind.__name__} offers no actions; add choices and step(), or methods that are tools"
        )
    settings = create_model("Settings", __base__=(settings_of(kind), DatasetSettings))
    return wrap_class(Tools, kind, settings)


def wrap_class(
    base: type[Plain],
    kind: type,
    settings: type[Config],
) -> type[Env]:
    """`kind` as an env of form `base`."""
    attributes: dict[str, Any] = {}
    for key in ("name", "rules", "teacher_type", "max_concurrency", "__doc__", "__module__"):
        if getattr(kind, key, None):
            attributes[key] = getattr(kind, key)
    horizon = getattr(kind, "horizon", None)
    if horizon is not None:
        attributes["horizons"] = {"all": horizon}
    if getattr(kind, "choices", ()) is str:
        attributes["acts"] = "text"
    return type(kind.__name__, (base,), attributes | {"plain_type": kind, "Settings": settings})


def settings_of(
    kind: Callable[..., Any],
    *without: str,
    **defaults: Any,
) -> type[Config]:
    """The arguments of a constructor that are of simple types, as settings; `defaults` replace its
    own. One that is named like a command's flag has `env_` before its name.

    Raises ConfigError for one without a default that cannot be a setting.
    """
    fields: dict[str, Any] = {}
    for name, parameter in signature_of(kind).parameters.items():
        if name in (*without, "horizon"):
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        default, hint = defaults.get(name, parameter.default), parameter.annotation
        is_required = default is parameter.empty
        value_type = _setting_type(hint, default)
        # A field may not have every name, and a constructor may not take it by name
        is_free = not name.startswith("_") and not hasattr(Config, name)
        has_name = parameter.kind is not parameter.POSITIONAL_ONLY
        if value_type is not None and is_free and has_name:
            value = REQUIRED if is_required else default
            flag_name = f"env_{name}" if name in FLAG_NAMES else name
            description = f"Argument {name} of {kind.__name__}."
            fields[name] = value_type, option(value, help=description, name=flag_name)
        elif is_required:
            why, fix = "cannot be a flag", f"make it e.g. {name}: int"
            if hint is parameter.empty:
                why = "has no type"
            elif not is_free:
                fix = "rename it"
            elif not has_name:
                fix = "remove the / after it"
            raise ConfigError(
                f"{kind.__name__}: its constructor's argument '{name}' {why}; {fix}, or give it a"
                " default"
            )
    return create_model("Settings", __base__=Config, **fields) if fields else NoSettings


def _setting_type(hint: Any, default: Any) -> Any:
    """The type of a setting for an argument; None if a text cannot be read as its value. The
    default may be of another type than the hint says, such as None.
    """
    if default is inspect.Parameter.empty:
        return hint if _is_simple(hint) else None
    if default is None:
        return hint | None if _is_simple(hint) else None
    for candidate in (hint, type(default)):
        if _is_simple(candidate) and _may_be(candidate, default):
            return candidate
    return None


def _is_simple(hint: Any) -> bool:
    """Whether a text on the command line can be read as a value of type `hint`."""
    kinds = alternatives(hint)
    return len(kinds) == 1 and (kinds[0] in SIMPLE or get_origin(kinds[0]) is Literal)


def _may_be(hint: Any, default: Any) -> bool:
    """Whether a setting of type `hint` may have the value `default`."""
    kind = create_model("Default", __base__=Config, value=(hint, REQUIRED))
    try:
        kind.model_validate({"value": default})
    except ValidationError:
        return False
    return True


def signature_of(function: Any) -> inspect.Signature:
    """Its signature, with types in the place of their names. A name that only type checkers import
    stays a text.
    """
    try:
        return inspect.signature(function, eval_str=True)
    except NameError:
        signature = inspect.signature(function)
    code = function.__init__ if inspect.isclass(function) else function
    names = getattr(inspect.unwrap(code), "__globals__", {})
    parameters = []
    for parameter in signature.parameters.values():
        hint = parameter.annotation
        with contextlib.suppress(NameError):
            # Names that only type checkers import stay texts
            hint = eval(hint, names) if isinstance(hint, str) else hint
        parameters.append(parameter.replace(annotation=hint))
    return signature.replace(parameters=parameters)


class Plain(Env):
    """The base of adapters: an instance of `plain_type`, and the global generators of random
    numbers and the working folder as it sees them.

    Python's and numpy's generators are seeded at each reset and kept between calls. A class that
    uses them is played the same way each time, whatever else runs.
    """

    plain_type: ClassVar[type]

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # Those of data sets are not the class's
        arguments = {}
        for name, value in settings.items():
            if name not in DatasetSettings.model_fields:
                arguments[name] = value
        self._random = _states(0)
        self._folder = OwnFolder(IMPORT_FOLDERS.get(self.plain_type.__module__))
        with self._class_state():
            self.plain: Any = self.plain_type(**arguments)

    @classmethod
    def questions(cls) -> Sequence[StateQuestion]:
        """The class's own `questions`, a list or a function that returns one, if it has any."""
        questions = getattr(cls.plain_type, "questions", None)
        if questions is None:
            return super().questions()
        if callable(questions):
            questions = questions()
        is_list = isinstance(questions, list | tuple)
        if not is_list or not all(isinstance(each, StateQuestion) for each in questions):
            place = code_place(cls.plain_type)
            raise ConfigError(
                f"{place}: its questions are {brief(questions)}; give a list of"
                " reflectkit.StateQuestion"
            )
        return tuple(questions)

    def teacher(self) -> Teacher:
        """The class's own `teacher_type`, whose `env` is the instance itself."""
        return self.teacher_type(self.written)

    @property
    def written(self) -> Any:
        """The instance of the user's own class."""
        return self.plain

    @contextlib.contextmanager
    def _class_state(self) -> Any:
        """The class's random numbers and working folder inside the block, and those of the rest
        again afterwards.
        """
        import numpy

        outside = random.getstate(), numpy.random.get_state()
        random.setstate(self._random[0])
        numpy.random.set_state(self._random[1])
        try:
            with self._folder:
                yield
        finally:
            self._random = random.getstate(), numpy.random.get_state()
            random.setstate(outside[0])
            numpy.random.set_state(outside[1])

    def _begin(self, task: Task, seed: int) -> int:
        """The problem's own seed, or the episode's; a column called so may hold something else."""
        check_task(task, self.name, self.levels)
        self._check_horizon()
        task_seed = task.data.get("seed")
        seed = task_seed if isinstance(task_seed, int) else seed
        self._random = _states(seed)
        return seed

    def _check_horizon(self) -> None:
        """Raises ConfigError if the instance has another horizon than the class, whose horizon is
        the one that counts, and the user gave none.
        """
        instance_horizon = getattr(self.written, "horizon", None)
        class_horizon = self.horizon_of("all")
        is_default = self.horizon == class_horizon
        if isinstance(instance_horizon, int) and instance_horizon != class_horizon and is_default:
            place = code_place(type(self.written))
            raise ConfigError(
                f"{place}: its constructor sets a horizon of {instance_horizon}, and episodes end"
                f" after {class_horizon} steps; write horizon = {instance_horizon} in the class, or"
                f" add --horizon {instance_horizon}"
            )

    def _call(self, method: str, /, *arguments: Any, **keywords: Any) -> Any:
        """What a method of the instance returns. Raises ConfigError if it takes other arguments."""
        function = getattr(self.plain, method)
        try:
            return function(*arguments, **keywords)
        except TypeError as error:
            # An error within the method is the user's to read
            if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
                raise
            words = ", ".join([*map(repr, arguments), *keywords]) or "no arguments"
            place = code_place(function)
            raise ConfigError(f"{place}: {error}; it is called with {words}") from None

    def _wrong(self, method: str, returned: object, fix: str) -> ConfigError:
        """The error for what `method` returned."""
        place = code_place(getattr(type(self.written), method))
        return ConfigError(
            f"{place}: {method}() of {self.plain_type.__name__} returned {brief(returned)}; {fix}"
        )


def _states(seed: int) -> tuple[Any, Any]:
    """The states of Python's and of numpy's generator with this seed."""
    import numpy

    return random.Random(seed).getstate(), numpy.random.RandomState(seed % 2**32).get_state()


def _seed_arguments(reset: Callable[..., Any], seed: int) -> tuple[list[int], dict[str, int]]:
    """How `reset` gets the seed, by position and by name: as its argument "seed", else as the first
    one, unless that has a default of its own and another meaning, as Gymnasium's "options" has.
    """
    parameters = inspect.signature(reset).parameters
    kinds = {parameter.kind for parameter in parameters.values()}
    if "seed" in parameters or inspect.Parameter.VAR_KEYWORD in kinds:
        return [], {"seed": seed}
    for parameter in parameters.values():
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            is_seed = parameter.default is inspect.Parameter.empty or "seed" in parameter.name
            return ([seed] if is_seed else []), {}
    return [], {}


@lru_cache
def _takes_index(kind: Any) -> bool:
    """Whether the method `step` of `kind` says that its action is an int: a choice's index."""
    parameters = list(inspect.signature(kind.step).parameters.values())
    return len(parameters) > 1 and parameters[1].annotation in (int, "int")


class Choices(Plain):
    """A class with `choices`, `reset(seed)` → text, and `step(choice)` → (text, reward, done). Gymnasium's forms of
    `reset` and `step` are understood, too. Choices are a list, which methods may set, a property or a method. A `step`
    whose argument is an `int` by its type gets the index of the choice. With `choices = str` it gets any text.

    Whether the episode is a success, `success` in a fourth value says, a dict; otherwise see `guessed_success`. Other
    numbers in it are figures.
    """

    choices_fix: ClassVar[Mapping[str, str]] = {
        "reset": "give a list of texts, also where an earlier episode has changed it",
        "step": "give a list of texts, or end the episode",
    }
    """What to do about choices that are none, by the method that ended with them."""

    _offered: Sequence[Any] | None = ()
    """The choices that were shown; None where any text is an action."""

    def reset(
        self,
        task: Task,
        seed: int,
    ) -> Observation | Awaitable[Observation]:
        """Begin the problem."""
        # Another env's problem, or a damaged one, is not played as if it were a seed
        if task.data.keys() - {"seed"}:
            names = ", ".join(task.data)
            raise DataError(task.id, f"has {names}, and reset() gets a seed alone", field="data")
        if "seed" in task.data:
            task_int(task, "seed", 0, 2**63 - 1)
        seed, self._gained = self._begin(task, seed), False
        positions, keywords = _seed_arguments(self.plain.reset, seed)
        with self._class_state():
            return followed(self._call("reset", *positions, **keywords), self._begun)

    def step(self, action: Action) -> StepResult | Awaitable[StepResult]:
        """Take choice `action`, or the text `action` where there are no choices."""
        taken: Any
        if self._offered is None:
            taken = action.text if isinstance(action, ToolUse) else action
            if not isinstance(taken, str):
                raise IllegalActionError(f"{self.name}: no action {action!r:.80}; it takes a text")
        else:
            taken = index = check_choice(action, self._offered, self.name)
            if not _takes_index(self.plain_type):
                taken = self._offered[index]
        with self._class_state():
            return followed(self._call("step", taken), self._result)

    def _begun(self, returned: Any) -> Observation:
        # Gymnasium's form is (observation, info)
        if isinstance(returned, tuple) and returned:
            returned = returned[0]
        return self._observe("reset", returned)

    def _result(self, returned: Any) -> StepResult:
        # 1. The form: (text, reward, done), perhaps with truncated and a dict
        if not isinstance(returned, tuple) or not 3 <= len(returned) <= 5:
            raise self._wrong("step", returned, FORM)
        text, reward, terminated, *more = returned
        info = more.pop() if more else {}
        truncated = more[0] if more else False
        if not is_reward(reward):
            fix = f"its reward is {brief(reward)}; return a finite number"
            raise self._wrong("step", returned, fix)
        for flag in (terminated, truncated):
            if not is_flag(flag):
                fix = f"whether it is done is {brief(flag)}; return True or False"
                raise self._wrong("step", returned, fix)
        if not isinstance(info, dict):
            fix = f"its last value is {brief(info)}; return a dict there, or leave it out"
            raise self._wrong("step", returned, fix)
        success = self._told_success(returned, info)
        # 2. What the dict tells
        step_info = {key: info[key] for key in ("figures", "refused") if key in info}
        figures = self._figures(returned, info)
        if figures:
            step_info["last_figures"] = figures
        over = bool(terminated or truncated)
        if success is None:
            step_info["success"] = guessed_success(self._gained, float(reward), over)
        else:
            step_info["success"] = success and over
        self._gained = self._gained or float(reward) > 0
        return StepResult(
            self._observe("step", text, over),
            float(reward),
            bool(terminated),
            bool(truncated),
            step_info,
        )

    def _told_success(self, returned: Any, info: dict[Any, Any]) -> bool | None:
        """What the info of `returned` says about success; None if it says nothing."""
        for key in SUCCESS_KEYS:
            success = info.get(key)
            if success is None:
                continue
            if not is_flag(success) and not (isinstance(success, Real) and success in (0, 1)):
                raise self._wrong("step", returned, f"its '{key}' must be True or False")
            return bool(success)
        return None

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
            raise self._wrong(
                method, text, "its observation must be a text, as the player reads it"
            )
        # They may differ from step to step
        if not hasattr(self.plain_type, "choices") and not hasattr(self.plain, "choices"):
            raise ConfigError(
                f"{self.plain_type.__name__} has no choices; set them in the class or in reset(), as"
                " a list of texts, or choices = str if step() takes any text (a game of Gymnasium inherits"
                " from gymnasium.Env)"
            )
        choices = self.plain.choices
        messages = (Message("user", text),)
        if choices is str:
            self._offered = None
            return Observation(messages)
        choices = choices() if callable(choices) else choices
        if not isinstance(choices, list | tuple) or not (choices or over):
            raise ConfigError(
                f"{code_place(self.plain_type)}: after {method}() the choices are {brief(choices)};"
                f" {self.choices_fix[method]}"
            )
        # A copy, since other episodes may change a list of the class
        self._offered = tuple(choices)
        for choice in self._offered:
            kind: Any = type(choice)
            if kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__:
                place = code_place(self.plain_type)
                raise ConfigError(
                    f"{place}: the choice {brief(choice)} has no text; give a list of texts, or"
                    f" write {kind.__name__}.__str__"
                )
        return Observation(messages, tuple(map(str, self._offered)))


class ToolTasks(DatasetTasks):
    """The rows of `--dataset`; without one, a problem for each seed."""

    def has(self, name: str) -> bool:
        """Whether it lists its problems."""
        if name == "tasks":
            return bool(self.settings and self.settings.dataset)
        return super().has(name)


class Tools(Plain):
    """A class in the form of TRL's `environment_factory`: its public methods are tools, `reset(**row)` returns the
    prompt or what is added to the row's, and `get_reward()` the score, unless `--reward` does.

    The episode ends when the agent calls no tool. It is a success if the first reward is at least 1.
    """

    acts = "tools"
    default_horizon = 30
    taskset: ClassVar[Taskset] = ToolTasks()

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._tools = _tools(self.plain)
        names = ("get_reward", *_tool_names(self.plain_type))
        methods = [getattr(self.plain_type, name, None) for name in names]
        self._waits = waits(self.settings.reward) or any(map(inspect.iscoroutinefunction, methods))
        """Whether a step may wait: others then run meanwhile, with their own random numbers."""
        # Without a score there is nothing to learn
        if not hasattr(self.plain, "get_reward") and not self.settings.reward:
            raise ConfigError(
                f"{self.plain_type.__name__} has no get_reward(); add it, or give --reward"
                " FILE.py:NAME"
            )

    def reset(
        self,
        task: Task,
        seed: int,
    ) -> Observation | Awaitable[Observation]:
        """Begin the problem."""
        # 1. The arguments: the row, and a seed if it is asked for
        seed = self._begin(task, seed)
        parameters = inspect.signature(self.plain.reset).parameters
        kinds = [parameter.kind for parameter in parameters.values()]
        row = {} if task.data.keys() <= {"seed"} else dict(task.data)
        if "self" in row:
            raise DataError(
                f"row {task.id}", "the column 'self' cannot be an argument of reset(); rename it"
            )
        arguments: dict[str, Any] = {}
        if "seed" in parameters or inspect.Parameter.VAR_KEYWORD in kinds:
            arguments["seed"] = seed
        arguments |= row

        # 2. The prompt: the row's, and what the class adds to it
        def begun(text: Any) -> Observation:
            messages = list(prompt_messages(row["prompt"], task.id)) if "prompt" in row else []
            if not isinstance(text, str | None) or not (text or messages):
                fix = "return a text or None" if messages else "return the prompt, a text"
                raise self._wrong("reset", text, fix)
            last = messages.pop() if messages else Message("user", "")
            self._messages = [*messages, replace(last, content=last.content + (text or ""))]
            self._row, self._first, self._steps = row, len(self._messages), 0
            self._ids = CompletionIds()
            return self._observe()

        with self._class_state():
            return followed(self._call("reset", **arguments), begun)

    def decided(self, decision: Decision) -> None:
        """Keep the tokens of the answer, for reward functions."""
        self._ids.add(decision)

    async def step(self, action: Action) -> StepResult:
        """Carry out the calls; without one, the episode ends."""
        use = read_use(action, self._tools, self.name)
        self._messages.append(Message("assistant", use.text, use.calls))
        self._steps += 1
        refused = len(use.errors)
        faults: dict[str, list[str]] = {}
        with contextlib.nullcontext() if self._waits else self._class_state():
            # 1. The calls
            for call in use.calls:
                try:
                    # A copy, since a tool may change a list, and the call is recorded
                    function = getattr(self.plain, call.name)
                    arguments = with_members(function, copy_of(call.arguments))
                    result = outside_loop(function, **arguments)
                    text = _result_text(await result if inspect.isawaitable(result) else result)
                except Exception as error:  # the agent reads it, as in TRL
                    text, refused = str({"error": str(error)}), refused + 1
                    fault = code_error(error)
                    if fault:
                        faults.setdefault(call.name, []).append(fault)
                self._messages.append(Message("tool", cut(text, LONGEST_RESULT), name=call.name))
            self._messages += [Message("tool", error) for error in use.errors]
            over = not use.calls and not use.errors
            info: dict[str, Any] = {"refused": refused} if refused else {}
            if faults:
                info[CODE_ERROR_KEY] = faults
            # 2. The score, at the end
            reward = 0.0
            if over or self._steps == self.horizon:
                messages = chat_messages(self._messages)
                reward, score_info = await score(
                    self.settings.reward,
                    self._row | {"prompt": messages[: self._first]},
                    messages[self._first :],
                    self._ids.ids,
                    env_rewards=await self._env_rewards(),
                    environments=[self.plain],
                )
                info |= score_info
        return StepResult(self._observe(), reward, over, info=info)

    async def _env_rewards(self) -> list[float | None]:
        """What the class's `get_reward` returns, if it has one."""
        if not hasattr(self.plain, "get_reward"):
            return []
        value = outside_loop(self._call, "get_reward")
        if inspect.isawaitable(value):
            value = await value
        if value is not None and not is_reward(value):
            fix = "return a number, or None where it does not apply"
            raise self._wrong("get_reward", value, fix)
        return [None if value is None else float(value)]

    def _observe(self) -> Observation:
        return Observation(tuple(self._messages), tools=self._tools, replies=True)


def with_members(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """`arguments`, JSON values by name, with members of enumerations where `function` has these as
    type hints. Raises ValueError for a value that has no member.
    """
    # The function alone, so that its object is not kept
    bare = inspect.unwrap(getattr(function, "__func__", function))
    return arguments | {
        name: _read_member(name, adapter, arguments[name])
        for name, adapter in _enumerations(bare).items()
        if name in arguments
    }


@lru_cache(maxsize=256)
def _enumerations(function: Any) -> dict[str, TypeAdapter[Any]]:
    """What reads the arguments of `function` whose type hints name an enumeration, by name."""
    try:
        hints = get_type_hints(function)
    except (NameError, TypeError):  # names that only type checkers know
        return {}
    return {
        name: TypeAdapter(hint)
        for name, hint in hints.items()
        if name != "return" and _names_enumeration(hint)
    }


def _names_enumeration(hint: Any) -> bool:
    """Whether a type hint is an enumeration, or has one in it, as in `list[Color]`."""
    is_own = isinstance(hint, type) and issubclass(hint, Enum)
    return is_own or any(_names_enumeration(part) for part in get_args(hint))


def _read_member(name: str, adapter: TypeAdapter[Any], value: object) -> Any:
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        raise ValueError(f"{name}: {error.errors(include_url=False)[0]['msg']}") from None


def _result_text(result: object) -> str:
    """What a tool returned, as text. Raises TypeError for what has none, but a place in memory."""
    text = str(result)
    if not isinstance(result, str) and re.search(r"<[^<>]* at 0x[0-9a-fA-F]+>", text):
        raise TypeError(f"returned {type(result).__name__}, which has no text; return a text")
    return text


def _tool_names(kind: type) -> list[str]:
    """The names of a class's public methods that are tools."""
    methods = inspect.getmembers(kind, predicate=inspect.isfunction)
    return [name for name, _ in methods if name not in NOT_TOOLS and not name.startswith("_")]


def _tools(plain: Any) -> tuple[ToolSpec, ...]:
    """The tools of an instance, described by type hints and docstrings. Raises ConfigError without
    them.
    """
    from reflectkit.models.call_forms import tool_of

    tools = []
    for name in _tool_names(type(plain)):
        function = getattr(plain, name)
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise ConfigError(
                    f"{code_place(function)}: {name}() cannot be a tool: its arguments are given by"
                    f" name, and '{parameter}' has none; name each, or begin the tool's name with _"
                )
        try:
            tools.append(tool_of(function))
        except ValueError as error:
            place = code_place(function)
            raise ConfigError(
                f"{place}: {name}() cannot be a tool: {error}; give its arguments type hints that JSON"
                " has (str, int, float, bool, list, dict, Literal, an Enum), and its docstring a"
                " section Args, or begin its name with _"
            ) from None
    return tuple(tools)
