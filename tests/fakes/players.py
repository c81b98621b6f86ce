"""A player that does what it was given."""

from __future__ import annotations

import asyncio
from typing import Any

from reflectkit.types import Decision


class Plays:
    """Takes the given actions in order, and then begins again; `wait_s` seconds each."""

    def __init__(self, *actions: Any, wait_s: float = 0.0) -> None:
        self.actions, self.wait_s = actions, wait_s

    async def decide(self, observation: Any, context: Any) -> Decision:
        await asyncio.sleep(self.wait_s)
        return Decision(self.actions[len(context.turns) % len(self.actions)])
