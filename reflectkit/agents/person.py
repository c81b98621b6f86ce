"""A person as the user whom an agent with tools talks with (`play --as user`): reads who they are, then the agent's
words, and never its calls.
"""

from __future__ import annotations

from collections.abc import Sequence

from reflectkit.agents.human import LEFT
from reflectkit.core.console import Progress
from reflectkit.core.errors import EnvironmentFailure
from reflectkit.core.types import AGENT_MARKER, Message
from reflectkit.core.users import UserTurn

QUESTION = "You: "
GOODBYE = "Goodbye."
KEYS = "Write what you say. i: your instructions; e: say goodbye, which ends the conversation; q: leave"


class PersonUser:
    """The person at the other end of `progress`.

    left: whether they have gone; no further episode should begin then. answered: whether there was any answer at all.
    """

    def __init__(self, progress: Progress) -> None:
        self.progress, self.left, self.answered = progress, False, False

    def say(self, instructions: str, conversation: Sequence[Message], seed: int) -> UserTurn:
        """What the person writes; everything else waits for it. Raises EnvironmentFailure once they have left."""
        if conversation:
            self.progress.show(conversation[-1].line if conversation[-1].role == "assistant" else AGENT_MARKER)
        else:
            self.progress.show(f"{instructions}\n{KEYS}.")
        while (text := self.progress.ask(QUESTION)) is not None:
            self.answered = True
            said = text.strip()
            if said == "q":
                break
            if said == "e" and conversation:
                return UserTurn(GOODBYE, over=True)
            if said and said not in ("i", "e"):
                return UserTurn(said)
            self.progress.show(instructions if said == "i" else f"Nothing was said. {KEYS}.")
        self.left = True
        raise EnvironmentFailure(LEFT)
