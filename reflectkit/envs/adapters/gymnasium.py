"""Gymnasium's environments with discrete actions that show texts or few numbers: `--env
gymnasium:ID`, or an own class.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import itertools
import re
import traceback
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache, cached_property
from numbers import Integral
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium import spaces
from gymnasium.envs.registration import load_env_creator
from gymnasium.error import Error
from gymnasium.utils import seeding

from reflectkit.env import Env, Teacher
from reflectkit.envs.adapters.plain import Choices, settings_of, wrap_class
from reflectkit.envs.adapters.spaces import (
    MASK,
    MOST_NUMBERS,
    action_count,
    action_key,
    actions_of,
    in_words,
    is_readable,
    legal_actions,
    observation_text,
    without_mask,
)
from reflectkit.errors import ConfigError, brief, code_place, unknown_name, user_code_line
from reflectkit.prompts import LABELS
from reflectkit.registry import import_module
from reflectkit.rollouts.wrappers import TranslatedTeacher

ACTIONS = {
    "FrozenLakeEnv": ("left", "down", "right", "up"),
    "CliffWalkingEnv": ("up", "right", "down", "left"),
    "TaxiEnv": ("south", "north", "east", "west", "pick up", "drop off"),
    "BlackjackEnv": ("stick", "hit"),
    "CartPoleEnv": ("push left", "push right"),
    "MountainCarEnv": ("accelerate left", "do not accelerate", "accelerate right"),
    "AcrobotEnv": ("torque -1", "torque 0", "torque 1"),
    "LunarLander": ("do nothing", "fire left engine", "fire main engine", "fire right engine"),
}
"""Names of actions, as Gymnasium's pages give them; other envs may have `get_action_meanings()`."""
COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
COLOURED = re.compile(r"\x1b\[([\d;]+)m(.*?)\x1b\[0m", re.DOTALL)
FITS = (
    "an environment fits if its actions are discrete and its observations are texts or at most"
    f" {MOST_NUMBERS} numbers, or it has render mode ansi; docs/more-environments.md has a wrapper"
    " that shows other observations as a text"
)
MOST_COMBINATIONS = len(LABELS)
"""Of the parts of an action."""
RETURNS = {
    "reset": ("reset(self, *, seed=None, options=None)", "(observation, info)"),
    "step": ("step(self, action)", "(observation, reward, terminated, truncated, info)"),
}
"""The methods of a game in Gymnasium's present form, each with what it returns."""
SPACES = ("action_space", "observation_space")
CHECKERS = (Path(gymnasium.__file__).parent, Path(__file__))
"""Where the code is that unpacks what a game returned."""


