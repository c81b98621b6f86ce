"""A question about a state: its options, the prompt that it is read in, and the numbers of its answer.

The prompt has the form that environments with choices use: the state, the reflector's comment if there is one, the
instructions, and the options as actions. So a policy answers over HTTP as it acts in its environment. A question is
read alone, so its answer depends neither on other questions nor on its name.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from reflectkit.jsonl import dumps
from reflectkit.prompts import REFLECTION_MARKER, one_line
from reflectkit.types import Message, Observation

FEWEST_OPTIONS, MOST_OPTIONS = 2, 255
MOST_LEVELS = 10
MOST_QUESTIONS = 400
YES, NO = "yes", "no"


@dataclass(frozen=True, slots=True)
class Question:
    """One question."""

    kind: Literal["predicate", "choice", "score"]
    """A predicate has the options yes and no. A score has the levels of a scale, the lowest first."""
    instructions: str
    """What is asked; may be empty."""
    options: tuple[str, ...]
    """As the model reads them (K)."""

    def observation(
        self,
        state: str,
        comment: str | None = None,
        order: Sequence[int] = (),
    ) -> Observation:
        """What the policy sees. comment: on the state. order: of the options, as their indices; default: as given."""
        # What an env's observation shows: the state, a comment, and what to decide
        parts = [state] if state else []
        if comment is not None:
            parts.append(f"{REFLECTION_MARKER} {one_line(comment)}")
        if self.instructions:
            parts.append(self.instructions)
        options = tuple(self.options[index] for index in order) if order else self.options
        return Observation((Message("user", "\n".join(parts)),), options)

    def orders(self, count: int) -> list[tuple[int, ...]]:
        """At most `count` different orders of the options: as given, its reverse, and then rotations of both by equal
        parts. A scale is read from its two ends only.

        >>> Question("choice", "", ("a", "b", "c", "d")).orders(4)
        [(0, 1, 2, 3), (3, 2, 1, 0), (2, 3, 0, 1), (1, 0, 3, 2)]
        """
        size = len(self.options)
        pairs = 1 if self.kind == "score" else (count + 1) // 2
        orders = []
        for number in range(pairs):
            shift = number * size // pairs
            forward = tuple((place + shift) % size for place in range(size))
            orders += [forward, forward[::-1]]
        # Few options have fewer orders than were asked for
        return list(dict.fromkeys(orders))[:count]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a question is answered."""

    probabilities: tuple[float, ...]
    """Of its options, in their order (K); their sum is 1."""

    @property
    def likeliest(self) -> int:
        """Index of the likeliest option; of several, the first."""
        return self.probabilities.index(max(self.probabilities))

    @property
    def mean_level(self) -> float:
        """Of a score: the mean index of the level."""
        return math.fsum(level * share for level, share in enumerate(self.probabilities))

    @property
    def choice_confidence(self) -> float:
        """(max p - 1/K) / (1 - 1/K): 0 where all options are as likely as each other, 1 where one is certain."""
        even = 1 / len(self.probabilities)
        return min(1.0, max(0.0, (max(self.probabilities) - even) / (1 - even)))

    @property
    def score_confidence(self) -> float:
        """max(0, 1 - d/u): d is the mean distance from the likeliest level, u that of even shares from the middle."""
        levels = range(len(self.probabilities))
        middle = (len(levels) - 1) / 2
        distances = [abs(level - self.likeliest) for level in levels]
        distance = math.fsum(map(operator.mul, self.probabilities, distances))
        even = math.fsum(abs(level - middle) for level in levels) / len(levels)
        return max(0.0, 1 - distance / even)


@dataclass(frozen=True, slots=True)
class Usage:
    """What answers took."""

    input_tokens: int = 0
    """Those that several questions share are counted once."""
    output_tokens: int = 0


def averaged(rows: Sequence[Sequence[float]], orders: Sequence[Sequence[int]]) -> tuple[float, ...]:
    """The mean probability of each option (K), given those in several orders.

    >>> averaged([(0.9, 0.1), (0.5, 0.5)], [(0, 1), (1, 0)])
    (0.7, 0.3)
    """
    shares_KR = [[0.0] * len(rows) for _ in rows[0]]  # R: orders
    for number, (row, order) in enumerate(zip(rows, orders, strict=True)):
        for place, option in enumerate(order):
            shares_KR[option][number] = row[place]
    return tuple(math.fsum(shares) / len(rows) for shares in shares_KR)


def text_of(value: object) -> str:
    """A state, instructions or a description as text: a text as it is, a structure as JSON, nothing as ""."""
    if value is None:
        return ""
    return value if isinstance(value, str) else dumps(value)


def option_text(name: str, description: object) -> str:
    """An option as the model reads it: its name, and its description in one line if there is one."""
    words = one_line(text_of(description))
    return f"{name}: {words}" if words else name
