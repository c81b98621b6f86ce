"""OpenAI's Decisions API, `POST /v1/decisions`: an input, which is a text or a conversation, and a list of questions.

The types of questions are predicate (yes or no), choice and score. A server reads a `DecisionsRequest` and answers with
its `response`; a client sends `request_body` and reads what comes back with `read_probabilities`. The fields are those
of `openai.types.decision_create_params`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Field, StrictBool, StrictStr, field_validator, model_validator
from pydantic_core import from_json

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
from reflectkit.decisions.replies import ModelRefusalError, UnusableReplyError, checked
from reflectkit.jsonl import dumps
from reflectkit.prompts import one_line
from reflectkit.tools import written_message
from reflectkit.types import Message, Observation, StateQuestion, ToolCall

# ------------------------------------------------------------------------------------------ input


class _TextPart(BaseModel):
    """A part of a message, an output or instructions: text, or JSON that is rendered as text."""

    type: Literal["input_text", "output_text", "refusal", "input_json"]
    text: str = ""
    refusal: str = ""
    data: dict[str, Any] | list[dict[str, Any]] | None = None

    @property
    def words(self) -> str:
        """The part as text."""
        return text_of(self.data) or self.text or self.refusal


Content = str | list[_TextPart]


def _words(content: Content) -> str:
    return content if isinstance(content, str) else "\n".join(part.words for part in content)


class _Said(BaseModel):
    """A message."""

    type: Literal["message"] = "message"
    role: Literal["user", "developer", "system", "assistant"]
    content: Content


class _FunctionCall(BaseModel):
    """A call of a function by the assistant. arguments: a JSON object."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str

    @property
    def call(self) -> ToolCall:
        """The call. Arguments that are no object are shown as they are."""
        try:
            arguments = from_json(self.arguments or "{}", allow_inf_nan=False)
            dumps(arguments)  # refuses 1e999
        except ValueError:
            arguments = self.arguments
        if not isinstance(arguments, dict):
            arguments = {"arguments": arguments}
        return ToolCall(one_line(self.name), arguments)


class _CustomCall(BaseModel):
    """A call of a tool that takes text."""

    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    input: str

    @property
    def call(self) -> ToolCall:
        """The call."""
        return ToolCall(one_line(self.name), {"input": self.input})


class _Output(BaseModel):
    """What a call returned."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str
    output: Content


Item = _Said | _FunctionCall | _CustomCall | _Output


def _conversation(items: Sequence[Item]) -> str:
    """The items as text, with speakers where the assistant or a tool has said something; else their contents."""
    # 1. Messages; the output of a call names its tool by the call
    messages: list[Message] = []
    names: dict[str, str] = {}
    for item in items:
        if isinstance(item, _Said):
            role: Any = "system" if item.role == "developer" else item.role
            messages.append(Message(role, _words(item.content)))
        elif isinstance(item, _Output):
            messages.append(Message("tool", _words(item.output), name=names[item.call_id]))
        else:
            names[item.call_id] = one_line(item.name)
            messages.append(written_message("", [item.call]))

    # 2. Their text
    has_agent = any(message.role in ("assistant", "tool") for message in messages)
    return Observation(tuple(messages), replies=has_agent).text


# -------------------------------------------------------------------------------------- questions


class _Question(BaseModel):
    """What all questions have."""

    name: str | None = None
    instructions: Content

    def _reply(self, kind: str, **fields: Any) -> dict[str, Any]:
        return {"type": kind, "name": self.name, **fields}


class PredicateQuestion(_Question):
    """A statement that is answered with the probability that it is true."""

    type: Literal["predicate"]

    @property
    def question(self) -> Question:
        """As the model reads it."""
        return Question("predicate", _words(self.instructions), (YES, NO))

    def reply(self, answer: Answer) -> dict[str, Any]:
        """The answer's JSON value."""
        return self._reply("predicate", probability=answer.probabilities[0])


class _Option(BaseModel):
    value: StrictStr | StrictBool
    description: str | None = None

    @property
    def words(self) -> str:
        """As the model reads it."""
        name = self.value if isinstance(self.value, str) else text_of(self.value)
        return option_text(name, self.description)


class ChoiceQuestion(_Question):
    """A question with options, each a text or a Boolean."""

    type: Literal["choice"]
    choices: list[_Option] = Field(min_length=FEWEST_OPTIONS, max_length=MOST_OPTIONS)

    @field_validator("choices")
    @classmethod
    def _different(cls, choices: list[_Option]) -> list[_Option]:
        values = [(type(option.value), option.value) for option in choices]
        for place, value in enumerate(values):
            if value in values[:place]:
                raise ValueError(f"the choice {value[1]!r:.60} is there twice")
        return choices

    @property
    def question(self) -> Question:
        """As the model reads it."""
        options = tuple(option.words for option in self.choices)
        return Question("choice", _words(self.instructions), options)

    def reply(self, answer: Answer) -> dict[str, Any]:
        """The answer's JSON value."""
        values = [option.value for option in self.choices]
        shares = []
        for value, share in zip(values, answer.probabilities, strict=True):
            shares.append({"value": value, "probability": share})
        return self._reply(
            "choice",
            choice=values[answer.likeliest],
            probabilities=shares,
            confidence=answer.choice_confidence,
        )