def _is_count(value: Any) -> bool:
    """Whether `value` is a whole number above 0; True is none."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) > 0


ENV_ATTRIBUTES: dict[str, Callable[[Any], bool]] = {
    "horizon": _is_count,
    "max_concurrency": _is_count,
    "teacher_type": lambda value: isinstance(value, type) and issubclass(value, Teacher),
    "rules": lambda value: isinstance(value, str),
    "__doc__": lambda value: isinstance(value, str),
}
"""What a class of Gymnasium may have of an env, where it means the same."""


class GameEnv(Choices):
    """The env of a game."""

    choices_fix = dict.fromkeys(
        ("reset", "step"), "see its action_mask: allow an action, or end the episode"
    )

    @property
    def written(self) -> Any:
        """The game itself, without Gymnasium's wrappers."""
        return self.plain.env.unwrapped

    def _check_horizon(self) -> None:
        """Also raises ConfigError if the game's own limit is longer than a horizon that nobody
        chose.
        """
        super()._check_horizon()
        limit = _step_limit(self.plain.env)
        is_chosen = bool(self.horizons) or self.horizon != self.default_horizon
        if not is_chosen and limit is not None and limit > self.default_horizon:
            raise ConfigError(
                f"{type(self).__name__}: its game ends after {limit} steps, and episodes end after"
                f" {self.default_horizon}; add --horizon {limit}, or write horizon = {limit} in its class"
            )

    def seen(self, observation: Any) -> tuple[str, list[str]]:
        """See `GymnasiumGame.seen`."""
        with self._class_state():
            text, choices = self.plain.seen(observation)
        return text, choices

    @property
    def usual_choices(self) -> list[str]:
        """See `GymnasiumGame.usual_choices`."""
        with self._class_state():
            return list(self.plain.usual_choices)

    def game_action(self, choice: str) -> Any:
        """The action of the game that is called `choice`."""
        return copy.deepcopy(self.plain.actions[self.plain.names.index(choice)])

    def close(self) -> None:
        """Close the game."""
        with self._class_state():
            self.plain.close()

    def teacher(self) -> Any:
        """The class's own, whose actions are the game's; those that are masked are no mistakes to
        make.
        """
        return TranslatedTeacher(super().teacher(), self._legal, self.questions())

    def _legal(self, method: str, actions: Sequence[Any]) -> list[Any]:
        """The game's `actions`, which a teacher's `method` returned, as indices of the choices."""
        game = self.plain
        places = []
        for action in actions:
            try:
                index = game.indices[action_key(action)]
            except (KeyError, ValueError):
                raise ConfigError(
                    f"{code_place(self.teacher_type)}: {method}() returned {brief(action)}; the"
                    f" game's actions are {game.span}"
                ) from None
            name = game.names[index]
            if name in game.choices:
                places.append(game.choices.index(name))
        if method in ("action", "best_actions") and not places:
            raise ConfigError(
                f"{code_place(self.teacher_type)}: {method}() returned {brief(actions[0])}, which"
                " is masked"
            )
        return places


def env_of_class(kind: type) -> type[Env]:
    """The env of a class of Gymnasium."""
    return wrap_class(GameEnv, game_of(kind, kind.__name__, kind), settings_of(kind, "render_mode"))


@cache
def env_of(name: str) -> type[Env]:
    """The env of Gymnasium's `name`, ID or MODULE:ID, where importing the module registers it.
    Raises ConfigError for an unknown one.
    """
    module, _, name = name.rpartition(":")
    if module:
        import_module("module of gymnasium", module)
    try:
        spec = gymnasium.spec(name)
        creator: Any = spec.entry_point
        if not callable(creator):
            creator = load_env_creator(str(creator))
    except (Error, ImportError) as error:
        if name in gymnasium.registry:
            raise ConfigError(f"gymnasium:{name}: {' '.join(str(error).split())}") from None
        hint = "(your own: FILE.py:CLASS, or gymnasium:FILE.py:ID)"
        if not name:
            raise ConfigError(
                f"--env gymnasium: names no game; write e.g. gymnasium:FrozenLake-v1 {hint}"
            ) from None
        raise unknown_name("environment of gymnasium", name, gymnasium.registry, hint) from None

    def make(**settings: Any) -> Any:
        # The checker's warnings are about training with other libraries
        return gymnasium.make(name, disable_env_checker=True, **settings)

    game = game_of(make, name, creator)
    game.__module__ = creator.__module__
    game.horizon = spec.max_episode_steps or game.horizon
    game.__doc__ = re.split(r"\n\s*## (?:Information|Arguments|Version)", creator.__doc__ or "")[0]
    return wrap_class(GameEnv, game, settings_of(creator, "render_mode", **spec.kwargs))


def game_of(make: Callable[..., Any], name: str, kind: Any) -> Any:
    """The class of a game of Gymnasium in the form of `Choices`. make: takes its settings and
    `render_mode`. kind: the game's own class.
    """
    attributes: dict[str, Any] = {}
    for key, fits in ENV_ATTRIBUTES.items():
        value = getattr(kind, key, None)
        if value and fits(value):
            attributes[key] = value
        elif key == "horizon" and isinstance(value, str | float | bool):
            raise ConfigError(
                f"{code_place(kind)}: its horizon is {brief(value)}; give a whole number of steps"
            )
    attributes["make"] = staticmethod(make)
    attributes["name"] = name.lower()
    attributes["__module__"] = getattr(make, "__module__", __name__)
    return type(name, (GymnasiumGame,), attributes)


