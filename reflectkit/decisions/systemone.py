"""System One's protocol, `POST /v1/systemone`: a state, and questions by name.

The types of questions are noul (yes or no), choice and score. A server reads a `SystemOneRequest` and answers with its
`response`; a client sends `request_body` and reads what comes back with `read_probabilities`. Unknown fields are
ignored, as the protocol wants; images are refused, since ignoring them would change the question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from reflectkit.decisions.questions import (
    FEWEST_OPTIONS,
    MOST_LEVELS,
    MOST_OPTIONS,
    MOST_QUESTIONS,
    NO,
    YES,
    Answer,
    Question,
    Usage,
    option_text,
    text_of,
)
from reflectkit.decisions.replies import UnusableReplyError, checked
from reflectkit.types import StateQuestion

Text = str | dict[str, Any] | list[Any]
Name = Annotated[str, Field(min_length=1)]
ACTION = "action"
"""The name of the one question that a client here asks."""


# -------------------------------------------------------------------------------------- questions


class _Sides(BaseModel):
    """What counts as yes, and as no."""

    model_config = ConfigDict(extra="forbid")
    true: Text | None = None
    false: Text | None = None


class Noul(BaseModel):
    """A question that is answered with the probability of yes."""

    type: Literal["noul"]
    instructions: Text | None = None
    criteria: _Sides | None = None

    @property
    def question(self) -> Question:
        """As the model reads it."""
        sides = self.criteria or _Sides()
        options = option_text(YES, sides.true), option_text(NO, sides.false)
        return Question("predicate", text_of(self.instructions), options)

    def reply(self, answer: Answer) -> dict[str, Any]:
        """The answer's JSON value."""
        return {"type": "noul", "noul": answer.probabilities[0]}


class Choice(BaseModel):
    """A question with named options. criteria: the description of each, or None."""

    type: Literal["choice"]
    instructions: Text | None = None
    criteria: dict[Name, Text | None] = Field(min_length=FEWEST_OPTIONS, max_length=MOST_OPTIONS)

    @property
    def question(self) -> Question:
        """As the model reads it."""
        options = tuple(
            option_text(name, description) for name, description in self.criteria.items()
        )
        return Question("choice", text_of(self.instructions), options)

    def reply(self, answer: Answer) -> dict[str, Any]:
        """The answer's JSON value."""
        names = list(self.criteria)
        return {
            "type": "choice",
            "choice": names[answer.likeliest],
            "probabilities": dict(zip(names, answer.probabilities, strict=True)),
            "confidence": answer.choice_confidence,
        }


class Score(BaseModel):
    """A question with a scale. criteria: the descriptions of its levels, the lowest first."""

    type: Literal["score"]
    instructions: Text | None = None
    criteria: list[Text] = Field(min_length=FEWEST_OPTIONS, max_length=MOST_LEVELS)

    @property
    def question(self) -> Question:
        """As the model reads it."""
        return Question("score", text_of(self.instructions), tuple(map(text_of, self.criteria)))

    def reply(self, answer: Answer) -> dict[str, Any]:
        """The answer's JSON value."""
        # Levels are keys of JSON objects, which are texts
        legend = {str(level): text for level, text in enumerate(self.criteria)}
        shares = {str(level): share for level, share in enumerate(answer.probabilities)}
        return {
            "type": "score",
            "score": answer.mean_level,
            "legend": legend,
            "probabilities": shares,
            "confidence": answer.score_confidence,
        }


# ------------------------------------------------------------------------------------- the server


class SystemOneRequest(BaseModel):
    """The body of a request."""

    state_field: ClassVar[str] = "state"
    """The name of the field with the state."""
    model: str
    state: Text
    questions: dict[Name, Annotated[Noul | Choice | Score, Field(discriminator="type")]] = Field(
        min_length=1, max_length=MOST_QUESTIONS
    )
    assets: Any = None

    @field_validator("assets")
    @classmethod
    def _text_alone(cls, assets: Any) -> None:
        if assets:
            raise ValueError("only text is read; leave out pictures")

    def names(self, model: str) -> bool:
        """Whether it asks for `model`, by its name or by one of Jev's, which clients send by default."""
        return self.model == model or self.model.startswith("jev-")

    @property
    def text(self) -> str:
        """The state."""
        return text_of(self.state)

    @property
    def named_questions(self) -> list[tuple[str, Question]]:
        """The questions with their names."""
        return [(name, question.question) for name, question in self.questions.items()]

    def response(
        self,
        answers: Sequence[Answer],
        usage: Usage,
        number: str,
    ) -> dict[str, Any]:
        """The JSON value of the answers to all questions, in their order. number: names the request in records."""
        replies = {}
        for (name, question), answer in zip(self.questions.items(), answers, strict=True):
            replies[name] = question.reply(answer)
        counts = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
        return {"model": self.model, "answers": replies, "usage": counts, "x_id": number}


# ------------------------------------------------------------------------------------- the client


def request_body(
    state: str,
    instructions: str,
    options: Sequence[str],
    more: Sequence[StateQuestion] = (),
) -> dict[str, Any]:
    """The body of a request, without the model, for a choice among `options`, which are all different. more: further
    questions, which have options, and names of their own.
    """
    # 1. The choice; a field that is left out is no instruction, and an empty one may be
    action = {"type": "choice", "instructions": instructions, "criteria": dict.fromkeys(options)}
    if not instructions:
        del action["instructions"]

    # 2. The others
    questions = {ACTION: action}
    for question in more:
        questions[question.name] = {
            "type": "choice",
            "instructions": question.text,
            "criteria": dict.fromkeys(question.options),
        }
    return {"state": state, "questions": questions}


def read_probabilities(
    answers: object,
    options: Sequence[str],
    more: Sequence[StateQuestion] = (),
) -> tuple[tuple[float, ...], ...]:
    """The probability of each option of each question, given the `answers` to `request_body`. Raises
    UnusableReplyError.
    """
    options_of = {ACTION: options}
    for question in more:
        options_of[question.name] = question.options
    if not isinstance(answers, Mapping) or set(answers) != set(options_of):
        raise UnusableReplyError("it does not answer the question that was asked")
    return tuple(_shares(answers[name], options) for name, options in options_of.items())


def _shares(answer: object, options: Sequence[str]) -> tuple[float, ...]:
    shares = None
    if isinstance(answer, Mapping) and answer.get("type") == "choice":
        shares = answer.get("probabilities")
    if not isinstance(shares, Mapping):
        raise UnusableReplyError("it has no probabilities of the options")
    return checked(shares, options)
