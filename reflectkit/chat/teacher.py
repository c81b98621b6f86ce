"""Chat models as teachers: they act, or comment while an expert acts, and correct mistakes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from reflectkit.chat.client import ChatClient, Outcome, Request
from reflectkit.chat.config import HISTORY_TOKENS
from reflectkit.chat.templates import (
    Action,
    action_words,
    answer_text,
    commenting_request,
    parse_called,
    parse_comment,
    parse_reply,
    teaching_request,
)
from reflectkit.env import Agent, Context, teacher_of
from reflectkit.types import Decision, Observation

Lesson = tuple[str, Action | None]
"""A comment and an action; None if an expert acts."""


class ChatTeacher:
    """Asks a chat model for an analysis and an action in one call, or only for a comment if an `actor` acts.

    actor: an expert, who also marks each action. The model then sees the env's best action, and must not name it.
    """

    def __init__(self, client: ChatClient, actor: Agent | None = None, history_tokens: int = HISTORY_TOKENS) -> None:
        self.client, self.actor, self.history_tokens = client, actor, history_tokens

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """The teacher's decision; a `failure` if there is no usable answer."""
        request, read = self.ask(observation, context)
        return await self.decision(observation, context, await self.client.ask(request, read))

    def ask(self, observation: Observation, context: Context) -> tuple[Request, Callable[[str], Lesson]]:
        """The request about `observation`, and the parser of its answer, which raises ValueError with the reason."""
        if self.actor is None:
            request = teaching_request(observation, context, _corrects(observation, context), self.history_tokens)
            if observation.tools:
                return request, partial(parse_called, observation=observation)
            return request, partial(parse_reply, choices=observation.choices)
        right: Action = teacher_of(context.env).action()
        words = action_words(observation, right)
        request = commenting_request(observation, context, words, _mistaken(context), self.history_tokens)
        return request, lambda text: (parse_comment(text, observation, right), None)

    async def decision(self, observation: Observation, context: Context, outcome: Outcome[Lesson]) -> Decision:
        """The decision from an answer: the model's own action, or the expert's with the model's comment."""
        if outcome.value is None:
            text = f" (the answer was: {outcome.rejected.text!r})" if outcome.rejected else ""
            return Decision(0, failure=outcome.reason + text)
        comment, action = outcome.value
        if action is None:
            assert self.actor is not None
            return replace(await self.actor.decide(observation, context), reflection=comment, answer=comment)
        note = "correction" if _corrects(observation, context) else "positive"
        return Decision(action, comment, note=note, answer=answer_text(comment, action))


class Rehearsal:
    """Plays the part of `teacher` with the answers that its journal holds, without calls: where an answer is missing,
    `stand_in` acts and comments. requests: all that would be sent. steps: of its episode, before each of them.
    """

    def __init__(self, teacher: ChatTeacher, stand_in: Agent) -> None:
        self.teacher, self.stand_in = teacher, stand_in
        self.requests: list[Request] = []
        self.steps: list[int] = []

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """The teacher's decision, or the stand-in's."""
        request, read = self.teacher.ask(observation, context)
        self.requests.append(request)
        self.steps.append(len(context.turns))
        outcome = self.teacher.client.replay(request, read)
        if outcome is None:
            guess = await self.stand_in.decide(observation, context)
            outcome = Outcome((guess.reflection or "", guess.action if self.teacher.actor is None else None))
        return await self.teacher.decision(observation, context, outcome)


def _corrects(observation: Observation, context: Context) -> bool:
    """Whether a teacher that acts corrects the last action here. What calls did wrong is in the state."""
    return _mistaken(context) and not observation.tools


def _mistaken(context: Context) -> bool:
    return context.env.teacher().note() == "mistake"
