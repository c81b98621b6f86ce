"""Chat models as teachers and players. A teacher acts, or comments while an expert acts, and corrects mistakes.

Departs from the Reflect-RL code, which made two calls per step, accepted any text as a command, and continued after
failures.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from reflectkit.agents.budget import BudgetSpentError
from reflectkit.agents.calls import RESUMES
from reflectkit.agents.client import ChatClient
from reflectkit.agents.endpoints import ApiError
from reflectkit.agents.exchange import Outcome, Request
from reflectkit.agents.replies import Action, UnreadableError, parse_called, parse_comment, parse_reply, plain_comment
from reflectkit.agents.requests import (
    HISTORY_TOKENS,
    action_words,
    answer_text,
    commenting_request,
    playing_request,
    reflecting_request,
    teaching_request,
)
from reflectkit.agents.scripted import require_oracle
from reflectkit.agents.sessions import Asks
from reflectkit.core.errors import ConfigError, EnvironmentFailure
from reflectkit.core.protocols import Agent, Context
from reflectkit.core.seeding import generator
from reflectkit.core.tools import PLAIN, parse, reads_as_calls
from reflectkit.core.types import Decision, Observation, ToolUse

SPENT = "the budget is spent"


@dataclass(frozen=True, slots=True)
class Lesson:
    """A request to a teacher about one state. right: the best action if an expert acts; None if the teacher acts."""

    request: Request
    observation: Observation
    right: Action | None = None

    def read(self, text: str) -> tuple[str, Action | None]:
        """(comment, action) of an answer; the action is None if an expert acts. Raises ValueError with the reason."""
        if self.right is None and self.observation.tools:
            return parse_called(text, self.observation)
        if self.right is None:
            return parse_reply(text, self.observation.choices)
        return parse_comment(text, self.observation, self.right), None


class ChatTeacher:
    """Asks a chat model for an analysis and an action in one call, or only for a comment if an `actor` acts.

    actor: an expert, who also marks each action. The model then sees the env's best action, and must not name it.
    """

    def __init__(self, client: ChatClient, actor: Agent | None = None, history_tokens: int = HISTORY_TOKENS) -> None:
        self.client, self.actor, self.history_tokens = client, actor, history_tokens

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """The teacher's decision; a `failure` if there is no usable answer."""
        lesson = self.lesson(observation, context)
        return await self.decision(observation, context, await self.client.ask(lesson.request, lesson.read))

    def lesson(self, observation: Observation, context: Context) -> Lesson:
        """The request about `observation`."""
        if self.actor is None:
            request = teaching_request(observation, context, _corrects(observation, context), self.history_tokens)
            return Lesson(request, observation)
        right: Action = require_oracle(context.env).oracle()
        words = action_words(observation, right)
        request = commenting_request(observation, context, words, _mistaken(context), self.history_tokens)
        return Lesson(request, observation, right)

    async def decision(
        self, observation: Observation, context: Context, outcome: Outcome[tuple[str, Action | None]]
    ) -> Decision:
        """The decision from an answer: the model's own action, or the expert's with the model's comment."""
        if outcome.value is None:
            rejected = outcome.rejected
            reason = f"{rejected.explained} (the answer was: {rejected.text!r})" if rejected else SPENT
            return Decision(0, failure=reason)
        comment, action = outcome.value
        if action is None:
            assert self.actor is not None
            return replace(await self.actor.decide(observation, context), reflection=comment, answer=comment)
        note = "correction" if _corrects(observation, context) else "positive"
        return Decision(action, comment, note=note, answer=answer_text(comment, action))


class Rehearsal:
    """Plays the part of `teacher` with the answers that its journal holds, and asks nobody: where one is missing,
    `stand_in` acts and comments. requests: all that would be asked for. steps: of its episode, before each of them.
    """

    def __init__(self, teacher: ChatTeacher, stand_in: Agent) -> None:
        self.teacher, self.stand_in = teacher, stand_in
        self.requests: list[Request] = []
        self.steps: list[int] = []

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """The teacher's decision, or what the stand-in makes of the same state."""
        lesson = self.teacher.lesson(observation, context)
        self.requests.append(lesson.request)
        self.steps.append(len(context.turns))
        outcome = self.teacher.client.replay(lesson.request, lesson.read)
        if outcome is None:
            guess = await self.stand_in.decide(observation, context)
            outcome = Outcome((guess.reflection or "", guess.action if lesson.right is None else None))
        return await self.teacher.decision(observation, context, outcome)


