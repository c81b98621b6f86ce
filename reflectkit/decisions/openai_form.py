"""OpenAI's Decisions API, `POST /v1/decisions`: an input and a list of questions about it.

The input is a text or a conversation. The types of questions are predicate (yes or no), choice and
score. A server reads a `DecisionsRequest` and replies with its `response`. A client sends a
`request_body` and reads the reply with `read_probabilities`. The fields are those of
`openai.types.decision_create_params`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    FailFast,
    Field,
    StrictBool,
    StrictStr,
    field_validator,
    model_validator,
)
from pydantic_core import from_json
from typing_extensions import TypeAliasType

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
from reflectkit.decisions.replies import (
    ModelRefusalError,
    UnusableReplyError,
    option_probabilities,
)
from reflectkit.jsonl import dumps, first_repeated
from reflectkit.prompts import one_line
from reflectkit.tools import written_message
from reflectkit.types import Message, Observation, StateQuestion, ToolCall

# ------------------------------------------------------------------------------------------ input


# A list ends at its first error: a body has room for millions of wrong items
Objects = TypeAliasType("Objects", Annotated[list[dict[str, Any]], FailFast()])


class _TextPart(BaseModel):
    """A part of a message, of an output or of instructions: a text, or JSON."""

    type: Literal["input_text", "output_text", "refusal", "input_json"]
    text: str = ""
    refusal: str = ""
    data: dict[str, Any] | Objects | None = None

    @property
    def words(self) -> str:
        """The part as the model reads it."""
        return text_of(self.data) or self.text or self.refusal


Parts = TypeAliasType("Parts", Annotated[list[_TextPart], FailFast()])
Content = str | Parts


def _words(content: Content) -> str:
    """The content as the model reads it, one part per line."""
    if isinstance(content, str):
        return content
    return "\n".join(part.words for part in content)


class _InputMessage(BaseModel):
    """A message of a user, of the developer or of the assistant."""

    type: Literal["message"] = "message"
    role: Literal["user", "developer", "system", "assistant"]
    content: Content


class _FunctionCall(BaseModel):
    """A call of a function by the assistant. arguments: the JSON text of an object."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str

    @property
    def call(self) -> ToolCall:
        """The call as our own type. Arguments that are no JSON object become the one argument
        `arguments`.
        """
        try:
            arguments = from_json(self.arguments or "{}", allow_inf_nan=False)
            dumps(arguments)  # raises ValueError for a number that no float holds, e.g. 1e999
        except ValueError:
            arguments = self.arguments
        if not isinstance(arguments, dict):
            arguments = {"arguments": arguments}
        return ToolCall(one_line(self.name), arguments)


class _CustomCall(BaseModel):
    """A call, by the assistant, of a tool that takes text."""

    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    input: str

    @property
    def call(self) -> ToolCall:
        """The call as our own type."""
        return ToolCall(one_line(self.name), {"input": self.input})


