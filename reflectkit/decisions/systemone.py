"""System One's protocol, `POST /v1/systemone`: a state, and questions by name.

The types of questions are noul (yes or no), choice and score. A server reads a `SystemOneRequest`
and replies with its `response`. A client sends a `request_body` and reads the reply with
`read_probabilities`. Unknown fields are ignored, as the protocol wants. Images are refused, since
ignoring them would change the question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

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
    refuse_alike,
    text_of,
)
from reflectkit.decisions.replies import UnusableReplyError, option_probabilities
from reflectkit.types import StateQuestion

Text = str | dict[str, Any] | list[Any]
"""A text, or a structure that is shown as JSON."""
Name = Annotated[str, Field(min_length=1)]
ACTION = "action"
"""The name of the question about the next action in a client's request, unless another has it."""


def _at_most(count: int) -> BeforeValidator:
    """A check of the size of an object before its values: a body has room for millions of wrong
    ones.
    """

    def check(value: object) -> object:
        if isinstance(value, dict) and len(value) > count:
            raise ValueError(f"expected at most {count} entries, found {len(value):,}")
        return value

    return BeforeValidator(check)


def _with_descriptions(value: object) -> object:
    """`value` if it is no object or all of its values are descriptions; its first error, as a
    request has room for a hundred thousand. Raises ValueError.
    """
    if isinstance(value, dict):
        for name, description in value.items():
            if not isinstance(description, str | dict | list | None):
                raise ValueError(f"{name!r:.60} is described by {description!r:.60}, no text")
    return value


# -------------------------------------------------------------------------------------- questions


class _Sides(BaseModel):
    """Descriptions of yes (`true`) and no (`false`)."""

    model_config = ConfigDict(extra="forbid")
    true: Text | None = None
    false: Text | None = None


class Noul(BaseModel):
    """A question that is answered with the probability of yes. criteria: what yes and no mean."""

    type: Literal["noul"]
    instructions: Text | None = None
    criteria: Annotated[_Sides | None, _at_most(2)] = None

    @property
    def question(self) -> Question:
        """The question as the model reads it."""
        sides = self.criteria or _Sides()
        options = (option_text(YES, sides.true), option_text(NO, sides.false))
        return Question("predicate", text_of(self.instructions), options, names=(True, False))

    def reply(self, answer: Answer) -> dict[str, Any]:
        """The answer as a JSON value."""
        return {"type": "noul", "noul": answer.probabilities[0]}


class Choice(BaseModel):
    """A question with named options. criteria: a description of each option, or None."""

    type: Literal["choice"]
    instructions: Text | None = None
    criteria: Annotated[
        dict[Name, Text | None],
        BeforeValidator(_with_descriptions),
        _at_most(MOST_OPTIONS),
        Field(min_length=FEWEST_OPTIONS),
    ]

    @model_validator(mode="after")
    def _refuse_alike(self) -> Choice:
        """Raises ValueError."""
        refuse_alike(self.question.options)
        return self

    @property
    def question(self) -> Question:
        """The question as the model reads it."""
        options = tuple(
            option_text(name, description) for name, description in self.criteria.items()
        )
        names = tuple(self.criteria)
        return Question("choice", text_of(self.instructions), options, names)

    def reply(self, answer: Answer) -> dict[str, Any]:
        """The answer as a JSON value."""
        names = list(self.criteria)
        return {
            "type": "choice",
            "choice": names[answer.likeliest],
            "probabilities": dict(zip(names, answer.probabilities, strict=True)),
            "confidence": answer.choice_confidence,
        }


class Score(BaseModel):
    """A question with a scale. criteria: descriptions of its levels, the lowest first."""

    type: Literal["score"]
    instructions: Text | None = None
    criteria: list[Text] = Field(min_length=FEWEST_OPTIONS, max_length=MOST_LEVELS)

    @model_validator(mode="after")
    def _refuse_alike(self) -> Score:
        """Raises ValueError."""
        refuse_alike(self.question.options)
        return self

    @property
    def question(self) -> Question:
        """The question as the model reads it."""
        options = tuple(map(text_of, self.criteria))
        return Question("score", text_of(self.instructions), options)

    def reply(self, answer: Answer) -> dict[str, Any]:
        """The answer as a JSON value."""
        # Keys of JSON objects are texts
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
    questions: Annotated[
        dict[Name, Annotated[Noul | Choice | Score, Field(discriminator="type")]],
        _at_most(MOST_QUESTIONS),
        Field(min_length=1),
    ]
    assets: Any = None

    @field_validator("assets")
    @classmethod
    def _refuse_assets(cls, assets: Any) -> None:
        """Raises ValueError if the request has pictures."""
        if assets:
            raise ValueError("only text is read; leave out pictures")

    def names(self, model: str) -> bool:
        """Whether the request is for `model`. Names that begin with "jev-", which clients send by
        default, are for any model.
        """
        return self.model == model or self.model.startswith("jev-")

    @property
    def text(self) -> str:
        """The state, as the model reads it."""
        return text_of(self.state)

    @property
    def named_questions(self) -> list[tuple[str, Question]]:
        """(name, question) of each."""
        return [(name, question.question) for name, question in self.questions.items()]

    def response(
        self,
        answers: Sequence[Answer],
        usage: Usage,
        number: str,
    ) -> dict[str, Any]:
        """The reply as a JSON value.

        answers: to all questions, in their order. number: the id of the request in records.
        """
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
    """The body of a request for a choice among `options`, without the name of the model.

    instructions: the text of the question; may be empty. options: all different. more: further
    questions, each with options and a name of its own.
    """
    # 1. The choice; a model may read an empty field as an instruction, so it is left out
    action = {"type": "choice", "instructions": instructions, "criteria": dict.fromkeys(options)}
    if not instructions:
        del action["instructions"]
    questions = {_action_name(more): action}

    # 2. The further questions
    for question in more:
        questions[question.name] = {
            "type": "choice",
            "instructions": question.text,
            "criteria": dict.fromkeys(question.options),
        }
    return {"state": state, "questions": questions}


def _action_name(more: Sequence[StateQuestion]) -> str:
    """The name of the question about the action, which none of `more` has."""
    names = {question.name for question in more}
    name = ACTION
    while name in names:
        name += "_"
    return name


def read_probabilities(
    answers: object,
    options: Sequence[str],
    more: Sequence[StateQuestion] = (),
) -> tuple[tuple[float, ...], ...]:
    """For each question, the probability of each option.

    answers: from the reply to a `request_body` with these options and further questions. Raises
    UnusableReplyError.
    """
    options_by_name = {_action_name(more): options}
    for question in more:
        options_by_name[question.name] = question.options
    if not isinstance(answers, Mapping) or set(answers) != set(options_by_name):
        raise UnusableReplyError("it does not answer the question that was asked")
    rows = []
    for name, answer_options in options_by_name.items():
        rows.append(_answer_probabilities(answers[name], answer_options))
    return tuple(rows)


def _answer_probabilities(answer: object, options: Sequence[str]) -> tuple[float, ...]:
    """The probability of each of `options` (K). Raises UnusableReplyError."""
    by_option = None
    if isinstance(answer, Mapping) and answer.get("type") == "choice":
        by_option = answer.get("probabilities")
    if not isinstance(by_option, Mapping):
        raise UnusableReplyError("it has no probabilities of the options")
    return option_probabilities(by_option, options)
