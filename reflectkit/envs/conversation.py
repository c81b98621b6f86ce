"""The transcript of a conversation between a user and an agent with tools, as every env of this kind keeps it.

An agent's action is one call of a tool or one reply to the user. Anything else (several calls, a call with an error, no
words) is refused: nothing is executed, and the agent reads why. The transcript only grows, and holds the agent's text
as it was written, so that a prompt begins with the one before it. The user reads the same text without reasoning and
marks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from reflectkit.core.errors import IllegalActionError
from reflectkit.core.types import Message, Observation, ToolCall, ToolSpec, ToolUse

LONGEST = 2000
"""Characters of a user's message; the rest is cut off."""
LONGEST_RESULT = 16_000
"""Characters of a tool's result; the rest is cut off, with a note."""
LONGEST_REPLY = 16_000
"""Likewise of the agent's reply, as the user reads it."""
ONE_CALL = "call one tool, or reply to the user; nothing was executed"

OPENED, CLOSED = "<think>", "</think>"
MARKS = re.compile(
    r"<\|[^<>|\s]{1,40}\|>"  # <|im_end|>, <|python_tag|>
    r"|</?(?:tool_call|tool_response|think|s|pad|bos|eos|unk|start_of_turn|end_of_turn)>"
    r"|\[/?(?:INST|TOOL_CALLS|TOOL_RESULTS|AVAILABLE_TOOLS)\]"
    r"|\x1e"
)


@dataclass(frozen=True, slots=True)
class Reply:
    """What the agent says to the user: its words, without reasoning and marks."""

    text: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an action is neither a call nor a reply, for the agent to read. parts: how many parts of it were refused."""

    text: str
    parts: int = 1


def read_action(action: int | str | ToolUse, env: str) -> ToolCall | Reply | Refusal:
    """What `action` is. Text is a reply. env: the env's name.

    Raises IllegalActionError for a choice.
    """
    if isinstance(action, str):
        action = ToolUse(action)
    if not isinstance(action, ToolUse):
        raise IllegalActionError(f"{env}: no action {action!r:.80}; it takes calls of its tools and replies")
    count = len(action.calls) + len(action.errors)
    if count > 1:
        return Refusal("; ".join([*action.errors, f"{count} calls at once: {ONE_CALL}"]), count)
    if action.errors:
        return Refusal(f"{action.errors[0]}; nothing was executed")
    if action.calls:
        return action.calls[0]
    words = spoken(action.text)
    return Reply(words) if words else Refusal(f"no call and no words for the user: {ONE_CALL}")


def spoken(text: str) -> str:
    """What the user hears of the agent's `text`: without reasoning, even if it was not ended, and special marks.

    >>> spoken("<think>An old order.</think>\\n\\nWhich order is it?<|im_end|>")
    'Which order is it?'
    """
    text = _without_thoughts(text).rpartition(CLOSED)[2].partition(OPENED)[0]
    return cut(MARKS.sub("", text).strip(), LONGEST_REPLY)


def _without_thoughts(text: str) -> str:
    """`text` without reasoning between two marks; in linear time, also where a mark comes a thousand times."""
    kept, at = [], 0
    while (start := text.find(OPENED, at)) >= 0 and (end := text.find(CLOSED, start)) >= 0:
        kept.append(text[at:start])
        at = end + len(CLOSED)
    return "".join(kept) + text[at:]


def cut(text: str, limit: int) -> str:
    """`text`, or its first `limit` characters and a note. Halves of surrogate pairs are replaced.

    >>> cut("a" * 1000, 5)
    'aaaaa [cut: 5 of 1,000 characters]'
    """
    kept = text[:limit].encode(errors="replace").decode()
    return kept if len(text) <= limit else f"{kept} [cut: {limit:,} of {len(text):,} characters]"


class Transcript:
    """The conversation that the agent sees, and in `spoken` the part that the user sees.

    env: the env's name. policy: what the agent reads first, as the system's message.
    """

    def __init__(self, env: str, policy: str) -> None:
        self.env = env
        self.messages = [Message("system", policy)] if policy else []
        self.spoken: list[Message] = []

    def observe(self, tools: Sequence[ToolSpec]) -> Observation:
        """The conversation so far."""
        return Observation(tuple(self.messages), tools=tuple(tools), replies=True)

    def add_user(self, text: str) -> None:
        """The user says `text`."""
        message = Message("user", cut(text.strip(), LONGEST))
        self.messages.append(message)
        self.spoken.append(message)

    def add_action(self, action: int | str | ToolUse) -> ToolCall | Reply | Refusal:
        """The agent acts. A refusal is told to it at once; the result of a call (`add_result`) and the user's answer to
        a reply (`add_user`) are the caller's to add.

        Raises IllegalActionError for a choice.
        """
        meaning = read_action(action, self.env)
        text, calls = (action.text, action.calls) if isinstance(action, ToolUse) else (str(action), ())
        self.messages.append(Message("assistant", text, calls))
        if isinstance(meaning, Reply):
            self.spoken.append(Message("assistant", meaning.text))
        elif isinstance(meaning, Refusal):
            self.messages.append(Message("tool", meaning.text))
        return meaning

    def add_result(self, tool: str, text: str) -> str:
        """The call of `tool` returns `text`; what the agent reads of it."""
        shown = cut(text, LONGEST_RESULT)
        self.messages.append(Message("tool", shown, name=tool))
        return shown