class _Output(BaseModel):
    """The output of a call."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str
    output: Content


Item = _InputMessage | _FunctionCall | _CustomCall | _Output
Items = TypeAliasType("Items", Annotated[list[Item], FailFast()])


def _conversation(items: Sequence[Item]) -> str:
    """The items as one text.

    Speakers are named if the assistant or a tool has said something. Otherwise the text is the
    contents alone.
    """
    # 1. Items as messages; an output gets the name of the tool from its call
    messages: list[Message] = []
    tool_names: dict[str, str] = {}
    for item in items:
        if isinstance(item, _InputMessage):
            role: Any = "system" if item.role == "developer" else item.role
            messages.append(Message(role, _words(item.content)))
        elif isinstance(item, _Output):
            tool_name = tool_names[item.call_id]
            messages.append(Message("tool", _words(item.output), name=tool_name))
        else:
            tool_names[item.call_id] = one_line(item.name)
            messages.append(written_message("", [item.call]))

    # 2. Messages as a text
    has_agent = any(message.role in ("assistant", "tool") for message in messages)
    return Observation(tuple(messages), replies=has_agent).text


# -------------------------------------------------------------------------------------- questions


class _Question(BaseModel):
    """The fields of every question."""

    name: str | None = None
    instructions: Content

    def _reply(self, kind: str, **fields: Any) -> dict[str, Any]:
        return {"type": kind, "name": self.name, **fields}


class PredicateQuestion(_Question):
    """A statement that is answered with the probability that it is true."""

    type: Literal["predicate"]

    @property
    def question(self) -> Question:
        """The question as the model reads it."""
        return Question("predicate", _words(self.instructions), (YES, NO), names=(True, False))

    def reply(self, answer: Answer) -> dict[str, Any]:
        """The answer as a JSON value."""
        return self._reply("predicate", probability=answer.probabilities[0])


class _Option(BaseModel):
    """An option of a choice."""

    value: StrictStr | StrictBool
    description: str | None = None

    @property
    def words(self) -> str:
        """The option as the model reads it."""
        name = self.value if isinstance(self.value, str) else text_of(self.value)
        return option_text(name, self.description)


class ChoiceQuestion(_Question):
    """A question with options, each a text or a Boolean."""

    type: Literal["choice"]
    choices: Annotated[list[_Option], FailFast()] = Field(
        min_length=FEWEST_OPTIONS, max_length=MOST_OPTIONS
    )

    @field_validator("choices")
    @classmethod
    def _check_distinct(cls, choices: list[_Option]) -> list[_Option]:
        value = first_repeated(option.value for option in choices)
        if value is not None:
            raise ValueError(f"the choice {value!r:.60} is there twice")
        refuse_alike([option.words for option in choices])
        return choices

    @property
    def question(self) -> Question:
        """The question as the model reads it."""
        options = tuple(option.words for option in self.choices)
        names = tuple(option.value for option in self.choices)
        return Question("choice", _words(self.instructions), options, names)

    def reply(self, answer: Answer) -> dict[str, Any]:
        """The answer as a JSON value."""
        values = [option.value for option in self.choices]
        entries = []
        for value, probability in zip(values, answer.probabilities, strict=True):
            entries.append({"value": value, "probability": probability})
        return self._reply(
            "choice",
            choice=values[answer.likeliest],
            probabilities=entries,
            confidence=answer.choice_confidence,
        )


class _Level(BaseModel):
    """A level of a scale."""

    label: str
    description: str | None = None


class ScoreQuestion(_Question):
    """A question with a scale. Its levels, the lowest first, have the values 0, 1, …"""

    type: Literal["score"]
    levels: list[_Level] = Field(min_length=FEWEST_OPTIONS, max_length=MOST_LEVELS)

    @model_validator(mode="after")
    def _refuse_alike(self) -> ScoreQuestion:
        """Raises ValueError."""
        refuse_alike(self.question.options)
        return self

    @property
    def question(self) -> Question:
        """The question as the model reads it."""
        options = tuple(option_text(level.label, level.description) for level in self.levels)
        labels = tuple(level.label for level in self.levels)
        return Question("score", _words(self.instructions), options, labels)

    def reply(self, answer: Answer) -> dict[str, Any]:
        """The answer as a JSON value."""
        entries = []
        for value, probability in enumerate(answer.probabilities):
            label = self.levels[value].label
            entries.append({"label": label, "value": value, "probability": probability})
        return self._reply(
            "score",
            score=answer.mean_level,
            probabilities=entries,
            confidence=answer.score_confidence,
        )


# ------------------------------------------------------------------------------------- the server


class DecisionsRequest(BaseModel):
    """The body of a request."""

    state_field: ClassVar[str] = "input"
    """The name of the field with the state."""
    model: str
    input: str | Items
    questions: list[
        Annotated[PredicateQuestion | ChoiceQuestion | ScoreQuestion, Field(discriminator="type")]
    ] = Field(min_length=1, max_length=MOST_QUESTIONS)

    @model_validator(mode="after")
    def _check_outputs(self) -> DecisionsRequest:
        """Raises ValueError if an output has no call before it."""
        if isinstance(self.input, str):
            return self
        call_ids: set[str] = set()
        for item in self.input:
            if isinstance(item, _FunctionCall | _CustomCall):
                call_ids.add(item.call_id)
            elif isinstance(item, _Output) and item.call_id not in call_ids:
                raise ValueError(
                    f"input: no call before it has the call_id {item.call_id!r:.60} of an output"
                )
        return self

    @model_validator(mode="after")
    def _names_differ(self) -> DecisionsRequest:
        """Raises ValueError if two questions have one name, by which outcomes find a decision."""
        name = first_repeated(question.name for question in self.questions if question.name)
        if name is not None:
            raise ValueError(f"questions: two are named {name!r:.60}")
        return self

    def names(self, model: str) -> bool:
        """Whether the request is for `model`. It always is, as in chat completions."""
        return True

    @property
    def text(self) -> str:
        """The state, as the model reads it."""
        return self.input if isinstance(self.input, str) else _conversation(self.input)

    @property
    def named_questions(self) -> list[tuple[str, Question]]:
        """(name, question) of each. The name of a question without one is its index."""
        names = self._question_names
        questions = [question.question for question in self.questions]
        return list(zip(names, questions, strict=True))

    @property
    def _question_names(self) -> list[str]:
        """The names of the questions. One without a name has its number, with underscores after it
        if another has that name.
        """
        given = {question.name for question in self.questions}
        names = []
        for number, question in enumerate(self.questions):
            name = str(number)
            while name in given:
                name += "_"
            names.append(question.name or name)
        return names

    def response(
        self,
        answers: Sequence[Answer],
        usage: Usage,
        number: str,
    ) -> dict[str, Any]:
        """The reply as a JSON value.

        answers: to all questions, in their order. number: the id of the request in records.
        """
        replies = []
        for question, answer in zip(self.questions, answers, strict=True):
            replies.append(question.reply(answer))

        # A client has no cache here, and all output tokens are thoughts
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
    """The body of a request for a choice among `options`, without the name of the model.

    instructions: the text of the question; may be empty. options: all different. more: further
    questions, each with options.
    """
    all_questions = [(instructions, options)]
    all_questions += [(question.text, question.options) for question in more]
    questions = []
    for text, values in all_questions:
        choices = [{"value": value} for value in values]
        questions.append({"type": "choice", "instructions": text, "choices": choices})
    return {"input": state, "questions": questions}


def read_probabilities(
    answers: object,
    options: Sequence[str],
    more: Sequence[StateQuestion] = (),
) -> tuple[tuple[float, ...], ...]:
    """For each question, the probability of each option.

    answers: from the reply to a `request_body` with these options and further questions. Raises
    UnusableReplyError, and ModelRefusalError if the model declined to answer.
    """
    option_lists = [options]
    option_lists += [question.options for question in more]
    if not isinstance(answers, list) or len(answers) != len(option_lists):
        raise UnusableReplyError("it does not answer the question that was asked")
    rows = []
    for answer, answer_options in zip(answers, option_lists, strict=True):
        rows.append(_answer_probabilities(answer, answer_options))
    return tuple(rows)


def _answer_probabilities(answer: object, options: Sequence[str]) -> tuple[float, ...]:
    """The probability of each of `options` (K). Raises as `read_probabilities`."""
    # 1. Check the form of the answer
    if not isinstance(answer, Mapping):
        raise UnusableReplyError("it does not answer the question that was asked")
    if answer.get("type") == "refusal":
        raise ModelRefusalError("the model refused to answer")
    entries = answer.get("probabilities")
    if answer.get("type") != "choice" or not isinstance(entries, list):
        raise UnusableReplyError("it has no probabilities of the options")

    # 2. Read its entries, one for each option
    by_option: dict[Any, Any] = {}
    for entry in entries:
        value = entry.get("value") if isinstance(entry, Mapping) else None
        if not isinstance(value, str) or value in by_option:
            raise UnusableReplyError("its options are not those that were offered")
        by_option[value] = entry.get("probability")
    return option_probabilities(by_option, options)
