"""Sources of comments other than a reflection model, for ablations: the env's teacher, none, and shuffled comments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from reflectkit.env import Context, teacher_of
from reflectkit.seeding import generator
from reflectkit.types import Observation


class CommentSource(Protocol):
    """Comments on each turn before the policy acts."""

    async def remark(self, observation: Observation, context: Context) -> str:
        """A comment in one line."""


class TeacherComments:
    """The comments of the env's own teacher, which are always true."""

    async def remark(self, observation: Observation, context: Context) -> str:
        """The teacher's comment on the state of the turn's env. Raises ConfigError if it has no oracle teacher."""
        return teacher_of(context.env, "comment").comment(generator(context.seed, "comment"))


class NoComments:
    """An empty comment in each turn, with the marker around it."""

    async def remark(self, observation: Observation, context: Context) -> str:
        """Nothing."""
        return ""


class ShuffledComments:
    """Comments of `asked`, of which a share is replaced by comments on other states.

    others: the comments to draw those from, at least one. share: 0 … 1. The turn's seed decides which turns.
    """

    def __init__(self, asked: CommentSource, others: Sequence[str], share: float) -> None:
        self.asked, self.others, self.share = asked, tuple(others), share

    async def remark(self, observation: Observation, context: Context) -> str:
        """Another state's comment, or the comment of `asked`, which is called only then."""
        chance = generator(context.seed, "swapped comment")
        if chance.random() < self.share:
            return chance.choice(self.others)
        return await self.asked.remark(observation, context)