def _namer(env: Any) -> Any:
    """The outermost layer of `env` that may name its actions: one that does, or the game itself.
    None where a wrapper gives other numbers to the actions further in.
    """
    layer = env
    while isinstance(layer, gymnasium.Wrapper):
        if hasattr(type(layer), "get_action_meanings"):
            return layer
        is_other = isinstance(layer, gymnasium.ActionWrapper)
        if is_other and not isinstance(layer, gymnasium.wrappers.StickyAction):
            return None
        layer = layer.env
    return layer


def _step_limit(env: Any) -> int | None:
    """The steps after which a wrapper ends the game; None if none does."""
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, gymnasium.wrappers.TimeLimit):
            return int(env._max_episode_steps)
        env = env.env
    return None


def _brief_space(space: spaces.Space[Any]) -> str:
    """A space in an error."""
    text = " ".join(str(space).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


class GymnasiumGame:
    """A game of Gymnasium, whose choices are the names of its actions and whose observations are
    texts.
    """

    make: Callable[..., Any]
    horizon: int | None = None

    def __init__(self, **settings: Any) -> None:
        # 1. The game
        self.env = self._made(settings)
        name, bare = type(self).__name__, self.env.unwrapped
        for space in SPACES:
            if not isinstance(getattr(bare, space, None), spaces.Space):
                raise ConfigError(
                    f"{code_place(type(bare))}: {name} has no {space}, a space of Gymnasium; {FITS}"
                )
        self.action_space = copy.deepcopy(self.env.action_space)
        count = self._count()
        # 2. What it shows: texts, its picture in characters, or numbers
        self.shown_space = without_mask(self.env.observation_space)
        is_text = isinstance(self.shown_space, spaces.Text)
        self.renders = not is_text and self._begin_to_render(settings)
        if not (is_text or self.renders or is_readable(self.shown_space)):
            shown = _brief_space(self.shown_space)
            raise ConfigError(f"{name}: its observations are {shown}; {FITS}")
        # 3. The names of its actions: its own, ours, or their numbers
        self.actions = actions_of(self.action_space)
        bare, meanings = self.env.unwrapped, None
        namer = _namer(self.env)
        if namer is not None and hasattr(namer, "get_action_meanings"):
            meanings = namer.get_action_meanings()
        elif namer is bare and type(bare).__name__ in ACTIONS:
            meanings = ACTIONS[type(bare).__name__]
        if meanings is None:
            self.names = [in_words(action) for action in self.actions]
        elif isinstance(meanings, list | tuple | range) and len(meanings) == count:
            lower = [str(meaning).lower() for meaning in meanings]
            # Unless they differ in that alone
            self.names = lower if len({*lower}) == count else list(map(str, meanings))
        else:
            raise ConfigError(
                f"{code_place(type(bare))}: get_action_meanings() of {name} returned"
                f" {brief(meanings)}; return a list of {count} names"
            )
        # 4. Spaces of its own, as those of the class may be drawn from in other episodes
        for space in SPACES:
            with contextlib.suppress(AttributeError):  # a property
                setattr(bare, space, copy.deepcopy(getattr(bare, space)))

    def reset(self, seed: int) -> Any:
        """The first text."""
        seed %= 2**32
        # Some games draw without super().reset(seed=seed), or from their spaces
        bare = self.env.unwrapped
        with contextlib.suppress(AttributeError):  # a property of its own
            bare.np_random, _ = seeding.np_random(seed)
        for space in SPACES:
            getattr(bare, space).seed(seed)
        observation, info = self._call("reset", seed=seed)
        self.choices = self._legal(observation, info)
        return self._text(without_mask(observation))

    def step(self, choice: str) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Take the action of this name."""
        # A copy, since a game may change an array
        action = copy.deepcopy(self.actions[self.names.index(choice)])
        observation, reward, terminated, truncated, info = self._call("step", action)
        self.choices = self._legal(observation, info)
        # Gymnasium's own games tell probabilities in their info, and no results
        if type(self.env.unwrapped).__module__.startswith("gymnasium.envs."):
            info = {}
        return self._text(without_mask(observation)), reward, terminated, truncated, info

    def close(self) -> None:
        """Close the game."""
        # One that never opened a window may fail to close it, and nothing depends on that
        with contextlib.suppress(Exception):
            self.env.close()

    def seen(self, observation: Any) -> tuple[str, list[str]]:
        """The text of an observation that a game elsewhere has given, and the choices there; none
        where only its `info` says which are legal. Raises ConfigError.
        """
        if self.renders:
            raise ConfigError(
                f"{type(self).__name__} was trained on its pictures in characters: pass the text"
                " that render() gives, and choices=[…]"
            )
        text = self._text(without_mask(observation))
        has_mask = isinstance(observation, Mapping) and MASK in observation
        return text, self._legal(observation, {}) if has_mask else self.usual_choices

    @cached_property
    def usual_choices(self) -> list[str]:
        """The choices in every state; none if it says in each state which are legal."""
        observation, info = self._call("reset", seed=0)
        has_mask = MASK in info or (isinstance(observation, Mapping) and MASK in observation)
        return [] if has_mask else self.names

    @cached_property
    def indices(self) -> dict[Hashable, int]:
        """The index of each action, by its `action_key`."""
        return {action_key(action): index for index, action in enumerate(self.actions)}

    @property
    def span(self) -> str:
        """Which actions there are, in words for an error."""
        if isinstance(self.action_space, spaces.Discrete):
            return f"the numbers from {self.actions[0]} to {self.actions[-1]}"
        return f"those of {_brief_space(self.action_space)}"

    def _made(self, settings: Mapping[str, Any], **mode: str) -> Any:
        """A game. Raises ConfigError where something is not installed, unless the user's own code
        says so.
        """
        try:
            return type(self).make(**settings, **mode)
        except (Error, ImportError) as error:
            if user_code_line(error):
                raise
            reason = " ".join(str(error).split())
            raise ConfigError(f"{type(self).__name__}: {reason}") from None

    def _begin_to_render(self, settings: Mapping[str, Any]) -> bool:
        """Make a game that draws itself in characters, if it can. Raises ConfigError if it says
        that it can, its constructor does not allow it, and its observations cannot be shown.
        """
        if "ansi" not in ((self.env.metadata or {}).get("render_modes") or ()):
            return False
        try:
            drawing = self._made(settings, render_mode="ansi")
        except TypeError as error:
            space = self.env.observation_space
            if is_readable(self.shown_space):
                return False
            raise ConfigError(
                f"{type(self).__name__}: its observations are {type(space).__name__}, no text, and"
                f" its constructor does not pass on render_mode ({error}); add that argument, or"
                " wrap it in a gymnasium.ObservationWrapper whose observation_space is Text"
            ) from None
        self.close()
        self.env = drawing
        return bool(self.env.render_mode == "ansi")

    def _count(self) -> int:
        """The number of actions. Raises ConfigError if they cannot be choices."""
        name, space = type(self).__name__, _brief_space(self.action_space)
        wrapper = "by a gymnasium.ActionWrapper whose action_space is Discrete"
        count = action_count(self.action_space)
        if count is None:
            raise ConfigError(f"{name}: its actions are {space}; number them {wrapper}")
        is_combined = not isinstance(self.action_space, spaces.Discrete)
        if is_combined and count > MOST_COMBINATIONS:
            raise ConfigError(
                f"{name}: its actions are {space}, more than {MOST_COMBINATIONS} combinations;"
                f" number those that it needs {wrapper}"
            )
        return count

    def _call(
        self,
        method: str,
        *arguments: Any,
        **keywords: Any,
    ) -> tuple[Any, ...]:
        """What `method` of the game returns. Raises ConfigError unless it has the form in RETURNS,
        whether it is found here or by Gymnasium's own wrappers.
        """
        form, values = RETURNS[method]
        try:
            returned = getattr(self.env, method)(*arguments, **keywords)
        except (AssertionError, TypeError, ValueError) as error:
            # An error of the game's own code is the user's to read
            file = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
            if not any(place in (file, *file.parents) for place in CHECKERS):
                raise
            fault = str(error)
        else:
            count = values.count(",") + 1
            is_form = isinstance(returned, tuple) and len(returned) == count
            if is_form and isinstance(returned[-1], dict):
                return tuple(returned)
            fault = f"it returned {brief(returned)}"
            if is_form:
                fault += ", whose info is no dict"
            if inspect.iscoroutine(returned):
                returned.close()  # otherwise Python warns that it was never awaited
                fault += ", as it is async"
        place = code_place(getattr(type(self.env.unwrapped), method))
        raise ConfigError(
            f"{place}: {method}() of {type(self).__name__}: {fault}; write {form}, and return"
            f" {values}"
        )

    def _legal(self, observation: Any, info: dict[str, Any]) -> list[str]:
        """The names of the actions that `info["action_mask"]` allows, as in Gymnasium's Taxi, or
        `observation["action_mask"]`, as in PettingZoo; without one, all.
        """
        # 1. All of the game
        kind = type(self.env.unwrapped)
        if self.env.action_space != self.action_space:
            raise ConfigError(
                f"{code_place(kind)}: its action space was {_brief_space(self.action_space)}, and is"
                f" {_brief_space(self.env.action_space)}; keep it, and give 0 or 1 for each action"
                " in info['action_mask']"
            )

        # 2. Those that are allowed
        mask = info.get(MASK)
        if mask is None and isinstance(observation, Mapping):
            mask = observation.get(MASK)
        if mask is None:
            return self.names
        try:
            legal = legal_actions(self.action_space, mask)
        except ValueError:
            raise ConfigError(
                f"{code_place(kind)}: action_mask is {brief(mask)}; give 0 or 1 for each of"
                f" {len(self.names)} actions"
            ) from None
        # As in Gymnasium's Taxi, 1 is for a legal action
        return list(itertools.compress(self.names, legal))

    def _text(self, observation: Any) -> Any:
        """What the env shows as text; the places of coloured characters follow in words, where a
        line each.
        """
        # 1. A text, or numbers. What is neither is refused, as in any class with choices
        if isinstance(observation, str) and not self.renders:
            return str(observation)
        if isinstance(self.shown_space, spaces.Text):
            return observation
        if not self.renders:
            try:
                return observation_text(observation)
            except (ValueError, RecursionError) as error:
                kind = type(self.env.unwrapped)
                raise ConfigError(
                    f"{code_place(kind)}: {type(self).__name__} returned the observation"
                    f" {brief(observation)}; {error}"
                ) from None
        picture = self.env.render()
        if not isinstance(picture, str):
            place = code_place(type(self.env.unwrapped).render)
            raise ConfigError(
                f"{place}: render() of {type(self).__name__} returned {brief(picture)}; return a"
                " text"
            )
        # 2. Without colours, of which a note tells each
        picture = picture.strip("\n")
        plain, notes, end = "", [], 0
        for match in COLOURED.finditer(picture):
            plain += picture[end : match.start()]
            row, column = plain.count("\n") + 1, len(plain) - plain.rfind("\n")
            # Codes 30 to 37 are of characters, and 40 to 47 of their background
            colour = "marked"
            for code in map(int, match[1].split(";")):
                if 30 <= code <= 47:
                    colour = COLOURS[code % 10]
                    break
            notes.append(f"{colour} at line {row}, column {column}: {match[2].strip() or 'empty'}")
            plain += match[2]
            end = match.end()
        return "\n".join([plain + picture[end:], *notes])
