"""Who sits at the other end of a conversation: a protocol for chat models, people and simulators."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Protocol

from reflectkit.core.types import Message


@dataclass(frozen=True, slots=True)
class UserTurn:
    """What the user says, and whether they end the conversation with it."""

    text: str
    over: bool = False


class User(Protocol):
    """A user who is told who they are and what they want; it keeps nothing between calls, so that concurrent episodes
    share it.
    """

    def say(self, instructions: str, conversation: Sequence[Message], seed: int) -> UserTurn | Awaitable[UserTurn]:
        """The user's next message.

        Parameters
        ----------
        instructions: who the user is, what they want, and what they know. conversation: what user and agent have said
        to each other, oldest first; empty at the start. seed: of the turn, 0 ≤ seed < 2**63.

        Raises EnvironmentFailure where nobody answers.
        """
        ...
