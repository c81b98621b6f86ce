"""Gymnasium's spaces: their actions as choices, and observations of few numbers as texts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping
from numbers import Integral, Real
from typing import Any

import numpy
from gymnasium import spaces

from reflectkit.errors import brief

MASK = "action_mask"
"""The part of an observation, or of an info, that says which actions are legal."""
MOST_NUMBERS = 64
"""In an observation that is shown as a text."""
BINARY_MASKS = {0: (1, 0), 1: (0, 1), 2: (1, 1)}
"""What a number in the mask of a MultiBinary space allows: a 0, a 1, or both."""


def action_count(space: spaces.Space[Any]) -> int | None:
    """The number of actions of a space whose parts are discrete; None for another."""
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiBinary):
        return 1 << math.prod(space.shape)
    if isinstance(space, spaces.MultiDiscrete):
        return math.prod(map(int, space.nvec.flat))
    if not isinstance(space, spaces.Tuple | spaces.Dict):
        return None
    count = 1
    for part in _parts(space):
        part_count = action_count(part)
        if part_count is None:
            return None
        count *= part_count
    return count


def actions_of(space: spaces.Space[Any]) -> list[Any]:
    """All actions of a space that `action_count` counts, in the order of `itertools.product`: the
    last part varies fastest.
    """
    if isinstance(space, spaces.Discrete):
        return [space.start + number for number in range(space.n)]
    combinations = itertools.product(*map(actions_of, _parts(space)))
    if isinstance(space, spaces.Tuple):
        return list(combinations)
    if isinstance(space, spaces.Dict):
        return [dict(zip(space.spaces, values, strict=True)) for values in combinations]
    return [numpy.array(values, space.dtype).reshape(space.shape) for values in combinations]


def legal_actions(space: spaces.Space[Any], mask: Any) -> list[bool]:
    """Whether `mask` allows each of `actions_of(space)`. It has a 0 or 1 for each, or is a mask as
    `space.sample` takes it, with one for each part. Raises ValueError for another.
    """
    # 1. One for each action
    values = mask.tolist() if hasattr(mask, "tolist") else mask
    is_list = isinstance(values, list | tuple) and len(values) == action_count(space)
    # Others mark what is forbidden, by -inf
    if is_list and all(_is_bit(value) for value in values):
        return [bool(value) for value in values]

    # 2. One for each part
    masks: Any = values
    if isinstance(space, spaces.Dict) and isinstance(mask, Mapping):
        masks = [mask.get(name) for name in space.spaces]
    elif isinstance(space, spaces.MultiBinary) and numpy.shape(mask) == space.shape:
        masks = [BINARY_MASKS.get(number) for number in numpy.ravel(mask)]
    if isinstance(space, spaces.Discrete) or not isinstance(masks, list | tuple):
        raise ValueError(f"no mask of {space}: {brief(mask)}")
    parts = _parts(space)
    if len(masks) != len(parts):
        raise ValueError(f"no mask of {space}: {brief(mask)}")
    return [all(bits) for bits in itertools.product(*map(legal_actions, parts, masks))]


def action_key(action: Any) -> Hashable:
    """What equal actions have in common, in whatever form they are written: `[1, 0]` and
    `numpy.array([1, 0])`. Raises ValueError for what is no action.
    """
    if isinstance(action, numpy.ndarray):
        action = action.tolist()
    if isinstance(action, Mapping):
        return frozenset((name, action_key(value)) for name, value in action.items())
    if isinstance(action, list | tuple):
        return tuple(map(action_key, action))
    if isinstance(action, Integral):
        return int(action)
    raise ValueError(f"no action: {brief(action)}")


def without_mask(value: Any) -> Any:
    """An observation, or the space of observations, without the mask of actions that it may have as
    one of its parts (PettingZoo's form). What is left is shown without its name if it is one part.
    """
    is_space = isinstance(value, spaces.Dict)
    parts = value.spaces if is_space else value
    if not isinstance(parts, Mapping) or MASK not in parts:
        return value
    others = {name: part for name, part in parts.items() if name != MASK}
    if len(others) == 1:
        return next(iter(others.values()))
    return spaces.Dict(others) if is_space else others


def is_readable(space: spaces.Space[Any]) -> bool:
    """Whether `observation_text` can show the observations of `space`."""
    count = _number_count(space)
    return count is not None and count <= MOST_NUMBERS


def observation_text(observation: Any) -> str:
    """An observation as a text. Raises ValueError unless it is of texts and at most MOST_NUMBERS
    numbers.
    """
    size = _size(observation)
    if size > MOST_NUMBERS:
        raise ValueError(
            f"it has {size:,} parts, and {MOST_NUMBERS} can be shown; return fewer, or a text"
        )
    return in_words(observation)


def in_words(value: Any) -> str:
    """An element of a space, in one line unless it has texts of several. Raises ValueError for what
    is no text, number, list or dict.

    >>> in_words({"gripper": 1, "arm": numpy.array([0.25, -1.0])})
    'gripper: 1, arm: (0.25, -1)'
    """
    if isinstance(value, numpy.ndarray):
        value = value.tolist()
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        parts = {name: _in_brackets(part).strip("\n") for name, part in value.items()}
        if any("\n" in part for part in parts.values()):  # maps and the like, each below its name
            return "\n".join(f"{name}:\n{part}" for name, part in parts.items())
        return ", ".join(f"{name}: {part}" for name, part in parts.items())
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_in_brackets, value))})"
    if isinstance(value, Integral | numpy.bool_):
        return str(value)
    if not isinstance(value, Real):
        raise ValueError(
            f"{brief(value)} is no text, number, list or dict; return one of its observation_space"
        )
    number = float(value)
    # Four digits, but no fewer than a whole number has
    is_large = 1000 <= abs(number) < 1e15
    return f"{number:.0f}" if is_large else f"{number + 0.0:.4g}"  # + 0.0: no minus before 0


def _in_brackets(value: Any) -> str:
    """`value` in words, as part of another one."""
    return f"({in_words(value)})" if isinstance(value, Mapping) else in_words(value)


def _is_bit(value: Any) -> bool:
    return isinstance(value, Real | numpy.bool_) and value in (0, 1)


def _parts(space: Any) -> list[spaces.Space[Any]]:
    """The spaces of which an action of `space` is composed."""
    if isinstance(space, spaces.Dict):
        return list(space.spaces.values())
    if isinstance(space, spaces.Tuple):
        return list(space.spaces)
    if isinstance(space, spaces.MultiBinary):
        return [spaces.Discrete(2)] * math.prod(space.shape)
    return [space[index] for index in range(len(space.nvec))]


def _number_count(space: spaces.Space[Any]) -> int | None:
    """The numbers in an observation; None if it has more than numbers and texts.

    One of a Sequence may have any number: its first is counted.
    """
    if isinstance(space, spaces.Text):
        return 0
    if isinstance(space, spaces.Discrete):
        return 1
    if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        return math.prod(space.shape)
    if isinstance(space, spaces.Sequence):
        return _number_count(space.feature_space)
    if not isinstance(space, spaces.Tuple | spaces.Dict):
        return None
    count = 0
    for part in _parts(space):
        part_count = _number_count(part)
        if part_count is None:
            return None
        count += part_count
    return count


def _size(value: Any) -> int:
    """The numbers and texts in `value`."""
    if isinstance(value, numpy.ndarray):
        return value.size
    if isinstance(value, Mapping):
        return sum(map(_size, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_size, value))
    return 1
