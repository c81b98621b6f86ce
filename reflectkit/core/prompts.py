"""The only renderer: SFT rows and the prompts at inference are made by these functions, so they cannot differ.

Layout of a policy prompt: the observation, the reflection (where there is one), the numbered actions, the action
marker. Where there are tools they stand first, and the marker asks for calls. A reflection prompt stops before the
actions. Labels carry their leading space, so that a label in the list and the label that answers are the same token.
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
"""What names the choices, in order: at most 252 of them."""


def label(index: int) -> str:
    """The text that answers with choice `index`: a space and its label. Raises ConfigError past the last label."""
    if not 0 <= index < len(LABELS):
        raise ConfigError(f"choice {index} has no label: an observation offers at most {len(LABELS)} actions")
    return " " + LABELS[index]


def reflection_prompt(observation: Observation) -> str:
    """What the reflection model reads; it answers with one line."""
    return f"{observation.text}\n{REFLECTION_MARKER}"


def reflection_completion(reflection: str) -> str:
    """What the reflection model is trained to write after its prompt."""
    return " " + one_line(reflection)


def policy_prompt(observation: Observation, reflection: str | None = None) -> str:
    """What the policy model reads; it answers with a label, with calls of tools, or in its own words where there are
    neither.
    None: no reflection (the plain arm, or a dropped comment).
    """
    comment = "" if reflection is None else f"{REFLECTION_MARKER} {one_line(reflection)}\n"
    if observation.tools:
        return f"{tools_text(observation.tools)}\n\n{observation.text}\n{comment}{CALLS_MARKER}"
    if not observation.choices:
        return f"{observation.text}\n{comment}{ACTION_MARKER}"
    actions = "\n".join(f"{label(index)} {choice}" for index, choice in enumerate(observation.choices))
    return f"{observation.text}\n{comment}Actions:\n{actions}\n{ACTION_MARKER}"


def action_completion(action: int | str | ToolUse) -> str:
    """What the policy is trained to write after its prompt: a label, calls, or a line."""
    if isinstance(action, int):
        return label(action)
    return " " + (one_line(action) if isinstance(action, str) else action.text.strip())


def one_line(text: str) -> str:
    """`text` with every run of white space made one space: a comment cannot forge the prompt's own lines."""
    return " ".join(text.split())
