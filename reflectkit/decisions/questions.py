"""Questions about a state: the prompt in which a model reads one, and the figures of its answer.

The prompt has the form that environments with choices use: the state, the reflector's comment if
there is one, the instructions, and the options as actions. So a policy answers over HTTP as it acts
in its environment. Each question is read alone, so its answer depends neither on other questions
nor on its name. Shapes: K options, R orders of the options.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from reflectkit.jsonl import dumps, first_repeated
from reflectkit.prompts import REFLECTION_MARKER, one_line
from reflectkit.types import Message, Observation, StateQuestion

FEWEST_OPTIONS, MOST_OPTIONS = 2, 255
"""How many options a question may have."""
MOST_LEVELS = 10
"""How many levels a scale may have."""
MOST_QUESTIONS = 400
"""How many questions a request may have."""
YES, NO = "yes", "no"


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a state, and the options that can answer it."""

    kind: Literal["predicate", "choice", "score"]
    """A predicate has the options yes and no; a score has the levels of a scale, lowest first."""
    instructions: str
    """The text of the question, which may be empty."""
    options: tuple[str, ...]
    """The K options, as the model reads them."""
    names: tuple[str | bool, ...] = ()
    """The names of the K options in a request, by which outcomes find one; else empty."""

    def observation(
        self,
        state: str,
        comment: str | None = None,
        order: Sequence[int] = (),
    ) -> Observation:
        """The question as an observation, which the policy reads.

        comment: the reflector's comment on the state; None without a reflector. order: the indices
        of the options in the order in which they are shown; by default the question's own order.
        """
        # The lines of an env's observation: the state, a comment, and what to decide
        lines = [state] if state else []
        if comment is not None:
            lines.append(f"{REFLECTION_MARKER} {one_line(comment)}")
        if self.instructions:
            lines.append(self.instructions)
        message = Message("user", "\n".join(lines))

        options = self.options
        if order:
            options = tuple(self.options[index] for index in order)
        return Observation((message,), options)

    def orders(self, count: int) -> list[tuple[int, ...]]:
        """At most `count` different orders of the options, each as indices (K).

        The first is the question's own order and the second its reverse. The others are rotations
        of both by equal parts. A scale keeps its order, so it has only the first two.

        >>> Question("choice", "", ("a", "b", "c", "d")).orders(4)
        [(0, 1, 2, 3), (3, 2, 1, 0), (2, 3, 0, 1), (1, 0, 3, 2)]
        """
        size = len(self.options)
        rotations = 1 if self.kind == "score" else (count + 1) // 2
        orders = []
        for number in range(rotations):
            shift = number * size // rotations
            forward = tuple((place + shift) % size for place in range(size))
            backward = forward[::-1]
            orders += [forward, backward]
        # A question with few options has fewer different orders
        distinct = dict.fromkeys(orders)
        return list(distinct)[:count]


def refuse_alike(options: Sequence[str]) -> None:
    """Raises ValueError if two of `options` are the same text with their descriptions."""
    option = first_repeated(options)
    if option is not None:
        raise ValueError(f"two options read {option!r:.60}")


def question_about(question: StateQuestion, observation: Observation) -> Question | None:
    """`question` about the state of `observation`; None if there are no options.

    A question without options of its own is about the legal actions.
    """
    options = question.options or observation.choices
    if not options:
        return None
    if options == (YES, NO):
        return Question("predicate", question.text, options)
    return Question("choice", question.text, tuple(options))


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a question: a probability for each option."""

    probabilities: tuple[float, ...]
    """The probability of each option (K), in the order of the question. Their sum is 1."""

    @property
    def likeliest(self) -> int:
        """Index of the likeliest option, the first of several."""
        return self.probabilities.index(max(self.probabilities))

    @property
    def mean_level(self) -> float:
        """The mean index of the level, of a score."""
        terms = [level * share for level, share in enumerate(self.probabilities)]
        return math.fsum(terms)

    @property
    def choice_confidence(self) -> float:
        """(max p - 1/K) / (1 - 1/K): 0 if all options are equally likely, 1 if one is certain."""
        even_share = 1 / len(self.probabilities)
        confidence = (max(self.probabilities) - even_share) / (1 - even_share)
        return min(1.0, max(0.0, confidence))

    @property
    def score_confidence(self) -> float:
        """max(0, 1 - d/u), from 0 to 1.

        d is the mean distance of a level from the likeliest one. u is the mean distance from the
        middle of the scale if all levels are equally likely.
        """
        levels = range(len(self.probabilities))
        distances = [abs(level - self.likeliest) for level in levels]
        mean_distance = math.fsum(map(operator.mul, self.probabilities, distances))

        middle = (len(levels) - 1) / 2
        distances_to_middle = [abs(level - middle) for level in levels]
        even_distance = math.fsum(distances_to_middle) / len(levels)
        return max(0.0, 1 - mean_distance / even_distance)


@dataclass(frozen=True, slots=True)
class Usage:
    """The tokens that the answers to a request took."""

    input_tokens: int = 0
    """Tokens of the prompts. A beginning that several prompts share is counted once."""
    output_tokens: int = 0


def mean_over_orders(
    rows: Sequence[Sequence[float]], orders: Sequence[Sequence[int]]
) -> tuple[float, ...]:
    """The mean probability of each option (K).

    rows: for each order, the probabilities of the options in that order. orders: their indices.

    >>> mean_over_orders([(0.9, 0.1), (0.5, 0.5)], [(0, 1), (1, 0)])
    (0.7, 0.3)
    """
    shares_KR = [[0.0] * len(rows) for _ in rows[0]]
    for number, (row, order) in enumerate(zip(rows, orders, strict=True)):
        for share, option in zip(row, order, strict=True):
            shares_KR[option][number] = share
    return tuple(math.fsum(shares) / len(rows) for shares in shares_KR)


def text_of(value: object) -> str:
    """A state, instructions or a description as text: a text as it is, a structure as JSON, None as
    "".
    """
    if value is None:
        return ""
    return value if isinstance(value, str) else dumps(value)


def option_text(name: str, description: object) -> str:
    """An option as the model reads it: its name, and on the same line its description, if any."""
    words = one_line(text_of(description))
    return f"{name}: {words}" if words else name
