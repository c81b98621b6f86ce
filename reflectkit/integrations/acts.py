"""What an agent is shown in one's own program, and what it did: plain values around observations and decisions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reflectkit.errors import AgentError, ConfigError
from reflectkit.types import Decision, Message, Observation, ToolCall, ToolUse

Seen = str | Observation | Sequence[Message | Mapping[str, str]]
"""What an agent sees: a text; messages, oldest first, each a `Message` or `{"role": …, "content": …}`; or all of an
`Observation`.
"""


@dataclass(frozen=True, slots=True)
class Act:
    """What an agent did."""

    action: str
    """The choice; or the text that it wrote, tool calls included."""
    index: int | None = None
    """Index of the choice, from 0; None if there were no choices."""
    comment: str | None = None
    """The reflection that it read before it acted; None without a reflector."""
    probabilities: tuple[float, ...] = ()
    """Probability of each choice, in their order; empty without choices, and for chat models."""
    calls: tuple[ToolCall, ...] = ()
    """The valid tool calls, where tools are offered."""


def observation_of(seen: Seen, choices: Sequence[str] | None) -> Observation:
    """`seen` as an observation. Raises ConfigError."""
    legal = _legal(choices)
    if isinstance(seen, Observation):
        return dataclasses.replace(seen, choices=legal) if legal else seen
    if isinstance(seen, str):
        return Observation((Message("user", seen),), legal)
    if not isinstance(seen, Sequence) or not seen:
        raise ConfigError(f"what is seen must be a text, a list of messages or an Observation, not {seen!r:.80}")
    return Observation(tuple(map(_message, seen)), legal)


def _legal(choices: Any) -> tuple[str, ...]:
    """`choices`, checked; None is none."""
    legal = tuple(choices or ()) if choices is None or isinstance(choices, Sequence) else (None,)
    if isinstance(choices, str) or not all(isinstance(choice, str) and choice for choice in legal):
        raise ConfigError(f"choices must be a list of texts that are not empty, not {choices!r:.80}")
    return legal


def has_answers(observation: Observation) -> bool:
    """Whether the agent has already spoken in a conversation."""
    return any(message.role == "assistant" for message in observation.messages)


def _message(one: Any) -> Message:
    if isinstance(one, Message):
        return one
    role, content = (one.get("role"), one.get("content")) if isinstance(one, Mapping) else (None, None)
    if role not in ("system", "user", "assistant", "tool") or not isinstance(content, str):
        raise ConfigError(
            'a message must be a Message or {"role": "system", "user", "assistant" or "tool", "content": text}, not'
            f" {one!r:.80}"
        )
    return Message(role, content)


def as_act(observation: Observation, decision: Decision) -> Act:
    """`decision` about `observation` as an act. Raises AgentError for one that was not made."""
    if decision.failure is not None or decision.truncation_reason is not None:
        raise AgentError(str(decision.failure or decision.truncation_reason))
    action, comment = decision.action, decision.reflection
    if isinstance(action, int):
        return Act(observation.choices[action], action, comment, decision.probabilities)
    if isinstance(action, ToolUse):
        return Act(action.text, None, comment, calls=action.calls)
    return Act(action, None, comment)
