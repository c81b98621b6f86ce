"""Who comments on a turn before the policy acts, when it is not a reflection model: the env's teacher, nobody, or
somebody who speaks of another state.

They answer what a comment is worth: a policy that was trained on comments is played with better, empty and wrong ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from reflectkit.env import Context, teacher_of
from reflectkit.seeding import generator
from reflectkit.types import Observation


class CommentSource(Protocol):
    """Whoever comments on a turn before the policy acts."""

    async def remark(self, observation: Observation, context: Context) -> str:
        """A comment in one line."""


class TeacherComments:
    """The env's own teacher in the reflector's place: comments without a fault."""

    async def remark(self, observation: Observation, context: Context) -> str:
        """The teacher's comment on the state of the turn's env. Raises ConfigError if it has no oracle teacher."""
        return teacher_of(context.env, "comment").comment(generator(context.seed, "comment"))


class NoComments:
    """An empty comment in each turn: the words around it, and nothing in them."""

    async def remark(self, observation: Observation, context: Context) -> str:
        """Nothing."""
        return ""


class ShuffledComments:
    """Comments of `asked`, of which a share is replaced by comments on other states.

    others: the comments to draw those from, at least one. share: 0 … 1. Which turn gets what depends on the turn's seed
    alone.
    """

    def __init__(self, asked: CommentSource, others: Sequence[str], share: float) -> None:
        self.asked, self.others, self.share = asked, tuple(others), share

    async def remark(self, observation: Observation, context: Context) -> str:
        """The comment of `asked`, which is not asked where another one takes its place."""
        chance = generator(context.seed, "swapped comment")
        if chance.random() < self.share:
            return chance.choice(self.others)
        return await self.asked.remark(observation, context)