class ChatPolicy:
    """A chat model that plays without hints, for comparison: one line of analysis and an action in one call per step.

    With tools, it writes calls in the plain form. reflector: a chat model that first comments on each state in one line
    (two calls per step), if any. history_tokens: approximate length of the earlier turns that both models see.
    """

    def __init__(
        self, client: ChatClient, reflector: ChatClient | None = None, history_tokens: int = HISTORY_TOKENS
    ) -> None:
        self.client, self.reflector, self.history_tokens = client, reflector, history_tokens

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """The model's decision; a `failure` if there is no usable answer, an `overflow` if no answer was a legal
        action.
        """
        comment: Outcome[str] = Outcome()
        if self.reflector is not None:
            request = reflecting_request(observation, context, self.history_tokens)
            comment = await self.reflector.ask(request, plain_comment)
            if comment.value is None:
                return Decision(0, failure=_reason(self.reflector, comment), price_usd=self._price(comment))
        unreadable = 0

        def read(text: str) -> tuple[str | None, int | ToolUse]:
            nonlocal unreadable
            try:
                return _played(text, observation)
            except UnreadableError:
                unreadable += 1
                raise

        outcome = await self.client.ask(playing_request(observation, context, comment.value, self.history_tokens), read)
        illegal, price = outcome.unparsed - unreadable, self._price(comment, outcome)
        if outcome.value is None:
            reason = _reason(self.client, outcome)
            if outcome.rejected and outcome.unparsed:
                return Decision(
                    0, comment.value, overflow=reason, illegal=illegal, unreadable=unreadable, price_usd=price
                )
            return Decision(0, comment.value, failure=reason, price_usd=price)
        thought, action = outcome.value
        if isinstance(action, ToolUse):
            unreadable += not (observation.replies or reads_as_calls(action.text, PLAIN))
        return Decision(
            action,
            thought if comment.value is None else comment.value,
            illegal=illegal,
            unreadable=unreadable,
            price_usd=price,
            tokens=outcome.tokens,
            answer=answer_text(thought, action),
        )

    def _price(self, *outcomes: Outcome[Any]) -> float | None:
        """Total cost of the outcomes; None if a model's price is unknown."""
        clients = [self.client] + ([self.reflector] if self.reflector else [])
        return sum(outcome.cost_usd for outcome in outcomes) if all(client.prices.known for client in clients) else None


class ChatReflector:
    """A chat model that comments for a trained policy: one line on what the policy sees, and no earlier turns.

    It is told the env's rules. At temperature 0, equal states are asked about once; else each turn draws its own.
    """

    def __init__(self, client: ChatClient) -> None:
        self.client = client
        self._asks = Asks()

    async def remark(self, observation: Observation, context: Context) -> str:
        """The comment that a policy sees in its turn.

        Raises
        ------
        EnvironmentFailure: no answer can be used. ApiError: the server does not answer. BudgetSpentError: the budget
        does not allow the call. The last two end the run, after the calls in flight are in the journal.
        """
        request = reflecting_request(observation, Context(context.seed if self.client.temperature else 0, context.env))
        self._asks.under_way += 1
        try:
            outcome = await self.client.ask(request, plain_comment)
        finally:
            self._asks.leave()
        if outcome.value is not None:
            return outcome.value
        who, rejected = f"the reflector {self.client.endpoint}", outcome.rejected
        if rejected is None:
            await self._asks.others()
            raise BudgetSpentError(
                f"{who} may cost {self.client.budget.limit:g} US dollars, and the next call could exceed that; run the"
                " same command again with a larger --max-cost-usd to continue"
            )
        if rejected.unanswered:
            await self._asks.others()
            raise ApiError(f"{who} gave {rejected.reason}; {RESUMES}")
        raise EnvironmentFailure(f"{who} gave no usable comment: {rejected.explained}")


class Recovery:
    """Plays a negative example: best actions, one of the env's `slips`, the correction by `teacher`, best actions."""

    def __init__(self, teacher: Agent) -> None:
        self.teacher = teacher

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """A best action, a slip, or the teacher's correction; the slip is drawn with the turn's seed."""
        env: Any = require_oracle(context.env)
        if not env.has("slips"):
            raise ConfigError(f"env '{env.name}' has no negative examples (no slips()); use --noise, and --negatives 0")
        if env.note() == "mistake":
            return await self.teacher.decide(observation, context)
        chance = generator(context.seed, "slip")
        if slips := env.slips():
            return Decision(chance.choice(slips), env.reflection(chance), note="mistake")
        return Decision(env.oracle(), env.reflection(chance), note="positive")


def _reason(client: ChatClient, outcome: Outcome[Any]) -> str:
    """Why the outcome has no value."""
    return f"{client.endpoint}: {outcome.rejected.explained if outcome.rejected else SPENT}"


def _played(text: str, observation: Observation) -> tuple[str | None, int | ToolUse]:
    """(analysis, action) of a reply. Raises ValueError."""
    if observation.tools:
        return None, parse(text, observation.tools, PLAIN, replies=observation.replies)
    return parse_reply(text, observation.choices)


def _corrects(observation: Observation, context: Context) -> bool:
    """Whether a teacher that acts corrects the last action here. What calls did wrong is in the state."""
    return _mistaken(context) and not observation.tools


def _mistaken(context: Context) -> bool:
    env: Any = context.env
    return bool(env.note() == "mistake")
