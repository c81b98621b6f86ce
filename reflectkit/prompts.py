"""Renders all prompts: SFT rows and inference use the same functions, so they cannot differ.

Layout of a policy prompt: the observation, the reflection (if any), the actions, the action marker.
Tools come first, if there are any, and the marker then asks for calls. A reflection prompt ends
before the actions. The actions are numbered where the answer is a label, and stand alone where it
is their own words. A prompt after which each action is read alone and given a score lists none.
Answers include their leading space, so that they are the same tokens in the list. In a
conversation, each prompt begins with the one before it and its answer, comments included.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from dataclasses import replace

from reflectkit.errors import ConfigError
from reflectkit.tools import tools_text
from reflectkit.types import AGENT_MARKER, Message, Observation, ToolUse

PROMPT_VERSION = 4
"""Raise it when a text that models see changes, here or in an environment of the package:
checkpoints record it, and a player trained on another is warned of.
"""
REFLECTION_MARKER = "Reflection:"
ACTIONS_MARKER = "Actions:"
ACTION_MARKER = "Action:"
CALLS_MARKER = "Calls:"
THEN_ACT = f"\n{ACTION_MARKER}"
"""Between the comment and the action of a policy that thinks first."""
RESULT_MARKER = "Result of"
"""Begins a tool's result where a chat template has no role for it."""
UNSEEN = "\u200b"  # zero-width space
IMITATION = re.compile(
    rf"(?:^|(?<=[\r\v\f\x85\u2028\u2029]))[^\S\n]{{0,40}}(?:{REFLECTION_MARKER}|{RESULT_MARKER}\b)",
    re.MULTILINE | re.IGNORECASE,
)
TURN_END = "\x1e"
"""Stands in prompts for the model's end token, after each of the agent's messages in a
conversation.
"""

LABELS: tuple[str, ...] = (
    *(str(number) for number in range(200)),
    *string.ascii_lowercase,
    *string.ascii_uppercase,
    *("200", "201", "202"),
)
"""Labels of the choices, in order; 255, as many as a question of the decision protocols may have.
New ones go to the end, since policies have learned the places of the others.
"""


def label(index: int) -> str:
    """The answer for choice `index`: a space and its label. Raises ConfigError past the last label."""
    if not 0 <= index < len(LABELS):
        raise ConfigError(
            f"choice {index} has no label: an observation offers at most {len(LABELS)} actions"
        )
    return " " + LABELS[index]


def answers(choices: Sequence[str], form: str) -> tuple[str, ...]:
    """The policy's answer for each of `choices`, with its leading space.

    form: "label", or "text" and "score" for the choice's own words. A choice that has none, or the
    same as another, is told apart by a number.

    Raises ConfigError: there are more choices than labels.

    >>> answers(["left", "right", "left", ""], "text")
    (' left', ' right', ' left (2)', ' (empty)')
    """
    if form == "label":
        return tuple(label(index) for index in range(len(choices)))
    texts: dict[str, None] = {}
    for choice in choices:
        words = one_line(choice) or "(empty)"
        text, number = f" {words}", 1
        while text in texts:
            number += 1
            text = f" {words} ({number})"
        texts[text] = None
    return tuple(texts)


def listed_answers(prompt: str, form: str) -> tuple[str, ...]:
    """The legal answers that the policy's `prompt` lists, as `policy_prompt` wrote it; none without
    actions.
    """
    # The last list, as the observation may contain one, too
    _, marker, listed = prompt.rpartition(f"\n{ACTIONS_MARKER}\n")
    if not marker or not listed.endswith(f"\n{ACTION_MARKER}"):
        return ()
    lines = listed.split("\n")[:-1]
    if form != "label":
        return tuple(lines)
    # Where a choice has several lines, those after the first have no label
    labels: list[str] = []
    for line in lines:
        if len(labels) < len(LABELS) and line.startswith(f"{label(len(labels))} "):
            labels.append(label(len(labels)))
    return tuple(labels)


def reflection_prompt(observation: Observation) -> str:
    """The prompt of the reflection model, which answers with one line."""
    return f"{observation.text}\n{REFLECTION_MARKER}"


def reflection_completion(reflection: str) -> str:
    """The completion that the reflection model is trained on."""
    return " " + one_line(reflection)


def policy_prompt(
    observation: Observation, reflection: str | None = None, form: str = "label"
) -> str:
    """The prompt of the policy model, which answers with a choice, tool calls, or, without either,
    free text.

    reflection: None for the plain arm or a dropped comment. form: of the answer for a choice, see
    `answers`.
    """
    comment = "" if reflection is None else f"{REFLECTION_MARKER} {one_line(reflection)}\n"
    # 1. A conversation
    if observation.replies:
        tools = f"{tools_text(observation.tools)}\n\n" if observation.tools else ""
        return f"{tools}{_conversation(observation.messages)}\n{comment}{AGENT_MARKER}"
    # 2. Calls of tools
    if observation.tools:
        return f"{tools_text(observation.tools)}\n\n{observation.text}\n{comment}{CALLS_MARKER}"
    # 3. Free text, or choices of which each is read alone
    if not observation.choices or form == "score":
        return f"{observation.text}\n{comment}{ACTION_MARKER}"
    # 4. A list of choices
    lines = list(answers(observation.choices, form))
    if form == "label":
        for index, choice in enumerate(observation.choices):
            lines[index] += f" {choice}"
    actions = "\n".join(lines)
    return f"{observation.text}\n{comment}{ACTIONS_MARKER}\n{actions}\n{ACTION_MARKER}"


def thinking_prompt(observation: Observation, form: str = "label") -> str:
    """The prompt of a policy that first writes a comment and then, after THEN_ACT, acts: all but
    the action marker.
    """
    return policy_prompt(observation, None, form).removesuffix(ACTION_MARKER) + REFLECTION_MARKER


def _conversation(messages: Sequence[Message]) -> str:
    """The messages, one after the other; the agent's own are as it wrote them, with the end token
    after each.
    """
    entries = []
    for message in messages:
        if message.role == "assistant":
            space = "" if message.content.startswith(" ") else " "
            entries.append(
                f"{AGENT_MARKER}{space}{message.content.replace(TURN_END, ' ')}{TURN_END}"
            )
        else:
            entries.append(message.entry.replace(TURN_END, " "))
    return "\n".join(entries)


def with_comments(observation: Observation, comments: Sequence[str | None]) -> Observation:
    """The conversation with the comments that the agent read before its messages, each as a message
    of the system.

    comments: of the agent's messages, in order; None where it read none.
    """
    remaining = iter(comments)
    messages: list[Message] = []
    for message in observation.messages:
        if message.role == "assistant":
            comment = next(remaining, None)
            if comment is not None:
                messages.append(Message("system", f"{REFLECTION_MARKER} {one_line(comment)}"))
        messages.append(message)
    return replace(observation, messages=tuple(messages))


def as_data(text: str) -> str:
    """`text` with a zero-width space in what begins a line as a comment or a result does, so that
    what users and tools say in several lines cannot imitate one.
    """
    return IMITATION.sub(lambda match: f"{match[0][:-1]}{UNSEEN}{match[0][-1]}", text)


def action_completion(action: int | str | ToolUse) -> str:
    """The completion that the policy is trained on: a label, calls, or a line."""
    if isinstance(action, int):
        return label(action)
    return " " + (one_line(action) if isinstance(action, str) else action.text.strip())


def one_line(text: str) -> str:
    """`text` with runs of white space collapsed to a space, so that a comment cannot imitate the
    prompt's lines.
    """
    return " ".join(text.split())
