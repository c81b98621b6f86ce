"""Logged conversations as lessons: chats with tools as data sets have them, and the files of `serve
--record`.

Logs come from anywhere: nulls stand for what is absent, schemas name types as Python does, calls
and results are written into the words, and reasoning precedes answers. All of that is read as it is
meant. What play would refuse is not taught, and what is left out is counted.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from reflectkit.console import Table
from reflectkit.data.sft_rows import Lesson, lessons
from reflectkit.envs.conversation import THOUGHTS, spoken
from reflectkit.errors import DataError
from reflectkit.jsonl import dumps, read_jsonl
from reflectkit.models.call_forms import CALL_FORMS
from reflectkit.prompts import one_line
from reflectkit.tools import (
    HERMES,
    LLAMA,
    PLAIN,
    CallForm,
    Form,
    check_call,
    drop_foreign_nulls,
    looks_like_call,
    parse,
    tools_of_calls,
    words_before_any_call,
    words_beside_calls,
    written_message,
)
from reflectkit.types import (
    Decision,
    Message,
    Observation,
    ToolCall,
    ToolSpec,
    ToolUse,
    Turn,
    from_json,
)

THOUGHT = re.compile(
    rf"<(think|thinking)>.*?</\1>|\[THINK\].*?\[/THINK\]|{THOUGHTS.pattern}", re.DOTALL
)
RESULTS = re.compile(
    r"\s*(?:<tool_response>(?:(?!<tool_response>).)*</tool_response>\s*)+", re.DOTALL
)
RESULT = re.compile(r"<tool_response>(.*?)</tool_response>", re.DOTALL)
SPEAKERS = {
    "human": "user",
    "gpt": "assistant",
    "function_call": "assistant",
    "observation": "tool",
    "function": "tool",
    "ipython": "tool",
}
"""OpenAI's names of roles by those of ShareGPT, of OpenAI itself before there were tools, and of
Llama 3.
"""
FORMS: tuple[Form, ...] = (HERMES, *CALL_FORMS, LLAMA, PLAIN)
REFUSED = "a call that cannot be read, or that its tool refuses"
LONGEST_EXAMPLE = 100  # characters


class Unusable(Exception):
    """Why a row or an answer is left out. example: what it says there."""

    def __init__(self, reason: str, example: str = "") -> None:
        super().__init__(reason)
        self.example = one_line(example)[:LONGEST_EXAMPLE]


@dataclass
class Account:
    """What became of the rows of a log, and of the answers in them."""

    rows: int = 0
    """Rows that were read."""
    used: int = 0
    """Rows that teach something."""
    answers: int = 0
    """Answers that are learned."""
    without_tools: int = 0
    """Rows that teach calls, and offer no tools."""
    rows_left_out: Counter[str] = field(default_factory=Counter)
    """By reason."""
    answers_left_out: Counter[str] = field(default_factory=Counter)
    """In rows that are used."""
    first: dict[str, tuple[int, str]] = field(default_factory=dict)
    """By reason, the first line for it, and an example."""

    def leave_out(self, counts: Counter[str], reason: Unusable, line: int) -> None:
        """Count a row or an answer."""
        counts[str(reason)] += 1
        self.first.setdefault(str(reason), (line, reason.example))

    def table(self, path: Path) -> Table:
        """For a person."""
        cells = [("rows", str(self.rows), ""), ("rows used", str(self.used), "")]
        cells += self._left_out("rows", self.rows_left_out)
        cells += [("answers to learn from", str(self.answers), "")]
        cells += self._left_out("answers", self.answers_left_out)
        if self.without_tools:
            cells += [("rows that call, and offer no tools", str(self.without_tools), "")]
        return Table(f"Log {path}", ("what", "number", "first"), tuple(cells))

    def _left_out(self, what: str, counts: Counter[str]) -> Iterator[tuple[str, str, str]]:
        for reason, number in counts.most_common():
            line, example = self.first[reason]
            place = f"line {line}: {example}" if example else f"line {line}"
            yield f"{what} left out: {reason}", str(number), place


@dataclass(frozen=True)
class _LoggedMessage:
    """A message as it is meant. comment: the assistant's words before its calls. fault: why it is
    not learned.
    """

    message: Message
    comment: str = ""
    fault: Unusable | None = None


def logged_lessons(path: Path) -> tuple[list[Lesson], Account]:
    """The lessons of the conversations in `path`, and what became of its rows.

    A row is a conversation (`messages` and `tools` in OpenAI's form, `conversations` in ShareGPT's,
    or `prompt` and `completion`), or an answer that `serve --record` kept, which goes on with the
    last conversation of its session if it extends that. The words of a message that calls are the
    comment on the state before it.

    Raises DataError, also where no row can be used.
    """
    account = Account()
    conversations: list[list[Turn]] = []
    sessions: dict[str, list[Turn]] = {}
    for line, row in read_jsonl(path):
        account.rows += 1
        outcomes: list[Turn | Unusable]
        try:
            outcomes = (
                [_served_answer(row, path, line)] if "decision" in row else _logged_answers(row)
            )
        except Unusable as unusable:
            outcomes = [unusable]
        turns = [outcome for outcome in outcomes if isinstance(outcome, Turn)]
        faults = [outcome for outcome in outcomes if isinstance(outcome, Unusable)]

        # 1. Count the row and its answers.
        if not turns:
            reason = faults[0] if faults else Unusable("no answer of an assistant")
            account.leave_out(account.rows_left_out, reason, line)
            continue
        for fault in faults:
            account.leave_out(account.answers_left_out, fault, line)
        account.used += 1
        account.answers += len(turns)
        account.without_tools += any(map(_calls_without_tools, turns))

        # 2. Add the turns to their conversation.
        if "decision" not in row:
            conversations.append(turns)
            continue
        session = str(row.get("session"))
        before = sessions[session][-1].observation.messages if session in sessions else ()
        messages = turns[0].observation.messages
        if not before or messages[: len(before)] != before or len(messages) == len(before):
            sessions[session] = []
            conversations.append(sessions[session])
        sessions[session] += turns
    if not conversations:
        text, (line, example) = next(iter(account.first.items()))
        raise DataError(
            path, f"no row can be used: {text}: {example}".removesuffix(": "), line=line
        )
    return lessons(conversations), account


def _calls_without_tools(turn: Turn) -> bool:
    action = turn.decision.action
    return isinstance(action, ToolUse) and bool(action.calls) and not turn.observation.tools


def _served_answer(row: Mapping[str, Any], path: Path, line: int) -> Turn | Unusable:
    """An answer that `serve --record` kept. Raises DataError."""
    served = from_json(
        Observation, row.get("observation"), path=path, line=line, field="observation"
    )
    decision = from_json(Decision, row["decision"], path=path, line=line, field="decision")
    action = (
        decision.action if isinstance(decision.action, ToolUse) else ToolUse(str(decision.action))
    )
    if action.errors:
        return Unusable(REFUSED, action.errors[0])
    messages = [*served.messages, Message("assistant", action.text, action.calls)]
    *before, answer = _read_messages(messages, served.tools, spoken)
    if answer.fault:
        return answer.fault
    observation = replace(served, messages=tuple(logged.message for logged in before))
    use = ToolUse(answer.message.content, answer.message.calls)
    return Turn(observation, replace(decision, action=use), 0.0)


def _logged_answers(row: Mapping[str, Any]) -> list[Turn | Unusable]:
    """The answers in a conversation. Raises Unusable."""
    from reflectkit.envs.adapters.endpoint import Conversations, RequestError

    # 1. Read the row as a request.
    messages = _openai_messages(row)
    tools = _decoded(row.get("tools") or row.get("functions"))
    try:
        request = dumps({"model": "", "messages": messages, "tools": tools})
        observation = Conversations().read(request.encode()).observation
    except RequestError as error:
        raise Unusable(re.sub(r"\.\d+(?=[.:])", "", str(error))) from None
    # Half a surrogate pair, 1e999, or lists in lists without end
    except (ValueError, RecursionError) as error:
        raise Unusable("what JSON cannot hold", str(error)) from None

    # 2. Make a turn of each of the assistant's messages.
    weights = iter(
        [message.get("weight") for message in messages if message["role"] == "assistant"]
    )
    outcomes: list[Turn | Unusable] = []
    before: list[Message] = []
    for logged in _read_messages(observation.messages, observation.tools, _without_thoughts):
        message = logged.message
        if message.role == "assistant":
            seen_so_far = replace(observation, messages=tuple(before))
            use = ToolUse(message.content, message.calls)
            if next(weights) == 0:  # as in OpenAI's form for fine-tuning
                outcomes.append(Unusable("weight 0"))
            else:
                outcomes.append(
                    logged.fault or Turn(seen_so_far, Decision(use, logged.comment), 0.0)
                )
        before.append(message)
    return outcomes


def _openai_messages(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages of a row as OpenAI has them. Raises Unusable."""
    # The forms in which data sets have conversations
    if row.get("messages") is not None:
        messages = _message_list(row["messages"], "user")
    elif row.get("conversations") is not None:
        messages = _message_list(row["conversations"], "user")
    elif row.get("completion") is not None:
        context = _message_list(row.get("prompt") or [], "user")
        messages = [message | {"weight": 0} for message in context]
        messages += _message_list(row["completion"], "assistant")
    elif "session" in row and "reward" in row:
        raise Unusable("a reward that serve --record kept")
    else:
        raise Unusable("no messages", ", ".join(row))
    # A system's text may have a column of its own
    system = row.get("system")
    if isinstance(system, str) and system.strip() and messages and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system})
    return messages