class _Level(BaseModel):
    label: str
    description: str | None = None


class ScoreQuestion(_Question):
    """A question with a scale, whose levels have the values 0, 1, …"""

    type: Literal["score"]
    levels: list[_Level] = Field(min_length=FEWEST_OPTIONS, max_length=MOST_LEVELS)

    @property
    def question(self) -> Question:
        """As the model reads it."""
        options = tuple(option_text(level.label, level.description) for level in self.levels)
        return Question("score", _words(self.instructions), options)

    def reply(self, answer: Answer) -> dict[str, Any]:
        """The answer's JSON value."""
        shares = []
        for value, share in enumerate(answer.probabilities):
            label = self.levels[value].label
            shares.append({"label": label, "value": value, "probability": share})
        return self._reply(
            "score",
            score=answer.mean_level,
            probabilities=shares,
            confidence=answer.score_confidence,
        )


# ------------------------------------------------------------------------------------- the server


class DecisionsRequest(BaseModel):
    """The body of a request."""

    state_field: ClassVar[str] = "input"
    """The name of the field with the state."""
    model: str
    input: str | list[Item]
    questions: list[
        Annotated[PredicateQuestion | ChoiceQuestion | ScoreQuestion, Field(discriminator="type")]
    ] = Field(min_length=1, max_length=MOST_QUESTIONS)

    @model_validator(mode="after")
    def _outputs_have_calls(self) -> DecisionsRequest:
        call_ids: set[str] = set()
        for item in self.input if isinstance(self.input, list) else ():
            if isinstance(item, _FunctionCall | _CustomCall):
                call_ids.add(item.call_id)
            elif isinstance(item, _Output) and item.call_id not in call_ids:
                raise ValueError(
                    f"input: no call before it has the call_id {item.call_id!r:.60} of an output"
                )
        return self

    def names(self, model: str) -> bool:
        """Whether it asks for `model`: always, as in chat completions."""
        return True

    @property
    def text(self) -> str:
        """The state."""
        return self.input if isinstance(self.input, str) else _conversation(self.input)

    @property
    def named_questions(self) -> list[tuple[str, Question]]:
        """The questions with their names; one without a name has its number."""
        named = []
        for number, question in enumerate(self.questions):
            named.append((question.name or str(number), question.question))
        return named

    def response(
        self,
        answers: Sequence[Answer],
        usage: Usage,
        number: str,
    ) -> dict[str, Any]:
        """The JSON value of the answers to all questions, in their order. number: names the request in records."""
        replies = []
        for question, answer in zip(self.questions, answers, strict=True):
            replies.append(question.reply(answer))

        # Nothing is cached for a client, and what was written is thought
        counts = {
            "input_tokens": usage.input_tokens,
            "input_tokens_details": {"cache_write_tokens": 0, "cached_tokens": 0},
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.output_tokens},
            "total_tokens": usage.input_tokens + usage.output_tokens,
        }
        return {"id": number, "model": self.model, "answers": replies, "usage": counts}


# ------------------------------------------------------------------------------------- the client


def request_body(
    state: str,
    instructions: str,
    options: Sequence[str],
    more: Sequence[StateQuestion] = (),
) -> dict[str, Any]:
    """The body of a request, without the model, for a choice among `options`, which are all different. more: further
    questions, which have options.
    """
    texts_and_options = [(instructions, options)]
    texts_and_options += [(question.text, question.options) for question in more]
    questions = []
    for text, values in texts_and_options:
        choices = [{"value": value} for value in values]
        questions.append({"type": "choice", "instructions": text, "choices": choices})
    return {"input": state, "questions": questions}


def read_probabilities(
    answers: object,
    options: Sequence[str],
    more: Sequence[StateQuestion] = (),
) -> tuple[tuple[float, ...], ...]:
    """The probability of each option of each question, given the `answers` to `request_body`. Raises
    UnusableReplyError, and ModelRefusalError where the model declined to answer.
    """
    option_lists = [options, *(question.options for question in more)]
    if not isinstance(answers, list) or len(answers) != len(option_lists):
        raise UnusableReplyError("it does not answer the question that was asked")
    pairs = zip(answers, option_lists, strict=True)
    return tuple(_shares(answer, options) for answer, options in pairs)


def _shares(answer: object, options: Sequence[str]) -> tuple[float, ...]:
    # 1. Its form
    if not isinstance(answer, Mapping):
        raise UnusableReplyError("it does not answer the question that was asked")
    if answer.get("type") == "refusal":
        raise ModelRefusalError("the model refused to answer")
    entries = answer.get("probabilities")
    if answer.get("type") != "choice" or not isinstance(entries, list):
        raise UnusableReplyError("it has no probabilities of the options")

    # 2. Its entries, one for each option
    shares: dict[Any, Any] = {}
    for entry in entries:
        value = entry.get("value") if isinstance(entry, Mapping) else None
        if not isinstance(value, str) or value in shares:
            raise UnusableReplyError("its options are not those that were offered")
        shares[value] = entry.get("probability")
    return checked(shares, options)
