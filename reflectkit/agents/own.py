"""Players in a file of the user's own, FILE.py:NAME: a rule, which is a function, or an agent's class."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from reflectkit.env import Agent, Context
from reflectkit.errors import ConfigError, brief, code_place
from reflectkit.registry import resolve
from reflectkit.types import Decision, Observation

FORM = "write def {}(text, choices), which returns one of the choices, or its place"


def own_player(code: str) -> Agent:
    """The player at `code`, FILE.py:NAME: a function, or a class or object with `decide`. Raises
    ConfigError and UnknownNameError.
    """
    player = resolve("player", code, {})
    is_class = isinstance(player, type)
    if not is_class and not hasattr(player, "decide"):
        return Rule(player, code)
    if not inspect.iscoroutinefunction(getattr(player, "decide", None)):
        raise ConfigError(
            f"{code_place(player)}: {code} has no async def decide(self, observation, context),"
            " which returns a reflectkit.Decision"
        )
    if not is_class:
        return player  # type: ignore[no-any-return]
    try:
        inspect.signature(player).bind()
    except TypeError as error:
        raise ConfigError(
            f"{code_place(player)}: {code} is made without arguments, but: {error}"
        ) from None
    return player()  # type: ignore[no-any-return]


class Rule:
    """Acts by a function of the observation's text and its choices."""

    def __init__(self, function: Callable[[str, tuple[str, ...]], Any], code: str) -> None:
        form = FORM.format(code.rpartition(":")[2])
        if not callable(function):
            raise ConfigError(f"{code} is {brief(function)}; {form}")
        try:
            inspect.signature(function).bind("", ())
        except TypeError as error:
            raise ConfigError(f"{code_place(function)}: {error}; {form}") from None
        self._function = function
        self._form = form

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """What the function returns: a choice or its place, or a text where actions are texts.
        Raises ConfigError if it is none of these.
        """
        choices = observation.choices
        answer: Any = self._function(observation.text, choices)
        if not choices and isinstance(answer, str):
            return Decision(answer)
        if answer in choices:
            return Decision(choices.index(answer))
        is_place = isinstance(answer, int) and not isinstance(answer, bool)
        if is_place and 0 <= answer < len(choices):
            return Decision(answer)
        raise ConfigError(
            f"{code_place(self._function)}: returned {brief(answer)}, and the choices are"
            f" {brief(choices)}; {self._form}"
        )