def _message_list(value: Any, speaker: str) -> list[dict[str, Any]]:
    """A list of messages as OpenAI has them; a text is one of the `speaker`. Raises Unusable."""
    value = _decoded(value)
    if isinstance(value, str):
        return [{"role": speaker, "content": value}]
    if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
        raise Unusable("messages that are no list of objects", str(value))
    return list(map(_openai_message, value))


def _openai_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message in OpenAI's form, from that of ShareGPT, or with a `function_call` as before there
    were tools.
    """
    # ShareGPT says `from` and `value`
    role = message.get("role") or message.get("from")
    content = message.get("content") if "content" in message else message.get("value")
    converted = {
        **message,
        "role": SPEAKERS.get(str(role), role),
        "content": content,
        "function_call": None,
    }
    if message.get("function_call") is not None:
        converted["tool_calls"] = [{"function": message["function_call"]}]
    return converted


def _decoded(value: Any) -> Any:
    """A list of objects, which some data sets have as JSON text, because their columns hold one
    type.
    """
    if not isinstance(value, str) or not value.lstrip().startswith("["):
        return value
    try:
        return json.loads(value, parse_constant=int)  # which refuses NaN
    except (ValueError, RecursionError):
        return value


def _read_messages(
    messages: Sequence[Message], tools: Sequence[ToolSpec], without_thoughts: Callable[[str], str]
) -> Iterator[_LoggedMessage]:
    """`messages` with calls and results that are written into the words as what they are, and
    without thoughts. A result without a name is of the next call, and words before one are a call.
    """
    waiting: list[str] = []

    # 1. An answer, whose calls wait for results
    for place, message in enumerate(messages):
        if message.role == "assistant":
            words = without_thoughts(words_beside_calls(message)).strip()
            has_result = any(
                _results(after)[0].role == "tool" for after in messages[place + 1 : place + 2]
            )
            logged = _read_answer(words, message.calls, tools, must_call=has_result and not waiting)
            waiting = [call.name for call in logged.message.calls]
            yield logged
            continue

        # 2. A result, which belongs to the next call that waits
        for result in _results(message):
            if result.role == "tool" and waiting:
                name = result.name if result.name in waiting else waiting[0]
                waiting.remove(name)
                result = replace(result, name=result.name or name)
            yield _LoggedMessage(result)


def _read_answer(
    words: str, calls: Sequence[ToolCall], tools: Sequence[ToolSpec], *, must_call: bool
) -> _LoggedMessage:
    """What an assistant said and called. must_call: whether a result follows."""
    # 1. Calls may be written into the words
    comment = one_line(words)
    if words and not calls:
        try:
            calls, comment = _written_calls(words, tools, must_call=must_call)
        except Unusable as unusable:
            return _LoggedMessage(Message("assistant", words), fault=unusable)
    if not calls:
        fault = None if words else Unusable("neither words nor a call")
        return _LoggedMessage(Message("assistant", words), fault=fault)

    # 2. What play would refuse is not taught
    calls = tuple(drop_foreign_nulls(call, tools) for call in calls)
    message = written_message("", calls)
    for call in calls:
        if tools and (wrong := check_call(call, tools)):
            return _LoggedMessage(message, fault=Unusable(REFUSED, wrong))
    return _LoggedMessage(message, comment)


def _written_calls(
    words: str, tools: Sequence[ToolSpec], *, must_call: bool
) -> tuple[tuple[ToolCall, ...], str]:
    """The calls in `words`, in whichever form they are, and what is said before them. Raises
    Unusable for what must be, or looks like, a call and is none.
    """
    if not (must_call or looks_like_call(words, tools)):
        return (), ""
    # The first form in which all calls can be read
    for form in FORMS:
        use = parse(words, tools or tools_of_calls(words, form), form, replies=True)
        if use.calls and not use.errors:
            names = [call.name for call in use.calls]
            before = (
                form.words(words)
                if isinstance(form, CallForm)
                else words_before_any_call(words, names)
            )
            return use.calls, one_line(before)
    raise Unusable(REFUSED, words)


def _results(message: Message) -> list[Message]:
    """The results of calls that a message of the user or a tool consists of; otherwise the message
    itself.
    """
    if message.role == "system" or not RESULTS.fullmatch(message.content):
        return [message]
    return [
        Message("tool", content.strip(), name=message.name)
        for content in RESULT.findall(message.content)
    ]


def _without_thoughts(text: str) -> str:
    """`text` without reasoning, which may have begun in the prompt or not be ended."""
    # A thought that has begun in the prompt has an end only
    head, closed, rest = THOUGHT.sub("", text).partition("</think>")
    said = rest if closed else head
    return "" if said.lstrip().startswith("<think>") else said
