"""Renders all prompts: SFT rows and inference use the same functions, so they cannot differ.

Layout of a policy prompt: the observation, the reflection (if any), the numbered actions, the action marker. Tools come
first, if there are any, and the marker then asks for calls. A reflection prompt ends before the actions. Labels include
their leading space, so that a label in the list and in the answer are the same token.
"""

from __future__ import annotations

import string

from reflectkit.core.errors import ConfigError
from reflectkit.core.tools import tools_text
from reflectkit.core.types import Observation, ToolUse

REFLECTION_MARKER = "Reflection:"
ACTION_MARKER = "Action:"
CALLS_MARKER = "Calls:"

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
    if observation.tools:
        return f"{tools_text(observation.tools)}\n\n{observation.text}\n{comment}{CALLS_MARKER}"
    if not observation.choices:
        return f"{observation.text}\n{comment}{ACTION_MARKER}"
    actions = "\n".join(f"{label(index)} {choice}" for index, choice in enumerate(observation.choices))
    return f"{observation.text}\n{comment}Actions:\n{actions}\n{ACTION_MARKER}"


def action_completion(action: int | str | ToolUse) -> str:
    """The completion that the policy is trained on: a label, calls, or a line."""
    if isinstance(action, int):
        return label(action)
    return " " + (one_line(action) if isinstance(action, str) else action.text.strip())


def one_line(text: str) -> str:
    """`text` with runs of white space collapsed to a space, so that a comment cannot imitate the prompt's lines."""
    return " ".join(text.split())
