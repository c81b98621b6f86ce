"""Renders all prompts: SFT rows and inference use the same functions, so they cannot differ.

Layout of a policy prompt: the observation, the reflection (if any), the numbered actions, the action marker. Tools come
first, if there are any, and the marker then asks for calls. A reflection prompt ends before the actions. Labels include
their leading space, so that a label in the list and in the answer are the same token. In a conversation, each prompt
begins with the one before it and its answer, comments included.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import replace

from reflectkit.core.errors import ConfigError
from reflectkit.core.tools import tools_text
from reflectkit.core.types import AGENT_MARKER, Message, Observation, ToolUse

REFLECTION_MARKER = "Reflection:"
ACTION_MARKER = "Action:"
CALLS_MARKER = "Calls:"
TURN_END = "\x1e"
"""Stands in prompts for the model's end token, after each of the agent's messages in a conversation."""

LABELS: tuple[str, ...] = (*(str(number) for number in range(200)), *string.ascii_lowercase, *string.ascii_uppercase)
"""Labels of the choices, in order; at most 252."""


def label(index: int) -> str:
    """The answer for choice `index`: a space and its label. Raises ConfigError past the last label."""
    if not 0 <= index < len(LABELS):
        raise ConfigError(f"choice {index} has no label: an observation offers at most {len(LABELS)} actions")
    return " " + LABELS[index]


def reflection_prompt(observation: Observation) -> str:
    """The prompt of the reflection model, which answers with one line."""
    return f"{observation.text}\n{REFLECTION_MARKER}"


def reflection_completion(reflection: str) -> str:
    """The completion that the reflection model is trained on."""
    return " " + one_line(reflection)


def policy_prompt(observation: Observation, reflection: str | None = None) -> str:
    """The prompt of the policy model, which answers with a label, tool calls, or, without choices and tools, free text.

    reflection: None for the plain arm or a dropped comment.
    """
    comment = "" if reflection is None else f"{REFLECTION_MARKER} {one_line(reflection)}\n"
    if observation.replies:
        tools = f"{tools_text(observation.tools)}\n\n" if observation.tools else ""
        return f"{tools}{_conversation(observation.messages)}\n{comment}{AGENT_MARKER}"
    if observation.tools:
        return f"{tools_text(observation.tools)}\n\n{observation.text}\n{comment}{CALLS_MARKER}"
    if not observation.choices:
        return f"{observation.text}\n{comment}{ACTION_MARKER}"
    actions = "\n".join(f"{label(index)} {choice}" for index, choice in enumerate(observation.choices))
    return f"{observation.text}\n{comment}Actions:\n{actions}\n{ACTION_MARKER}"


def _conversation(messages: Sequence[Message]) -> str:
    """The messages, one after the other; each of the agent's ends as it did when it was written."""
    ends = [TURN_END if message.role == "assistant" else "" for message in messages]
    lines = [message.line.replace(TURN_END, " ") for message in messages]
    return "\n".join(map("".join, zip(lines, ends, strict=True)))


def with_comments(observation: Observation, comments: Sequence[str | None]) -> Observation:
    """The conversation with the comments that the agent read before its messages, each as a message of the system.

    comments: of the agent's messages, in order; None where it read none.
    """
    earlier = iter(comments)
    messages: list[Message] = []
    for message in observation.messages:
        if message.role == "assistant" and (comment := next(earlier, None)) is not None:
            messages.append(Message("system", f"{REFLECTION_MARKER} {one_line(comment)}"))
        messages.append(message)
    return replace(observation, messages=tuple(messages))


def action_completion(action: int | str | ToolUse) -> str:
    """The completion that the policy is trained on: a label, calls, or a line."""
    if isinstance(action, int):
        return label(action)
    return " " + (one_line(action) if isinstance(action, str) else action.text.strip())


def one_line(text: str) -> str:
    """`text` with runs of white space collapsed to a space, so that a comment cannot imitate the prompt's lines."""
    return " ".join(text.split())
